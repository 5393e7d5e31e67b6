//! Where a stream stands: one publisher's life, heard in order, or said to be broken.
//!
//! A sans-IO state machine. The driver feeds what happened (connected, a live frame, a replayed frame, the
//! end of a replay, a tick) and then polls for what to do. Batches leave in order, once; everything that
//! makes the state less than known leaves as an action of its own, before the batches that follow it.
//!
//! ```text
//!               connected                 replay from 0 done
//!  Connecting ────────────> Recovering ─────────────────────────> Live
//!                            ^   ^  (replay from `last`, inclusive:   │ │
//!                            │   │   same batch = same life)          │ │ silence: the same question,
//!                            │   └──────── gap ────────────────────────┘ │ asked in the background
//!                            └──────── disconnected / rechecked ─────────┘
//! ```
//!
//! No engine announces a restart. The proof is always the same: ask the replay socket for the last batch we
//! hold, **inclusive**, and compare digests. Asking from the next one would hide a restart that overtook us.

mod alone;
mod beginning;
mod damaged;
mod hold;
mod interleaved;
mod order;
mod quiet;
mod recovery;
mod silence;
mod types;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use kvplane_core::{Continuity, Reason, digest};
// No batch has this number: replay sockets end their answers with it.
use kvplane_wire::replay::END_SEQUENCE as END_MARKER;

use crate::clock::Now;
use crate::loss::lose;
use crate::persist::persist;
use alone::Pending;
pub(crate) use hold::Recent;
use hold::{Held, Hold};
use interleaved::Tracks;
pub(crate) use order::{Order, Seen};
use quiet::Quiet;
use recovery::Request;
use silence::Doubt;
pub use types::{Action, Counters, EpochCause, OnGap, Options, Origin, Sequenced};

/// Damaged frames contradict the ring too, but not this often in a row.
const MAX_CONTRADICTIONS: u32 = 16;

/// The last batch that was put in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Last {
    sequence: u64,
    /// Unknown when the batch itself never reached us in readable form.
    digest: Option<u128>,
}

persist!(Last { sequence, digest });

impl Last {
    pub(crate) fn parts(self) -> (u64, Option<u128>) {
        (self.sequence, self.digest)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Connecting,
    Recovering,
    Live,
}

/// What a live frame is, beside what is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arrival {
    /// To be placed or held.
    News,
    /// The same batch is known.
    Duplicate,
    /// Of a range that was given up, or that the ring was faster with.
    Late,
    /// Another batch was placed under its number.
    Contradicts,
    /// Another batch waits under its number.
    Conflicts,
}

/// The state machine of one stream.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not one state in disguise")]
pub struct Sequencer {
    options: Options,
    phase: Phase,
    connected: bool,
    /// That it is connected was concluded from a frame; the socket has not said so yet.
    implied: bool,
    /// It goes on after another one, and has not been connected itself.
    adopted: bool,
    /// Since when no verdict has been possible: a disconnect, or a recheck without an answer.
    unresolved_since: Option<Duration>,
    down: bool,
    last: Option<Last>,
    /// Nothing of this epoch has been placed yet: its first batch may have any number.
    fresh: bool,
    hold: Hold,
    recent: Recent,
    /// The highest number that came over this connection: on one connection numbers rise.
    highest_live: Option<u64>,
    /// The number that came last over it.
    latest_live: Option<u64>,
    /// A batch of this life came over this connection in its turn: nothing on it is left of another.
    linked: bool,
    /// That the history is known from its beginning has been said.
    start_reported: bool,
    /// Nothing can be asked: the next batch is the beginning of what is known, whatever its number.
    any_first: bool,
    out: VecDeque<Action>,
    request: Option<Request>,
    /// Live batches in a row that the ring contradicts.
    contradictions: u32,
    /// A complete replay had a hole after this sequence; a second one with the same hole means that it is
    /// lost.
    hole_after: Option<u64>,
    pending: Option<Pending>,
    /// A batch that can only be the first of another life, while the ring has not said so.
    beginning: Option<Held>,
    /// The highest number that waited for its turn in this life, and when it arrived: an answer that ends
    /// below it is cut short.
    known_tail: Option<(u64, u64)>,
    /// Two publishers are heard: nothing is placed.
    interleaved: bool,
    tracks: Tracks,
    /// Why a stream that follows is not `live` ...
    doubt: Option<Doubt>,
    /// ... and since when.
    doubt_since: Option<Duration>,
    /// When the engine was last proven to be there.
    last_proof: Duration,
    /// Questions in a row that were asked while following, and not answered.
    failed_probes: u32,
    /// The engine was there while its replay socket did not answer: that it does not says nothing.
    replay_is_deaf: bool,
    /// Orders arrivals and requests against each other.
    stamp: u64,
    next_id: u64,
    hint: HintState,
    quiet: Quiet,
    counters: Counters,
}

/// What is known of the start time since the last (re)connect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum HintAnswer {
    #[default]
    Awaited,
    Absent,
    At(u64),
}

impl HintAnswer {
    fn value(self) -> Option<u64> {
        match self {
            Self::At(start_time) => Some(start_time),
            Self::Awaited | Self::Absent => None,
        }
    }
}

/// The start-time hint: supports a verdict where there is no replay, never decides alone.
#[derive(Debug, Default)]
struct HintState {
    /// Of the current epoch.
    baseline: Option<u64>,
    /// The answer since the last (re)connect.
    current: HintAnswer,
    asked: u64,
}

impl Sequencer {
    /// A stream that has not been reached yet.
    pub fn new(options: Options) -> Self {
        let hold = Hold::new(options.hold_batches, options.hold_bytes);
        let quiet = Quiet::new(&options);
        Self {
            options,
            phase: Phase::Connecting,
            connected: false,
            implied: false,
            adopted: false,
            unresolved_since: None,
            down: false,
            last: None,
            fresh: true,
            hold,
            recent: Recent::default(),
            highest_live: None,
            latest_live: None,
            linked: false,
            start_reported: false,
            any_first: false,
            out: VecDeque::new(),
            request: None,
            contradictions: 0,
            hole_after: None,
            pending: None,
            beginning: None,
            known_tail: None,
            interleaved: false,
            tracks: Tracks::default(),
            doubt: None,
            doubt_since: None,
            last_proof: Duration::ZERO,
            failed_probes: 0,
            replay_is_deaf: false,
            stamp: 0,
            next_id: 0,
            hint: HintState::default(),
            quiet,
            counters: Counters::default(),
        }
    }

    /// Where the stream stands.
    pub fn continuity(&self) -> Continuity {
        match self.phase {
            _ if self.down => Continuity::Down,
            Phase::Connecting => Continuity::Connecting,
            Phase::Live if self.doubt.is_none() => Continuity::Live,
            Phase::Recovering | Phase::Live => Continuity::Recovering,
        }
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The publisher's number of the last batch that was put in order.
    pub fn last_sequence(&self) -> Option<u64> {
        self.last.map(|last| last.sequence)
    }

    /// The digest of a batch that was put in order, if it was among the last ones of this life.
    pub(crate) fn digest_of(&self, sequence: u64) -> Option<u128> {
        self.recent.get(sequence)
    }

    /// Whether there is a replay socket to ask, from the next question on.
    pub fn offer_replay(&mut self, offered: bool) {
        self.options.replay = offered;
    }

    /// The next thing to do. Call until it says `None` after every input.
    pub fn poll(&mut self) -> Option<Action> {
        self.out.pop_front()
    }

    /// The live socket is connected (again).
    ///
    /// Whatever was heard before came over another connection, and perhaps from another life: none of it
    /// counts for this one.
    pub fn connected(&mut self, now: Now) {
        if std::mem::take(&mut self.implied) {
            return; // what was heard over this connection has said so
        }
        self.void_connection();
        self.connect(now);
    }

    fn connect(&mut self, now: Now) {
        self.connected = true;
        self.adopted = false;
        self.ask_hint();
        self.verify(now);
    }

    /// Whether what arrives now comes over a connection: frames that are left of one that ended do not count.
    fn hears(&self) -> bool {
        self.connected || (self.phase == Phase::Connecting && self.counters.disconnects == 0)
    }

    /// The live socket lost its peer.
    pub fn disconnected(&mut self, now: Now) {
        self.counters.disconnects += 1;
        self.connected = false;
        self.implied = false;
        self.unresolved_since.get_or_insert(now.mono);
        if self.phase == Phase::Live {
            self.phase = Phase::Recovering;
        }
        self.quiet.stop();
        self.void_connection();
    }

    /// Some peer of a shared, bound socket came or went, and nobody can say which: check.
    pub fn recheck(&mut self, now: Now) {
        self.connected = true;
        self.adopted = false;
        self.unresolved_since.get_or_insert(now.mono);
        self.void_connection();
        self.ask_hint();
        self.verify(now);
    }

    /// What waits came over a connection that is over, perhaps from a life that is over; and a replay under
    /// way may be answered by either life. If it is the same life, its ring has all of it.
    fn void_connection(&mut self) {
        self.hold.clear();
        self.known_tail = None;
        self.request = None;
        self.pending = None;
        self.beginning = None;
        self.highest_live = None;
        self.latest_live = None;
        self.linked = false;
        self.failed_probes = 0;
        self.end_doubt();
        self.end_interleaving();
    }

    /// A live frame arrived.
    pub fn live(&mut self, now: Now, sequence: u64, payload: Bytes) {
        if self.adopted {
            // Nothing can be left of an earlier connection: there is one, and the socket has not said so yet.
            self.implied = true;
            self.connect(now);
        }
        if sequence == END_MARKER || !self.hears() {
            self.counters.refused += 1;
            return;
        }
        self.stamp += 1;
        let held = Held {
            digest: digest(&payload),
            payload,
            origin: Origin::Live,
            stamp: self.stamp,
            readable: true,
        };
        let rises = self.highest_live.is_some_and(|highest| sequence > highest);
        self.highest_live = self.highest_live.max(Some(sequence));
        self.latest_live = Some(sequence);
        let arrival = self.arrival(sequence, &held, rises);
        if arrival != Arrival::Duplicate
            && self.interleaves(now, sequence, matches!(arrival, Arrival::Contradicts | Arrival::Conflicts))
        {
            self.counters.refused += 1;
            return;
        }
        match arrival {
            Arrival::News => self.take(now, sequence, held),
            Arrival::Duplicate => {
                if self.recent.get(sequence).is_some() {
                    self.contradictions = 0;
                }
                self.counters.duplicates += 1;
            }
            Arrival::Late => self.counters.refused += 1,
            Arrival::Contradicts => self.suspect(now, sequence, &held),
            // One is damaged, or of another life. The ring knows.
            Arrival::Conflicts => drop(self.hold.take(sequence)),
        }
    }

    /// Places a batch if it is its turn, or keeps it until it is.
    fn take(&mut self, now: Now, sequence: u64, held: Held) {
        if self.phase == Phase::Live && self.next_expected(sequence) {
            self.contradictions = 0;
            self.heard_in_order(now);
            self.place(sequence, held);
            self.quiet.begin(now.mono);
            return;
        }
        self.put_on_hold(sequence, held);
        match self.phase {
            Phase::Live => self.open_gap(now),
            Phase::Connecting => {
                // Heard before the monitor spoke: as good as connected.
                self.implied = true;
                self.connect(now);
            }
            Phase::Recovering => self.try_without_replay(now),
        }
    }

    /// When the engine's process started, as it said in this epoch.
    pub fn started(&self) -> Option<u64> {
        self.hint.baseline
    }

    /// The start-time hint arrived (`None`: the engine has none).
    pub fn hint(&mut self, now: Now, id: u64, start_time: Option<u64>) {
        if id != self.hint.asked {
            return;
        }
        self.hint.current = start_time.map_or(HintAnswer::Absent, HintAnswer::At);
        if self.phase == Phase::Live || self.last.is_none() {
            self.hint.baseline = start_time;
        }
        if self.phase == Phase::Recovering {
            self.try_without_replay(now);
        }
    }

    /// Time passed.
    pub fn tick(&mut self, now: Now) {
        let too_long = |since: Duration| now.mono.saturating_sub(since) >= self.options.down_after;
        self.down |= self.unresolved_since.is_some_and(too_long) || self.doubt_since.is_some_and(too_long);
        self.tick_interleaving(now);
        self.run_pending(now);
        if self.phase == Phase::Live
            && self.options.replay
            && self.request.is_none()
            && self.quiet.is_due(now.mono)
        {
            self.ask_replay(now, true);
            self.quiet.asked(now.mono);
        }
    }

    /// The moment until which [`Self::tick`] changes nothing, unless something else happens before.
    pub fn idle_until(&self) -> Duration {
        let unsettled = [self.unresolved_since, self.doubt_since].into_iter().flatten();
        let down =
            unsettled.filter(|_| !self.down).map(|since| since.saturating_add(self.options.down_after));
        let asks = self.phase == Phase::Live && self.options.replay && self.request.is_none();
        let question = self.quiet.due().filter(|_| asks);
        let calm = self.interleaved.then(|| self.tracks.calm_at());
        let pending = self.pending.and_then(Pending::due);
        down.chain(question).chain(calm).chain(pending).min().unwrap_or(Duration::MAX)
    }

    // --- placing batches ---------------------------------------------------------------------------------

    fn next_expected(&self, sequence: u64) -> bool {
        match self.last {
            Some(last) => sequence == last.sequence + 1,
            // Nothing placed yet: the start of a life always fits; another number only where nothing can be
            // asked.
            None => sequence == 0 || self.any_first,
        }
    }

    /// Puts a batch next in line.
    fn place(&mut self, sequence: u64, held: Held) {
        let first = self.last.is_none() && self.fresh;
        if first {
            if sequence == 0 {
                self.tell_start();
            } else {
                self.start_reported = false;
                self.out.push_back(Action::KnownFrom(sequence));
            }
        }
        self.fresh = false;
        self.any_first = false;
        match held.origin {
            Origin::Live => self.linked = true,
            Origin::Replay => self.counters.replayed_batches += 1,
        }
        let previous = self.last.replace(Last { sequence, digest: Some(held.digest) });
        self.recent.remember(sequence, held.digest);
        let Held { digest, payload, origin, .. } = held;
        self.out.push_back(Action::Apply(Sequenced { sequence, digest, payload, origin, previous, first }));
    }

    /// The history is known from its beginning; said once.
    fn tell_start(&mut self) {
        if !std::mem::replace(&mut self.start_reported, true) {
            self.out.push_back(Action::HeardFromStart);
        }
    }

    /// Everything between the last batch and `next` is lost for good.
    fn skip_to(&mut self, next: u64, reason: Reason) {
        let first_lost = self.last.map_or(0, |last| last.sequence + 1);
        self.recent.lose(first_lost..next);
        self.count_loss(reason);
    }

    fn count_loss(&mut self, reason: Reason) {
        let action = self.loss_action(reason);
        self.out.push_back(action);
    }

    fn loss_action(&mut self, reason: Reason) -> Action {
        lose(&mut self.counters, self.options.on_gap, reason)
    }

    fn put_on_hold(&mut self, sequence: u64, held: Held) {
        if self.known_tail.is_none_or(|(highest, _)| sequence > highest) {
            self.known_tail = Some((sequence, held.stamp));
        }
        if self.hold.insert(sequence, held) {
            self.counters.hold_overflows += 1;
        }
    }

    /// Sorts out duplicates, late batches and signs of a restart. Changes nothing.
    fn arrival(&self, sequence: u64, held: &Held, rises: bool) -> Arrival {
        if let Some(known) = self.recent.get(sequence) {
            return if known == held.digest { Arrival::Duplicate } else { Arrival::Contradicts };
        }
        if self.recent.is_lost(sequence) {
            return Arrival::Late;
        }
        if self.last.is_some_and(|last| sequence <= last.sequence) {
            // Older than what is remembered: not provably a duplicate. Unless it is in its turn on this
            // connection: then an answer of the ring was only faster, and began above it.
            return if rises { Arrival::Late } else { Arrival::Contradicts };
        }
        match self.hold.get(sequence) {
            Some(other) if other.digest == held.digest => Arrival::Duplicate,
            Some(other) if other.readable && self.options.replay => Arrival::Conflicts,
            _ => Arrival::News,
        }
    }

    /// A number that has been placed came again with something else under it: another life, or a damaged
    /// frame.
    fn suspect(&mut self, now: Now, sequence: u64, held: &Held) {
        if self.options.replay && !self.contradicted() {
            // If it is another life, our last batch is not in its ring, and its ring has this one.
            self.verify(now);
        } else {
            self.restart(now, EpochCause::SequenceWentBack, Some((sequence, held.clone())));
        }
    }

    /// Counts a live batch that the ring contradicts. True once there were enough in a row that the ring
    /// cannot be this publisher's: the replay address is somebody else's, and is asked no more.
    fn contradicted(&mut self) -> bool {
        self.contradictions += 1;
        if self.contradictions < MAX_CONTRADICTIONS {
            return false;
        }
        self.options.replay = false;
        self.counters.replays_foreign += 1;
        true
    }

    fn ask_hint(&mut self) {
        self.next_id += 1;
        self.hint.asked = self.next_id;
        self.hint.current = HintAnswer::Awaited;
        self.out.push_back(Action::Hint { id: self.next_id });
    }

    /// Following, as far as anybody can tell.
    fn go_live(&mut self, now: Now) {
        if std::mem::replace(&mut self.phase, Phase::Live) != Phase::Live {
            self.quiet.begin(now.mono);
        }
        self.unresolved_since = None;
        self.down = false;
        self.pending = None;
        self.beginning = None;
        if self.hint.current != HintAnswer::Awaited {
            self.hint.baseline = self.hint.current.value();
        }
    }

    /// Another epoch, or one that may be another.
    fn begin_epoch(&mut self, cause: EpochCause) {
        if cause.proven() {
            self.counters.restarts += 1;
        } else {
            self.counters.unproven += 1;
        }
        self.out.push_back(Action::NewEpoch(cause));
        // How many blocks this life has is asked anew. When it began was asked before the verdict, and is not
        // waited for.
        self.next_id += 1;
        self.out.push_back(Action::Hint { id: self.next_id });
        self.last = None;
        self.fresh = true;
        self.start_reported = false;
        self.any_first = false;
        self.hole_after = None;
        self.beginning = None;
        self.known_tail = None;
        self.linked = false;
        self.recent.clear();
        self.hint.baseline = self.hint.current.value();
    }
}
