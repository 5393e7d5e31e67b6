//! Asking a running kvplane over HTTP.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::uri::{Authority, PathAndQuery};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::{self, pki_types::ServerName};
use tokio_util::either::Either;

use super::engines::escaped;
use super::key::unchecked_connector;
use super::{Failure, usage};
use crate::args::KeyArgs;

/// A plane that has not answered by then is not going to.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
const NO_TLS: &str = "the server does not use TLS: use http";

/// Sends a request, with JSON if there is any, and returns the JSON of the answer (null if it is empty). What
/// the plane refuses is a failure in its words.
pub(crate) async fn ask(
    server: &str,
    key: &KeyArgs,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, Failure> {
    ask_text(server, key, method, path, body.map(Value::to_string)).await
}

/// The same with a body that is JSON already: keys keep their order.
pub(crate) async fn ask_text(
    server: &str,
    key: &KeyArgs,
    method: Method,
    path: &str,
    body: Option<String>,
) -> Result<Value, Failure> {
    let (status, json) = answer_to_text(server, key, method, path, body).await?;
    if status.is_success() {
        return Ok(json);
    }
    let mistake = json["error"]["blame"] == "caller";
    Err(Failure { code: if mistake { 2 } else { 1 }, error: anyhow!(refusal(server, status, &json)) })
}

/// Why a plane refuses and what to do next, in its words.
pub(crate) fn refusal(server: &str, status: StatusCode, answer: &Value) -> String {
    let error = &answer["error"];
    let message = error["message"]
        .as_str()
        .map_or_else(|| format!("{server} answers {status} without a reason"), str::to_owned);
    let next = error["next"].as_str().map(|next| format!("; {next}")).unwrap_or_default();
    format!("{message}{next}")
}

/// The same, whatever the status of the answer.
pub(crate) async fn answer(
    server: &str,
    key: &KeyArgs,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<(StatusCode, Value), Failure> {
    answer_to_text(server, key, method, path, body.map(Value::to_string)).await
}

async fn answer_to_text(
    server: &str,
    key: &KeyArgs,
    method: Method,
    path: &str,
    body: Option<String>,
) -> Result<(StatusCode, Value), Failure> {
    let base = if server.contains("://") { server.to_owned() } else { format!("http://{server}") };
    let not_an_address = || usage(anyhow!("invalid --server {server:?}: expected http://host:port"));
    let uri: Uri = format!("{}{path}", base.trim_end_matches('/')).parse().map_err(|_| not_an_address())?;
    let secure = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(not_an_address()),
    };
    let authority = uri.authority().ok_or_else(not_an_address)?;
    let token = key.token().map_err(usage)?;
    let connector = if secure { Some(key.connector().map_err(usage)?) } else { None };
    let target = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    send(server, authority, connector, request(authority, token.as_deref(), method, target, body)?).await
}

/// Asks the kvplane that listens at an address of this machine. With TLS, its certificate is for others, and
/// not checked here: no token is sent, and nothing comes back that is secret.
pub(crate) async fn answer_of_own(
    address: SocketAddr,
    tls: bool,
    path: &str,
) -> Result<(StatusCode, Value), Failure> {
    let server = format!("{}://{address}", if tls { "https" } else { "http" });
    let authority: Authority = address.to_string().parse().context("invalid address")?;
    let connector = if tls { Some(unchecked_connector()?) } else { None };
    send(&server, &authority, connector, request(&authority, None, Method::GET, path, None)?).await
}

fn request(
    authority: &Authority,
    token: Option<&str>,
    method: Method,
    target: &str,
    body: Option<String>,
) -> anyhow::Result<Request<Full<Bytes>>> {
    let text = body.unwrap_or_default();
    let mut request = Request::builder()
        .method(method)
        .uri(target)
        .header(HOST, authority.as_str())
        .header(CONTENT_TYPE, "application/json");
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    request.body(Full::new(Bytes::from(text))).context("cannot make a request")
}

async fn send(
    server: &str,
    authority: &Authority,
    connector: Option<TlsConnector>,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Value), Failure> {
    let answer = async {
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let port = authority.port_u16().unwrap_or_else(|| if connector.is_some() { 443 } else { 80 });
        let stream = connect(host, port, connector).await.map_err(|error| {
            let reason = if is_no_tls(&error) { NO_TLS.to_owned() } else { error.to_string() };
            anyhow!("no kvplane answers at {server}: {reason}; is `kvplane serve` running?")
        })?;
        exchange(stream, request).await
    };
    let (status, body) = tokio::time::timeout(ANSWER_WITHIN, answer).await.map_err(|_| {
        anyhow!(
            "no answer from {server} within {} s: is it a kvplane, and is its machine overloaded?",
            ANSWER_WITHIN.as_secs()
        )
    })??;
    let json: Value = if body.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&body).with_context(|| {
            format!("{server} answers {status}, and not as a kvplane: is this the port of listen.http?")
        })?
    };
    Ok((status, json))
}

type Stream = Either<TcpStream, TlsStream<TcpStream>>;

/// A connection, with TLS where there is a connector.
async fn connect(host: &str, port: u16, connector: Option<TlsConnector>) -> io::Result<Stream> {
    let stream = TcpStream::connect((host, port)).await?;
    let Some(connector) = connector else { return Ok(Either::Left(stream)) };
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    connector.connect(name, stream).await.map(Either::Right)
}

/// Whether the other side answered to TLS with something else.
fn is_no_tls(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidMessage(_)))
}

/// Sends the one request of a connection, and reads the answer.
async fn exchange(stream: Stream, request: Request<Full<Bytes>>) -> anyhow::Result<(StatusCode, Bytes)> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let exchange = async move {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Ok::<_, hyper::Error>((status, body))
    };
    // The connection moves what is sent and read, and knows best why it ended: a server may refuse a
    // certificate late.
    match tokio::join!(exchange, connection) {
        (Ok(answer), _) => Ok(answer),
        // A gRPC server answers with HTTP/2 frames.
        (Err(_), Err(cause)) | (Err(cause), Ok(())) if cause.is_parse() => Err(cause)
            .context("this is not an HTTP/1 address, perhaps a gRPC one: give the address of listen.http"),
        (Err(_), Err(cause)) | (Err(cause), Ok(())) => Err(cause).context("the answer ended early"),
    }
}

/// The path of the page that follows this one, where there is one.
pub(crate) fn next_page(path: &str, page: &Value) -> Option<String> {
    page["next"].as_str().map(|next| format!("{path}?after={}", escaped(next)))
}

/// Puts the engines of the next page behind those before it.
pub(crate) fn append_page(whole: &mut Value, mut page: Value) {
    whole["next"] = page["next"].take();
    if let (Some(engines), Some(more)) = (whole["engines"].as_array_mut(), page["engines"].as_array_mut()) {
        engines.append(more);
    }
}

/// All pages of a list of engines, as one.
pub(crate) async fn ask_all(server: &str, key: &KeyArgs, path: &str) -> Result<Value, Failure> {
    let mut whole = ask(server, key, Method::GET, path, None).await?;
    while let Some(next) = next_page(path, &whole) {
        append_page(&mut whole, ask(server, key, Method::GET, &next, None).await?);
    }
    Ok(whole)
}
