//! From a stream's journal into the index.

use std::ops::Range;
use std::sync::Arc;

use kvplane_core::{Continuity, Marks, Reason, Resumption, StreamId, Tier, Trust};
use kvplane_index::{Block, Operation, Refused, Slot};
use kvplane_stream::{Entry, Transition, VisibleBlock};
use tracing::warn;

use crate::Catalog;
use crate::roster::{Keyspace, Member, Roster, Shape};
use crate::view::View;

/// A stream's place in the index of one shape of blocks.
#[derive(Debug)]
struct Seat {
    keyspace: Arc<Keyspace>,
    slot: Slot,
}

/// Keeps one stream's part of the index as its journal says. Lives under the stream's lock and gets
/// every entry in order, so no answer is behind the journal. Dropping it takes the stream out of the index.
#[derive(Debug)]
pub struct StreamFeed {
    catalog: Arc<Catalog>,
    roster: Arc<Roster>,
    pub(crate) member: Arc<Member>,
    /// Nearly always one.
    seats: Vec<Seat>,
    /// The ledger's view, as last published.
    journal: View,
    /// What the stream needs besides its main blocks, as last published.
    needs: Arc<Resumption>,
    /// The index knows less than the journal, and why; until the next clear or life.
    lacking: Option<Reason>,
    /// A whole state is being taken over, and not all of it is here yet.
    loading: bool,
    batch: Batch,
}

/// The changes of a batch, prepared before the index's lock is taken. Its memory is used again.
#[derive(Debug, Default)]
struct Batch {
    changes: Vec<Change>,
    /// The blocks of all stores.
    blocks: Vec<Block>,
    /// The blocks of all removals.
    hashes: Vec<u64>,
}

/// What a feed keeps of a batch's memory, in blocks. Only loading a state takes more.
const KEPT: usize = 1024;

#[derive(Debug)]
enum Change {
    /// Blocks came, of the shape of one seat.
    Store { seat: usize, tier: Tier, parent: Option<u64>, blocks: Range<usize> },
    /// Blocks went, whatever their shape was.
    Remove { tier: Tier, hashes: Range<usize> },
}

impl Batch {
    fn clear(&mut self) {
        self.changes.clear();
        self.changes.shrink_to(KEPT);
        self.blocks.clear();
        self.blocks.shrink_to(KEPT);
        self.hashes.clear();
        self.hashes.shrink_to(KEPT);
    }

    /// The changes for one seat, in their order.
    fn operations(&self, of: usize) -> impl Iterator<Item = Operation<'_>> {
        self.changes.iter().filter_map(move |change| match change {
            Change::Store { seat, tier, parent, blocks } if *seat == of => {
                let blocks = &self.blocks[blocks.clone()];
                Some(Operation::Store { tier: *tier, parent: *parent, blocks })
            }
            Change::Store { .. } => None,
            Change::Remove { tier, hashes } => {
                Some(Operation::Remove { tier: *tier, hashes: &self.hashes[hashes.clone()] })
            }
        })
    }
}

impl StreamFeed {
    pub(crate) fn new(catalog: Arc<Catalog>, roster: Arc<Roster>, member: Arc<Member>, view: View) -> Self {
        Self {
            catalog,
            roster,
            member,
            seats: Vec::new(),
            journal: view,
            needs: Arc::default(),
            lacking: None,
            loading: false,
            batch: Batch::default(),
        }
    }

    /// Why the index knows less of the stream than its journal does.
    pub fn lacking(&self) -> Option<Reason> {
        self.lacking
    }

    /// What happened to the stream, and its view and what it needs after that.
    pub fn follow(&mut self, entries: &[Arc<Entry>], view: View, needs: &Arc<Resumption>) {
        let quiet = |entry: &Arc<Entry>| {
            entry.trust.is_none() && entry.continuity.is_none() && entry.epoch == self.journal.epoch
        };
        let moves = |entry: &Arc<Entry>| !entry.transitions.is_empty() || !entry.marks.is_empty();
        let sided = !self.needs.sides.is_empty() || !needs.sides.is_empty();
        let settled = view == self.journal
            && entries.iter().all(quiet)
            && *needs == self.needs
            // What several groups hold is not read at one moment.
            && !(sided && entries.iter().any(moves));
        let member = self.member.clone();
        let _gate = (sided && !settled).then(|| member.gate.write());
        if !settled {
            self.member.unsettle();
        }
        let lacked = self.lacking;
        let mut epoch = self.journal.epoch;
        for entry in entries {
            if entry.epoch != epoch {
                epoch = entry.epoch;
                // Another life may have another block size: it finds its index anew.
                self.vacate();
            }
            self.write(&entry.transitions, &entry.marks);
        }
        if epoch != view.epoch {
            // What was known is void, and no entry says so.
            self.vacate();
        }
        self.need(needs);
        self.journal = view;
        if !settled || self.lacking != lacked {
            self.member.settle(self.worth());
        }
    }

    /// What the stream needs from now on. Its view is unsettled where that changes.
    fn need(&mut self, needs: &Arc<Resumption>) {
        if *needs != self.needs {
            self.needs = needs.clone();
            self.member.needs.set(needs.clone());
        }
    }

    /// A whole state takes the place of what was known; it comes in steps.
    pub fn begin_load(&mut self, view: View, needs: &Arc<Resumption>) {
        self.member.unsettle();
        self.vacate();
        self.need(needs);
        self.loading = true;
        self.journal = view;
        self.member.settle(self.worth());
    }

    /// The next step.
    pub fn load(&mut self, transitions: &[Transition]) {
        self.write(transitions, &[]);
    }

    /// Which sides hold blocks, as they do now.
    pub fn set_sides(&mut self, marks: &[(u64, Marks)]) {
        self.write(&[], marks);
    }

    /// All of it is here.
    pub fn end_load(&mut self) {
        self.loading = false;
        self.member.settle(self.worth());
    }

    /// The journal's view, and no better than what the index knows.
    fn worth(&self) -> View {
        if self.loading {
            return View { continuity: Continuity::Recovering, ..self.journal };
        }
        match self.lacking {
            Some(reason) if self.journal.trust < reason.trust() => {
                View { trust: reason.trust(), reason: Some(reason), ..self.journal }
            }
            _ => self.journal,
        }
    }

    /// Writes transitions and then marks into the indexes.
    fn write(&mut self, transitions: &[Transition], marks: &[(u64, Marks)]) {
        let mut rest = transitions;
        while let Some(at) = rest.iter().position(|transition| matches!(transition, Transition::Cleared)) {
            self.apply(&rest[..at], &[]);
            self.clear();
            rest = &rest[at + 1..];
        }
        self.apply(rest, marks);
    }

    fn clear(&mut self) {
        for Seat { keyspace, slot } in &self.seats {
            keyspace.index.clear(*slot);
        }
        self.lacking = None;
        self.catalog.wake_reclaimer();
    }

    /// Stores, removals and then marks, under one lock of each index.
    fn apply(&mut self, transitions: &[Transition], marks: &[(u64, Marks)]) {
        let mut batch = std::mem::take(&mut self.batch);
        for transition in transitions {
            match transition {
                Transition::Stored { tier: Tier::Unknown, .. }
                | Transition::Removed { tier: Tier::Unknown, .. }
                | Transition::Cleared => {}
                Transition::Stored { tier, parent, blocks } => {
                    self.add_store(&mut batch, *tier, *parent, blocks);
                }
                Transition::Removed { tier, hashes } => {
                    let from = batch.hashes.len();
                    batch.hashes.extend_from_slice(hashes);
                    batch.changes.push(Change::Remove { tier: *tier, hashes: from..batch.hashes.len() });
                }
            }
        }
        for at in 0..self.seats.len() {
            let sides = (!marks.is_empty()).then_some(Operation::SetSides(marks));
            let mut operations = batch.operations(at).chain(sides);
            loop {
                let Seat { keyspace, slot } = &self.seats[at];
                let Err(refused) = keyspace.index.apply(*slot, &mut operations) else { break };
                self.lacks(refused);
            }
        }
        batch.clear();
        self.batch = batch;
    }

    fn add_store(&mut self, batch: &mut Batch, tier: Tier, parent: Option<u64>, blocks: &[VisibleBlock]) {
        let mut parent = parent;
        // A store has one shape of blocks; should it have several, each run goes where it belongs.
        for run in blocks.chunk_by(|one, next| shape(one) == shape(next)) {
            let Some(last) = run.last() else { continue };
            let seat = self.seat(shape(last));
            let from = batch.blocks.len();
            batch.blocks.extend(run.iter().map(|block| Block { hash: block.hash, content: block.content }));
            batch.changes.push(Change::Store { seat, tier, parent, blocks: from..batch.blocks.len() });
            parent = Some(last.hash);
        }
    }

    fn seat(&mut self, shape: Shape) -> usize {
        if let Some(at) = self.seats.iter().position(|seat| seat.keyspace.shape == shape) {
            return at;
        }
        let keyspace = self.roster.enter(shape);
        let slot = keyspace.index.add_stream(u64::from(self.member.seat));
        self.seats.push(Seat { keyspace, slot });
        self.member.set_block_size(shape.size);
        self.seats.len() - 1
    }

    fn lacks(&mut self, refused: Refused) {
        self.roster.refused.add(refused);
        let reason = match refused {
            Refused::Budget => Reason::Budget,
            Refused::Waiting => Reason::WaitingOverflow,
        };
        if self.lacking.is_none() {
            // Said before anything else is done to the index: what is missing must not be seen as exact.
            self.member.unsettle();
            self.lacking = Some(reason);
            let StreamId { engine, rank } = &self.member.id;
            warn!(%engine, rank, trust = %Trust::Lower, %reason, "index incomplete for the stream: {refused}");
        }
    }

    /// Out of every index.
    fn vacate(&mut self) {
        for Seat { keyspace, slot } in self.seats.drain(..) {
            keyspace.index.remove_stream(slot);
            self.roster.exit(keyspace.shape);
        }
        self.lacking = None;
        self.catalog.wake_reclaimer();
    }
}

fn shape(block: &VisibleBlock) -> Shape {
    Shape { size: block.block_size, bigrams: block.attributes.bigrams }
}

impl Drop for StreamFeed {
    fn drop(&mut self) {
        // Never settled again: a question that has just found blocks of it sees that it is gone.
        self.member.unsettle();
        self.vacate();
        self.catalog.leave(&self.roster, &self.member);
    }
}
