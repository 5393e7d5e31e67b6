//! Streams being followed: the caller's side.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use kvplane_core::{Continuity, Cursor, Epoch, StateDigest, StreamId, is_caught_up};
use kvplane_proto::kvplane::v1::{Batch, ResetReason};
use parking_lot::RwLock;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::client::Calls;
use crate::freshness::Freshness;
use crate::options::{Options, Selection};
use crate::replica::{BlockCounts, Replica};
use crate::task::Task;
use crate::worth::TrustReport;

/// The most changes that can be kept for a slow reader.
const MAX_CHANGES: usize = 1 << 20;

/// Streams being followed in the background. Ends when it is closed or dropped.
#[derive(Debug)]
pub struct Following {
    shared: Arc<Shared>,
    changes: broadcast::Sender<Change>,
    task: JoinHandle<()>,
    stop: DropGuard,
}

/// Something that happened, reported after the replica has applied it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Change {
    /// A subscription is up.
    Connected,
    /// It ended; another will be tried.
    Disconnected {
        /// Why.
        reason: Arc<str>,
    },
    /// What was held of a stream is void; a snapshot is on its way.
    Reset {
        /// The stream.
        stream: StreamId,
        /// Why.
        reason: ResetReason,
    },
    /// A snapshot replaced what was held.
    Loaded {
        /// The stream.
        stream: StreamId,
        /// Where it stands now.
        cursor: Cursor,
    },
    /// A batch was applied.
    Batch {
        /// The stream.
        stream: StreamId,
        /// Where it stands now.
        cursor: Cursor,
        /// What happened.
        batch: Arc<Batch>,
    },
    /// The plane no longer has the stream; its replica is no longer listed.
    Gone {
        /// The stream.
        stream: StreamId,
    },
    /// The reader was too slow: this many changes were left out. The replicas have them all.
    Lagged {
        /// How many.
        missed: u64,
    },
}

/// How the connection stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Connection {
    /// Under way.
    Connecting,
    /// The subscription is up.
    Connected,
    /// It ended or could not be made; the next attempt comes soon.
    Waiting {
        /// Why.
        reason: Arc<str>,
    },
}

/// What happened so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Subscriptions that came up.
    pub subscriptions: u64,
    /// Messages applied.
    pub messages: u64,
    /// Resets, the first of every stream included.
    pub resets: u64,
    /// Subscriptions that the plane ended because we were too slow.
    pub losses: u64,
    /// Digests that did not match.
    pub digest_mismatches: u64,
    /// Messages that were foreign, out of order or malformed.
    pub protocol_errors: u64,
}

/// Changes as they happen. Ends when the following is closed or dropped.
pub struct Changes(BroadcastStream<Change>);

/// A replica to read. Cheap to clone; stays readable after the following ended, and then says that it is not
/// connected.
#[derive(Debug, Clone)]
pub struct ReplicaView(Arc<Slot>);

/// What the background task and the readers share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) slots: RwLock<BTreeMap<StreamId, Arc<Slot>>>,
    /// How the connection stands. Sent again, also unchanged, when streams may have caught up.
    pub(crate) connection: watch::Sender<Connection>,
    pub(crate) tally: Tally,
}

impl Shared {
    /// Whether every stream is complete at this moment, and live here if it is live at the plane.
    fn is_ready(&self) -> bool {
        // The connection first: once it is up, the streams are those that the plane has.
        *self.connection.borrow() == Connection::Connected
            && self.slots.read().values().all(|slot| slot.is_caught_up())
    }
}

/// One stream.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) replica: RwLock<Replica>,
    pub(crate) connected: AtomicBool,
    pub(crate) freshness: Freshness,
}

impl Slot {
    pub(crate) fn is_caught_up(&self) -> bool {
        let replica = self.replica.read();
        let there = replica.continuity();
        is_caught_up(replica.is_current(), there, self.freshness.judge(there))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) subscriptions: AtomicU64,
    pub(crate) messages: AtomicU64,
    pub(crate) resets: AtomicU64,
    pub(crate) losses: AtomicU64,
    pub(crate) digest_mismatches: AtomicU64,
    pub(crate) protocol_errors: AtomicU64,
}

impl Following {
    pub(crate) fn start(plane: Calls, selection: Selection, options: Options) -> Self {
        let (connection, _) = watch::channel(Connection::Connecting);
        let shared = Arc::new(Shared { slots: RwLock::default(), connection, tally: Tally::default() });
        let (changes, _) = broadcast::channel(options.changes_kept.clamp(1, MAX_CHANGES));
        let stop = CancellationToken::new();
        let task = Task::new(plane, selection, options, shared.clone(), changes.clone());
        let task = kvplane_runtime::spawn("follow a plane", task.run(stop.clone()));
        Self { shared, changes, task, stop: stop.drop_guard() }
    }

    /// The streams that are followed now, in order.
    pub fn replicas(&self) -> Vec<StreamId> {
        self.shared.slots.read().keys().cloned().collect()
    }

    /// A stream's replica; `None` while the plane has not named the stream.
    pub fn replica(&self, stream: &StreamId) -> Option<ReplicaView> {
        self.shared.slots.read().get(stream).cloned().map(ReplicaView)
    }

    /// What happens from now on. A reader that does not keep up gets the number of missed changes and goes on
    /// with what is newest; it slows nobody. Ask for changes first and read replicas then, and nothing is
    /// missed in between.
    pub fn changes(&self) -> Changes {
        Changes(BroadcastStream::new(self.changes.subscribe()))
    }

    /// How the connection stands.
    pub fn connection(&self) -> Connection {
        self.shared.connection.borrow().clone()
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        let tally = &self.shared.tally;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            subscriptions: read(&tally.subscriptions),
            messages: read(&tally.messages),
            resets: read(&tally.resets),
            losses: read(&tally.losses),
            digest_mismatches: read(&tally.digest_mismatches),
            protocol_errors: read(&tally.protocol_errors),
        }
    }

    /// Waits until the subscription is up, every stream of it is current, and those that are live at the
    /// plane are live here: a proof that their engines are there has arrived, and is not older than
    /// [`Options::max_silence`]. Safe to give up and to ask again.
    pub async fn ready(&self) {
        let mut connection = self.shared.connection.subscribe();
        while !self.shared.is_ready() {
            // It can only fail when the sender is gone, and this holds it.
            let _ = connection.changed().await;
        }
    }

    /// Ends the subscription and waits for the background task.
    pub async fn close(self) {
        drop(self.stop);
        // It only fails when the task panicked; there is nothing left to end then.
        let _ = self.task.await;
    }
}

impl ReplicaView {
    /// Whose replica it is.
    pub fn stream(&self) -> StreamId {
        self.0.replica.read().stream().clone()
    }

    /// Whether it is being followed at this moment. While it is not, it stays as it was last.
    pub fn connected(&self) -> bool {
        self.0.connected.load(Ordering::Acquire)
    }

    /// Whether it is connected and complete: what can be read is what the plane had at [`Self::cursor`], and
    /// what follows is on its way.
    pub fn is_current(&self) -> bool {
        self.connected() && self.0.replica.read().is_current()
    }

    /// Reads several things at one moment. The replica does not move meanwhile: be brief.
    pub fn read<T>(&self, look: impl FnOnce(&Replica) -> T) -> T {
        look(&self.0.replica.read())
    }

    /// The digest of what is held.
    pub fn digest(&self) -> StateDigest {
        self.read(Replica::digest)
    }

    /// The position; `None` while nothing was loaded.
    pub fn cursor(&self) -> Option<Cursor> {
        self.read(Replica::cursor)
    }

    /// The publisher's life.
    pub fn epoch(&self) -> Option<Epoch> {
        self.read(Replica::epoch)
    }

    /// What the state is worth, as last heard.
    pub fn trust(&self) -> TrustReport {
        self.read(|replica| replica.trust().clone())
    }

    /// Where the stream stands. It is live only while its engine was proven to be there within
    /// [`Options::max_silence`].
    pub fn continuity(&self) -> Continuity {
        self.0.freshness.judge(self.read(Replica::continuity))
    }

    /// How old the proof is that the engine is there; `None` before the first.
    pub fn age(&self) -> Option<Duration> {
        self.0.freshness.age()
    }

    /// Blocks held, by tier.
    pub fn blocks(&self) -> BlockCounts {
        self.read(Replica::blocks)
    }

    /// Whether any place holds the block.
    pub fn holds(&self, hash: u64) -> bool {
        self.read(|replica| replica.holds(hash))
    }
}

impl Stream for Changes {
    type Item = Change;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Change>> {
        Pin::new(&mut self.0).poll_next(context).map(|next| {
            next.map(|change| match change {
                Ok(change) => change,
                Err(BroadcastStreamRecvError::Lagged(missed)) => Change::Lagged { missed },
            })
        })
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").finish_non_exhaustive()
    }
}
