//! `/kv_recover` of one recorder over HTTP, from a thread of its own: the engine's threads are not asked to
//! answer.
//!
//! There is no authentication: anyone who reaches the port can read. So it is on loopback unless the caller
//! says otherwise, and there a name that is not this machine's is refused.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::body::{Frame, SizeHint};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use kvplane_stream::Recovery;
use kvplane_transport::edge::{Accepting, Connections, Guarded, InFlight, Limits, Speaks};
use kvplane_transport::is_nobodys_name;
use kvplane_wire::dynamo::WorkerKvQueryResponse as Answer;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::recorder::{Recorder, to_json};

/// How long connections may take to end when the server stops.
const GRACE: Duration = Duration::from_secs(5);

/// Connections at a time ...
const CONNECTIONS: usize = 64;
/// ... and of one peer. A new one takes the place of the oldest that is idle, or is closed.
const CONNECTIONS_PER_PEER: usize = 32;

/// How long a client may take to ask, from the connection or the last answer on, and to take an answer.
const LIMITS: Limits = Limits {
    handshake: Duration::from_secs(10),
    head: Duration::from_secs(10),
    idle: Duration::from_secs(10),
    write: Duration::from_secs(30),
    // HTTP/1 has no window of its own.
    unread: Duration::from_secs(30),
};

/// What a request may have before its body, which nobody reads. Questions are short.
const HEAD_BYTES: usize = 16 << 10;

/// Whole states that are sent at a time: each may be as large as the state itself.
const DUMPS: usize = 4;

/// Why the server does not run.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {host}:{port}: {source}")]
pub struct ListenError {
    host: String,
    port: u16,
    source: io::Error,
}

impl ListenError {
    /// What the system says.
    pub fn reason(&self) -> &io::Error {
        &self.source
    }
}

/// A server that runs until it is shut down or dropped.
#[derive(Debug)]
pub struct RecoveryServer {
    address: SocketAddr,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl RecoveryServer {
    /// Listens and answers from now on. Port 0 is any that is free.
    pub fn start(recorder: Arc<Recorder>, host: &str, port: u16) -> Result<Self, ListenError> {
        let failed = |source| ListenError { host: host.to_owned(), port, source };
        let listener = TcpListener::bind((host, port)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(DUMPS)
            .build()
            .map_err(failed)?;
        let stop = CancellationToken::new();
        let run = {
            let stop = stop.clone();
            move || runtime.block_on(serve(listener, recorder, stop))
        };
        let thread = std::thread::Builder::new().name("kvp-recover".into()).spawn(run).map_err(failed)?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers what is being asked, then ends. A second time changes nothing.
    pub fn shutdown(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // The thread has printed its panic; nothing is left to do about it.
            let _ = thread.join();
        }
    }
}

impl Drop for RecoveryServer {
    fn drop(&mut self) {
        self.shutdown();
    }
}

async fn serve(listener: TcpListener, recorder: Arc<Recorder>, stop: CancellationToken) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    let local = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
    let mut routes =
        Router::new().route("/kv_recover", get(kv_recover)).fallback(no_such_path).with_state(recorder);
    if local {
        routes = routes.layer(axum::middleware::from_fn(of_this_machine));
    }
    let accepting = Accepting::new(listener, "recovery");
    let connections = Connections::new(CONNECTIONS, CONNECTIONS_PER_PEER, LIMITS);
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = open.join_next() => {}
            (stream, address) = accepting.next() => {
                if let Some(place) = connections.admit(address, Speaks::Http1) {
                    open.spawn(converse(Guarded::new(stream, place), routes.clone(), stop.clone()));
                }
            }
        }
    }
    drop(accepting);
    // Those that take longer go with the runtime.
    let _ = timeout(GRACE, async { while open.join_next().await.is_some() {} }).await;
}

/// Answers over one connection until it ends. What is being answered when the server stops is answered.
async fn converse(stream: Guarded<TcpStream>, routes: Router, stop: CancellationToken) {
    let pulse = stream.pulse().clone();
    let routes = routes.layer(axum::middleware::from_fn(move |request: Request, next: Next| {
        let busy = pulse.enter();
        async move { next.run(request).await.map(|body| Body::new(Sending { body, _busy: busy })) }
    }));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    let mut connection = pin!(connection);
    // Whatever the result, no caller is left to receive it.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// An answer on its way: the connection is not idle.
struct Sending {
    body: Body,
    _busy: InFlight,
}

impl HttpBody for Sending {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Refuses what is asked of a name that is not this machine's: a page of the name's owner would read what
/// only this machine may.
async fn of_this_machine(request: Request, next: Next) -> Response {
    let hosts = request.headers().get_all(header::HOST);
    if hosts.iter().all(|host| host.to_str().is_ok_and(is_nobodys_name)) {
        return next.run(request).await;
    }
    refuse(StatusCode::FORBIDDEN, "the name that was asked is not this machine's".to_owned())
}

#[derive(Debug, Deserialize)]
struct Question {
    start: Option<u64>,
    end: Option<u64>,
    engine: Option<String>,
    rank: Option<u32>,
}

async fn kv_recover(
    State(recorder): State<Arc<Recorder>>,
    question: Result<Query<Question>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let question = match question {
        Ok(Query(question)) => question,
        Err(rejection) => return refuse(StatusCode::BAD_REQUEST, rejection.body_text()),
    };
    let here = recorder.stream().id();
    if question.engine.is_some_and(|engine| engine != here.engine.as_str())
        || question.rank.is_some_and(|rank| rank != here.rank)
    {
        return refuse(StatusCode::NOT_FOUND, format!("only stream {here} is here"));
    }
    let recovery = Recovery { start: question.start, end: question.end };
    match tokio::task::spawn_blocking(move || recorder.recover_json(recovery)).await {
        Ok(Ok(json)) => json_response(StatusCode::OK, json),
        Ok(Err(closed)) => refuse(StatusCode::SERVICE_UNAVAILABLE, closed.to_string()),
        Err(_) => refuse(StatusCode::INTERNAL_SERVER_ERROR, "the state could not be read".to_owned()),
    }
}

async fn no_such_path() -> Response {
    refuse(StatusCode::NOT_FOUND, "there is only /kv_recover here".to_owned())
}

/// Also a refusal has the shape that the caller can read.
fn refuse(status: StatusCode, message: String) -> Response {
    json_response(status, to_json(&Answer::Error(message)))
}

fn json_response(status: StatusCode, json: String) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], json).into_response()
}
