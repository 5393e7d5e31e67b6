//! The same history with and without restarts of kvplane: equal entries, numbers, digests and trust at every step.

use kvplane_core::Cursor;
use kvplane_stream::{JournalOptions, Memory, Options, Record, Recorder, Semantics};
use proptest::prelude::*;

use crate::model::{Op, World, clearing, op};

/// A recorder's memory as some store keeps it: as bytes.
pub struct Keeper {
    follow: Options,
    keep: JournalOptions,
    saved: Option<Vec<u8>>,
    records: Vec<Vec<u8>>,
}

impl Keeper {
    /// What is remembered, as after a restart.
    fn memory(&self) -> Memory {
        let mut records = self.records.iter().map(|bytes| Record::read(bytes).unwrap());
        let mut memory = match &self.saved {
            Some(saved) => Memory::load(saved).unwrap(),
            None => Memory::begin(&records.next().unwrap()).unwrap(),
        };
        records.for_each(|record| memory.follow(&record).unwrap());
        assert!(memory.fits(&self.keep, 0));
        memory
    }
}

impl World {
    /// A world whose kvplane remembers.
    fn remembering(mut self, follow: Options, keep: JournalOptions) -> Self {
        assert!(self.recorder.keep_records(self.now));
        self.keeper = Some(Keeper { follow, keep, saved: None, records: Vec::new() });
        self
    }

    fn keep_records(&mut self) {
        let records = self.recorder.take_records();
        let Some(keeper) = &mut self.keeper else { return };
        keeper.records.extend(records.iter().map(|record| {
            let mut bytes = Vec::new();
            record.write(&mut bytes);
            assert_eq!(Record::read(&bytes).as_ref(), Ok(record));
            bytes
        }));
    }

    pub(super) fn save(&mut self) {
        self.keep_records();
        if let Some(keeper) = &mut self.keeper {
            let memory = keeper.memory();
            keeper.saved = Some(memory.save());
            keeper.records.clear();
        }
    }

    /// kvplane dies. What is on its way is lost, whether it remembers or not.
    pub(super) fn die(&mut self) {
        self.reconnect();
        self.connected = false;
        self.late.clear();
        self.keep_records();
        match &self.keeper {
            None => self.recorder.disconnected(self.now),
            Some(keeper) => {
                let memory = keeper.memory();
                assert_eq!(memory.cursor(), self.recorder.ledger().cursor());
                self.recorder = Recorder::adopt(keeper.follow.clone(), memory, self.now);
            }
        }
        self.question = None;
        self.hint = None;
        self.collect();
    }

    fn looks(&self) -> impl PartialEq + std::fmt::Debug {
        let ledger = self.recorder.ledger();
        let mut residencies: Vec<_> =
            ledger.state().residencies().map(|(place, hash, copies)| (place.group, hash, copies)).collect();
        residencies.sort_unstable();
        (
            (ledger.cursor(), ledger.last_event_id(), ledger.state().digest(), ledger.trust().clone()),
            (self.recorder.continuity(), ledger.known_from(), ledger.engine_sequence(), residencies),
            (ledger.state().entries(), ledger.state().waiting(), self.recorder.last_sequence()),
            self.causes.clone(),
        )
    }
}

/// Two planes that see the same: one never dies.
struct Twins {
    alive: World,
    dies: World,
    compared: Cursor,
}

impl Twins {
    fn new(semantics: Semantics, has_replay: bool, has_hint: bool, ring: usize, window: usize) -> Self {
        let world = || World::of(semantics, has_replay, has_hint, ring, window);
        let follow = Options { replay: has_replay, hold_batches: 6, ..Options::default() };
        let keep = JournalOptions { max_batches: window, semantics, ..JournalOptions::default() };
        let (alive, dies) = (world(), world().remembering(follow, keep));
        let compared = alive.recorder.ledger().cursor();
        Self { alive, dies, compared }
    }

    fn run(&mut self, op: &Op) {
        let before = self.dies.recorder.ledger().cursor();
        self.alive.run(op);
        self.dies.run(op);
        self.dies.keep_records();
        self.compare(op);
        if matches!(op, Op::Die) {
            // A subscriber at the end continues from there, if the window has room for what the end of a
            // connection says.
            let goes_on = |world: &World| world.recorder.ledger().read_after(before, 1).is_ok();
            assert_eq!(goes_on(&self.alive), goes_on(&self.dies), "reset by a restart");
        }
    }

    fn compare(&mut self, op: &Op) {
        let entries = |world: &World| {
            let entries = world.recorder.ledger().read_after(self.compared, usize::MAX);
            entries.map(|entries| entries.iter().map(|entry| format!("{entry:?}")).collect::<Vec<_>>())
        };
        assert_eq!(entries(&self.alive), entries(&self.dies), "entries after {op:?}");
        assert_eq!(self.alive.looks(), self.dies.looks(), "after {op:?}");
        self.compared = self.alive.recorder.ledger().cursor();
    }

    fn rest(mut self) {
        self.alive.rest();
        self.dies.rest();
        self.compare(&Op::Save);
    }
}

fn op_with_restarts() -> impl Strategy<Value = Op> {
    prop_oneof![
        30 => op(),
        2 => Just(Op::Die),
        2 => Just(Op::Save),
        2 => Just(Op::ExpectDump),
        1 => (0..4usize).prop_map(Op::Dump),
        1 => Just(Op::FinishDump),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: crate::cases(700), max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn a_restart_is_a_disconnect_and_no_more(
        ops in prop::collection::vec(op_with_restarts(), 0..120), has_replay: bool, has_hint: bool, ring in 1..40usize,
        window in 1..30usize, clears_at_start: bool,
    ) {
        let mut twins = Twins::new(clearing(clears_at_start), has_replay, has_hint, ring, window);
        for op in ops {
            twins.run(&op);
        }
        twins.rest();
    }

    #[test]
    fn also_where_flushes_are_reported_by_removals(
        ops in prop::collection::vec(op_with_restarts(), 0..120), ring in 1..40usize, window in 1..30usize,
    ) {
        let semantics = Semantics { flushes_by_removals: true, ..Semantics::default() };
        let mut twins = Twins::new(semantics, true, true, ring, window);
        twins.alive.engine.flushes_by_removals = true;
        twins.dies.engine.flushes_by_removals = true;
        for op in ops {
            twins.run(&op);
        }
        twins.rest();
    }
}
