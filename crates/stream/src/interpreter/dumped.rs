//! Blocks that a peer dumped, while the past of a stream is not known.
//!
//! A peer's state is that of a batch which it names, and it vouches for it: at that batch each of its blocks
//! was held. If the same batch was read here, all that happened since is known, so a block is still held
//! unless its removal was heard after it. Those removals are remembered from the moment on at which a dump is
//! wanted; an older dump is refused. A dump that names no batch is taken all the same, and the stream says so
//! (`peer_dump`).
//!
//! A dump has hashes alone. Blocks are recorded with their content and without tokens, which the engine's
//! next store of them adds.

use kvplane_core::{Reason, Tier};

use super::stores::refuse;
use super::{CHUNK_STEPS, Interpreter, Reading};
use crate::change::StoredBlock;
use crate::clock::Now;
use crate::ledger::Ledger;
use crate::peer_dump::{DumpOutcome, DumpedRun, PeerDump};
use crate::persist::persist;
use crate::seeded::SeededMap;
use crate::state::{Parent, Place, PlaceId, Refusal};

/// Removals that are remembered while a dump is waited for: 12 MiB at most. Beyond that all are forgotten,
/// and an older dump is of no use.
const MAX_REMOVALS: usize = 1 << 18;
/// Of these, how many are kept from one question to the next.
const KEPT_REMOVALS: usize = 1 << 14;

/// Removals since a dump has been wanted.
#[derive(Debug)]
pub(super) struct RemovalLog {
    /// Every removal by a batch of a higher number is known; `None`: of the next batch on.
    after: Option<u64>,
    /// The last batch that removed a block, by its hash.
    last: SeededMap<u64, u64>,
}

persist!(RemovalLog { after, last });

impl RemovalLog {
    fn since(after: Option<u64>) -> Self {
        Self { after, last: SeededMap::default() }
    }

    /// A batch begins.
    fn begin(&mut self, sequence: u64) {
        self.after.get_or_insert_with(|| sequence.saturating_sub(1));
    }

    fn note(&mut self, hash: u64, sequence: u64) {
        if self.last.len() >= MAX_REMOVALS && !self.last.contains_key(&hash) {
            *self = Self::since(Some(sequence));
        }
        self.last.insert(hash, sequence);
    }

    /// Whether a block went after a batch; without one, at any time that is known.
    fn has(&self, hash: u64, after: Option<u64>) -> bool {
        self.last.get(&hash).is_some_and(|&removed| after.is_none_or(|after| removed > after))
    }
}

impl Interpreter {
    /// Whether a dump of a peer would be taken. If so, removals are remembered from now on.
    pub fn expect_dump(&mut self, ledger: &Ledger) -> bool {
        let ready = device_place(ledger).is_some() && ledger.known_from().is_some();
        if !ready || self.refuses_dumps(ledger).is_some() {
            self.removals = None;
            return false;
        }
        let after = ledger.engine_sequence();
        self.removals = self.removals.take().filter(|removals| removals.last.len() <= KEPT_REMOVALS);
        self.removals.get_or_insert_with(|| RemovalLog::since(after));
        true
    }

    /// No dump is waited for any more.
    pub fn forget_dump(&mut self) {
        self.removals = None;
    }

    /// All of a dump was taken.
    pub fn finish_dump(&mut self) {
        self.removals = None;
        self.dump_taken = true;
    }

    /// A batch is about to be applied.
    pub(super) fn begin_removals(&mut self, sequence: u64) {
        if let Some(removals) = &mut self.removals {
            removals.begin(sequence);
        }
    }

    /// A batch says that a block left some place.
    pub(super) fn note_removal(&mut self, hash: u64, sequence: u64) {
        if let Some(removals) = &mut self.removals {
            removals.note(hash, sequence);
        }
    }

    /// Removals may have been lost: only a dump that is newer than what comes next can be taken.
    pub(super) fn lose_removals(&mut self) {
        if self.removals.is_some() {
            self.removals = Some(RemovalLog::since(None));
        }
        self.dump_taken = false;
    }

    /// Why no dump is wanted, if none is. A flush that the stream does not show is not in a peer's dump
    /// either. Of caches with several groups a dump tells one.
    fn refuses_dumps(&self, ledger: &Ledger) -> Option<&'static str> {
        let trust = ledger.trust();
        let past = [Reason::History, Reason::Gap, Reason::Unproven, Reason::Undecodable];
        if !past.into_iter().any(|reason| trust.has(reason)) {
            return Some("its past is known");
        }
        if self.dump_taken {
            return Some("a dump was taken");
        }
        if [Reason::Flushing, Reason::UnprovenFlush, Reason::Interleaved].iter().any(|&r| trust.has(r)) {
            return Some("a peer could not know what became of it");
        }
        if ledger.sides.are_there() || self.options.semantics.windows {
            return Some("its cache has several groups");
        }
        None
    }

    /// Takes the blocks of a dump, or of a part of one: parts may come one after the other, with batches in
    /// between. The batch that it names, if any, was read here: the caller has compared it.
    pub fn take_dump(&mut self, ledger: &mut Ledger, dump: &PeerDump, now: Now) -> DumpOutcome {
        if let Some(why) = self.refuses_dumps(ledger) {
            self.removals = None;
            return DumpOutcome::NotWanted(why);
        }
        let Some((place, block_size)) = device_place(ledger).zip(ledger.block_size()) else {
            return DumpOutcome::Early("no block was heard of yet");
        };
        if block_size != dump.block_size {
            return DumpOutcome::Stale("its blocks have another size");
        }
        let position = dump.position.map(|position| position.sequence);
        let log_from = self.removals.as_ref().and_then(|removals| removals.after);
        let known_from = ledger.known_from();
        let (Some(log_from), Some(known_from)) = (log_from, known_from) else {
            return DumpOutcome::Early("no batch was heard since it is wanted");
        };
        if position.is_some_and(|position| position < log_from || position < known_from) {
            return DumpOutcome::Stale("it is older than what is known");
        }
        let mut reading = Reading { chunk_steps: CHUNK_STEPS, ..Reading::default() };
        let mut taken = 0;
        for run in &dump.runs {
            match self.take_run(ledger, run, (place, block_size, position), &mut reading) {
                Ok(blocks) => taken += blocks,
                Err(refusal) => {
                    refuse(ledger, refusal, run.blocks.len(), now);
                    break;
                }
            }
        }
        if position.is_none() && taken > 0 {
            ledger.degrade(Reason::PeerDump, now);
        }
        // A block of which only a report was known may be one of these, under the engine's own hash.
        self.void_evidence(ledger, &mut reading);
        ledger.release_left(&mut reading.draft);
        self.note_standing_reasons(ledger, now);
        self.commit(ledger, reading.draft);
        DumpOutcome::Taken(taken)
    }

    /// Takes the blocks of a run, each after its parent. What the removal of a parent cuts off is held all
    /// the same.
    fn take_run(
        &mut self,
        ledger: &mut Ledger,
        run: &DumpedRun,
        (place, block_size, position): (PlaceId, u32, Option<u64>),
        reading: &mut Reading,
    ) -> Result<usize, Refusal> {
        let mut parent = run.parent.map_or(Parent::Root, Parent::Block);
        let mut blocks: Vec<StoredBlock> = Vec::with_capacity(run.blocks.len());
        let mut result = Ok(());
        for &(hash, content) in &run.blocks {
            if !is_known(ledger, parent, block_size) {
                break;
            }
            let gone = self.removals.as_ref().is_some_and(|removals| removals.has(hash, position));
            match self.take_block(ledger, (hash, content, parent), (place, block_size, gone), reading) {
                Ok(TakenBlock::Contradicts) => break,
                Ok(TakenBlock::Known) => {}
                Ok(TakenBlock::New(block)) => blocks.push(block),
                Err(refusal) => {
                    result = Err(refusal);
                    break;
                }
            }
            parent = Parent::Block(hash);
        }
        let taken = blocks.len();
        ledger.counters.proven_blocks += taken as u64;
        if taken > 0 {
            let place = ledger.state().places.get(place).clone();
            reading.draft.tell_proven(&place, blocks, block_size, None);
        }
        for slot in std::mem::take(&mut reading.draft.joined) {
            self.count_joined(ledger, slot, reading);
        }
        result.map(|()| taken)
    }

    fn take_block(
        &mut self,
        ledger: &mut Ledger,
        (hash, content, parent): (u64, u64, Parent),
        (place, block_size, gone): (PlaceId, u32, bool),
        reading: &mut Reading,
    ) -> Result<TakenBlock, Refusal> {
        let slot = ledger.slot(hash)?;
        let before = ledger.before(slot);
        match ledger.state().chain(slot, block_size) {
            Some(known) if known.attached && known.content != content => return Ok(TakenBlock::Contradicts),
            Some(known) if known.parent() != parent => return Ok(TakenBlock::Contradicts),
            Some(_) => {}
            None => ledger.define_by_content(slot, (parent, content, block_size), &mut reading.draft)?,
        }
        if gone {
            // It stays known while blocks that build on it are held.
            reading.draft.left.push(hash);
        }
        if gone || ledger.state().copies(slot, place) > 0 {
            ledger.tell_waiting(&mut reading.draft);
            return Ok(TakenBlock::Known);
        }
        let was_held = ledger.hold(slot, place, 1, before, &mut reading.draft);
        self.epoch.reports.prove(place, hash);
        if !before.known && was_held {
            ledger.tell_attached((slot, block_size), &mut reading.draft);
        }
        ledger.tell_waiting(&mut reading.draft);
        let chain = ledger.state().chain(slot, block_size);
        Ok(chain.map_or(TakenBlock::Known, |chain| TakenBlock::New(ledger.known_block(slot, chain, 1))))
    }
}

/// What became of a block of a dump.
enum TakenBlock {
    /// It is held from now on.
    New(StoredBlock),
    /// It was held, or is gone.
    Known,
    /// The engine said something else of its hash: neither it nor what builds on it is taken.
    Contradicts,
}

/// The engine's own place on its device, where there is one alone.
fn device_place(ledger: &Ledger) -> Option<PlaceId> {
    let is_device = |place: &Place| place.tier == Tier::Device && place.is_main() && place.is_own_device();
    let mut places = ledger.state().places.iter().filter(|(_, place)| is_device(place));
    let (id, _) = places.next()?;
    places.next().is_none().then_some(id)
}

/// Whether what comes before a block is known up to the start of its prompt.
fn is_known(ledger: &Ledger, parent: Parent, block_size: u32) -> bool {
    match parent {
        Parent::Root => true,
        Parent::Block(hash) => ledger
            .state()
            .find(hash)
            .is_some_and(|slot| ledger.state().chain(slot, block_size).is_some_and(|chain| chain.attached)),
    }
}
