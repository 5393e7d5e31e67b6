//! Histories of streams, applied to the index and to the model.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvplane_core::{Marks, Need, Resumption, Side, SpecKind, Tier, chain_hash};
use kvplane_index::model::Model;
use kvplane_index::{Block, Buffer, Depths, Index, LEVELS, Options, Slot};
use proptest::prelude::*;

const MAX_WAITING: usize = 6;

#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// A stream announces a stretch of a prompt, from some block on.
    Prompt {
        stream: usize,
        tier: usize,
        prompt: usize,
        from: usize,
        to: usize,
    },
    /// A stream announces blocks that make no sense together.
    Odd {
        stream: usize,
        tier: usize,
        parent: Option<u64>,
        blocks: Vec<(u64, u64)>,
    },
    /// Blocks of a prompt go, last first or first first.
    Evict {
        stream: usize,
        tier: usize,
        prompt: usize,
        from: usize,
        to: usize,
        last_first: bool,
    },
    Remove {
        stream: usize,
        tier: usize,
        hashes: Vec<u64>,
    },
    /// Sides hold blocks of a prompt, as they do now.
    Sides {
        stream: usize,
        prompt: usize,
        from: usize,
        to: usize,
        marks: Marks,
    },
    /// Sides hold blocks that may make no sense.
    OddSides {
        stream: usize,
        hashes: Vec<u64>,
        marks: Marks,
    },
    Clear {
        stream: usize,
    },
    Replace {
        stream: usize,
    },
    Reclaim {
        blocks: usize,
    },
}

/// Prompts share prefixes: block i of prompt p has a content that equals that of the prompts it shares a start with.
fn content(prompt: usize, at: usize) -> u64 {
    // Prompts 0..4 share 12 blocks, pairs of them share 20.
    let family = match at {
        0..12 => 0,
        12..20 => 1 + prompt / 2,
        _ => 10 + prompt,
    };
    1_000 * family as u64 + at as u64 % 7 + 1
}

/// An engine's hash of it: engines differ.
fn hash(stream: usize, prompt: usize, at: usize) -> u64 {
    let family = match at {
        0..12 => 0,
        12..20 => 1 + prompt / 2,
        _ => 10 + prompt,
    };
    (family * 1000 + at) as u64 + 1 + if stream.is_multiple_of(2) { 0 } else { 1 << 40 }
}

/// Most blocks are held by all sides, on the device or elsewhere.
fn marks() -> impl Strategy<Value = Marks> {
    prop_oneof![5 => Just(u64::MAX), 2 => Just(0xffff_0000), 1 => any::<u64>(), 2 => Just(0_u64)]
        .prop_map(Marks)
}

/// What streams may need, one after the other.
fn needs() -> Vec<Resumption> {
    let run = |blocks, stride, tail| Need::Run { blocks, stride, tail };
    let prefix = |stride| Need::Prefix { stride };
    let all: [(&[Need], [u32; LEVELS], bool); 7] = [
        (&[run(3, 1, false), run(9, 1, false)], [1; LEVELS], false),
        (&[run(1, 2, false)], [1; LEVELS], false),
        (&[prefix(1), run(2, 1, true)], [1; LEVELS], false),
        (&[prefix(3), run(2, 2, false)], [1, 4, 4, 4], false),
        (&[run(2, 1, false), run(0, 1, true)], [1; LEVELS], true),
        (&[], [1, 4, 8, 1], true),
        (&[run(200, 1, false)], [1; LEVELS], false),
    ];
    let side = |need: &Need| Side { group: None, kind: SpecKind::Sliding, need: *need };
    let resumption = |(sides, units, drops_last): (&[Need], _, _)| Resumption {
        sides: sides.iter().map(side).collect(),
        units,
        drops_last,
        ..Resumption::default()
    };
    all.into_iter().map(resumption).collect()
}

pub(crate) fn step(streams: usize) -> impl Strategy<Value = Step> {
    let stream = 0..streams;
    let tier = prop_oneof![6 => Just(0_usize), 2 => Just(1_usize), 1 => 2..4_usize];
    prop_oneof![
        8 => (stream.clone(), tier.clone(), 0..4_usize, prop_oneof![3 => Just(0_usize), 1 => 0..40_usize], 1..60_usize)
            .prop_map(|(stream, tier, prompt, from, len)| Step::Prompt { stream, tier, prompt, from, to: from + len }),
        3 => (stream.clone(), tier.clone(), proptest::option::of(0..12_u64), proptest::collection::vec((0..12_u64, 0..4_u64), 1..5))
            .prop_map(|(stream, tier, parent, blocks)| Step::Odd { stream, tier, parent, blocks }),
        6 => (stream.clone(), tier.clone(), 0..4_usize, 0..40_usize, 1..60_usize, any::<bool>())
            .prop_map(|(stream, tier, prompt, from, len, last_first)| Step::Evict { stream, tier, prompt, from, to: from + len, last_first }),
        2 => (stream.clone(), tier, proptest::collection::vec(0..12_u64, 1..5))
            .prop_map(|(stream, tier, hashes)| Step::Remove { stream, tier, hashes }),
        8 => (stream.clone(), 0..4_usize, 0..40_usize, 1..60_usize, marks())
            .prop_map(|(stream, prompt, from, len, marks)| Step::Sides { stream, prompt, from, to: from + len, marks }),
        2 => (stream.clone(), proptest::collection::vec(0..12_u64, 1..5), marks())
            .prop_map(|(stream, hashes, marks)| Step::OddSides { stream, hashes, marks }),
        1 => stream.clone().prop_map(|stream| Step::Clear { stream }),
        1 => stream.prop_map(|stream| Step::Replace { stream }),
        1 => (0..200_usize).prop_map(|blocks| Step::Reclaim { blocks }),
    ]
}

pub(crate) struct Both {
    pub(crate) index: Arc<Index>,
    pub(crate) model: Model,
    pub(crate) slots: Vec<(Slot, u64)>,
    next_owner: u64,
}

impl Both {
    pub(crate) fn new(streams: usize) -> Self {
        let index = Index::new(&Options { max_waiting: MAX_WAITING, ..Options::default() });
        let mut both = Self { index, model: Model::new(MAX_WAITING), slots: Vec::new(), next_owner: 1 };
        for _ in 0..streams {
            let slot = both.add();
            both.slots.push(slot);
        }
        both
    }

    pub(crate) fn add(&mut self) -> (Slot, u64) {
        let owner = self.next_owner;
        self.next_owner += 1;
        self.model.add_stream(owner);
        (self.index.add_stream(owner), owner)
    }

    fn store(&mut self, stream: usize, tier: usize, parent: Option<u64>, blocks: &[Block]) {
        let (slot, owner) = self.slots[stream];
        let tier = Tier::ALL[tier];
        let expected = self.model.store(owner, tier, parent, blocks);
        assert_eq!(self.index.store(slot, tier, parent, blocks), expected);
    }

    fn remove(&mut self, stream: usize, tier: usize, hashes: &[u64]) {
        let (slot, owner) = self.slots[stream];
        let tier = Tier::ALL[tier];
        assert_eq!(self.index.remove(slot, tier, hashes), self.model.remove(owner, tier, hashes));
    }

    fn set_sides(&mut self, stream: usize, hashes: &[u64], marks: Marks) {
        let (slot, owner) = self.slots[stream];
        let marks: Vec<(u64, Marks)> = hashes.iter().map(|hash| (*hash, marks)).collect();
        self.model.set_sides(owner, &marks);
        assert_eq!(self.index.set_sides(slot, &marks), Ok(()));
    }

    pub(crate) fn apply(&mut self, step: &Step) {
        match step {
            Step::Prompt { stream, tier, prompt, from, to } => {
                let parent = from.checked_sub(1).map(|at| hash(*stream, *prompt, at));
                let block = |at| Block { hash: hash(*stream, *prompt, at), content: content(*prompt, at) };
                let blocks: Vec<Block> = (*from..*to).map(block).collect();
                self.store(*stream, *tier, parent, &blocks);
            }
            Step::Odd { stream, tier, parent, blocks } => {
                let blocks: Vec<Block> =
                    blocks.iter().map(|&(hash, content)| Block { hash, content }).collect();
                self.store(*stream, *tier, *parent, &blocks);
            }
            Step::Evict { stream, tier, prompt, from, to, last_first } => {
                let mut hashes: Vec<u64> = (*from..*to).map(|at| hash(*stream, *prompt, at)).collect();
                if *last_first {
                    hashes.reverse();
                }
                self.remove(*stream, *tier, &hashes);
            }
            Step::Remove { stream, tier, hashes } => self.remove(*stream, *tier, hashes),
            Step::Sides { stream, prompt, from, to, marks } => {
                let hashes: Vec<u64> = (*from..*to).map(|at| hash(*stream, *prompt, at)).collect();
                self.set_sides(*stream, &hashes, *marks);
            }
            Step::OddSides { stream, hashes, marks } => self.set_sides(*stream, hashes, *marks),
            Step::Clear { stream } => {
                let (slot, owner) = self.slots[*stream];
                self.model.clear(owner);
                self.index.clear(slot);
            }
            Step::Replace { stream } => {
                let (slot, owner) = self.slots[*stream];
                self.model.remove_stream(owner);
                self.index.remove_stream(slot);
                self.slots[*stream] = self.add();
            }
            Step::Reclaim { blocks } => {
                self.index.reclaim(*blocks);
            }
        }
    }

    pub(crate) fn check(&self) {
        let mut reader = self.index.reader();
        let mut buffer = Buffer::default();
        let view = self.model.view();
        let mut ask = |contents: &[u64]| {
            let got: BTreeMap<u64, Depths> = reader
                .query(contents, &mut buffer)
                .matches()
                .iter()
                .map(|found| (found.owner, found.depths))
                .collect();
            let expected = view.query(contents);
            assert_eq!(got, expected, "{contents:?}");
            let chain = |previous: &mut Option<u64>, content: &u64| {
                *previous = Some(chain_hash(*previous, *content));
                *previous
            };
            let prefixes: Vec<u64> = contents.iter().scan(None, chain).collect();
            let got: BTreeMap<u64, Depths> = reader
                .query_chained(&prefixes, &mut buffer)
                .matches()
                .iter()
                .map(|found| (found.owner, found.depths))
                .collect();
            assert_eq!(got, expected, "chained {contents:?}");
        };
        for_every_prompt(&mut ask);
        for (slot, owner) in &self.slots {
            assert_eq!(self.index.blocks(*slot), self.model.blocks(*owner));
        }
        let waiting: usize = self.slots.iter().map(|(_, owner)| self.model.waiting(*owner)).sum();
        assert_eq!(self.index.stats().waiting, waiting);
    }
}

/// Whole prompts, beginnings of them, and such as nobody stored.
fn for_every_prompt(ask: &mut impl FnMut(&[u64])) {
    for prompt in 0..4 {
        let contents: Vec<u64> = (0..100).map(|at| content(prompt, at)).collect();
        ask(&contents);
        ask(&contents[..15]);
    }
    for odd in 0..64_u64 {
        ask(&[odd % 4, odd / 4 % 4, odd / 16]);
    }
}

impl Both {
    /// From where streams can go on, with needs that are chosen by a number.
    pub(crate) fn check_sides(&self, number: usize) {
        let mut reader = self.index.reader();
        let mut buffer = Buffer::default();
        let view = self.model.view();
        let all = needs();
        let needs = &all[number % all.len()];
        let mut ask = |contents: &[u64]| {
            let mut answer = reader.query(contents, &mut buffer);
            let matches = answer.matches();
            let mut depths = Vec::new();
            answer.resume(&matches, needs, None, &mut depths);
            let expected: Vec<Depths> =
                matches.iter().map(|found| view.resume(found.owner, contents, found.depths, needs)).collect();
            assert_eq!(depths, expected, "{contents:?} {needs:?}");
        };
        for_every_prompt(&mut ask);
    }
}

/// `PROPTEST_CASES` asks for more. Miri is some thousand times slower: one case of each kind is minutes of it.
#[allow(clippy::disallowed_methods, reason = "a test has no configuration of its own")]
pub(crate) fn cases(default: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(if cfg!(miri) { 1 } else { default });
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}
