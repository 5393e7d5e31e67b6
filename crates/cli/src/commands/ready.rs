//! `kvplane ready`: the probe of whoever starts a kvplane, where there is no other HTTP client.

use anyhow::anyhow;
use http::Method;
use serde_json::Value;

use super::Failure;
use super::http_client::answer;
use super::page::print;
use crate::args::ReadyArgs;

pub(crate) async fn run(args: ReadyArgs) -> Result<(), Failure> {
    let (server, key) = (&args.server.server, &args.server.key);
    let path = if args.strict { "/readyz?strict=1" } else { "/readyz" };
    let (status, verdict) = answer(server, key, Method::GET, path, None).await?;
    match &verdict["ready"] {
        // An engine that is down does not make the plane unready; but it is said.
        Value::Bool(true) => print(&format!("ready{}\n", reasons(&verdict))),
        Value::Bool(false) => {
            Err(anyhow!("not ready{}; `kvplane doctor` says what is wrong", reasons(&verdict)).into())
        }
        _ => Err(anyhow!(
            "{server} answers {status}, and not as a kvplane: name its HTTP address with --server"
        )
        .into()),
    }
}

/// Callers who may not read are told none.
fn reasons(verdict: &Value) -> String {
    let reasons = verdict["reasons"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let listed: Vec<&str> = reasons.collect();
    if listed.is_empty() { String::new() } else { format!(": {}", listed.join("; ")) }
}
