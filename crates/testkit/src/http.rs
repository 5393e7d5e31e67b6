//! HTTP requests to a plane.

use std::net::SocketAddr;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// Status and body of an HTTP request with a JSON body.
pub async fn call(address: SocketAddr, method: &str, path: &str, body: &Value) -> (u16, Value) {
    send(address, method, path, body.to_string()).await
}

/// Status and body of an HTTP request, the body as JSON.
pub async fn send(address: SocketAddr, method: &str, path: &str, body: String) -> (u16, Value) {
    let (status, body) = text(address, method, path, body).await;
    (status, serde_json::from_str(&body).unwrap_or_default())
}

/// Status and body of an HTTP request.
pub async fn text(address: SocketAddr, method: &str, path: &str, body: String) -> (u16, String) {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let request = Request::builder()
        .method(method)
        .uri(format!("http://{address}{path}"))
        .header("content-type", "application/json");
    let response = client.request(request.body(Full::from(body)).unwrap()).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}
