//! What a stream's engine holds, what that is worth, and the window of recent entries.
//!
//! The ledger knows no dialect. What feeds it (the [interpreter](crate::interpreter) of an engine's
//! events, or [another plane](mirrored)) writes a [`Draft`] with a small set of operations and commits it as
//! one entry:
//!
//! | operation | meaning |
//! |---|---|
//! | [`define`](Ledger::define) | what a block is: its parent, tokens and keys |
//! | [`hold`](Ledger::hold) | a place holds this number of copies of a block |
//! | [`release`](Ledger::release) | a place has only this number of copies left |
//! | [`clear`](Ledger::clear) | places hold nothing any more |
//! | [`drop_residency`](Ledger::drop_residency) | events were lost: nothing is known to be held |
//! | [`degrade`](Ledger::degrade), [`resolve`](Ledger::resolve) | answers are worth less for a reason, or no longer |
//!
//! Each operation changes the state and writes what that means for subscribers: changes for those that keep a
//! copy of the state, transitions for those that only know blocks and tiers.

mod counters;
mod draft;
mod entries;
mod groups;
mod marks;
mod mirrored;
mod operations;
mod revive;
mod sides;
mod sizes;
mod snapshot;
#[cfg(test)]
mod tests;
mod visible;
mod window;

use crate::persist::{persist, persist_enum};
use std::sync::Arc;
use std::time::Duration;

use kvplane_core::{Continuity, Cursor, Epoch, Reason, Trust, TrustState};

use crate::change::Entry;
use crate::clock::Now;
use crate::options::JournalOptions;
use crate::peer_dump::Position;
use crate::state::{Attributes, State};
pub use counters::{JournalCounters, PassedOver};
pub(crate) use draft::Draft;
pub use groups::Group;
pub(crate) use groups::{GroupSpec, Groups, is_full};
pub(crate) use operations::Cleared;
use sides::Sides;
pub(crate) use sizes::SizeVerdict;
pub use snapshot::{Snapshot, SnapshotBuilder};
pub use window::{Loss, Range, Window};

/// The ledger of one stream.
#[derive(Debug)]
pub struct Ledger {
    options: Arc<JournalOptions>,
    epoch: Epoch,
    window: Arc<Window>,
    state: State,
    trust: TrustState,
    trust_changed: bool,
    continuity: Continuity,
    continuity_changed: bool,
    known_from: KnownFrom,
    /// How old the proof is that the engine is there, as of the last input.
    age: Option<Duration>,
    engine_sequence: Option<u64>,
    /// Digest of that batch as the engine sent it, where it is known.
    engine_digest: Option<u128>,
    /// That of the batch that is being interpreted.
    coming_digest: Option<u128>,
    /// That batch, where its payload was read here.
    position: Option<Position>,
    /// The engine's stamp of that batch, in seconds.
    last_timestamp: Option<f64>,
    /// Most stores have the same: shared.
    pub(crate) last_attributes: Arc<Attributes>,
    /// Of blocks of which only the content is known.
    no_attributes: Arc<Attributes>,
    learned_block_size: Option<u32>,
    /// The main group holds blocks whose tokens are not known.
    untranslatable: bool,
    pub(crate) counters: JournalCounters,
    /// Numbers snapshots, over all states: a cut of one must not be taken for a cut of the next.
    cuts: u32,
    pub(crate) sides: Sides,
    /// States of epochs that are over, to be dropped where it delays nobody.
    retired: Vec<State>,
    /// Entries that nobody has taken yet, where somebody takes them. The window may be too small for all of
    /// them.
    fresh: Option<Vec<Arc<Entry>>>,
}

persist!(Ledger {
    epoch, state, trust, trust_changed, continuity, continuity_changed, known_from, age, engine_sequence, engine_digest, position,
    last_timestamp, last_attributes, learned_block_size, untranslatable, counters, sides;
    options: Arc::default(),
    window: Arc::new(Window::new(1, 1, Epoch::UNKNOWN)),
    no_attributes: Arc::default(),
    coming_digest: None,
    cuts: 0,
    retired: Vec::new(),
    fresh: None,
});

/// From which of the engine's numbers on everything is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum KnownFrom {
    #[default]
    Never,
    /// From the next batch on.
    Next,
    Number(u64),
}

persist_enum!(KnownFrom { Never = 0, Next = 1, Number(number) = 2 });

impl KnownFrom {
    fn number(self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(number),
            Self::Never | Self::Next => None,
        }
    }
}

impl From<Option<u64>> for KnownFrom {
    fn from(number: Option<u64>) -> Self {
        number.map_or(Self::Never, Self::Number)
    }
}

impl Ledger {
    /// A ledger that has heard nothing.
    pub(crate) fn new(options: Arc<JournalOptions>, now: Now) -> Self {
        let epoch = Epoch::mint(now.unix_ms, None, 0);
        let mut trust = TrustState::default();
        trust.degrade(Reason::Unheard, now.unix_ms);
        if options.relayed {
            trust.degrade(Reason::Relay, now.unix_ms);
        }
        Self {
            window: Arc::new(Window::new(options.max_batches, options.max_bytes, epoch)),
            sides: Sides::new(options.eagle),
            state: State::new(options.state),
            options,
            epoch,
            trust,
            trust_changed: false,
            continuity: Continuity::Connecting,
            continuity_changed: false,
            known_from: KnownFrom::Never,
            age: None,
            engine_sequence: None,
            engine_digest: None,
            coming_digest: None,
            position: None,
            last_timestamp: None,
            last_attributes: Arc::default(),
            no_attributes: Arc::default(),
            learned_block_size: None,
            untranslatable: false,
            counters: JournalCounters::default(),
            cuts: 0,
            retired: Vec::new(),
            fresh: None,
        }
    }

    /// The current epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The position after everything that is in the ledger.
    pub fn cursor(&self) -> Cursor {
        self.window.cursor()
    }

    /// The number of the last transition.
    pub fn last_event_id(&self) -> u64 {
        self.window.next_event_id() - 1
    }

    /// What answers are worth.
    pub fn trust(&self) -> &TrustState {
        &self.trust
    }

    /// Where the stream stands, as of the last entry.
    pub(crate) fn continuity(&self) -> Continuity {
        self.continuity
    }

    /// The engine's number from which everything is known.
    pub fn known_from(&self) -> Option<u64> {
        self.known_from.number()
    }

    /// The engine's number of the last batch.
    pub fn engine_sequence(&self) -> Option<u64> {
        self.engine_sequence
    }

    /// Which batch the last one was, identified by its payload.
    /// Digest of the last batch as the engine sent it, where it is known.
    pub fn engine_digest(&self) -> Option<u128> {
        self.engine_digest
    }

    /// The digest of the batch that is interpreted next.
    pub(crate) fn expect_digest(&mut self, digest: u128) {
        self.coming_digest = Some(digest);
    }

    pub(crate) fn set_position(&mut self, position: Position) {
        self.position = Some(position);
    }

    /// The engine's stamp of the last batch, in seconds.
    pub fn last_timestamp(&self) -> Option<f64> {
        self.last_timestamp
    }

    /// Whether the main group holds blocks whose tokens are not known, or may: where none are kept.
    pub fn untranslatable(&self) -> bool {
        self.untranslatable || !self.keeps_tokens()
    }

    /// Whether tokens of blocks are kept.
    pub(crate) fn keeps_tokens(&self) -> bool {
        self.options.state.keep_tokens
    }

    /// The live state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Bytes in the replay window (estimated).
    pub fn window_bytes(&self) -> usize {
        self.window.bytes()
    }

    /// Entries in the replay window.
    pub fn window_entries(&self) -> usize {
        self.window.len()
    }

    /// What was counted.
    pub fn counters(&self) -> &JournalCounters {
        &self.counters
    }

    /// The replay window, to be read without this ledger's lock.
    pub fn window(&self) -> Arc<Window> {
        self.window.clone()
    }

    /// What follows a cursor, at most `max` entries; empty when caught up.
    pub fn read_after(&self, cursor: Cursor, max: usize) -> Result<Vec<Arc<Entry>>, Loss> {
        self.window.read_after(cursor, max)
    }

    /// The transitions from `start` on, as (event id, transition) lists by entry.
    pub fn transitions_from(&self, start: u64) -> Range {
        self.window.transitions_from(start)
    }

    /// States of epochs that are over. Dropping one takes a while: do it elsewhere.
    pub fn take_retired(&mut self) -> Vec<State> {
        std::mem::take(&mut self.retired)
    }

    /// From now on every new entry is kept for [`Self::take_fresh`], which must be called after every input.
    pub fn keep_fresh(&mut self) {
        self.fresh.get_or_insert_default();
    }

    /// Every entry since the last call, in order, also those that the window has no room for.
    pub fn take_fresh(&mut self) -> Vec<Arc<Entry>> {
        self.fresh.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(crate) fn age(&self) -> Option<Duration> {
        self.age
    }

    /// How old the proof is that the engine is there: entries and snapshots carry it.
    pub(crate) fn set_age(&mut self, age: Option<Duration>) {
        self.age = age;
    }

    // --- trust
    // -------------------------------------------------------------------------------------------------

    /// Answers are worth less, for a reason. The next entry says so.
    pub(crate) fn degrade(&mut self, reason: Reason, now: Now) {
        self.trust_changed |= self.trust.degrade(reason, now.unix_ms);
    }

    /// A reason no longer holds. The next entry says so.
    pub(crate) fn resolve(&mut self, reason: Reason) {
        self.trust_changed |= self.trust.resolve(reason);
    }

    /// Something about the source makes answers worth less: subscribers get an entry.
    pub fn degrade_source(&mut self, reason: Reason, now: Now) {
        if self.trust.degrade(reason, now.unix_ms) {
            self.commit_trust();
        }
    }

    /// It no longer does.
    pub fn resolve_source(&mut self, reason: Reason) {
        if self.trust.resolve(reason) {
            self.commit_trust();
        }
    }

    /// The state is known whole again. The reasons that still hold stay, each since when it has held.
    pub(crate) fn restore_trust(&mut self, continuity: &[(Reason, u64)]) {
        self.trust.restore();
        for &(reason, since_ms) in continuity {
            self.trust.degrade(reason, since_ms);
        }
    }

    /// The next entry carries the trust, changed or not.
    pub(crate) fn tell_trust(&mut self) {
        self.trust_changed = true;
    }

    /// Whether the device may serve more than is announced of it.
    pub(crate) fn is_device_in_doubt(&self) -> bool {
        self.is_lower_besides(&[Reason::TierHistory, Reason::ChunkSize, Reason::UnknownContent])
    }

    /// Whether the device may hold blocks that are not recorded. An unclear layout of groups hides none: it
    /// only keeps recorded blocks from being sent.
    pub(crate) fn may_lack_device_blocks(&self) -> bool {
        self.is_lower_besides(&[
            Reason::TierHistory,
            Reason::ChunkSize,
            Reason::UnknownContent,
            Reason::GroupLayout,
        ])
    }

    /// Whether a reason for `lower` is active that is not in this list.
    fn is_lower_besides(&self, others: &[Reason]) -> bool {
        let mut reasons = self.trust.active().iter().map(|active| active.reason);
        reasons.any(|reason| reason.trust() == Trust::Lower && !others.contains(&reason))
    }

    // --- history
    // -----------------------------------------------------------------------------------------------

    /// Everything is known from this engine sequence on.
    pub(crate) fn set_known_from(&mut self, sequence: u64) {
        self.known_from = KnownFrom::Number(sequence);
    }

    /// Everything before this engine sequence is unknown.
    pub fn lack_history_before(&mut self, sequence: u64, now: Now) {
        self.set_known_from(sequence);
        self.trust.resolve(Reason::Unheard);
        if !self.trust.has(Reason::Unproven) {
            self.trust.degrade(Reason::History, now.unix_ms);
        }
        self.commit_trust();
    }

    /// Nothing was heard and nothing can be asked: the history is unknown until the first batch.
    pub fn lack_history(&mut self, now: Now) {
        if self.trust.resolve(Reason::Unheard) {
            self.trust.degrade(Reason::History, now.unix_ms);
            self.commit_trust();
        }
    }

    /// A batch is about to be interpreted.
    pub(crate) fn begin_batch(&mut self, engine_sequence: u64) {
        self.counters.batches += 1;
        if self.known_from == KnownFrom::Next {
            self.set_known_from(engine_sequence);
            self.trust_changed = true;
        }
    }

    /// Ends the epoch: the state is dropped, and an entry of the new epoch tells subscribers that the
    /// caller commits. Which reasons outlive the epoch, the caller says with [`Self::restore_trust`].
    pub(crate) fn begin_epoch(&mut self, now: Now) {
        self.epoch = Epoch::mint(now.unix_ms, Some(self.epoch), self.window.highest());
        self.window.restart(self.epoch);
        self.sides = Sides::new(self.options.eagle);
        self.replace_state();
        self.known_from = KnownFrom::Never;
        self.engine_sequence = None;
        self.engine_digest = None;
        self.position = None;
        self.last_timestamp = None;
        self.learned_block_size = None;
        self.untranslatable = false;
    }
}
