//! `/kv_recover` of one recorder over HTTP, from a thread of its own: the engine's threads are not asked to answer.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use kvplane_stream::Recovery;
use kvplane_wire::dynamo::WorkerKvQueryResponse as Answer;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::recorder::{Recorder, to_json};

/// How long connections may take to end when the server stops.
const GRACE: Duration = Duration::from_secs(5);

/// Whole states that are told at a time: each may be as large as the state itself.
const DUMPS: usize = 4;

/// Why the server does not run.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {host}:{port}: {source}")]
pub struct ListenError {
    host: String,
    port: u16,
    source: io::Error,
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
            // A panic has been told by its own thread, and nothing is left to do about it.
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
    let routes =
        Router::new().route("/kv_recover", get(kv_recover)).fallback(no_such_path).with_state(recorder);
    let serving = axum::serve(listener, routes).with_graceful_shutdown(stop.clone().cancelled_owned());
    let limit = async {
        stop.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        _ = IntoFuture::into_future(serving) => {}
        () = limit => {}
    }
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
        Err(_) => refuse(StatusCode::INTERNAL_SERVER_ERROR, "the state could not be told".to_owned()),
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
