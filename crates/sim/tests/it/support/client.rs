//! Questions to an engine's HTTP server.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::TokioExecutor;
use kvplane_sim::SimHandle;
use serde_json::Value;

/// Status and body of what a server answers, or why there is none.
pub async fn ask(
    server: SocketAddr,
    method: Method,
    path: &str,
    body: &Value,
) -> Result<(StatusCode, Bytes), Error> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let uri = format!("http://{server}{path}");
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = Request::builder().method(method).uri(uri).header("content-type", "application/json");
    let response = client.request(request.body(Full::from(body)).unwrap()).await?;
    let status = response.status();
    Ok((status, response.into_body().collect().await.unwrap().to_bytes()))
}

pub async fn call(engine: &SimHandle, method: Method, path: &str, body: Value) -> (StatusCode, String) {
    let (status, body) = ask(engine.http_address().unwrap(), method, path, &body).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

pub async fn get(engine: &SimHandle, path: &str) -> (StatusCode, String) {
    call(engine, Method::GET, path, Value::Null).await
}

pub async fn post(engine: &SimHandle, path: &str, body: Value) -> (StatusCode, Value) {
    let (status, text) = call(engine, Method::POST, path, body).await;
    (status, serde_json::from_str(&text).unwrap_or(Value::Null))
}
