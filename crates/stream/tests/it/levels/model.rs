//! Any history of a drained engine, however it is lost, stolen and restarted, against a naive model of it.
//!
//! Whenever the stream is live and nothing waits in the engine's buffer: `exact` means that it holds what the
//! engine holds, `lower` a part of that. What transitions say is always what follows from the state.

use std::collections::BTreeSet;

use kvplane_core::{Continuity, EngineKind, Epoch, Reason, Tier, Trust};
use kvplane_stream::DrainFailure;
use proptest::collection::vec;
use proptest::prelude::*;

use super::Rig;
use super::engine::{BLOCK_SIZE, Engine, Shape};
use crate::copy::Copy;

#[derive(Debug, Clone)]
enum Op {
    Request {
        pool: usize,
        prompt: u8,
        length: usize,
    },
    Evict {
        pool: usize,
        which: usize,
    },
    Offload {
        pool: usize,
        which: usize,
    },
    Drain,
    /// An answer gets lost on the way.
    LoseAnswer,
    /// Somebody else drains.
    Steal,
    /// An event that waits cannot be distinguished from others.
    Spoil(usize),
    Outage,
    /// The engine dies and comes back, with this many blocks.
    Restart(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let request = (0..2_usize, 0..4_u8, 1..15_usize).prop_map(|(pool, prompt, length)| Op::Request {
        pool,
        prompt,
        length,
    });
    prop_oneof![
        12 => request,
        4 => (0..2_usize, 0..9_usize).prop_map(|(pool, which)| Op::Evict { pool, which }),
        4 => (0..2_usize, 0..9_usize).prop_map(|(pool, which)| Op::Offload { pool, which }),
        12 => Just(Op::Drain),
        1 => Just(Op::LoseAnswer),
        1 => Just(Op::Steal),
        1 => (0..9_usize).prop_map(Op::Spoil),
        1 => Just(Op::Outage),
        1 => (3..7_usize).prop_map(Op::Restart),
    ]
}

fn shape() -> impl Strategy<Value = Shape> {
    let windows = prop_oneof![Just(vec![4096]), Just(vec![4096, 512]), Just(vec![512, 4096])];
    (windows, 3..7_usize, 0..4_usize, 2..40_usize).prop_map(|(windows, device, host, buffer)| Shape {
        windows,
        blocks: [device, host],
        buffer,
    })
}

struct World {
    engine: Engine,
    rig: Rig,
    /// Somebody else has drained, and nothing has been heard since.
    stolen: bool,
    /// Something of the engine's present life has been heard.
    beginning_heard: bool,
    /// The epoch, and the windows that were heard of in it.
    windows: (Epoch, BTreeSet<u32>),
    copy: Copy,
}

impl World {
    fn run(&mut self, op: &Op) {
        match *op {
            Op::Request { pool, prompt, length } => self.engine.request(pool, prompt, length),
            Op::Evict { pool, which } => self.engine.evict(pool, which),
            Op::Offload { pool, which } => self.engine.offload(pool, which),
            Op::Spoil(at) => self.engine.spoil(at),
            Op::Drain => self.drain(),
            Op::LoseAnswer => {
                drop(self.engine.drain());
                self.rig.fail(DrainFailure::AnswerLost);
                // Nobody knows what was in it, however long nothing follows.
                self.drain();
            }
            Op::Steal => {
                // What a thief leaves no trace of cannot be known: a theft shows with the next event, and
                // that of a life's beginning may not show at all.
                if self.beginning_heard {
                    drop(self.engine.drain());
                    self.stolen = true;
                }
            }
            Op::Outage => self.rig.fail(DrainFailure::Unreached),
            Op::Restart(device) => {
                self.engine.restart(device);
                self.beginning_heard = false;
                self.rig.fail(DrainFailure::Unreached);
            }
        }
    }

    fn drain(&mut self) {
        let events = self.engine.drain();
        self.rig.answer(&events);
        self.copy.follow(&mut self.rig.recorder);
        let epoch = self.rig.recorder.ledger().epoch();
        if self.windows.0 != epoch {
            self.windows = (epoch, BTreeSet::new());
        }
        // A removal alone is not taken as a sign of a pool, nor what cannot be read.
        let shows =
            events.iter().filter(|event| event["data"]["type"] != "removed" && !event["event_id"].is_null());
        self.windows.1.extend(shows.map(|event| event["window_size"].as_u64().unwrap() as u32));
        if !events.is_empty() {
            (self.stolen, self.beginning_heard) = (false, true);
        }
        if !self.stolen {
            self.check();
        }
    }

    fn check(&self) {
        let ledger = self.rig.recorder.ledger();
        let held: BTreeSet<_> = ledger
            .state()
            .residencies()
            .map(|(place, hash, copies)| {
                assert_eq!(copies, 1);
                (place.group.unwrap(), level(place.tier), hash)
            })
            .collect();
        let visible: BTreeSet<_> =
            self.rig.visible().into_iter().map(|(tier, hash)| (level(tier), hash)).collect();
        let seen: BTreeSet<_> = held.iter().map(|&(_, level, hash)| (level, hash)).collect();
        assert!(visible.is_subset(&seen), "told and not held: {visible:?} of {seen:?}");
        if self.rig.recorder.continuity() != Continuity::Live {
            return;
        }
        let trust = ledger.trust();
        // What several windows need together is not proven. All the rest is as it would be without that.
        assert_eq!(trust.has(Reason::UnknownGroup), self.windows.1.len() > 1);
        let others = trust.active().iter().filter(|known| known.reason != Reason::UnknownGroup);
        match others.map(|known| known.reason.trust()).max().unwrap_or(Trust::Exact) {
            Trust::Exact => {
                assert_eq!(held, self.engine.held());
                if self.rig.block_size.is_some() {
                    assert_eq!(visible, self.engine.main_full());
                }
            }
            Trust::Lower => {
                assert!(held.is_subset(&self.engine.held()), "phantoms: {held:?} {trust:?}");
                // Until the largest window shows, the largest of those that did stands in for it.
                if self.windows.1.contains(&self.engine.main_window()) {
                    assert!(visible.is_subset(&self.engine.main_full()), "{visible:?}");
                }
            }
            Trust::Unverified | Trust::Unsound => panic!("{trust:?}"),
        }
    }
}

fn level(tier: Tier) -> usize {
    match tier {
        Tier::Device => 0,
        Tier::Host => 1,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::cases(2_000)))]

    #[test]
    fn what_is_said_is_so(shape in shape(), configured: bool, ops in vec(op(), 1..60)) {
        let buffer = shape.buffer;
        let rig = Rig::unheard(configured.then_some(BLOCK_SIZE as u32), Some(buffer));
        let windows = (rig.recorder.ledger().epoch(), BTreeSet::new());
        let engine = Engine::new(shape);
        let copy = Copy::new(EngineKind::Trtllm);
        let mut world = World { engine, rig, stolen: false, beginning_heard: false, windows, copy };
        for op in &ops {
            world.run(op);
        }
        world.drain();
    }
}
