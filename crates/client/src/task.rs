//! The background task: subscribes, applies, and comes back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::{Fuse, FusedFuture as _, FutureExt as _};
use kvplane_core::{Backoff, Cursor, EngineId, Epoch, StreamId};
use kvplane_proto::kvplane::v1 as proto;
use parking_lot::RwLock;
use tokio::sync::broadcast;
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Streaming};
use tracing::{debug, warn};

use crate::client::{Calls, reason};
use crate::error::ReplicaError;
use crate::following::{Change, Connection, Shared, Slot};
use crate::freshness::Freshness;
use crate::options::{Options, Selection};
use crate::replica::{Applied, Replica, Retired};

/// How often the plane is asked for the ages of its proofs within the longest silence.
const PULSES: u32 = 8;
const SHORTEST_PULSE: Duration = Duration::from_millis(20);

/// Why a subscription ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("{}", reason(.0))]
    Status(#[from] tonic::Status),
    #[error("the plane did not answer in time")]
    Silent,
    #[error("the plane ended the subscription")]
    Over,
    #[error("the plane has no such stream")]
    Nothing,
    #[error("the plane has other streams now")]
    OtherStreams,
    #[error("the plane sent a message of stream {0}, which was not asked for")]
    Uninvited(StreamId),
    #[error("stream {0}: {1}")]
    Replica(StreamId, ReplicaError),
}

type Slots = BTreeMap<StreamId, Arc<Slot>>;

pub(crate) struct Task {
    plane: Calls,
    selection: Selection,
    options: Options,
    shared: Arc<Shared>,
    changes: broadcast::Sender<Change>,
}

impl Task {
    pub(crate) fn new(
        plane: Calls,
        selection: Selection,
        options: Options,
        shared: Arc<Shared>,
        changes: broadcast::Sender<Change>,
    ) -> Self {
        Self { plane, selection, options, shared, changes }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(self.follow()).await;
        self.disconnected("closed".into());
    }

    async fn follow(&mut self) {
        let mut backoff = Backoff::new(self.options.shortest_wait, self.options.longest_wait);
        loop {
            let begun = Instant::now();
            let Err(end) = self.subscription().await;
            self.count(&end);
            self.disconnected(end.to_string().into());
            if begun.elapsed() > self.options.longest_wait {
                backoff.reset();
            }
            if !matches!(end, End::OtherStreams) {
                let wait = backoff.wait();
                debug!(%end, ?wait, "the subscription ended");
                sleep(wait).await;
            }
        }
    }

    /// One subscription, from its beginning to its end.
    async fn subscription(&mut self) -> Result<std::convert::Infallible, End> {
        let wanted = self.discover().await?;
        if wanted.is_empty() {
            // Without a stream to name, the request would mean all streams.
            return Err(End::Nothing);
        }
        let slots = self.reconcile(&wanted);
        let request = proto::SubscribeRequest {
            streams: slots.iter().map(|(stream, slot)| selector(stream, slot)).collect(),
            start: proto::Start::Snapshot.into(),
            ..proto::SubscribeRequest::default()
        };
        let answer = timeout(self.options.answer_within, self.plane.subscribe(request)).await;
        let mut messages = answer.map_err(|_| End::Silent)??.into_inner();
        self.connected(&slots);
        let every = self.options.discover_every;
        let mut discover = interval_at(Instant::now() + every, every);
        discover.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let max_silence = self.options.max_silence;
        let mut pulse = interval((max_silence / PULSES).max(SHORTEST_PULSE));
        pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ages = std::pin::pin!(Fuse::terminated());
        loop {
            tokio::select! {
                (asked, latest) = &mut ages => {
                    prove(&slots, asked, latest);
                    self.tell_waiting(Connection::Connected);
                }
                _ = pulse.tick(), if ages.is_terminated() => {
                    ages.set(ask_ages(self.plane.clone(), max_silence * 3).fuse());
                }
                message = next(&mut messages) => self.message(&slots, message?)?,
                _ = discover.tick() => {
                    if self.discover().await? != wanted {
                        return Err(End::OtherStreams);
                    }
                }
            }
        }
    }

    /// The streams of the plane that are to be followed, in order.
    async fn discover(&mut self) -> Result<Vec<StreamId>, End> {
        let mut request = tonic::Request::new(proto::StatusRequest::default());
        request.set_timeout(self.options.answer_within);
        let answer = timeout(self.options.answer_within, self.plane.status(request)).await;
        let status = answer.map_err(|_| End::Silent)??.into_inner();
        let mut streams = Vec::new();
        for engine in &status.engines {
            let id = EngineId::new(&engine.id);
            streams.extend(engine.ranks.iter().map(|rank| StreamId::new(id.clone(), rank.rank)));
        }
        streams.retain(|stream| self.selection.includes(stream));
        streams.sort();
        Ok(streams)
    }

    /// Makes replicas of new streams and lets go of those that the plane no longer has.
    fn reconcile(&self, wanted: &[StreamId]) -> Slots {
        let mut slots = self.shared.slots.write();
        let gone: Vec<StreamId> = slots.keys().filter(|known| !wanted.contains(known)).cloned().collect();
        for stream in wanted {
            slots.entry(stream.clone()).or_insert_with(|| {
                let replica = Replica::new(stream.clone(), self.options.replica);
                Arc::new(Slot {
                    replica: RwLock::new(replica),
                    connected: AtomicBool::new(false),
                    freshness: Freshness::new(self.options.max_silence),
                })
            });
        }
        slots.retain(|stream, _| !gone.contains(stream));
        let followed = slots.clone();
        drop(slots);
        for stream in gone {
            self.tell(|| Change::Gone { stream });
        }
        followed
    }

    fn message(&self, slots: &Slots, message: proto::SubscribeResponse) -> Result<(), End> {
        let stream = StreamId::new(EngineId::new(&message.engine), message.rank);
        let Some((stream, slot)) = slots.get_key_value(&stream) else { return Err(End::Uninvited(stream)) };
        let mut retired = Retired::default();
        let (applied, cursor) = {
            let mut replica = slot.replica.write();
            (replica.apply_retiring(message, &mut retired), replica.cursor())
        };
        drop(retired);
        slot.freshness.moved(cursor);
        let applied = applied.map_err(|error| End::Replica(stream.clone(), error))?;
        bump(&self.shared.tally.messages);
        let stream = || stream.clone();
        match (applied, cursor) {
            (Applied::Reset(reason), _) => {
                bump(&self.shared.tally.resets);
                self.tell_waiting(Connection::Connected);
                self.tell(|| Change::Reset { stream: stream(), reason });
            }
            (Applied::Loaded, Some(cursor)) => {
                self.tell_waiting(Connection::Connected);
                self.tell(|| Change::Loaded { stream: stream(), cursor });
            }
            (Applied::Batch(batch), Some(cursor)) => {
                self.tell(|| Change::Batch { stream: stream(), cursor, batch: Arc::new(batch) });
            }
            (_, _) => {}
        }
        Ok(())
    }

    fn connected(&self, slots: &Slots) {
        bump(&self.shared.tally.subscriptions);
        for slot in slots.values() {
            slot.connected.store(true, Ordering::Release);
        }
        self.tell_waiting(Connection::Connected);
        self.tell(|| Change::Connected);
    }

    fn disconnected(&self, reason: Arc<str>) {
        let slots = self.shared.slots.read().clone();
        let mut retired = Retired::default();
        for slot in slots.values() {
            slot.connected.store(false, Ordering::Release);
            slot.replica.write().interrupt_retiring(&mut retired);
        }
        let before = self.tell_waiting(Connection::Waiting { reason: reason.clone() });
        if before == Connection::Connected {
            self.tell(|| Change::Disconnected { reason });
        }
    }

    /// Wakes those that wait for the replicas to be ready. Says how the connection stood before.
    fn tell_waiting(&self, connection: Connection) -> Connection {
        self.shared.connection.send_replace(connection)
    }

    fn count(&self, end: &End) {
        let tally = &self.shared.tally;
        match end {
            End::Status(status) if status.code() == Code::DataLoss => bump(&tally.losses),
            End::Replica(_, ReplicaError::DigestMismatch { .. }) => bump(&tally.digest_mismatches),
            End::Replica(..) | End::Uninvited(_) => bump(&tally.protocol_errors),
            _ => return,
        }
        warn!(%end, "subscribing again");
    }

    /// Tells readers, if there are any. A slow reader finds that some are missing.
    fn tell(&self, change: impl FnOnce() -> Change) {
        if self.changes.receiver_count() > 0 {
            // Fails when the last reader has just gone.
            let _ = self.changes.send(change());
        }
    }
}

/// Asks how old the plane's proof of every stream is. Ages count from the moment of the question, which is
/// never later than the moment at which the plane looked.
async fn ask_ages(mut plane: Calls, within: Duration) -> (std::time::Instant, Option<proto::StatusResponse>) {
    let asked = kvplane_runtime::now();
    let request = proto::StatusRequest { brief: true, ..proto::StatusRequest::default() };
    let latest = timeout(within, plane.status(request)).await;
    // Without an answer the proofs grow old: that is all there is to know.
    (asked, latest.ok().and_then(Result::ok).map(tonic::Response::into_inner))
}

fn prove(slots: &Slots, asked: std::time::Instant, latest: Option<proto::StatusResponse>) {
    for engine in latest.into_iter().flat_map(|latest| latest.engines) {
        let id = EngineId::new(&engine.id);
        for rank in engine.ranks {
            let Some(slot) = slots.get(&StreamId::new(id.clone(), rank.rank)) else { continue };
            // An older release says no age: what it calls live is as old as the answer.
            let live = rank.continuity() == proto::Continuity::Live;
            let age = rank.age_ms.or_else(|| live.then_some(0)).map(Duration::from_millis);
            let Some(at) = age.and_then(|age| asked.checked_sub(age)) else { continue };
            let cursor = rank.cursor.unwrap_or_default();
            let cursor = Cursor { epoch: Epoch::from_raw(cursor.epoch), sequence: cursor.sequence };
            let ours = slot.replica.read().cursor();
            slot.freshness.prove(cursor, at, ours);
        }
    }
}

async fn next(messages: &mut Streaming<proto::SubscribeResponse>) -> Result<proto::SubscribeResponse, End> {
    messages.message().await?.ok_or(End::Over)
}

/// Asks for what follows, where the replica can go on. A cursor that the plane cannot serve any more (also
/// after `DATA_LOSS`, which does not say whose it was) is answered with a reset of that stream alone.
fn selector(stream: &StreamId, slot: &Slot) -> proto::StreamSelector {
    let replica = slot.replica.read();
    let (low, high) = replica.digest().parts();
    let resume = replica.resume().map(|Cursor { epoch, sequence }| {
        let digest = Some(proto::Digest { low, high });
        proto::Cursor { epoch: epoch.as_u64(), sequence, digest }
    });
    drop(replica);
    proto::StreamSelector { engine: stream.engine.to_string(), rank: Some(stream.rank), resume }
}

fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
