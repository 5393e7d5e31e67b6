//! Prefixes that an engine reports as cached, while the past of its stream is not known: never a phantom, and
//! hot ones become visible.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use kvplane_core::{Continuity, Reason, Trust};
use kvplane_stream::{Entry, Interpreter, JournalOptions, Ledger, RequestMark, Transition};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{Decoder, OwnedEvent, OwnedStored};
use proptest::prelude::*;

use crate::rig::{NOW, hashes, remove, store, stored};

const SIZE: usize = 2;

type Prefix = Vec<u32>;

/// The engine's own hash of a prefix.
fn hash(prefix: &[u32]) -> u64 {
    prefix.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, token| {
        (hash ^ u64::from(*token + 1)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// An engine, as simple as it can be: physical copies of prefixes, and batches that were published and not
/// heard yet.
#[derive(Debug, Default)]
struct Engine {
    copies: BTreeMap<Prefix, u32>,
    published: Vec<Vec<OwnedEvent>>,
}

impl Engine {
    fn hit(&self, prompt: &[u32]) -> usize {
        let ends = (SIZE..=prompt.len()).step_by(SIZE);
        ends.take_while(|end| self.copies.contains_key(&prompt[..*end])).count()
    }

    fn stored(prompt: &[u32], from: usize) -> Option<OwnedEvent> {
        let ends = (from + 1..=prompt.len() / SIZE).map(|block| hash(&prompt[..block * SIZE]));
        let list: Vec<u64> = ends.collect();
        let parent = (from > 0).then(|| hash(&prompt[..from * SIZE]));
        (!list.is_empty()).then(|| {
            OwnedEvent::Stored(OwnedStored {
                block_hashes: hashes(&list),
                token_ids: prompt[from * SIZE..from * SIZE + list.len() * SIZE].to_vec(),
                ..stored(&[], parent)
            })
        })
    }

    /// Runs a request: the blocks it found. It computes the rest, and of those that it found the last one
    /// again if the test says so.
    fn run(&mut self, prompt: &[u32], again: bool) -> usize {
        let hit = self.hit(prompt);
        let from = hit - usize::from(again && hit > 0);
        let events: Vec<OwnedEvent> = Self::stored(prompt, from).into_iter().collect();
        for block in from..prompt.len() / SIZE {
            *self.copies.entry(prompt[..(block + 1) * SIZE].to_vec()).or_default() += 1;
        }
        if !events.is_empty() {
            self.published.push(events);
        }
        from
    }

    fn evict(&mut self, which: usize) {
        let Some(prefix) = self.copies.keys().nth(which % self.copies.len().max(1)).cloned() else { return };
        let copies = self.copies.get_mut(&prefix).unwrap();
        *copies -= 1;
        if *copies == 0 {
            self.copies.remove(&prefix);
        }
        self.published.push(vec![remove(&[hash(&prefix)])]);
    }

    fn clear(&mut self) {
        self.copies.clear();
        self.published.push(vec![OwnedEvent::Cleared]);
    }
}

/// What a consumer sees of a ledger.
#[derive(Debug, Default)]
struct Seen {
    known: BTreeMap<u64, (Option<u64>, Vec<u32>)>,
    held: BTreeSet<u64>,
}

impl Seen {
    fn follow(&mut self, entries: &[Arc<Entry>]) {
        for transition in entries.iter().flat_map(|entry| &entry.transitions) {
            match transition {
                Transition::Stored { parent, blocks, .. } => {
                    let mut parent = *parent;
                    for block in blocks {
                        self.known.insert(block.hash, (parent, block.tokens.to_vec()));
                        self.held.insert(block.hash);
                        parent = Some(block.hash);
                    }
                }
                Transition::Removed { hashes, .. } => {
                    for hash in hashes {
                        assert!(self.held.remove(hash), "removed what was held");
                    }
                }
                Transition::Cleared => self.held.clear(),
            }
        }
    }

    fn prefix(&self, hash: u64) -> Prefix {
        let (parent, tokens) = &self.known[&hash];
        let mut prefix = parent.map(|parent| self.prefix(parent)).unwrap_or_default();
        prefix.extend(tokens);
        prefix
    }

    fn prefixes(&self) -> BTreeSet<Prefix> {
        self.held.iter().map(|hash| self.prefix(*hash)).collect()
    }
}

/// A plane that joined late.
struct Late {
    interpreter: Interpreter,
    ledger: Ledger,
    seen: Seen,
    next: u64,
}

impl Late {
    fn new(reason: Reason) -> Self {
        let (mut interpreter, mut ledger) = Interpreter::with_ledger(
            JournalOptions { device_only: true, ..JournalOptions::default() },
            0,
            NOW,
        );
        ledger.keep_fresh();
        interpreter.accept_evidence(&ledger);
        ledger.lack_history_before(100, NOW);
        if reason == Reason::Gap {
            interpreter.drop_residency(&mut ledger, Reason::Gap, NOW);
        }
        ledger.note_continuity(Continuity::Live);
        let mut late = Self { interpreter, ledger, seen: Seen::default(), next: 100 };
        late.catch_up();
        late
    }

    fn catch_up(&mut self) {
        let fresh = self.ledger.take_fresh();
        self.seen.follow(&fresh);
    }

    fn hear(&mut self, events: &[OwnedEvent]) {
        let payload = encode_batch(Profile::Vllm0_32, 1.0, Some(0), events);
        let mut decoder = Decoder::default();
        self.interpreter.apply(&mut self.ledger, self.next, &decoder.decode(&payload).unwrap(), NOW);
        self.next += 1;
        self.catch_up();
    }

    fn hear_all(&mut self, engine: &mut Engine) {
        for events in std::mem::take(&mut engine.published) {
            self.hear(&events);
        }
    }

    fn prove(&mut self, mark: RequestMark, prompt: &[u32], cached: usize) -> usize {
        let proven = self.interpreter.prove_prefix(&mut self.ledger, mark, prompt, (cached * SIZE) as u64);
        self.catch_up();
        proven
    }
}

fn prompt(blocks: u32) -> Vec<u32> {
    (0..blocks * SIZE as u32).collect()
}

/// An engine with a hot prefix of four blocks, and a plane that heard nothing of it but one other block.
fn hot() -> (Engine, Late) {
    let mut engine = Engine::default();
    engine.run(&prompt(4), false);
    engine.published.clear();
    engine.run(&[90, 91], false);
    let mut late = Late::new(Reason::History);
    late.hear_all(&mut engine);
    (engine, late)
}

#[test]
fn a_hot_prefix_becomes_visible_and_goes_with_the_first_removal_that_may_be_its_own() {
    let (mut engine, mut late) = hot();
    assert_eq!(late.seen.prefixes().len(), 1);
    let mark = late.interpreter.mark_request(&late.ledger).unwrap();
    let hit = engine.run(&prompt(4), false);
    assert_eq!((hit, late.prove(mark, &prompt(4), hit)), (4, 4));
    assert_eq!(late.seen.prefixes().len(), 5);
    assert_eq!(late.interpreter.evidence_blocks(), 4);
    let mark = late.interpreter.mark_request(&late.ledger).unwrap();
    assert_eq!(late.prove(mark, &prompt(4), 4), 4, "nothing new, and nothing twice");
    assert_eq!(late.seen.prefixes().len(), 5);
    // A removal of a block that is known is not theirs.
    late.hear(&[remove(&[hash(&[90, 91])])]);
    assert_eq!(late.seen.prefixes().len(), 4);
    late.hear(&[remove(&[hash(&prompt(4))])]);
    assert_eq!(late.seen.prefixes().len(), 0, "one of them is gone, and which is not known");
    assert_eq!(
        late.interpreter.prove_prefix(&mut late.ledger, mark, &prompt(4), 8),
        0,
        "the request was sent before that"
    );
    assert_eq!(late.ledger.trust().level(), Trust::Lower);
}

#[test]
fn a_store_under_the_engines_hash_takes_the_place_of_what_was_reported() {
    let (mut engine, mut late) = hot();
    let mark = late.interpreter.mark_request(&late.ledger).unwrap();
    late.prove(mark, &prompt(4), 4);
    // The last block is computed again: its parent's hash is not known.
    engine.run(&prompt(4), true);
    late.hear_all(&mut engine);
    assert_eq!(late.interpreter.evidence_blocks(), 3);
    let mark = late.interpreter.mark_request(&late.ledger).unwrap();
    assert_eq!(late.prove(mark, &prompt(4), 4), 3, "it is known under another hash");
}

#[test]
fn reports_count_only_while_nothing_but_the_past_is_unknown() {
    let (_, mut late) = hot();
    let mark = late.interpreter.mark_request(&late.ledger).unwrap();
    late.hear(&[OwnedEvent::Cleared, store(&[7], None)]);
    assert_eq!(late.ledger.trust().level(), Trust::Exact);
    assert_eq!(late.interpreter.mark_request(&late.ledger), None);
    assert_eq!(late.prove(mark, &prompt(4), 4), 0);
    let (interpreter, mut ledger) = Interpreter::with_ledger(JournalOptions::default(), 0, NOW);
    ledger.lack_history_before(100, NOW);
    ledger.note_continuity(Continuity::Live);
    assert_eq!(interpreter.mark_request(&ledger), None, "nobody wants reports");
}

#[derive(Debug, Clone)]
enum Step {
    /// Symbols of the prompt's blocks, and whether the last block found is computed again.
    Send {
        prompt: Vec<u32>,
        again: bool,
    },
    /// The oldest request's report arrives.
    Report,
    Evict(usize),
    /// This many batches are received.
    Hear(usize),
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    let prompt = proptest::collection::vec(0u32..2, 1..6);
    prop_oneof![
        8 => (prompt, proptest::bool::weighted(0.2))
            .prop_map(|(prompt, again)| Step::Send { prompt, again }),
        8 => Just(Step::Report),
        3 => (0usize..100).prop_map(Step::Evict),
        6 => (1usize..4).prop_map(Step::Hear),
        1 => Just(Step::Clear),
    ]
}

proptest! {
    #[test]
    fn no_phantom_under_lower_whatever_is_reported_and_removed(
        before in proptest::collection::vec(step(), 0..30),
        after in proptest::collection::vec(step(), 1..80),
        gap in any::<bool>(),
    ) {
        let mut engine = Engine::default();
        for step in before {
            match step {
                Step::Send { prompt, again } => {
                    let prompt: Vec<u32> = prompt.iter().flat_map(|symbol| [*symbol, *symbol]).collect();
                    engine.run(&prompt, again);
                }
                Step::Evict(which) => engine.evict(which),
                _ => {}
            }
        }
        engine.published.clear();
        let mut late = Late::new(if gap { Reason::Gap } else { Reason::History });
        let mut open = VecDeque::new();
        for step in after {
            match step {
                Step::Send { prompt, again } => {
                    let prompt: Vec<u32> = prompt.iter().flat_map(|symbol| [*symbol, *symbol]).collect();
                    let mark = late.interpreter.mark_request(&late.ledger);
                    let hit = engine.run(&prompt, again);
                    open.push_back((mark, prompt, hit));
                }
                Step::Report => {
                    if let Some((Some(mark), prompt, hit)) = open.pop_front() {
                        late.prove(mark, &prompt, hit);
                    }
                }
                Step::Evict(which) => engine.evict(which),
                Step::Clear => engine.clear(),
                Step::Hear(batches) => {
                    for _ in 0..batches.min(engine.published.len()) {
                        let events = engine.published.remove(0);
                        late.hear(&events);
                    }
                }
            }
            if engine.published.is_empty() && late.ledger.trust().level() <= Trust::Lower {
                for prefix in late.seen.prefixes() {
                    prop_assert!(engine.copies.contains_key(&prefix), "{prefix:?} is a phantom");
                }
            }
        }
    }
}
