//! Asking a running kvplane over HTTP.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use http::{Method, Request, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use super::{Failure, usage};

/// A plane that has not answered by then is not going to.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Sends a request, with JSON if there is any, and returns the JSON of the answer (null if it is empty). What the plane
/// refuses is a failure in its words.
pub(crate) async fn ask(
    server: &str,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, Failure> {
    let base = if server.contains("://") { server.to_owned() } else { format!("http://{server}") };
    let not_an_address =
        || usage(anyhow!("--server {server:?} is not an address like http://127.0.0.1:8090"));
    let uri: Uri = format!("{}{path}", base.trim_end_matches('/')).parse().map_err(|_| not_an_address())?;
    if uri.scheme_str() != Some("http") {
        return Err(not_an_address());
    }
    let text = body.map(Value::to_string).unwrap_or_default();
    let request = Request::builder().method(method).uri(uri).header("content-type", "application/json");
    let request = request.body(Full::new(Bytes::from(text))).context("cannot make a request")?;
    let client = Client::builder(TokioExecutor::new()).build_http();
    let answer = async {
        let response = client.request(request).await.map_err(|error| {
            let cause =
                std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            anyhow!("no kvplane answers at {server}: {cause}; is `kvplane serve` running?")
        })?;
        let status = response.status();
        let body = response.into_body().collect().await.context("the answer broke off")?.to_bytes();
        Ok::<_, anyhow::Error>((status, body))
    };
    let (status, body) = tokio::time::timeout(ANSWER_WITHIN, answer)
        .await
        .map_err(|_| anyhow!("no answer from {server} within {} s", ANSWER_WITHIN.as_secs()))??;
    let json: Value = if body.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&body)
            .with_context(|| format!("{server} answers {status}, and not as a kvplane"))?
    };
    if status.is_success() {
        return Ok(json);
    }
    let message = json["error"]["message"].as_str().unwrap_or("refused without a reason");
    let mistake = json["error"]["blame"] == "caller";
    Err(Failure { code: if mistake { 2 } else { 1 }, error: anyhow!("{message}") })
}
