//! A stream's recent batches plus its live state: replays a range, or cuts a snapshot at its current number.

mod ancestors;
mod apply;
mod chunks;
mod clears;
mod copies;
mod counters;
mod described;
mod evidence;
mod flushes;
mod groups;
mod identity;
mod levels;
mod marks;
mod mirror;
mod options;
mod page_hash;
mod reannounced;
mod removals;
mod sides;
mod sizes;
mod snapshot;
mod stores;
mod visible;
mod window;

use std::sync::Arc;
use std::time::Duration;

use kvplane_core::{Continuity as Standing, Cursor, Epoch, Reason, Resumption, StateDigest, TrustState};

use crate::change::{Change, Entry, Transition};
use crate::clock::Now;
use crate::continuity::EpochCause;
use crate::flush::Fence;
use crate::state::{Attributes, BlockImage, CutAborted, Image, Place, State, ToldSize};
use chunks::Chunks;
pub use counters::{JournalCounters, PassedOver};
use evidence::Evidence;
pub use evidence::RequestMark;
pub use groups::Group;
pub(crate) use groups::Groups;
use levels::MainWindow;
pub use options::{ClearScope, Duplicates, JournalOptions, Semantics};
use page_hash::PageHashes;
use reannounced::Reports;
use removals::Departed;
use sides::Sides;
use window::Notes;
pub use window::{Loss, Range, Window};

/// A whole state with everything a subscriber needs to go on from it.
#[derive(Debug)]
pub struct Snapshot {
    /// Where the tail goes on.
    pub cursor: Cursor,
    /// The engine's own number at that point.
    pub engine_sequence: Option<u64>,
    /// Where the history begins.
    pub known_from: Option<u64>,
    /// How old the proof was that the engine is there; `None` before the first proof.
    pub age: Option<Duration>,
    /// What the state is worth.
    pub trust: TrustState,
    /// Where the stream stood.
    pub standing: Standing,
    /// The last transition that is part of it.
    pub last_event_id: u64,
    /// Digest of the state.
    pub digest: StateDigest,
    /// The main group holds blocks whose tokens are not known.
    pub untranslatable: bool,
    /// Tokens per block, configured or learned.
    pub block_size: Option<u32>,
    /// Blocks may be smaller than that: those are not told to consumers that know one block size.
    pub partial_blocks: bool,
    /// The groups of the engine's cache, in the order in which they were first heard of.
    pub groups: Vec<Group>,
    /// What the stream needs besides its main blocks.
    pub resumption: Arc<Resumption>,
    /// The state.
    pub image: Image,
}

/// A snapshot being taken. Blocks are pictured under the journal's lock a few at a time, and gathered without it:
/// growing a list of a million blocks takes longer than a batch may wait.
#[derive(Debug)]
pub struct SnapshotBuilder {
    cut: u32,
    snapshot: Snapshot,
    /// What the last step pictured.
    step: Vec<BlockImage>,
    complete: bool,
}

impl SnapshotBuilder {
    /// Gathers what the last step pictured. True when the snapshot is complete. Call it without the journal's lock.
    pub fn gather(&mut self) -> bool {
        self.snapshot.image.blocks.append(&mut self.step);
        self.complete
    }

    /// The snapshot, once complete.
    pub fn finish(self) -> Snapshot {
        self.snapshot
    }
}

/// The journal of one stream.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not one state in disguise")]
pub struct Journal {
    options: JournalOptions,
    rank: u32,
    epoch: Epoch,
    window: Arc<Window>,
    state: State,
    trust: TrustState,
    trust_changed: bool,
    standing: Standing,
    standing_changed: bool,
    known_from: Option<u64>,
    /// The next batch is the first that is known.
    known_from_next: bool,
    /// How old the proof is that the engine is there, as of the last input.
    age: Option<Duration>,
    engine_sequence: Option<u64>,
    /// The engine's stamp of that batch, in seconds.
    last_timestamp: Option<f64>,
    /// Most stores have the same: shared.
    last_attributes: Arc<Attributes>,
    /// In the place of tokens that are not kept.
    no_tokens: Arc<[u32]>,
    learned_block_size: Option<u32>,
    /// Since when the engine's own word contradicts the configured block size.
    misdescribed_since_ms: Option<u64>,
    /// The engine says that it serves adapters, and not which blocks are theirs.
    untold_adapters: bool,
    /// Places of which nobody would have thought that their removals are told, and they were. One per tier, whatever its group.
    removed_from: Vec<Place>,
    /// The engine's usable device blocks, where it says so.
    capacity: Option<u64>,
    /// More copies were told in this life than the device has blocks.
    over_counted: bool,
    /// Blocks have copies that were not counted, and which is not remembered.
    copies_uncounted: bool,
    /// The rank that the first batch of this life named, where the engine has one.
    named_rank: Option<i64>,
    /// This life was heard from its beginning: whatever tiers it has, their past is known up to the first loss.
    was_heard_from_start: bool,
    /// Some tier other than the device has been seen in this life.
    has_seen_others: bool,
    reports: Reports,
    chunks: Chunks,
    page_hashes: PageHashes,
    /// Where groups are told by their windows.
    main_window: Option<MainWindow>,
    /// The cache was cleared while the past of other tiers was unknown, and none of them has been seen since.
    other_tiers_unknown: bool,
    /// The main group holds blocks whose tokens are not known.
    untranslatable: bool,
    counters: JournalCounters,
    passed_over: Vec<PassedOver>,
    /// Numbers snapshots, over all states: a cut of one must not be taken for a cut of the next.
    cuts: u32,
    sides: Sides,
    fence: Fence,
    departed: Departed,
    evidence: Evidence,
    /// States of lives that are over, to be dropped where it delays nobody.
    retired: Vec<State>,
    /// Entries that nobody has taken yet, where somebody takes them. The window may be too small for all of them.
    fresh: Option<Vec<Arc<Entry>>>,
}

impl Journal {
    /// A journal that has heard nothing.
    pub fn new(options: JournalOptions, rank: u32, now: Now) -> Self {
        let epoch = Epoch::mint(now.unix_ms, None, 0);
        let mut trust = TrustState::default();
        trust.degrade(Reason::Unheard, now.unix_ms);
        if options.relayed {
            trust.degrade(Reason::Relay, now.unix_ms);
        }
        Self {
            window: Arc::new(Window::new(options.max_batches, options.max_bytes, epoch)),
            sides: Sides::new(options.eagle),
            fence: Fence::default(),
            departed: Departed::default(),
            evidence: Evidence::default(),
            state: State::new(options.state),
            chunks: Chunks::new(options.offload_chunk),
            options,
            rank,
            epoch,
            trust,
            trust_changed: false,
            standing: Standing::Connecting,
            standing_changed: false,
            known_from: None,
            known_from_next: false,
            age: None,
            engine_sequence: None,
            last_timestamp: None,
            last_attributes: Arc::default(),
            no_tokens: Arc::default(),
            learned_block_size: None,
            misdescribed_since_ms: None,
            untold_adapters: false,
            removed_from: Vec::new(),
            capacity: None,
            over_counted: false,
            copies_uncounted: false,
            named_rank: None,
            was_heard_from_start: false,
            has_seen_others: false,
            reports: Reports::default(),
            page_hashes: PageHashes::default(),
            main_window: None,
            other_tiers_unknown: false,
            untranslatable: false,
            counters: JournalCounters::default(),
            passed_over: Vec::new(),
            cuts: 0,
            retired: Vec::new(),
            fresh: None,
        }
    }

    /// The current life.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The position after everything that is in the journal.
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

    /// The engine's number from which everything is known.
    pub fn known_from(&self) -> Option<u64> {
        self.known_from
    }

    /// The engine's number of the last batch.
    pub fn engine_sequence(&self) -> Option<u64> {
        self.engine_sequence
    }

    /// The engine's stamp of the last batch, in seconds.
    pub fn last_timestamp(&self) -> Option<f64> {
        self.last_timestamp
    }

    /// The block size, configured or learned.
    pub fn block_size(&self) -> Option<u32> {
        self.options.block_size.or(self.learned_block_size)
    }

    /// Whether the main group holds blocks whose tokens are not known.
    pub fn untranslatable(&self) -> bool {
        self.untranslatable
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

    /// States of lives that are over. Dropping one takes a while: do it elsewhere.
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

    /// What was passed over since the last look and is worth a log line: the first of its kind, then ever fewer.
    pub fn take_passed_over(&mut self) -> Vec<PassedOver> {
        std::mem::take(&mut self.passed_over)
    }

    fn pass_over(&mut self, kind: &'static str, reason: &'static str, count: u64) {
        if count.is_power_of_two() {
            self.passed_over.push(PassedOver { kind, reason, count });
        }
    }

    /// How many blocks the engine can hold on its device; knowing that many copies is knowing all.
    pub fn set_capacity(&mut self, blocks: Option<u64>) {
        self.capacity = blocks;
    }

    /// How old the proof is that the engine is there: entries and snapshots carry it.
    pub(crate) fn set_age(&mut self, age: Option<Duration>) {
        self.age = age;
    }

    /// The replay window, to be read without this journal's lock.
    pub fn window(&self) -> Arc<Window> {
        self.window.clone()
    }

    // --- reading -----------------------------------------------------------------------------------------

    /// What follows a cursor, at most `max` entries; empty when caught up.
    pub fn read_after(&self, cursor: Cursor, max: usize) -> Result<Vec<Arc<Entry>>, Loss> {
        self.window.read_after(cursor, max)
    }

    /// The transitions from `start` on, as (event id, transition) lists by entry.
    pub fn transitions_from(&self, start: u64) -> Range {
        self.window.transitions_from(start)
    }

    /// Fixes the moment of a snapshot.
    pub fn begin_snapshot(&mut self) -> SnapshotBuilder {
        SnapshotBuilder {
            cut: {
                self.cuts += 1;
                self.state.begin_cut(self.cuts);
                self.cuts
            },
            snapshot: Snapshot {
                cursor: self.cursor(),
                engine_sequence: self.engine_sequence,
                known_from: self.known_from,
                age: self.age,
                trust: self.trust.clone(),
                standing: self.standing,
                last_event_id: self.last_event_id(),
                digest: self.state.digest(),
                untranslatable: self.untranslatable,
                block_size: self.block_size(),
                partial_blocks: self.told_size() != ToldSize::Any,
                groups: self.groups().to_vec(),
                resumption: self.resumption().clone(),
                image: Image::default(),
            },
            step: Vec::new(),
            complete: false,
        }
    }

    /// Pictures up to `slots` more blocks. Gather them before the next step; begin again when aborted.
    pub fn step_snapshot(&mut self, builder: &mut SnapshotBuilder, slots: usize) -> Result<(), CutAborted> {
        if builder.snapshot.cursor.epoch != self.epoch {
            return Err(CutAborted);
        }
        if let Some(places) = self.state.step_cut(builder.cut, slots, &mut builder.step)? {
            builder.snapshot.image.places = places;
            builder.complete = true;
        }
        Ok(())
    }

    /// Gives a snapshot up.
    pub fn abandon_snapshot(&mut self, builder: &SnapshotBuilder) {
        self.state.abandon_cut(builder.cut);
    }

    // --- what continuity says ----------------------------------------------------------------------------

    /// Another life of the publisher, or one that cannot be told from another.
    pub fn begin_epoch(&mut self, cause: EpochCause, now: Now) {
        self.epoch = Epoch::mint(now.unix_ms, Some(self.epoch), self.window.highest());
        self.window.restart(self.epoch);
        self.sides = Sides::new(self.options.eagle);
        self.begin_life_of_flushes(cause);
        self.replace_state();
        self.restore_trust();
        self.trust.degrade(if cause.proven() { Reason::Unheard } else { Reason::Unproven }, now.unix_ms);
        self.known_from = None;
        self.known_from_next = false;
        self.engine_sequence = None;
        self.last_timestamp = None;
        self.learned_block_size = None;
        self.page_hashes = PageHashes::default();
        self.main_window = None;
        // Whoever lives now has yet to say it.
        self.capacity = None;
        self.over_counted = false;
        self.copies_uncounted = false;
        self.named_rank = None;
        self.was_heard_from_start = false;
        self.has_seen_others = false;
        self.reports = Reports::default();
        self.chunks = Chunks::new(self.options.offload_chunk);
        self.removed_from.clear();
        self.other_tiers_unknown = false;
        self.untranslatable = false;
        // Subscribers learn of the new life by an entry of its own.
        self.trust_changed = true;
        self.push(None, 0.0, Vec::new(), vec![Transition::Cleared]);
    }

    /// The publisher's life is known from its first batch on.
    pub fn heard_from_start(&mut self) {
        self.known_from = Some(0);
        self.was_heard_from_start = true;
        self.restore_trust();
        self.note_trust_change();
    }

    /// Everything before this engine sequence is unknown.
    pub fn known_from_sequence(&mut self, sequence: u64, now: Now) {
        self.known_from = Some(sequence);
        self.trust.resolve(Reason::Unheard);
        if !self.trust.has(Reason::Unproven) {
            self.trust.degrade(Reason::History, now.unix_ms);
        }
        self.note_trust_change();
    }

    /// Nothing was heard and nothing can be asked: the history is unknown until the first batch tells.
    pub fn history_unknown(&mut self, now: Now) {
        if self.trust.resolve(Reason::Unheard) {
            self.trust.degrade(Reason::History, now.unix_ms);
            self.note_trust_change();
        }
    }

    /// Batches are lost: what is known may hold phantoms. Forget the residency, keep the dictionary.
    pub fn drop_residency(&mut self, reason: Reason, now: Now) {
        self.fence.note_loss();
        self.forget_residency(reason, now);
    }

    fn forget_residency(&mut self, reason: Reason, now: Now) {
        self.doubt_capacity();
        let elsewhere = self.state.held_elsewhere();
        self.state.drop_places(|_| true);
        self.reports.forget_all();
        self.evidence.forget();
        self.untranslatable = false;
        self.trust_changed |= self.trust.degrade(reason, now.unix_ms);
        self.known_from = None;
        self.known_from_next = true;
        self.push(None, 0.0, vec![Change::Dropped { reason, elsewhere }], vec![Transition::Cleared]);
    }

    /// Batches are lost and the operator wants to keep what is known.
    pub fn keep_after_loss(&mut self, now: Now) {
        self.fence.note_loss();
        self.trust.degrade(Reason::GapKept, now.unix_ms);
        self.note_trust_change();
    }

    /// Something about the source makes answers worth less.
    pub fn degrade_source(&mut self, reason: Reason, now: Now) {
        if self.trust.degrade(reason, now.unix_ms) {
            self.note_trust_change();
        }
    }

    /// It does no longer.
    pub fn resolve_source(&mut self, reason: Reason) {
        if self.trust.resolve(reason) {
            self.note_trust_change();
        }
    }

    /// The stream stands elsewhere: subscribers are told by an entry.
    pub fn note_standing(&mut self, standing: Standing) {
        self.standing = standing;
        self.standing_changed = true;
        self.push(None, 0.0, Vec::new(), Vec::new());
    }

    /// An entry that says nothing: whoever is given a snapshot as batches needs one behind it that everybody has.
    pub fn note_nothing(&mut self) {
        self.push(None, 0.0, Vec::new(), Vec::new());
    }

    // --- shared by the parts of this room ---------------------------------------------------------------------

    /// Puts a change of trust that no batch brought into the journal.
    fn note_trust_change(&mut self) {
        self.trust_changed = true;
        self.push(None, 0.0, Vec::new(), Vec::new());
    }

    fn replace_state(&mut self) {
        self.reports.forget_all();
        self.evidence.forget();
        self.departed = Departed::default();
        let old = std::mem::replace(&mut self.state, State::new(self.options.state));
        self.retired.push(old);
        self.fit_state();
    }

    fn push(
        &mut self,
        engine_sequence: Option<u64>,
        timestamp: f64,
        changes: Vec<Change>,
        transitions: Vec<Transition>,
    ) {
        self.note_units();
        let notes = Notes {
            trust: std::mem::take(&mut self.trust_changed).then(|| self.trust.clone()),
            standing: std::mem::take(&mut self.standing_changed).then_some(self.standing),
            digest: self.state.digest(),
            age: self.age,
            untranslatable: self.untranslatable,
            known_from: self.known_from,
            resumption: self.sides.take_news(),
            marks: self.take_marks(),
        };
        self.push_noted(engine_sequence, timestamp, changes, notes, transitions);
    }

    fn push_noted(
        &mut self,
        engine_sequence: Option<u64>,
        timestamp: f64,
        changes: Vec<Change>,
        notes: Notes,
        transitions: Vec<Transition>,
    ) {
        if engine_sequence.is_some() {
            self.last_timestamp = Some(timestamp);
        }
        let changes = if self.options.transitions_only { Vec::new() } else { changes };
        let entry = self.window.push(engine_sequence, timestamp, changes, notes, transitions);
        if let Some(fresh) = &mut self.fresh {
            fresh.push(entry);
        }
    }
}
