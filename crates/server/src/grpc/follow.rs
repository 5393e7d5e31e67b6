//! One subscriber on one stream: a cursor that moves over the journal. There is no queue of its own: a slow
//! subscriber reads from the replay window, and is ended when it falls out of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream as FutureStream, stream};
use kvplane_access::ApiError;
use kvplane_core::{Continuity, Cursor, ErrorCode, PublicError, StateDigest};
use kvplane_ingest::{News, Stream};
use kvplane_proto::Encoded;
use kvplane_proto::kvplane::v1::ResetReason;
use kvplane_stream::{Entry, Loss, Protocol};
use tokio::time::timeout;
use tonic::Status;

use super::encode::{self, SnapshotPlan};
use crate::encoding::{self, Messages};
use crate::plans;

/// Entries taken from the journal at a time.
const READ: usize = 256;
/// A subscriber that comes from another plane may be ahead of what has arrived here; this is how long it is
/// waited for.
const CATCH_UP: Duration = Duration::from_secs(1);

/// Where a subscriber begins.
#[derive(Debug, Clone, Copy)]
pub(super) enum Begin {
    Snapshot,
    Live,
    /// After a position, where the subscriber's state has this digest, if it says so.
    After(Cursor, Option<StateDigest>),
}

#[derive(Debug)]
enum Phase {
    Begin(Begin),
    Reset(ResetReason),
    Snapshot { messages: Messages<SnapshotPlan>, cursor: Cursor },
    Tail(Cursor),
    Ended,
}

/// A subscriber.
#[derive(Debug)]
pub(super) struct Follower {
    stream: Arc<Stream>,
    phase: Phase,
    ready: VecDeque<Bytes>,
    /// Where the subscriber believes that the stream stands; `None` as long as that cannot be known.
    sent: Option<Continuity>,
}

impl Follower {
    pub(super) fn new(stream: Arc<Stream>, begin: Begin) -> Self {
        Self { stream, phase: Phase::Begin(begin), ready: VecDeque::new(), sent: None }
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
                Phase::Begin(Begin::Live) => self.phase = Phase::Tail(self.stream.reported_cursor()),
                Phase::Begin(Begin::After(cursor, digest)) => {
                    if self.stream.is_mirrored() {
                        // Whether it came in time or not is seen below.
                        let _in_time = timeout(CATCH_UP, self.stream.reached(cursor)).await;
                    }
                    self.phase = match self.stream.read_after(cursor, 0) {
                        Ok(_) if self.is_elsewhere(cursor, digest) => Phase::Reset(ResetReason::Diverged),
                        Ok(_) => Phase::Tail(cursor),
                        Err(Loss::OtherEpoch) => Phase::Reset(ResetReason::OtherEpoch),
                        Err(Loss::Expired | Loss::Replaced) => Phase::Reset(ResetReason::Expired),
                        Err(Loss::Future) => Phase::Reset(ResetReason::Future),
                    };
                }
                Phase::Reset(reason) => {
                    let Ok(_place) = plans::BUILDS.acquire().await else {
                        return Some(Err(internal("the snapshot could not be taken")));
                    };
                    let snapshot = self.stream.snapshot_to_follow().await;
                    let cursor = snapshot.cursor;
                    self.sent = Some(snapshot.continuity);
                    self.ready.push_back(encode::reset(&self.stream, cursor, reason));
                    // Sorting a million blocks takes a while: not on a thread that serves others.
                    let id = self.stream.id().clone();
                    let planned =
                        tokio::task::spawn_blocking(move || SnapshotPlan::messages_of(id, snapshot)).await;
                    match planned {
                        Ok(messages) => self.phase = Phase::Snapshot { messages, cursor },
                        Err(_) => return Some(Err(internal("the snapshot could not be ordered"))),
                    }
                }
                Phase::Snapshot { mut messages, cursor } => match messages.next().await {
                    Some(Ok(message)) => {
                        self.ready.push_back(message);
                        self.phase = Phase::Snapshot { messages, cursor };
                    }
                    Some(Err(failed)) => return Some(Err(failed)),
                    None => self.phase = Phase::Tail(cursor),
                },
                Phase::Tail(cursor) => match self.news(cursor).await {
                    Ok(News::Continuity(continuity)) => {
                        self.sent = Some(continuity);
                        self.ready.push_back(encode::continuity_item(self.stream.id(), cursor, continuity));
                        self.phase = Phase::Tail(cursor);
                    }
                    Ok(News::Entries(entries)) => {
                        let continuity = entries.iter().rev().find_map(|entry| entry.continuity);
                        self.sent = continuity.or(self.sent);
                        let last = entries.last().map_or(cursor.sequence, |entry| entry.sequence);
                        self.phase = Phase::Tail(Cursor { sequence: last, ..cursor });
                        let id = self.stream.id().clone();
                        let encode = move |entry: &Entry| encode::entry(&id, entry);
                        match encoding::entries(&entries, Protocol::Kvplane, encode).await {
                            Ok(encoded) => self.ready.extend(encoded),
                            Err(failed) => return Some(Err(failed)),
                        }
                    }
                    Err(Loss::OtherEpoch) => self.phase = Phase::Reset(ResetReason::NewEpoch),
                    // The state was taken over anew from another plane.
                    Err(Loss::Replaced) => self.phase = Phase::Reset(ResetReason::Expired),
                    Err(Loss::Future) => self.phase = Phase::Reset(ResetReason::Future),
                    Err(Loss::Expired) => {
                        let message = format!(
                            "stream {}: what follows sequence {} has left the replay window",
                            self.stream.id(),
                            cursor.sequence,
                        );
                        return Some(Err(ApiError(PublicError::new(ErrorCode::DataLoss, message)).into()));
                    }
                },
            }
        }
    }

    /// Whether a subscriber is at a position with another state than the stream was.
    fn is_elsewhere(&self, cursor: Cursor, digest: Option<StateDigest>) -> bool {
        let ours = digest.and_then(|_| self.stream.window().digest_at(cursor));
        ours.is_some() && ours != digest
    }

    /// What the stream does next. A subscriber that comes back with a cursor first learns where a stream of
    /// another plane stands: no entry may say so.
    async fn news(&self, cursor: Cursor) -> Result<News, Loss> {
        match self.sent {
            Some(sent) => self.stream.news_after(cursor, sent, READ).await,
            None if self.stream.is_mirrored() => {
                let entries = self.stream.read_after(cursor, READ)?;
                if entries.is_empty() {
                    return Ok(News::Continuity(self.stream.continuity()));
                }
                Ok(News::Entries(entries))
            }
            None => self.stream.next_after(cursor, READ).await.map(News::Entries),
        }
    }
}

fn internal(message: &str) -> Status {
    ApiError(PublicError::new(ErrorCode::Internal, message)).into()
}
