//! `kvplane ready`: a readiness probe for machines that have no other HTTP client.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::anyhow;
use http::Method;
use serde_json::Value;

use super::http_client::{answer, answer_of_own};
use super::page::print;
use super::{Failure, usage};
use crate::args::ReadyArgs;
use crate::config::load_file;

pub(crate) async fn run(args: ReadyArgs) -> Result<(), Failure> {
    let path = if args.strict { "/readyz?strict=1" } else { "/readyz" };
    let (server, (status, verdict)) = if let Some(file) = &args.config {
        let listen = load_file(file, std::env::vars()).map_err(usage)?.listen;
        let address = reachable(listen.http);
        if address.port() == 0 {
            let message = "listen.http has port 0: name the address that the log says with --server";
            return Err(usage(anyhow!(message)));
        }
        (address.to_string(), answer_of_own(address, listen.tls.is_some(), path).await?)
    } else {
        let (server, key) = (&args.server.server, &args.server.key);
        (server.clone(), answer(server, key, Method::GET, path, None).await?)
    };
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

/// Where a listener of this machine is reached from this machine.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// Callers without the role `read` get none.
fn reasons(verdict: &Value) -> String {
    let reasons = verdict["reasons"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let listed: Vec<&str> = reasons.collect();
    if listed.is_empty() { String::new() } else { format!(": {}", listed.join("; ")) }
}
