//! `/kv_recover`: a worker's recovery answer in Dynamo's JSON.
//!
//! Its consumers count no copies, know no groups and cannot be told of trust: they are given residency transitions,
//! and nothing at all (`Error`, to be asked again) while the stream's state is not worth crediting.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use kvplane_core::{Continuity, PublicError, Reason, Tier};
use kvplane_ingest::{Engine, Stream};
use kvplane_stream::{Entry, Range, Transition};
use kvplane_wire::dynamo::{
    KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData, KvCacheStoredBlockData, ResetScope,
    RouterEvent, StorageTier, WorkerKvQueryResponse as Answer,
};
use serde::Deserialize;

use crate::select;
use crate::service::Shared;

#[derive(Debug, Deserialize)]
pub(super) struct Question {
    start: Option<u64>,
    end: Option<u64>,
    engine: Option<String>,
    rank: Option<u32>,
}

pub(super) async fn kv_recover(
    State(shared): State<Arc<Shared>>,
    question: Result<Query<Question>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let question = match question {
        Ok(Query(question)) => question,
        Err(rejection) => return refuse(StatusCode::BAD_REQUEST, rejection.body_text()),
    };
    let selected = select::engine(&shared.plane, question.engine.as_deref())
        .and_then(|engine| Ok((select::stream(&engine, question.rank)?.clone(), engine)));
    match selected {
        Ok((stream, engine)) => Json(answer(&shared, &engine, &stream, &question).await).into_response(),
        Err(PublicError { code, message, .. }) => {
            let status = StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::BAD_REQUEST);
            refuse(status, message)
        }
    }
}

/// Also a refusal has the shape that the caller can read.
fn refuse(status: StatusCode, message: String) -> Response {
    (status, Json(Answer::Error(message))).into_response()
}

async fn answer(shared: &Shared, engine: &Engine, stream: &Stream, question: &Question) -> Answer {
    if let (Some(start_id), Some(end_id)) = (question.start, question.end)
        && end_id < start_id
    {
        return Answer::InvalidRange { start_id, end_id };
    }
    if let Some(reason) = not_worth_crediting(shared, stream) {
        return Answer::Error(format!("stream {}: {reason}", stream.id()));
    }
    let worker = Worker { id: engine.spec.worker_id, rank: stream.id().rank };
    match question.start.map(|start| (start, stream.transitions_from(start))) {
        Some((start, Range::Entries { entries, last })) => {
            Answer::Events { events: worker.events(&entries, start), last_event_id: last }
        }
        Some((start, Range::TooNew { newest })) => Answer::TooNew {
            requested_start: start,
            requested_end: question.end.unwrap_or(newest),
            newest_available: newest,
        },
        Some((_, Range::Outside)) | None => dump(stream, worker).await,
    }
}

pub(super) fn not_worth_crediting(shared: &Shared, stream: &Stream) -> Option<String> {
    let status = stream.status();
    if status.trust.has(Reason::Unheard) {
        return Some("nothing is known yet".to_owned());
    }
    if status.continuity != Continuity::Live {
        return Some(format!("continuity is {}", status.continuity));
    }
    if status.trust.is_credited(&shared.options.credit) {
        return None;
    }
    let reason = status.trust.worst().map_or("none", |worst| worst.reason.as_str());
    Some(format!("trust is {}, reason {reason}, which is not credited", status.trust.level()))
}

async fn dump(stream: &Stream, worker: Worker) -> Answer {
    let snapshot = stream.snapshot().await;
    let dumped = tokio::task::spawn_blocking(move || {
        let events = snapshot.as_transitions();
        let events = events.iter().enumerate().map(|(at, event)| worker.event(at as u64, event)).collect();
        Answer::TreeDump { events, last_event_id: snapshot.last_event_id, reset_scope: ResetScope::All }
    });
    dumped.await.unwrap_or_else(|_| Answer::Error("the state could not be dumped".to_owned()))
}

/// A stream, as peers name it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Worker {
    pub(super) id: u64,
    pub(super) rank: u32,
}

impl Worker {
    /// The transitions of `entries`, from number `start` on.
    fn events(self, entries: &[Arc<Entry>], start: u64) -> Vec<RouterEvent> {
        let numbered = entries.iter().flat_map(|entry| (entry.first_event_id..).zip(&entry.transitions));
        numbered.filter(|(id, _)| *id >= start).map(|(id, transition)| self.event(id, transition)).collect()
    }

    pub(super) fn event(self, event_id: u64, transition: &Transition) -> RouterEvent {
        let (tier, data) = match transition {
            Transition::Stored { tier, parent, blocks } => {
                let blocks = blocks.iter().map(|block| KvCacheStoredBlockData {
                    block_hash: block.hash,
                    tokens_hash: block.content,
                    mm_extra_info: None,
                });
                let data =
                    KvCacheStoreData { parent_hash: *parent, start_position: None, blocks: blocks.collect() };
                (*tier, KvCacheEventData::Stored(data))
            }
            Transition::Removed { tier, hashes } => {
                (*tier, KvCacheEventData::Removed(KvCacheRemoveData { block_hashes: hashes.clone() }))
            }
            Transition::Cleared => (Tier::Device, KvCacheEventData::Cleared),
        };
        let tier = match tier {
            Tier::Device => StorageTier::Device,
            Tier::Host => StorageTier::HostPinned,
            Tier::Disk => StorageTier::Disk,
            Tier::Remote | Tier::Unknown => StorageTier::External,
        };
        RouterEvent::new(self.id, tier, KvCacheEvent { event_id, data, dp_rank: self.rank })
    }
}
