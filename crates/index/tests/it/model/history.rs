//! Histories of streams, applied to the index and to the model.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvplane_core::{Marks, Need, Resumption, Side, SpecKind, Tier, chain_hash};
use kvplane_index::model::Model;
use kvplane_index::{Block, Buffer, Depths, Index, LEVELS, Operation, Options, Slot};
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

/// Prompts share prefixes: block i of prompt p has a content that equals that of the prompts it shares a
/// start with.
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

/// What a stream says.
enum Announced {
    Stored(Tier, Option<u64>, Vec<Block>),
    Removed(Tier, Vec<u64>),
    Sides(Vec<(u64, Marks)>),
}

impl Announced {
    fn operation(&self) -> Operation<'_> {
        match self {
            Self::Stored(tier, parent, blocks) => Operation::Store { tier: *tier, parent: *parent, blocks },
            Self::Removed(tier, hashes) => Operation::Remove { tier: *tier, hashes },
            Self::Sides(marks) => Operation::SetSides(marks),
        }
    }
}

impl Step {
    /// What a stream says, and which; `None` where it is not by saying something that streams change.
    fn announced(&self) -> Option<(usize, Announced)> {
        let hashes = |stream: usize, prompt, from, to| (from..to).map(move |at| hash(stream, prompt, at));
        Some(match self {
            Self::Prompt { stream, tier, prompt, from, to } => {
                let parent = from.checked_sub(1).map(|at| hash(*stream, *prompt, at));
                let block = |at| Block { hash: hash(*stream, *prompt, at), content: content(*prompt, at) };
                (*stream, Announced::Stored(Tier::ALL[*tier], parent, (*from..*to).map(block).collect()))
            }
            Self::Odd { stream, tier, parent, blocks } => {
                let blocks = blocks.iter().map(|&(hash, content)| Block { hash, content }).collect();
                (*stream, Announced::Stored(Tier::ALL[*tier], *parent, blocks))
            }
            Self::Evict { stream, tier, prompt, from, to, last_first } => {
                let mut hashes: Vec<u64> = hashes(*stream, *prompt, *from, *to).collect();
                if *last_first {
                    hashes.reverse();
                }
                (*stream, Announced::Removed(Tier::ALL[*tier], hashes))
            }
            Self::Remove { stream, tier, hashes } => {
                (*stream, Announced::Removed(Tier::ALL[*tier], hashes.clone()))
            }
            Self::Sides { stream, prompt, from, to, marks } => {
                let reported = hashes(*stream, *prompt, *from, *to).map(|hash| (hash, *marks)).collect();
                (*stream, Announced::Sides(reported))
            }
            Self::OddSides { stream, hashes, marks } => {
                (*stream, Announced::Sides(hashes.iter().map(|hash| (*hash, *marks)).collect()))
            }
            Self::Clear { .. } | Self::Replace { .. } | Self::Reclaim { .. } => return None,
        })
    }
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

    pub(crate) fn apply(&mut self, step: &Step) {
        match step {
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
            _ => self.announce(step),
        }
    }

    /// A stream announces something, by a call of its own.
    fn announce(&mut self, step: &Step) {
        let Some((stream, announced)) = step.announced() else { return };
        let (slot, owner) = self.slots[stream];
        match &announced {
            Announced::Stored(tier, parent, blocks) => {
                let expected = self.model.store(owner, *tier, *parent, blocks);
                assert_eq!(self.index.store(slot, *tier, *parent, blocks), expected);
            }
            Announced::Removed(tier, hashes) => {
                assert_eq!(self.index.remove(slot, *tier, hashes), self.model.remove(owner, *tier, hashes));
            }
            Announced::Sides(marks) => {
                self.model.set_sides(owner, marks);
                assert_eq!(self.index.set_sides(slot, marks), Ok(()));
            }
        }
    }

    /// One stream announces what these steps say, whosever they are, in one batch. Others are applied before.
    pub(crate) fn apply_batch(&mut self, stream: usize, steps: &[Step]) {
        let mut batch = Vec::new();
        for step in steps {
            match step.announced() {
                Some((_, announced)) => batch.push(announced),
                None => self.apply(step),
            }
        }
        let (slot, owner) = self.slots[stream];
        let mut expected = Vec::new();
        for announced in &batch {
            match announced {
                Announced::Stored(tier, parent, blocks) => {
                    expected.extend(self.model.store(owner, *tier, *parent, blocks).err());
                }
                Announced::Removed(tier, hashes) => {
                    self.model.remove(owner, *tier, hashes);
                }
                Announced::Sides(marks) => self.model.set_sides(owner, marks),
            }
        }
        let mut operations = batch.iter().map(Announced::operation);
        let mut refused = Vec::new();
        while let Err(why) = self.index.apply(slot, &mut operations) {
            refused.push(why);
        }
        assert_eq!(refused, expected);
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
    for odd in (0..64_u64).step_by(if cfg!(miri) { 9 } else { 1 }) {
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

/// `PROPTEST_CASES` asks for more. Miri is some thousand times slower: one case of each kind is minutes of
/// it.
#[allow(clippy::disallowed_methods, reason = "a test has no configuration of its own")]
pub(crate) fn cases(default: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(if cfg!(miri) { 1 } else { default });
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}
