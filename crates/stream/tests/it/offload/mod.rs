//! Any history of an engine with a host behind its device, copies and full reports: what is predicted is what
//! it serves, or trust says otherwise.

#![allow(clippy::unwrap_used, unreachable_pub, reason = "tests")]

mod engine;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kvplane_core::{Reason, Tier, Trust};
use kvplane_stream::{Interpreter, JournalOptions, Ledger, Now, Transition};
use kvplane_wire::Decoder;
use kvplane_wire::encode::{Profile, encode_batch};
use proptest::prelude::*;

use engine::{Announcing, BLOCK, Engine, Prompt, hash, tokens};

const NOW: Now = Now { mono: Duration::ZERO, unix_ms: 1_700_000_000_000 };

#[derive(Debug, Clone)]
enum Op {
    Request { prompt: Prompt, report: bool },
    Twice { prompt: Prompt, fetched: usize },
    Offload { prompt: Prompt, backwards: bool },
    Clear { external: bool },
    Publish,
    Lose,
}

/// A ledger, and what a consumer that counts nothing makes of its transitions.
struct World {
    engine: Engine,
    interpreter: Interpreter,
    ledger: Ledger,
    seen: BTreeMap<Tier, BTreeSet<u64>>,
    next: u64,
    /// Whether anything of the host has ever been heard: of a tier that never was, nobody can say that it is
    /// not known.
    heard_of_host: bool,
}

impl World {
    fn new(engine: Engine, offload_chunk: Option<u32>) -> Self {
        let options = JournalOptions { offload_chunk, ..JournalOptions::default() };
        let (mut interpreter, mut ledger) = Interpreter::with_ledger(options, 0, NOW);
        interpreter.heard_from_start(&mut ledger);
        ledger.keep_fresh();
        Self { engine, interpreter, ledger, seen: BTreeMap::new(), next: 0, heard_of_host: false }
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Request { prompt, report } => self.engine.request(prompt, *report),
            // What a host that was never heard of brings back looks like a report.
            Op::Twice { prompt, fetched } if self.heard_of_host || *fetched == 1 => {
                self.engine.request_twice(prompt, *fetched);
            }
            Op::Twice { .. } => {}
            Op::Offload { prompt, backwards } => self.engine.offload(prompt, *backwards),
            Op::Clear { external } => self.engine.clear(*external),
            Op::Publish => self.publish(),
            Op::Lose => {
                drop(self.engine.take_events());
                self.next += 1;
                self.interpreter.drop_residency(&mut self.ledger, Reason::Gap, NOW);
                self.look();
            }
        }
    }

    fn publish(&mut self) {
        let events = self.engine.take_events();
        self.heard_of_host |= events.iter().any(engine::is_of_host);
        let payload = encode_batch(Profile::Vllm0_32, 1.0, Some(0), &events);
        self.interpreter.apply(
            &mut self.ledger,
            self.next,
            &Decoder::default().decode(&payload).unwrap(),
            NOW,
        );
        self.next += 1;
        self.look();
    }

    fn look(&mut self) {
        for entry in self.ledger.take_fresh() {
            for transition in &entry.transitions {
                match transition {
                    Transition::Stored { tier, blocks, .. } => {
                        self.seen.entry(*tier).or_default().extend(blocks.iter().map(|block| block.hash));
                    }
                    Transition::Removed { tier, hashes } => {
                        self.seen.entry(*tier).or_default().retain(|hash| !hashes.contains(hash));
                    }
                    Transition::Cleared => self.seen.clear(),
                }
            }
        }
    }

    fn predicted(&self, prompt: &[u8]) -> usize {
        let held = |at: usize, level: usize| {
            let tiers = &Tier::ALL[..=level];
            tiers.iter().any(|tier| self.seen.get(tier).is_some_and(|seen| seen.contains(&hash(prompt, at))))
        };
        let found =
            std::array::from_fn(|level| (0..prompt.len()).take_while(|&at| held(at, level)).count() as u32);
        *self.ledger.resumption().whole_units(found).last().unwrap() as usize
    }

    fn check(&mut self, prompts: &[Prompt]) {
        self.publish();
        let trust = self.ledger.trust();
        for prompt in prompts {
            let (predicted, served) = (self.predicted(prompt), self.engine.served(prompt));
            match trust.level() {
                Trust::Exact if self.heard_of_host => assert_eq!(predicted, served, "{prompt:?}"),
                Trust::Exact | Trust::Lower => {
                    assert!(predicted <= served, "{prompt:?}: {predicted} > {served}, {trust:?}");
                }
                level => panic!("{level}: {trust:?}"),
            }
        }
    }
}

fn prompt() -> impl Strategy<Value = Prompt> {
    prop::collection::vec(0..2u8, 1..9)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => prompt().prop_map(|prompt| Op::Request { prompt, report: false }),
        1 => prompt().prop_map(|prompt| Op::Request { prompt, report: true }),
        3 => (prompt(), 1..4usize).prop_map(|(prompt, fetched)| Op::Twice { prompt, fetched }),
        8 => (prompt(), any::<bool>()).prop_map(|(prompt, backwards)| Op::Offload { prompt, backwards }),
        4 => Just(Op::Publish),
        1 => any::<bool>().prop_map(|external| Op::Clear { external }),
        1 => Just(Op::Lose),
    ]
}

fn telling() -> impl Strategy<Value = Announcing> {
    prop_oneof![
        Just(Announcing::Placeholder),
        Just(Announcing::OldPlaceholder),
        Just(Announcing::SelfDescribing)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::cases(512)))]

    #[test]
    fn what_is_predicted_is_served_or_trust_says_otherwise(
        telling in telling(),
        chunk in 1..5usize,
        configured in any::<bool>(),
        (device_room, host_room) in (9..24usize, 1..8usize),
        ops in prop::collection::vec(op(), 1..60),
        asked in prop::collection::vec(prompt(), 1..12),
    ) {
        let offload_chunk = configured.then_some(chunk as u32 * BLOCK);
        let mut world = World::new(Engine::new(telling, chunk, device_room, host_room), offload_chunk);
        for op in &ops {
            world.run(op);
            if matches!(op, Op::Publish) {
                world.check(&asked);
            }
        }
        world.check(&asked);
    }
}

#[test]
fn a_chunk_of_the_host_serves_what_the_device_let_go_of() {
    let mut world = World::new(Engine::new(Announcing::Placeholder, 2, 9, 8), Some(2 * BLOCK));
    let prompt: Prompt = vec![0, 1, 0, 1, 1];
    for op in [
        Op::Request { prompt: prompt.clone(), report: false },
        Op::Offload { prompt: prompt.clone(), backwards: true },
        Op::Request { prompt: vec![1; 8], report: false },
    ] {
        world.run(&op);
    }
    world.check(&[prompt.clone(), vec![1; 8], vec![0, 1, 0]]);
    assert_eq!(world.ledger.trust().level(), Trust::Exact);
    assert_eq!((world.engine.served(&prompt), world.predicted(&prompt)), (4, 4));
    assert_eq!(tokens(&prompt, 0).len(), BLOCK as usize);
}

/// One block of the host, so that there is one.
fn with_host() -> World {
    let mut world = World::new(Engine::new(Announcing::Placeholder, 1, 12, 8), Some(BLOCK));
    let first: Prompt = vec![1, 1];
    world.run(&Op::Request { prompt: first.clone(), report: false });
    world.run(&Op::Offload { prompt: first, backwards: false });
    world.publish();
    world
}

#[test]
fn a_second_copy_of_a_root_that_is_gone_on_with_leaves_a_stream_exact() {
    let mut world = with_host();
    let prompt: Prompt = vec![0, 1, 0];
    world.run(&Op::Twice { prompt: prompt.clone(), fetched: 1 });
    world.check(&[prompt.clone(), vec![0]]);
    assert_eq!(world.ledger.trust().level(), Trust::Exact, "{:?}", world.ledger.trust());
    // The first copies go: whether others are left is not known, until they go too.
    let mut levels = Vec::new();
    for turn in 0..40_u8 {
        let other = vec![1, turn & 1, turn >> 1 & 1, turn >> 2 & 1, turn >> 3 & 1];
        world.run(&Op::Request { prompt: other.clone(), report: false });
        world.check(&[prompt.clone(), other]);
        levels.push(world.ledger.trust().level());
    }
    assert!(!world.engine.device.contains_key(&hash(&prompt, 0)));
    assert_eq!(levels.last(), Some(&Trust::Exact), "{:?}", world.ledger.trust());
}

#[test]
fn what_two_requests_fetch_at_once_is_not_taken_for_a_report() {
    let mut world = with_host();
    let prompt: Prompt = vec![0, 1, 0, 1];
    world.run(&Op::Twice { prompt: prompt.clone(), fetched: 2 });
    world.check(std::slice::from_ref(&prompt));
    assert_eq!(world.ledger.trust().level(), Trust::Exact);
    world.engine.drop_one_copy(&prompt, 0);
    world.check(&[prompt.clone(), vec![0]]);
    assert_eq!(world.ledger.trust().worst().map(|worst| worst.reason), Some(Reason::Presence));
    // Its store proves that a copy is left.
    let longer: Prompt = vec![0, 1, 0, 1, 1];
    world.run(&Op::Request { prompt: longer.clone(), report: false });
    world.check(&[prompt.clone(), longer]);
    assert_eq!(world.ledger.trust().level(), Trust::Exact, "{:?}", world.ledger.trust());
}
