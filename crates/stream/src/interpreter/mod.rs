//! What an engine's events mean: batches of a dialect in, [operations](crate::ledger) on the stream's ledger
//! out.
//!
//! Engines mean different things by the same event ([`Semantics`](crate::Semantics)), leave things out and
//! announce some of them twice. All of that is worked out here, with what the interpreter remembers of the
//! epoch. Each file knows one part:
//!
//! | file | question |
//! |---|---|
//! | `stores.rs`, `removals.rs`, `clears.rs`, `levels.rs` | what an event of that kind does |
//! | `reannounced.rs` | is a second store of a block another copy of it? |
//! | `ancestors.rs`, `evidence.rs` | which blocks are held although no event said so? |
//! | `chunks.rs` | which blocks leave an offloading tier together? |
//! | `page_hash.rs`, `identity.rs` | does a hash stand for the same block as before? |
//! | `sizes.rs`, `described.rs`, `copies.rs` | does what the engine says of itself fit its events? |
//! | `dumped.rs` | which blocks of a peer's dump are still held? |
//! | `flushes.rs` | has the stream shown a flush that somebody waits for? |

mod ancestors;
mod chunks;
mod clears;
mod copies;
mod described;
mod dumped;
mod evidence;
mod flushes;
mod history;
mod identity;
mod levels;
mod page_hash;
mod reannounced;
mod removals;
mod sizes;
mod stores;

use std::sync::Arc;

use kvplane_core::Reason;
use kvplane_wire::{Batch, Event, RejectedKind};

use crate::clock::Now;
use crate::flush::{Fence, Signs};
use crate::ledger::{Draft, Ledger, PassedOver};
use crate::options::JournalOptions;
use crate::persist::persist;
use crate::state::{Attributes, Place};
use chunks::Chunks;
use copies::Copies;
use dumped::RemovalLog;
use evidence::Evidence;
pub use evidence::RequestMark;
use flushes::note_removal_sign;
use levels::MainWindow;
use page_hash::PageHashes;
use reannounced::{Neighbours, Reports};
use removals::Departed;

/// How many ancestors one batch may look at to see whether they are held. Chains that are known to be whole
/// cost one step, so only the first stores after a loss come near it.
const ANCESTOR_STEPS: u32 = 4096;

/// Events for which an entry has room from the beginning.
const USUAL_EVENTS: usize = 16;

/// How many blocks the chunks of one batch may cover: those of a prompt of a million tokens.
const CHUNK_STEPS: u32 = 65_536;

/// Interprets the events of one stream.
#[derive(Debug)]
pub struct Interpreter {
    options: Arc<JournalOptions>,
    rank: u32,
    /// Since when the engine's own word contradicts the configured block size.
    misdescribed_since_ms: Option<u64>,
    /// The engine says that it serves adapters, and not which blocks are theirs.
    untold_adapters: bool,
    fence: Fence,
    evidence: Evidence,
    departed: Departed,
    /// While a peer's dump is wanted.
    removals: Option<RemovalLog>,
    /// All of one was taken since something was lost.
    dump_taken: bool,
    epoch: EpochMemory,
    passed_over: Vec<PassedOver>,
}

persist!(Interpreter {
    rank, misdescribed_since_ms, untold_adapters, fence, evidence, departed, removals, dump_taken, epoch;
    options: Arc::default(),
    passed_over: Vec::new(),
});

/// What is remembered of an epoch.
#[derive(Debug, Default)]
struct EpochMemory {
    /// The rank that the first batch named, where the engine has one.
    named_rank: Option<i64>,
    /// Places of which nobody would have thought that their removals are announced, and they were. One per
    /// tier, whatever its group.
    removed_from: Vec<Place>,
    copies: Copies,
    tiers: OtherTiers,
    reports: Reports,
    chunks: Chunks,
    page_hashes: PageHashes,
    /// Where groups are named by their windows.
    main_window: Option<MainWindow>,
}

persist!(EpochMemory { named_rank, removed_from, copies, tiers, reports, chunks, page_hashes, main_window });

/// What is known of the tiers behind the device.
#[derive(Debug, Default)]
struct OtherTiers {
    /// The epoch was heard from its beginning: whatever tiers it has, their past is known up to the first
    /// loss.
    heard_from_start: bool,
    /// One has been seen.
    seen: bool,
    /// The cache was cleared while their past was unknown, and none of them has been seen since.
    unknown: bool,
}

persist!(OtherTiers { heard_from_start, seen, unknown });

/// What one batch has done so far.
#[derive(Debug, Default)]
struct Reading {
    draft: Draft,
    ancestor_steps: u32,
    /// Blocks that chunks of this batch may still cover.
    chunk_steps: u32,
    /// The last store's blocks have something else in common than it says: they inherited a salt, or are
    /// known.
    inherited: Option<Arc<Attributes>>,
    /// What stores showed that makes answers worth less.
    doubts: Vec<Reason>,
    /// What other tiers hold is not known: the device was cleared, and they perhaps with it, or it was
    /// misunderstood.
    forget_others: bool,
    /// The blocks of a store may be held already: they have no further copy.
    uncounted: bool,
    /// The copy count is too high, and we cannot tell for which blocks.
    over_counted: bool,
    /// Which stores of the batch go together.
    neighbours: Neighbours,
    /// How many changes there were when everything was cleared last.
    cleared_at: Option<(usize, usize)>,
    /// What it shows of flushes.
    signs: Signs,
}

impl Reading {
    /// A store shows that answers are worth less.
    fn doubt(&mut self, reason: Reason) {
        if !self.doubts.contains(&reason) {
            self.doubts.push(reason);
        }
    }
}

impl Interpreter {
    /// An interpreter that has heard nothing, and the ledger that it writes.
    pub fn with_ledger(options: JournalOptions, rank: u32, now: Now) -> (Self, Ledger) {
        let options = Arc::new(options);
        (Self::new(options.clone(), rank), Ledger::new(options, now))
    }

    /// Makes a loaded interpreter one that can be used.
    pub(crate) fn revive(&mut self, options: Arc<JournalOptions>) {
        self.options = options;
    }

    pub(crate) fn options(&self) -> &Arc<JournalOptions> {
        &self.options
    }

    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    fn new(options: Arc<JournalOptions>, rank: u32) -> Self {
        Self {
            rank,
            misdescribed_since_ms: None,
            untold_adapters: false,
            fence: Fence::default(),
            evidence: Evidence::default(),
            departed: Departed::default(),
            removals: None,
            dump_taken: false,
            epoch: EpochMemory::new(&options),
            passed_over: Vec::new(),
            options,
        }
    }

    /// Applies one batch. Batches come in order, once: that is the sequencer's business.
    pub fn apply(&mut self, ledger: &mut Ledger, engine_sequence: u64, batch: &Batch<'_, '_>, now: Now) {
        let mut reading =
            Reading { ancestor_steps: ANCESTOR_STEPS, chunk_steps: CHUNK_STEPS, ..Reading::default() };
        // Nearly always one of each for an event: no more room is kept than that.
        let events = batch.events.len().min(USUAL_EVENTS);
        reading.draft.changes.reserve_exact(events);
        reading.draft.transitions.reserve_exact(events);
        if !self.options.semantics.held_once {
            reading.neighbours = Neighbours::of(batch);
        }
        let counted = evidence::count(ledger);
        ledger.begin_batch(engine_sequence);
        self.begin_removals(engine_sequence);
        ledger.counters.unknown_fields += u64::from(batch.unknown_fields);
        for at in 0..batch.events.len() {
            self.apply_event(ledger, (engine_sequence, batch, at), &mut reading, now);
        }
        for reason in std::mem::take(&mut reading.doubts) {
            self.epoch.copies.uncounted |= reason == Reason::Presence;
            ledger.degrade(reason, now);
        }
        self.check_rank(ledger, batch.rank, now);
        self.forget_others(ledger, &mut reading, now);
        self.settle_signs(ledger, &mut reading);
        ledger.settle_groups(&mut reading.draft);
        ledger.release_left(&mut reading.draft);
        ledger.note_unresolved(&reading.draft);
        self.check_capacity(ledger, now);
        self.note_standing_reasons(ledger, now);
        self.settle_evidence(ledger, counted, &mut reading);
        self.note_units(ledger);
        let over_counted = reading.over_counted;
        ledger.commit_batch(engine_sequence, batch.timestamp, reading.draft);
        self.check_over_count(ledger, over_counted, now);
    }

    fn apply_event(
        &mut self,
        ledger: &mut Ledger,
        (engine_sequence, batch, at): (u64, &Batch<'_, '_>, usize),
        reading: &mut Reading,
        now: Now,
    ) {
        ledger.counters.events += 1;
        match &batch.events[at] {
            Event::Stored(stored) => self.apply_stored(ledger, batch, (at, stored), reading, now),
            Event::Removed(removed) => {
                reading.neighbours.forget_meanings();
                let watched = self.watched_blocks(ledger);
                for hash in batch.removed_hashes(removed) {
                    self.note_removal(hash.bits, engine_sequence);
                }
                self.apply_removed(ledger, batch, removed, reading, now);
                note_removal_sign(ledger, watched, reading);
            }
            Event::Cleared { ownership } => {
                reading.neighbours.forget_meanings();
                self.apply_cleared(ledger, *ownership, (engine_sequence, at), reading, now);
            }
            Event::Moved(moved) => {
                self.note_removal(moved.hash.bits, engine_sequence);
                self.apply_moved(ledger, moved, reading, now);
            }
            Event::Created(created) => self.apply_created(ledger, *created, reading, now),
            Event::Unknown { .. } => {
                ledger.counters.unknown_events += 1;
                self.pass_over("event", "unknown_event", ledger.counters.unknown_events);
                ledger.degrade(Reason::UnknownEvent, now);
            }
            Event::Rejected(rejected) => {
                let reason = rejected.reason.as_str();
                let count = ledger.counters.reject(rejected.kind, reason);
                self.pass_over(rejected.kind.as_str(), reason, count);
                ledger.degrade(
                    match rejected.kind {
                        RejectedKind::Store => Reason::MalformedStore,
                        RejectedKind::Removal => Reason::MalformedRemoval,
                        RejectedKind::Unknown => Reason::UnknownEvent,
                    },
                    now,
                );
            }
        }
    }

    /// What was passed over since the last look and is worth a log line: the first of its kind, then ever
    /// fewer.
    pub fn take_passed_over(&mut self) -> Vec<PassedOver> {
        std::mem::take(&mut self.passed_over)
    }

    fn pass_over(&mut self, kind: &'static str, reason: &'static str, count: u64) {
        if count.is_power_of_two() {
            self.passed_over.push(PassedOver { kind, reason, count });
        }
    }

    /// Compares the rank that a batch names with the stream's. Where an engine has one rank, that may be a
    /// rank of a larger deployment, with its number there: then it names the same in every batch of an epoch.
    /// A batch of any other rank is of another cache.
    fn check_rank(&mut self, ledger: &mut Ledger, rank: Option<i64>, now: Now) {
        let Some(rank) = rank else { return };
        let own = i64::from(self.rank);
        ledger.counters.foreign_rank += u64::from(rank != own);
        let expected = if self.options.sole_rank { *self.epoch.named_rank.get_or_insert(rank) } else { own };
        if rank != expected {
            self.pass_over("batch", "foreign_rank", ledger.counters.foreign_rank);
            ledger.degrade(Reason::ForeignRank, now);
        }
    }

    /// Forgets all that depends on what the ledger held.
    fn forget_state(&mut self) {
        self.epoch.reports.forget_all();
        self.evidence.forget();
        self.departed = Departed::default();
    }
}

impl EpochMemory {
    fn new(options: &JournalOptions) -> Self {
        Self { chunks: Chunks::new(options.offload_chunk), ..Self::default() }
    }
}
