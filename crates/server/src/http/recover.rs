//! `/kv_recover`: a worker's recovery answer in Dynamo's JSON.
//!
//! What is answered is said in `kvplane_stream`'s `recovery`; `Error` is to be asked again.

use std::sync::Arc;

use axum::Json;
use axum::extract::{ConnectInfo, Extension, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use kvplane_access::{Edge, Peer};
use kvplane_core::{ErrorCode, PublicError, Trust};
use kvplane_ingest::{Engine, Stream};
use kvplane_stream::{Numbering, Recovery, Worker, withheld};
use kvplane_wire::dynamo::WorkerKvQueryResponse as Answer;
use serde::Deserialize;

use super::intake::again_later;
use crate::held::held_until_sent;
use crate::questions::Asker;
use crate::select;

#[derive(Debug, Deserialize)]
pub(super) struct Question {
    start: Option<u64>,
    end: Option<u64>,
    engine: Option<String>,
    rank: Option<u32>,
}

/// What answers that are as large as a stream's state are made of.
#[derive(Debug, Clone)]
pub(super) struct Dumps {
    pub(super) asker: Arc<Asker>,
    /// Bounds how many are made at a time.
    pub(super) edge: Arc<Edge>,
}

pub(super) async fn kv_recover(
    State(dumps): State<Dumps>,
    peer: Option<Extension<ConnectInfo<Peer>>>,
    question: Result<Query<Question>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let question = match question {
        Ok(Query(question)) => question,
        Err(rejection) => return refuse(StatusCode::BAD_REQUEST, rejection.body_text()),
    };
    let selected = select::engine(&dumps.asker.plane, question.engine.as_deref())
        .and_then(|engine| Ok((select::stream(&engine, question.rank)?.clone(), engine)));
    match selected {
        Ok((stream, engine)) => {
            let peer = peer.as_ref().map(|Extension(ConnectInfo(peer))| peer);
            let Some(place) = dumps.edge.dump(peer).await else { return too_many_dumps() };
            let response = write(answer(&dumps.asker.credit, &engine, &stream, &question).await).await;
            // The place is taken until the answer has been sent: it is as large as the state.
            response.map(|body| held_until_sent(body, place))
        }
        Err(error) => {
            let status = StatusCode::from_u16(error.code.http_status()).unwrap_or(StatusCode::BAD_REQUEST);
            refuse(status, error.in_full())
        }
    }
}

/// The answer while all places are taken.
pub(super) fn too_many_dumps() -> Response {
    let message = "too many states are being dumped or sent";
    again_later(PublicError::new(ErrorCode::LimitReached, message))
}

/// Writes an answer, which may be as large as a stream's state: not on a thread that serves others.
async fn write(answer: Answer) -> Response {
    match tokio::task::spawn_blocking(move || serde_json::to_vec(&answer)).await {
        Ok(Ok(json)) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        _ => refuse(StatusCode::INTERNAL_SERVER_ERROR, "the answer could not be written".to_owned()),
    }
}

/// Also a refusal has the shape that the caller can read.
fn refuse(status: StatusCode, message: String) -> Response {
    (status, Json(Answer::Error(message))).into_response()
}

async fn answer(credit: &[Trust], engine: &Engine, stream: &Stream, question: &Question) -> Answer {
    let recovery = Recovery { start: question.start, end: question.end };
    if let Some(refusal) = recovery.refusal() {
        return refusal;
    }
    if let Some(reason) = not_worth_crediting(credit, stream) {
        return Answer::Error(format!("stream {}: {reason}", stream.id()));
    }
    let worker = Worker { id: engine.spec.worker_id, rank: stream.id().rank };
    match recovery.from_window(worker, Numbering::Transitions, stream.window()) {
        Some(answer) => answer,
        None => dump(stream, worker).await,
    }
}

pub(super) fn not_worth_crediting(credit: &[Trust], stream: &Stream) -> Option<String> {
    let (trust, continuity) = stream.worth();
    withheld(&trust, continuity, credit)
}

async fn dump(stream: &Stream, worker: Worker) -> Answer {
    let snapshot = stream.snapshot().await;
    let dumped = tokio::task::spawn_blocking(move || worker.dump(&snapshot, Numbering::Transitions));
    dumped.await.unwrap_or_else(|_| Answer::Error("the state could not be dumped".to_owned()))
}
