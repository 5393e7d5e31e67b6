//! Any history of an engine whose cache has several groups, against a naive model of it: what is predicted
//! from entries alone is what the engine serves while the stream is `exact`, and no more than that while it
//! is `lower`.

#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "tests")]

mod engine;
mod groups;

use std::time::Duration;

use crate::copy::{Copy, take};
use crate::reader::Reader;
use engine::{Engine, Group, Kind, PROMPT, Pool, prompt};
use kvplane_core::{Continuity, EngineKind, Reason, Tier, Trust};
use kvplane_stream::{JournalOptions, Now, Options, Recorder};
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Op {
    Request {
        conversation: u8,
        length: usize,
        kept: u64,
        partial: bool,
    },
    Evict(usize),
    Offload(usize),
    Clear,
    Publish,
    /// A batch gets lost.
    Lose,
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let kept = prop_oneof![4 => Just(u64::MAX), 2 => any::<u64>(), 1 => Just(0)];
    let request = (0..3_u8, 1..=PROMPT, kept, prop::bool::weighted(0.2)).prop_map(
        |(conversation, length, kept, partial)| Op::Request { conversation, length, kept, partial },
    );
    prop_oneof![
        10 => request,
        8 => (0..99_usize).prop_map(Op::Evict),
        3 => (0..99_usize).prop_map(Op::Offload),
        10 => Just(Op::Publish),
        1 => Just(Op::Clear),
        1 => Just(Op::Lose),
        1 => Just(Op::Restart),
    ]
}

fn group() -> impl Strategy<Value = Group> {
    let kind = prop_oneof![
        4 => Just(Kind::Full),
        6 => (1..30_u32).prop_map(Kind::Sliding),
        3 => Just(Kind::State),
        1 => (1..30_u32).prop_map(Kind::Strange),
    ];
    let size = prop_oneof![6 => Just(4_usize), 3 => Just(8), 1 => Just(16), 1 => Just(6)];
    (kind, size).prop_map(|(kind, size)| Group { kind, size })
}

fn groups() -> impl Strategy<Value = Vec<Group>> {
    let full = Just(Group { kind: Kind::Full, size: 4 });
    prop_oneof![
        // Most caches have one full group, somewhere, and blocks of one size.
        4 => (vec(group().prop_map(|group| Group { size: 4, ..group }), 0..3), full, 0..3_usize).prop_map(
            |(mut groups, full, at)| {
                groups.insert(at.min(groups.len()), full);
                groups
            }
        ),
        4 => vec(group(), 1..4),
    ]
}

struct World {
    engine: Engine,
    recorder: Recorder,
    reader: Reader,
    copy: Copy,
    now: Now,
    /// Batches of this life were lost. A clear makes the device known again, and not what was never heard of
    /// other tiers.
    lost: bool,
}

impl World {
    fn new(groups: Vec<Group>, eagle: bool) -> Self {
        let now = Now { mono: Duration::from_secs(1), unix_ms: 1_700_000_000_000 };
        let follow = Options { replay: false, ..Options::default() };
        let keep = JournalOptions { eagle, max_batches: 4, ..JournalOptions::default() };
        let mut recorder = Recorder::new(follow, keep, 0, now);
        recorder.ledger_mut().keep_fresh();
        recorder.connected(now);
        let copy = Copy::new(EngineKind::Vllm);
        Self {
            engine: Engine::new(groups, eagle),
            recorder,
            reader: Reader::default(),
            copy,
            now,
            lost: false,
        }
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Request { conversation, length, kept, partial } => {
                self.engine.request(conversation, length, kept, partial);
            }
            Op::Evict(which) => self.engine.evict(which),
            Op::Offload(which) => self.engine.offload(which),
            Op::Clear => self.engine.clear(),
            Op::Publish => self.publish(),
            Op::Lose => {
                self.engine.publish();
                self.lost = true;
            }
            Op::Restart => {
                self.recorder.disconnected(self.now);
                self.engine.restart();
                self.lost = false;
                self.recorder.connected(self.now);
            }
        }
    }

    fn publish(&mut self) {
        let (sequence, payload) = self.engine.publish();
        self.recorder.live(self.now, sequence, payload);
        for _ in 0..3 {
            self.now.mono += Duration::from_secs(2);
            self.now.unix_ms += 2_000;
            self.recorder.tick(self.now);
        }
        self.reader.follow(&self.recorder.ledger_mut().take_fresh());
        self.reader.assert_current(self.recorder.ledger());
        self.copy.follow(&mut self.recorder);
        self.compare_copy();
        let theirs = self.recorder.ledger();
        // A group that has stored nothing yet cannot be known.
        let heard = theirs.groups().len() == self.engine.groups.len();
        if heard && self.recorder.continuity() == Continuity::Live {
            self.check();
        }
    }

    /// A plane that follows gives the same answers. Its numbers of sides are its own.
    fn compare_copy(&mut self) {
        assert_eq!(self.copy.ledger().groups(), self.recorder.ledger().groups());
        let transitions = take(self.copy.ledger_mut()).as_transitions();
        let mut reader = Reader::default();
        reader.load(self.copy.ledger(), &transitions);
        for (conversation, tier) in (0..3).flat_map(|at| [(at, Tier::Device), (at, Tier::Host)]) {
            let prompt = prompt(conversation, PROMPT);
            assert_eq!(reader.cached(&prompt, None, tier), self.reader.cached(&prompt, None, tier));
        }
    }

    fn check(&self) {
        let trust = self.recorder.ledger().trust();
        // What a group needs that nobody has heard of is taken for the most that any needs; what may have
        // been announced again is not taken for held.
        let unverified = [Reason::UnknownGroup, Reason::Reannounced];
        let others = trust.active().iter().filter(|known| !unverified.contains(&known.reason));
        let level = others.map(|known| known.reason.trust()).max().unwrap_or(Trust::Exact);
        assert!(level <= Trust::Lower, "{trust:?}");
        for conversation in 0..3 {
            for length in 1..=PROMPT {
                for (tier, pool) in [(Tier::Device, Pool::Device), (Tier::Host, Pool::Host)] {
                    let predicted = self.reader.cached(&prompt(conversation, length), None, tier);
                    let served = self.engine.served(pool, conversation, length);
                    let which = (conversation, length, tier);
                    assert!(predicted <= served, "{which:?}: {predicted} of {served}, {trust:?}");
                    if trust.level() == Trust::Exact && (tier == Tier::Device || !self.lost) {
                        assert_eq!(predicted, served, "{which:?}");
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: crate::cases(1_500), max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn what_is_predicted_is_served(groups in groups(), eagle in prop::bool::weighted(0.2), ops in vec(op(), 1..60)) {
        let mut world = World::new(groups, eagle);
        for op in &ops {
            world.run(op);
        }
        world.publish();
    }
}

/// A second copy of a block is counted as one while only the layout of the groups is unclear: then nothing is
/// missing from what is known to be held.
#[test]
fn copies_are_counted_while_the_layout_of_groups_is_unclear() {
    let full = |size| Group { kind: Kind::Full, size };
    let request = |length, partial| Op::Request { conversation: 0, length, kept: u64::MAX, partial };
    let mut world = World::new(vec![full(4), full(16)], false);
    world.run(&request(4, true));
    world.run(&Op::Publish);
    assert_eq!(world.recorder.ledger().trust().worst().unwrap().reason, Reason::GroupLayout);
    // The first computes the block of four tokens again, and the second builds on the first.
    for op in [request(16, false), request(24, false), Op::Evict(8), Op::Publish] {
        world.run(&op);
    }
    assert_eq!(world.recorder.ledger().trust().level(), Trust::Exact);
    assert_eq!(world.engine.served(Pool::Device, 0, 24), 16);
}

/// The same while no group is known to keep whole prefixes. There a store may announce what is not held, so
/// whether it is a copy is not known; that matters once the last copy that is counted goes.
#[test]
fn copies_before_the_first_full_group_are_remembered_as_possible() {
    let groups = vec![Group { kind: Kind::Sliding(9), size: 4 }, Group { kind: Kind::Full, size: 8 }];
    let request = |length| Op::Request { conversation: 0, length, kept: u64::MAX, partial: false };
    let mut world = World::new(groups, false);
    world.run(&request(4));
    world.run(&Op::Publish);
    assert_eq!(world.recorder.ledger().trust().worst().unwrap().reason, Reason::NoFullGroup);
    for op in [request(16), request(24), Op::Publish] {
        world.run(&op);
    }
    assert_eq!(world.recorder.ledger().trust().level(), Trust::Exact);
    // One of the two copies of the first block of the window.
    world.run(&Op::Evict(0));
    world.run(&Op::Publish);
    assert_eq!(world.recorder.ledger().trust().worst().unwrap().reason, Reason::Presence);
    world.run(&Op::Evict(0));
    world.run(&Op::Publish);
    assert_eq!(world.recorder.ledger().trust().level(), Trust::Exact);
}

/// What a store says of a prompt is worked out with what is held when it comes, also where a smaller block of
/// another group came before the clear, and looks like the same request's.
#[test]
fn a_store_behind_a_clear_is_no_report_of_what_was_held_before_it() {
    let groups = vec![Group { kind: Kind::State, size: 4 }, Group { kind: Kind::Full, size: 8 }];
    let request = |conversation, length, partial| {
        let kept = u64::MAX;
        Op::Request { conversation, length, kept, partial }
    };
    let mut world = World::new(groups, false);
    for op in [
        Op::Publish,
        request(2, 32, false),
        request(0, 4, false),
        Op::Clear,
        request(2, 28, true),
        Op::Publish,
    ] {
        world.run(&op);
    }
    assert_eq!(world.recorder.ledger().trust().level(), Trust::Exact);
    assert_eq!(world.engine.served(Pool::Device, 2, 28), 24);
}
