//! One SMG subscriber: a cursor that moves over a stream, or over an engine's merged ranks.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream as FutureStream, stream};
use kvplane_access::ApiError;
use kvplane_core::{Continuity, Cursor, ErrorCode, PublicError, Trust};
use kvplane_ingest::{News, Stream, StreamStatus};
use kvplane_proto::Encoded;
use kvplane_stream::{Entry, Protocol, Snapshot};
use tonic::Status;

use super::encode::{self, Plan};
use super::merger::Subscribed;
use crate::encoding::{self, Messages, Planned};
use crate::plans::{self, Plans};

/// Older clients refuse messages above 4 MiB. A batch that is larger reaches them as a snapshot, whose chunks
/// are not.
const MAX_MESSAGE: usize = (4 << 20) - 1024;
const TOO_LARGE: &str = "a batch is too large for one message: start over from a snapshot";

/// Entries taken at a time.
const READ: usize = 256;

/// What is followed.
#[derive(Debug, Clone)]
pub(super) enum Source {
    /// One rank.
    Native { stream: Arc<Stream>, credit: Vec<Trust> },
    /// All ranks of an engine.
    Merged(Subscribed),
}

#[derive(Debug)]
enum Phase {
    Start,
    Snapshot { messages: Messages<Plan>, then: u64, cursor: Option<Cursor> },
    Tail { sequence: u64, cursor: Option<Cursor> },
    Ended,
}

/// A subscriber.
#[derive(Debug)]
pub(super) struct Follower {
    source: Source,
    phase: Phase,
    ready: VecDeque<Bytes>,
    /// The stream was not credited at the start although it held something: it was sent as empty.
    withheld: bool,
    /// Where the stream stood when it was last looked at.
    continuity: Option<Continuity>,
    /// The engine was proven to be there when the stream was last looked at. Once it is not, a gateway that
    /// cannot hear of trust must start over.
    fresh: bool,
}

impl Follower {
    /// Checks the start, as the handler: what is wrong here reaches the gateway before any header.
    pub(super) fn new(source: Source, start: u64) -> Result<Self, Status> {
        let phase = if start == 0 { source.check_start()? } else { source.resume(start)? };
        Ok(Self { source, phase, ready: VecDeque::new(), withheld: false, continuity: None, fresh: false })
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
                Phase::Start => match self.begin().await {
                    Ok(phase) => self.phase = phase,
                    Err(status) => return Some(Err(status)),
                },
                Phase::Snapshot { mut messages, then, cursor } => match messages.next().await {
                    Some(Ok(message)) => {
                        self.ready.push_back(message);
                        self.phase = Phase::Snapshot { messages, then, cursor };
                    }
                    Some(Err(status)) => return Some(Err(status)),
                    None => self.phase = Phase::Tail { sequence: then, cursor },
                },
                Phase::Tail { sequence, cursor } => match self.tail(sequence, cursor).await {
                    Ok(phase) => self.phase = phase,
                    Err(status) => return Some(Err(status)),
                },
            }
        }
    }

    /// The snapshot of a subscriber that starts at 0.
    async fn begin(&mut self) -> Result<Phase, Status> {
        match &self.source {
            Source::Merged(merger) => {
                let _place = plans::BUILDS.acquire().await.map_err(|_| internal())?;
                let merger = merger.clone();
                let planned = tokio::task::spawn_blocking(move || merger.plan());
                let plan = planned.await.map_err(|_| internal())?;
                let then = plan.plan().cut();
                Ok(Phase::Snapshot { messages: Messages::of(plan), then, cursor: None })
            }
            Source::Native { stream, credit } => {
                let credited = is_credited(&stream.status(), credit);
                let _place = plans::BUILDS.acquire().await.map_err(|_| internal())?;
                let snapshot = stream.snapshot_to_follow().await;
                let cursor = snapshot.cursor;
                self.continuity = Some(snapshot.continuity);
                self.fresh = credited;
                self.withheld = !credited && !snapshot.image.blocks.is_empty();
                let planned = tokio::task::spawn_blocking(move || plan(&snapshot, credited));
                let messages = Messages::of(planned.await.map_err(|_| internal())?);
                Ok(Phase::Snapshot { messages, then: cursor.sequence, cursor: Some(cursor) })
            }
        }
    }

    async fn tail(&mut self, sequence: u64, cursor: Option<Cursor>) -> Result<Phase, Status> {
        match (&self.source, cursor) {
            (Source::Merged(merger), _) => {
                let (entries, last) = merger
                    .next_after(sequence, READ)
                    .await
                    .map_err(|_| loss("what follows has left the replay window"))?;
                for bytes in entries {
                    self.ready.push_back(sendable(bytes)?);
                }
                Ok(Phase::Tail { sequence: last, cursor: None })
            }
            (Source::Native { stream, credit }, Some(cursor)) => {
                let continuity = self.continuity.unwrap_or_else(|| stream.continuity());
                let news = tokio::select! {
                    biased;
                    () = stream.stale(), if self.fresh => return Err(loss(SILENT)),
                    news = stream.news_after(cursor, continuity, READ) => news,
                };
                self.fresh = !stream.freshness().is_stale();
                let news = news.map_err(|_| {
                    loss("the stream's continuity is lost: a new epoch, or a subscriber too slow")
                })?;
                let entries = match news {
                    News::Entries(entries) => entries,
                    News::Continuity(Continuity::Down) => return Err(loss(OUT_OF_REACH)),
                    News::Continuity(continuity) => {
                        if self.withheld && is_credited(&stream.status(), credit) {
                            return Err(loss(KNOWN_AGAIN));
                        }
                        self.continuity = Some(continuity);
                        return Ok(Phase::Tail { sequence, cursor: Some(cursor) });
                    }
                };
                let last_continuity = entries.iter().rev().find_map(|entry| entry.continuity);
                self.continuity = last_continuity.or(Some(continuity));
                let encoded = encoding::entries(&entries, Protocol::Smg, encode::entry).await?;
                for (entry, bytes) in entries.iter().zip(encoded) {
                    if let Some(reason) = ends(entry, credit) {
                        return Err(loss(reason));
                    }
                    if self.withheld && is_credited(&stream.status(), credit) {
                        return Err(loss(KNOWN_AGAIN));
                    }
                    self.ready.push_back(sendable(bytes)?);
                }
                let sequence = entries.last().map_or(cursor.sequence, |entry| entry.sequence);
                Ok(Phase::Tail { sequence, cursor: Some(Cursor { sequence, ..cursor }) })
            }
            (Source::Native { .. }, None) => Err(internal()),
        }
    }
}

impl Source {
    fn check_start(&self) -> Result<Phase, Status> {
        if let Source::Native { stream, .. } = self
            && stream.status().untranslatable
        {
            return Err(Status::failed_precondition(UNTRANSLATABLE));
        }
        Ok(Phase::Start)
    }

    fn resume(&self, start: u64) -> Result<Phase, Status> {
        let outside = |why: &str| {
            let message = format!("sequence {start} cannot be resumed: {why}; start at 0");
            Status::from(ApiError(PublicError::new(ErrorCode::OutOfRange, message)))
        };
        match self {
            Source::Merged(merger) => {
                merger.read_after(start, 0).map_err(|_| outside("it is not in the replay window"))?;
                Ok(Phase::Tail { sequence: start, cursor: None })
            }
            Source::Native { stream, credit } => {
                let status = stream.status();
                if status.untranslatable {
                    return Err(outside(UNTRANSLATABLE));
                }
                let stale = stream.freshness().is_stale();
                if stale || status.continuity == Continuity::Down || !status.trust.is_credited(credit) {
                    return Err(outside("the stream is not credited now"));
                }
                let cursor = stream
                    .cursor_at(start)
                    .map_err(|_| outside("it is not in the replay window of this epoch"))?;
                Ok(Phase::Tail { sequence: start, cursor: Some(cursor) })
            }
        }
    }
}

const SILENT: &str = "the engine fell silent";
const OUT_OF_REACH: &str = "the engine is out of reach";
const KNOWN_AGAIN: &str = "the stream's state is known again";
const UNTRANSLATABLE: &str = "the main group holds blocks whose tokens are not known";

fn plan(snapshot: &Arc<Snapshot>, credited: bool) -> Arc<Planned<Plan>> {
    static PLANS: Plans<Planned<Plan>> = Plans::new();
    PLANS.of(snapshot, u8::from(credited), |_| Planned::new(planned(snapshot.clone(), credited)))
}

fn planned(snapshot: Arc<Snapshot>, credited: bool) -> Plan {
    let transitions = if credited { snapshot.as_transitions() } else { Vec::new() };
    // How much of the history is missing, where it is.
    let exact = snapshot.trust.level() == Trust::Exact;
    let unknown_before = if exact { 0 } else { snapshot.known_from.unwrap_or(0) };
    let cut = snapshot.cursor.sequence;
    Plan::of(Some(snapshot), transitions, cut, unknown_before)
}

fn is_credited(status: &StreamStatus, credit: &[Trust]) -> bool {
    status.trust.is_credited_at(status.continuity, credit)
}

/// Why a gateway that follows must start over at this entry.
fn ends(entry: &Entry, credit: &[Trust]) -> Option<&'static str> {
    if entry.continuity == Some(Continuity::Down) {
        return Some(OUT_OF_REACH);
    }
    if entry.trust.as_ref().is_some_and(|trust| !trust.is_credited(credit)) {
        return Some("the stream is not credited any more");
    }
    entry.untranslatable.then_some(UNTRANSLATABLE)
}

fn sendable(bytes: Bytes) -> Result<Bytes, Status> {
    if bytes.len() > MAX_MESSAGE { Err(loss(TOO_LARGE)) } else { Ok(bytes) }
}

fn loss(message: &str) -> Status {
    ApiError(PublicError::new(ErrorCode::DataLoss, message)).into()
}

fn internal() -> Status {
    ApiError(PublicError::new(ErrorCode::Internal, "the snapshot could not be taken")).into()
}
