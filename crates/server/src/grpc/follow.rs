//! One subscriber on one stream: a cursor that moves over the journal. There is no queue of its own: a slow
//! subscriber reads from the replay window, and is ended when it falls out of it.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream as FutureStream, stream};
use kvplane_core::{Cursor, ErrorCode, PublicError};
use kvplane_ingest::Stream;
use kvplane_proto::Encoded;
use kvplane_proto::kvplane::v1::ResetReason;
use kvplane_stream::Loss;
use tonic::Status;

use super::encode::{self, SnapshotChunks};
use crate::error::ApiError;

/// Entries taken from the journal at a time.
const READ: usize = 256;

/// Where a subscriber begins.
#[derive(Debug, Clone, Copy)]
pub(super) enum Begin {
    Snapshot,
    Live,
    After(Cursor),
}

#[derive(Debug)]
enum Phase {
    Begin(Begin),
    Reset(ResetReason),
    Snapshot(Box<SnapshotChunks>),
    Tail(Cursor),
    Ended,
}

/// A subscriber.
#[derive(Debug)]
pub(super) struct Follower {
    stream: Arc<Stream>,
    phase: Phase,
    ready: VecDeque<Bytes>,
}

impl Follower {
    pub(super) fn new(stream: Arc<Stream>, begin: Begin) -> Self {
        Self { stream, phase: Phase::Begin(begin), ready: VecDeque::new() }
    }

    pub(super) fn into_stream(self) -> impl FutureStream<Item = Result<Encoded, Status>> {
        stream::unfold(self, async |mut follower| {
            let item = follower.next().await?;
            Some((item.map(Encoded), follower))
        })
    }

    async fn next(&mut self) -> Option<Result<Bytes, Status>> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Some(Ok(bytes));
            }
            match std::mem::replace(&mut self.phase, Phase::Ended) {
                Phase::Ended => return None,
                Phase::Begin(Begin::Snapshot) => self.phase = Phase::Reset(ResetReason::Start),
                Phase::Begin(Begin::Live) => self.phase = Phase::Tail(self.stream.cursor()),
                Phase::Begin(Begin::After(cursor)) => {
                    self.phase = match self.stream.read_after(cursor, 0) {
                        Ok(_) => Phase::Tail(cursor),
                        Err(Loss::OtherEpoch) => Phase::Reset(ResetReason::OtherEpoch),
                        Err(Loss::Expired) => Phase::Reset(ResetReason::Expired),
                        Err(Loss::Future) => Phase::Reset(ResetReason::Future),
                    };
                }
                Phase::Reset(reason) => {
                    let snapshot = self.stream.snapshot().await;
                    self.ready.push_back(encode::reset(self.stream.id(), snapshot.cursor, reason));
                    // Sorting a million blocks takes a while: not on a thread that serves others.
                    let id = self.stream.id().clone();
                    let chunks = tokio::task::spawn_blocking(move || SnapshotChunks::new(id, snapshot)).await;
                    match chunks {
                        Ok(chunks) => self.phase = Phase::Snapshot(Box::new(chunks)),
                        Err(_) => return Some(Err(internal("the snapshot could not be ordered"))),
                    }
                }
                Phase::Snapshot(mut chunks) => match chunks.next() {
                    Some(chunk) => {
                        self.ready.push_back(chunk);
                        self.phase = Phase::Snapshot(chunks);
                    }
                    None => self.phase = Phase::Tail(chunks.cursor()),
                },
                Phase::Tail(cursor) => match self.stream.next_after(cursor, READ).await {
                    Ok(entries) => {
                        let last = entries.last().map_or(cursor.sequence, |entry| entry.sequence);
                        self.phase = Phase::Tail(Cursor { sequence: last, ..cursor });
                        let id = self.stream.id();
                        self.ready.extend(entries.iter().map(|entry| encode::entry(id, entry)));
                    }
                    Err(Loss::OtherEpoch) => self.phase = Phase::Reset(ResetReason::NewEpoch),
                    Err(Loss::Expired | Loss::Future) => {
                        let message = format!(
                            "stream {}: what follows sequence {} has left the replay window; subscribe again",
                            self.stream.id(),
                            cursor.sequence,
                        );
                        return Some(Err(ApiError(PublicError::new(ErrorCode::DataLoss, message)).into()));
                    }
                },
            }
        }
    }
}

fn internal(message: &str) -> Status {
    ApiError(PublicError::new(ErrorCode::Internal, message)).into()
}
