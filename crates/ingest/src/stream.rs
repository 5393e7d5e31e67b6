//! One stream as the rest of the process sees it: a recorder behind a short lock, and a wake-up.

mod dumped;
mod evidence;
mod flush;
mod handed;
mod heard;
mod kept;
mod late;
mod mirrored;
mod news;
mod taken;
mod ticks;
mod troubled;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use kvplane_core::{
    Continuity, Cursor, Epoch, PlaneId, Reason, StateDigest, StreamId, Tier, Trouble, TrustState,
};
use kvplane_store::StreamJournal;
use kvplane_stream::{
    Ask, Counters, Entry, Group, Happening, JournalCounters, JournalOptions, Loss, Now, Options, Recorder,
    RequestMark, Snapshot, Window,
};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::chronicle::{Chronicle, Said};
use crate::clock::Clock;
use crate::trouble::{Reporter, Troubles};
pub use flush::FlushWatch;
pub use handed::{HandedOver, NotHandedOver};
use heard::{Heard, Hearing};
use kvplane_catalog::Freshness;
use kvplane_catalog::{Catalog, Identity, StreamFeed, View};
pub use late::NotIndexed;
pub use news::News;
use ticks::Ticks;

/// How long a glance waits for a batch that is being applied.
const GLANCE: Duration = Duration::from_millis(10);
/// How old what a glance falls back to may be when a batch begins.
const SEEN_FOR: Duration = Duration::from_secs(1);

/// What a stream looks like at one moment.
#[derive(Debug, Clone)]
pub struct StreamStatus {
    /// Where it stands.
    pub continuity: Continuity,
    /// What answers are worth.
    pub trust: TrustState,
    /// The life it is in.
    pub epoch: Epoch,
    /// The last entry of the journal.
    pub cursor: Cursor,
    /// The engine's own number of the last batch.
    pub engine_sequence: Option<u64>,
    /// When the engine's process started, where the engine says it: unix milliseconds.
    pub started: Option<u64>,
    /// From where on everything is known.
    pub known_from: Option<u64>,
    /// Blocks by tier.
    pub blocks: [u64; Tier::ALL.len()],
    /// Device blocks in use: every copy, in all groups.
    pub used_blocks: u64,
    /// Device blocks that the engine has, where it says so.
    pub capacity_blocks: Option<u64>,
    /// Digest of the resident state at the cursor.
    pub digest: StateDigest,
    /// Stores that wait for their parent.
    pub waiting: usize,
    /// Blocks of which nothing but the hash is known, in every place that holds them.
    pub unjoined: u64,
    /// Dictionary entries, held or not.
    pub dictionary: usize,
    /// Bytes of the live state (estimated).
    pub state_bytes: usize,
    /// Bytes of the replay window (estimated).
    pub window_bytes: usize,
    /// Entries in the replay window.
    pub window_entries: usize,
    /// The main group holds blocks whose tokens are not known: peers' protocols cannot carry them.
    pub untranslatable: bool,
    /// Block size, configured or learned.
    pub block_size: Option<u32>,
    /// The groups of the engine's cache, in the order in which they were first heard of.
    pub groups: Vec<Group>,
    /// What continuity counted.
    pub counters: Counters,
    /// What the journal counted.
    pub journal: JournalCounters,
    /// Frames that were none.
    pub malformed_frames: u64,
    /// What keeps the source from being heard, as a stable word.
    pub trouble: Option<Trouble>,
    /// How often each kind of trouble began.
    pub troubles: Vec<(Trouble, u64)>,
    /// Time since the last event: since it was applied, or since the engine's stamp if it came after the
    /// fact.
    pub since_last_event: Option<Duration>,
    /// From the engine's stamp of the last batch until it was applied here, where it stamps with the time of
    /// day and the batch was heard as it happened. What their clocks differ by is in it.
    pub lag: Option<Duration>,
    /// How old the proof is that the engine is there; `None` before the first. Zero where the source cannot
    /// fall silent.
    pub age: Option<Duration>,
    /// Why the index knows less of the stream than its journal does.
    pub index_lacking: Option<Reason>,
    /// How old all of this is: the stream was busy. `None` if it was read just now.
    pub read_before: Option<Duration>,
}

#[derive(Debug)]
struct Inner {
    recorder: Recorder,
    malformed_frames: u64,
    troubles: Troubles,
    heard: Heard,
    /// The stream was removed: whatever its source still says is not recorded.
    closed: bool,
    /// Where the stream is in the index, if it is in one.
    index: Option<StreamFeed>,
    /// Where its steps are written, if they are.
    durable: Option<StreamJournal>,
}

/// What an input left to do once the lock is released.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Questions to the outside.
    pub asks: Vec<Ask>,
    /// What is worth a log line.
    pub happenings: Vec<Happening>,
    /// States of lives that are over: dropping them takes a while.
    pub retired: Vec<kvplane_stream::State>,
}

/// One stream. Shared by its source and by everyone who reads it.
#[derive(Debug)]
pub struct Stream {
    id: StreamId,
    clock: Clock,
    freshness: Arc<Freshness>,
    ticks: Ticks,
    chronicle: Arc<Chronicle>,
    inner: Mutex<Inner>,
    /// The status that was read last, and when.
    seen: Mutex<Option<(Duration, Arc<StreamStatus>)>>,
    /// The journal's window, read without waiting for a batch that is being applied.
    window: Arc<Window>,
    changed: Notify,
    /// Something is in the window that nobody has been woken for.
    unannounced: AtomicBool,
    /// The snapshot that was taken last and when it was begun, while somebody still uses it. A caller that
    /// takes one, on a task or on a thread, holds this: two at once would end each other's for ever.
    snapshot: tokio::sync::Mutex<(Duration, Weak<Snapshot>)>,
    removed: CancellationToken,
    /// With what a report about a request that is sent now would be accepted.
    mark: Mutex<Option<RequestMark>>,
    /// A report has proven something.
    healed: AtomicBool,
    /// Another plane records it.
    mirrored: bool,
    /// The planes that it came through, this one last.
    via: Mutex<Arc<[PlaneId]>>,
}

impl Stream {
    /// A stream that is fed by hand: in process, without a source.
    pub fn in_process(id: StreamId, follow: Options, keep: JournalOptions) -> Self {
        let clock = Clock::start();
        let recorder = Recorder::new(follow, keep, id.rank, clock.now());
        Self::new(id, clock, Arc::default(), recorder, None)
    }

    pub(crate) fn new(
        id: StreamId,
        clock: Clock,
        chronicle: Arc<Chronicle>,
        mut recorder: Recorder,
        max_silence: Option<Duration>,
    ) -> Self {
        if let Some(max_silence) = max_silence {
            recorder.bound_silence(max_silence);
        }
        Self {
            id,
            clock,
            freshness: Arc::new(Freshness::new(clock.origin(), max_silence)),
            ticks: Ticks::default(),
            chronicle,
            mirrored: recorder.is_mirror(),
            via: Mutex::new(Arc::from([])),
            window: recorder.ledger().window(),
            unannounced: AtomicBool::new(false),
            inner: Mutex::new(Inner {
                recorder,
                malformed_frames: 0,
                troubles: Troubles::default(),
                heard: Heard::default(),
                closed: false,
                index: None,
                durable: None,
            }),
            seen: Mutex::new(None),
            changed: Notify::new(),
            snapshot: tokio::sync::Mutex::new((Duration::ZERO, Weak::new())),
            removed: CancellationToken::new(),
            mark: Mutex::new(None),
            healed: AtomicBool::new(false),
        }
    }

    /// Puts the stream into an index, before it is fed for the first time.
    pub fn join(&self, catalog: &Arc<Catalog>, identity: Identity) {
        let mut inner = self.inner.lock();
        let Inner { recorder, index, .. } = &mut *inner;
        recorder.ledger_mut().keep_fresh();
        let block_size = recorder.ledger().block_size();
        let freshness = self.freshness.clone();
        *index = Some(catalog.join(self.id.clone(), identity, block_size, view(recorder), freshness));
    }

    /// Takes the stream out of the index: it is in no answer that is begun after this.
    pub fn leave_index(&self) {
        let left = self.inner.lock().index.take();
        drop(left); // after the lock
    }

    /// Writes down for people what happened to it.
    pub fn remark(&self, said: Said) {
        self.chronicle.write(self.clock.now().unix_ms, Some(&self.id), said);
    }

    /// How old the proof is that its engine is there.
    pub fn freshness(&self) -> &Arc<Freshness> {
        &self.freshness
    }

    /// The engine was there at `at`, and all that it had published by then has been fed.
    pub(crate) fn prove(&self, at: Instant) -> Outcome {
        let (at, now) = (self.clock.mono(at), self.clock.now());
        {
            let mut inner = self.inner.lock();
            if !inner.closed && inner.recorder.prove_quietly(now, at) {
                self.note_liveness(&inner.recorder);
                return Outcome::default();
            }
        }
        self.feed(|recorder, now| recorder.prove(now, at))
    }

    /// Which stream.
    pub fn id(&self) -> &StreamId {
        &self.id
    }

    /// Feeds the recorder. Who waits for news is woken by [`Self::announce`], so that a burst wakes them
    /// once.
    pub fn feed(&self, input: impl FnOnce(&mut Recorder, Now)) -> Outcome {
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        if inner.closed {
            return Outcome::default();
        }
        self.refresh_seen(&inner, now);
        // A source that dies of a defect would leave a stream that looks well and hears nothing.
        let fed = catch_unwind(AssertUnwindSafe(|| self.feed_locked(&mut inner, now, input)));
        fed.unwrap_or_else(|_| self.give_up(inner, now))
    }

    /// What is recorded may be half done: none of it is said any more, and nothing is recorded.
    fn give_up(&self, mut inner: MutexGuard<'_, Inner>, now: Now) -> Outcome {
        error!(stream = %self.id, "internal error: the stream is no longer recorded");
        inner.troubles.set(Reporter::Source, Some(Trouble::Defect));
        inner.closed = true;
        let left = inner.index.take();
        // Nobody goes on from what may be half done.
        self.leave_journal(&mut inner);
        let outcome = self.feed_locked(&mut inner, now, Recorder::remove);
        drop(inner);
        drop(left); // after the lock
        self.remark(Said::trouble(Trouble::Defect));
        outcome
    }

    /// Takes the stream off the plane. Followers learn of it by [`Self::removed`] first; then what it holds
    /// is let go of, and nothing is recorded any more.
    pub(crate) fn remove(&self) -> Outcome {
        self.removed.cancel();
        self.leave_index();
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        inner.closed = true;
        let outcome = self.feed_locked(&mut inner, now, Recorder::remove);
        self.leave_journal(&mut inner);
        outcome
    }

    /// Cancelled when the stream is removed from the plane.
    pub fn removed(&self) -> &CancellationToken {
        &self.removed
    }

    fn feed_locked(&self, inner: &mut Inner, now: Now, input: impl FnOnce(&mut Recorder, Now)) -> Outcome {
        let before = Looks::of(&inner.recorder);
        let hearing = Hearing::begin(&inner.recorder);
        input(&mut inner.recorder, now);
        inner.heard.note(&hearing, &inner.recorder, now);
        self.note_liveness(&inner.recorder);
        *self.mark.lock() = inner.recorder.mark_request();
        let news = Looks::of(&inner.recorder) != before;
        // Under the lock, so that the index has seen all that the journal has once the lock is free.
        let Inner { recorder, index, .. } = inner;
        let entries = recorder.ledger_mut().take_fresh();
        if let Some(index) = index {
            index.follow(&entries, view(recorder), recorder.ledger().resumption());
        }
        let outcome = Outcome {
            asks: recorder.take_asks(),
            happenings: recorder.take_happenings(),
            retired: recorder.ledger_mut().take_retired(),
        };
        // What is being written is announced once it is.
        if !self.write_down(inner) && news {
            self.unannounced.store(true, Ordering::Release);
        }
        outcome
    }

    /// What is read of the recorder without its lock.
    fn note_liveness(&self, recorder: &Recorder) {
        self.freshness.set(recorder.proven_at());
        self.ticks.set(recorder.idle_until());
    }

    /// Wakes readers that wait for news, if there is any.
    pub fn announce(&self) {
        if self.unannounced.swap(false, Ordering::AcqRel) {
            self.changed.notify_waiters();
        }
    }

    pub(crate) fn count_malformed_frame(&self) {
        self.inner.lock().malformed_frames += 1;
    }

    /// Where the journal stands now. It may be ahead of what readers get: see [`Self::reported_cursor`].
    pub fn cursor(&self) -> Cursor {
        self.window.cursor()
    }

    /// Where it stands as far as readers get it: what is kept in a durable journal is read once it is written there.
    pub fn reported_cursor(&self) -> Cursor {
        self.window.reported_cursor()
    }

    /// The position before the first entry that is kept.
    pub fn first_cursor(&self) -> Option<Cursor> {
        self.window.first_cursor()
    }

    /// The cursor of a bare number, if everything after it is still here.
    pub fn cursor_at(&self, sequence: u64) -> Result<Cursor, Loss> {
        self.window.cursor_at(sequence)
    }

    /// What follows a cursor, at most `max` entries; empty when caught up.
    pub fn read_after(&self, cursor: Cursor, max: usize) -> Result<Vec<Arc<Entry>>, Loss> {
        self.window.read_after(cursor, max)
    }

    /// Makes sure that there is an entry behind a cursor, if need be one that says nothing. Numbers that
    /// another plane gives out are left alone.
    pub fn go_beyond(&self, cursor: Cursor) {
        self.feed(|recorder, _| {
            if recorder.ledger().cursor() == cursor && !recorder.is_mirror() {
                recorder.note_nothing();
            }
        });
        self.announce();
    }

    /// The replay window, which is read without waiting for a batch that is being applied.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// What the stream looks like now.
    pub fn status(&self) -> StreamStatus {
        let inner = self.inner.lock();
        let status = self.status_of(&inner, self.clock.now());
        drop(inner);
        self.keep_seen(&status);
        status
    }

    /// Whether a batch is being applied that takes long.
    pub fn is_busy(&self) -> bool {
        self.inner.try_lock_for(GLANCE).is_none()
    }

    /// What the stream looks like, for people and pages: now if that can be said at once, else as it was last
    /// seen. A batch that takes long holds up nobody who only looks.
    pub fn glance(&self) -> StreamStatus {
        if let Some(inner) = self.inner.try_lock_for(GLANCE) {
            let status = self.status_of(&inner, self.clock.now());
            drop(inner);
            self.keep_seen(&status);
            return status;
        }
        let seen = self.seen.lock().clone();
        let Some((at, status)) = seen else {
            // Before the first batch there is nothing that takes long.
            return self.status();
        };
        let read_before = Some(self.clock.now().mono.saturating_sub(at));
        // How fresh it is can be said without the lock.
        let age = self.freshness.age();
        let continuity = self.freshness.judge(status.continuity, age);
        StreamStatus { continuity, age, read_before, ..StreamStatus::clone(&status) }
    }

    fn keep_seen(&self, status: &StreamStatus) {
        *self.seen.lock() = Some((self.clock.now().mono, Arc::new(status.clone())));
    }

    /// Before what may take long: remembers how the stream looks, if nobody has looked for a while.
    fn refresh_seen(&self, inner: &Inner, now: Now) {
        if let Some((at, seen)) = &mut *self.seen.lock() {
            let passed = now.mono.saturating_sub(*at);
            if passed < SEEN_FOR {
                return;
            }
            let Inner { recorder, troubles, .. } = inner;
            let is_idle = seen.cursor == recorder.ledger().cursor()
                && seen.continuity == recorder.continuity()
                && seen.counters == recorder.counters()
                && seen.trouble == troubles.now();
            if is_idle {
                *at = now.mono;
                if let Some(since) = &mut Arc::make_mut(seen).since_last_event {
                    *since += passed;
                }
                return;
            }
        }
        let status = self.status_of(inner, now);
        self.keep_seen(&status);
    }

    fn status_of(&self, inner: &Inner, now: Now) -> StreamStatus {
        let journal = inner.recorder.ledger();
        let age = self.freshness.age();
        StreamStatus {
            continuity: self.freshness.judge(inner.recorder.continuity(), age),
            age,
            trust: journal.trust().clone(),
            epoch: journal.epoch(),
            cursor: journal.cursor(),
            engine_sequence: journal.engine_sequence(),
            started: inner.recorder.started(),
            known_from: journal.known_from(),
            blocks: journal.state().blocks_by_tier(),
            used_blocks: journal.state().copies_in(Tier::Device),
            capacity_blocks: inner.recorder.capacity(),
            digest: journal.state().digest(),
            waiting: journal.state().waiting(),
            unjoined: journal.state().unjoined(),
            dictionary: journal.state().entries(),
            state_bytes: journal.state().bytes(),
            window_bytes: journal.window_bytes(),
            window_entries: journal.window_entries(),
            untranslatable: journal.untranslatable(),
            block_size: journal.block_size(),
            groups: journal.groups().to_vec(),
            counters: inner.recorder.counters(),
            journal: journal.counters().clone(),
            malformed_frames: inner.malformed_frames,
            trouble: inner.troubles.now(),
            troubles: inner.troubles.counted().to_vec(),
            since_last_event: inner.heard.since_last_event(now),
            lag: inner.heard.lag(),
            index_lacking: inner.index.as_ref().and_then(StreamFeed::lacking),
            read_before: None,
        }
    }
}

/// What followers of a stream are woken for.
#[derive(PartialEq)]
struct Looks {
    cursor: Cursor,
    continuity: Continuity,
    stale: bool,
}

impl Looks {
    fn of(recorder: &Recorder) -> Self {
        Self {
            cursor: recorder.ledger().cursor(),
            continuity: recorder.continuity(),
            stale: recorder.is_stale(),
        }
    }
}

/// What answers say of a stream.
fn view(recorder: &Recorder) -> View {
    let journal = recorder.ledger();
    View {
        epoch: journal.epoch(),
        continuity: recorder.continuity(),
        trust: journal.trust().level(),
        reason: journal.trust().worst().map(|worst| worst.reason),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use kvplane_core::EngineId;

    use super::*;

    #[test]
    fn a_glance_does_not_wait_for_a_busy_stream() {
        let id = StreamId::new(EngineId::new("e"), 0);
        let stream = Stream::in_process(id, Options::default(), JournalOptions::default());
        let ((begin, begun), (end, ended)) = (mpsc::sync_channel(1), mpsc::sync_channel::<()>(1));
        let stream = &stream;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                stream.feed(|_, _| {
                    begin.send(()).unwrap();
                    ended.recv().unwrap();
                })
            });
            begun.recv().unwrap();
            assert!(stream.is_busy());
            let glance = stream.glance();
            assert!(glance.read_before.is_some(), "as it was before the batch");
            end.send(()).unwrap();
        });
        assert_eq!((stream.is_busy(), stream.glance().read_before), (false, None));
    }
}
