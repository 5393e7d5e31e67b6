use std::collections::{BTreeMap, BTreeSet};

use kvplane_core::{ContentHasher, EngineId, Namespace, chain_hash};
use kvplane_hints::{CacheTier, Note};
use kvplane_stream::{Attributes, VisibleBlock};
use proptest::prelude::*;

use super::*;
use crate::sink::Sink;

/// What somebody ends with who believes every note: where each prefix lies, by adapter and fingerprint, and
/// whether that is sure.
type Held = BTreeMap<(String, u64), (u32, CacheTier, bool)>;

/// Keeps what it receives, and insists on changes.
#[derive(Clone, Default)]
struct Reader(Arc<Mutex<(Held, Vec<Note>)>>);

impl Sink for Reader {
    fn tell(&mut self, notes: &[Note]) {
        assert!(!notes.is_empty());
        let (held, log) = &mut *self.0.lock();
        log.extend_from_slice(notes);
        for note in notes {
            match note {
                Note::Held(prefix) => {
                    let now = (prefix.tokens, prefix.tier, prefix.sure);
                    let before = held.insert((prefix.adapter.to_string(), prefix.fingerprint), now);
                    assert_ne!(before, Some(now), "reported twice");
                }
                Note::Gone { fingerprint, adapter } => {
                    assert!(held.remove(&(adapter.to_string(), *fingerprint)).is_some(), "was not there");
                }
                Note::Nothing => {
                    assert!(!held.is_empty(), "there was nothing");
                    held.clear();
                }
            }
        }
    }
}

impl Reader {
    fn held(&self) -> Held {
        self.0.lock().0.clone()
    }

    fn take_notes(&self) -> Vec<Note> {
        std::mem::take(&mut self.0.lock().1)
    }
}

fn common(reader: &Reader, rules: Rules) -> Common {
    Common {
        rules: Arc::new(rules),
        replica: Arc::new(Mutex::new(Replica::new(Box::new(reader.clone())))),
        counts: Arc::default(),
        progress: Progress::default(),
    }
}

fn feed(common: &Common, rank: u32) -> RankFeed {
    RankFeed::new(common.clone(), StreamId::new(EngineId::new("e"), rank))
}

const SIZE: u32 = 4;

/// What kind of prompts: each has a root of its own in an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Plain,
    /// The same tokens under other hashes.
    Twin,
    Adapter,
    Salted,
    Numbered,
}

/// A block: which way it goes at every step from the root.
type Path = Vec<u8>;

fn attributes(kind: Kind) -> Attributes {
    match kind {
        Kind::Plain | Kind::Twin => Attributes::default(),
        Kind::Adapter => Attributes { lora_name: Some("tuned".into()), ..Attributes::default() },
        Kind::Salted => Attributes { cache_salt: Some("s".into()), ..Attributes::default() },
        Kind::Numbered => Attributes { lora_id: Some(9), ..Attributes::default() },
    }
}

fn tokens(way: u8) -> [u32; SIZE as usize] {
    [u32::from(way) + 1, 7, 8, 9]
}

/// The engine's hash: no two ranks have the same.
fn hash(rank: u32, kind: Kind, path: &[u8]) -> u64 {
    path.iter().fold(1_000 * u64::from(rank) + kind as u64 + 1, |hash, way| {
        hash.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(u64::from(*way) + 1)
    })
}

fn block(rank: u32, kind: Kind, path: &[u8]) -> VisibleBlock {
    let attributes = attributes(kind);
    let tokens = tokens(path[path.len() - 1]);
    VisibleBlock {
        hash: hash(rank, kind, path),
        content: ContentHasher::default().plain(&tokens, attributes.names().namespace()),
        tokens: kvplane_stream::Tokens::from(tokens),
        block_size: SIZE,
        attributes: Arc::new(attributes),
        extra_keys: None,
    }
}

fn stored(rank: u32, tier: Tier, kind: Kind, path: &[u8]) -> Transition {
    let parent = (path.len() > 1).then(|| hash(rank, kind, &path[..path.len() - 1]));
    Transition::Stored { tier, parent, blocks: vec![block(rank, kind, path)] }
}

fn fingerprint(path: &[u8]) -> u64 {
    let content = |way: &u8| ContentHasher::default().plain(&tokens(*way), Namespace::PLAIN);
    path.iter().fold(None, |before, way| Some(chain_hash(before, content(way)))).unwrap()
}

/// What the ranks hold, computed naively.
#[derive(Debug, Default)]
struct Model(BTreeMap<u32, BTreeMap<(Kind, Path), BTreeSet<Tier>>>);

impl Model {
    fn held(&self) -> Held {
        let mut all = Held::new();
        for rank in self.0.values() {
            for ((kind, path), tiers) in rank {
                let adapter = match kind {
                    Kind::Plain | Kind::Twin => "",
                    Kind::Adapter => "tuned",
                    Kind::Salted | Kind::Numbered => continue,
                };
                let reachable = (1..path.len()).all(|depth| {
                    rank.get(&(*kind, path[..depth].to_vec())).is_some_and(|tiers| !tiers.is_empty())
                });
                let Some(warmest) = tiers.first().filter(|_| reachable) else { continue };
                let tier = match warmest {
                    Tier::Device => CacheTier::T1,
                    Tier::Host | Tier::Disk => CacheTier::T2,
                    _ => CacheTier::T3,
                };
                let key = (adapter.to_owned(), fingerprint(path));
                let entry = all.entry(key).or_insert((SIZE * path.len() as u32, tier, true));
                entry.1 = entry.1.min(tier);
            }
        }
        all
    }

    /// A rank's state as transitions from nothing, with its holes stored and removed at once.
    fn transitions(&self, rank: u32) -> Vec<Transition> {
        let mut log = Vec::new();
        let mut holes = Vec::new();
        for ((kind, path), tiers) in self.0.get(&rank).into_iter().flatten() {
            for depth in 1..path.len() {
                let hole = &path[..depth];
                if self.0[&rank].get(&(*kind, hole.to_vec())).is_none_or(BTreeSet::is_empty) {
                    log.push(stored(rank, Tier::Device, *kind, hole));
                    holes.push(hash(rank, *kind, hole));
                }
            }
            log.extend(tiers.iter().map(|tier| stored(rank, *tier, *kind, path)));
        }
        holes.dedup();
        log.extend(
            holes.into_iter().map(|hole| Transition::Removed { tier: Tier::Device, hashes: vec![hole] }),
        );
        log
    }
}

#[derive(Debug, Clone)]
enum Op {
    Store(u32, Tier, Kind, Path),
    Remove(u32, Tier, Kind, Path),
    Clear(u32),
    Load(u32),
    Forget(u32),
}

fn ops() -> impl Strategy<Value = Op> {
    let rank = 0..2u32;
    let tier = prop::sample::select(vec![Tier::Device, Tier::Device, Tier::Host, Tier::Disk, Tier::Remote]);
    let kind = prop::sample::select(vec![
        Kind::Plain,
        Kind::Plain,
        Kind::Plain,
        Kind::Twin,
        Kind::Adapter,
        Kind::Salted,
        Kind::Numbered,
    ]);
    let path = prop::collection::vec(0..2u8, 1..5);
    let block = (rank.clone(), tier, kind, path);
    prop_oneof![
        8 => block.clone().prop_map(|(rank, tier, kind, path)| Op::Store(rank, tier, kind, path)),
        4 => block.prop_map(|(rank, tier, kind, path)| Op::Remove(rank, tier, kind, path)),
        1 => rank.clone().prop_map(Op::Clear),
        1 => rank.clone().prop_map(Op::Load),
        1 => rank.prop_map(Op::Forget),
    ]
}

proptest! {
    #[test]
    fn whoever_believes_the_notes_holds_what_some_rank_could_reuse(ops in prop::collection::vec(ops(), 0..80)) {
        let reader = Reader::default();
        let common = common(&reader, Rules::default());
        let mut feeds = [feed(&common, 0), feed(&common, 1)];
        let mut model = Model::default();
        for op in ops {
            match op {
                Op::Store(rank, tier, kind, path) => {
                    let blocks = model.0.entry(rank).or_default();
                    // On the device a store proves what comes before it; elsewhere nothing does.
                    let first = if tier == Tier::Device { 1 } else { path.len() };
                    for depth in first..=path.len() {
                        let path = path[..depth].to_vec();
                        if blocks.entry((kind, path.clone())).or_default().insert(tier) {
                            feeds[rank as usize].apply(&stored(rank, tier, kind, &path));
                        }
                    }
                }
                Op::Remove(rank, tier, kind, path) => {
                    let held = model.0.entry(rank).or_default().get_mut(&(kind, path.clone()));
                    if held.is_some_and(|tiers| tiers.remove(&tier)) {
                        let hashes = vec![hash(rank, kind, &path)];
                        feeds[rank as usize].apply(&Transition::Removed { tier, hashes });
                    }
                }
                Op::Clear(rank) => {
                    model.0.remove(&rank);
                    feeds[rank as usize].apply(&Transition::Cleared);
                }
                Op::Load(rank) => {
                    let before = reader.held();
                    reader.take_notes();
                    let feed = &mut feeds[rank as usize];
                    let mut new = common.rules.ledger(Share::All);
                    for transition in model.transitions(rank) {
                        change(&mut new, &transition, &common.rules, &mut |_| ());
                    }
                    feed.replace(new);
                    prop_assert_eq!(before, reader.held());
                    prop_assert_eq!(reader.take_notes(), Vec::<Note>::new(), "nothing changed");
                }
                Op::Forget(rank) => {
                    model.0.remove(&rank);
                    feeds[rank as usize].forget();
                }
            }
            prop_assert_eq!(reader.held(), model.held());
        }
        for feed in &mut feeds {
            feed.forget();
            prop_assert_eq!(feed.ledger.reported(), 0);
        }
        prop_assert!(reader.held().is_empty());
    }

    #[test]
    fn nothing_is_left_of_blocks_that_are_gone(ops in prop::collection::vec(ops(), 0..60)) {
        let reader = Reader::default();
        let mut feed = feed(&common(&reader, Rules::default()), 0);
        let mut held = BTreeSet::new();
        for op in ops {
            if let Op::Store(_, tier, kind, path) = op {
                held.insert((tier, hash(0, kind, &path)));
                feed.apply(&stored(0, tier, kind, &path));
            }
        }
        for (tier, hash) in held {
            feed.apply(&Transition::Removed { tier, hashes: vec![hash] });
        }
        prop_assert!(reader.held().is_empty());
        prop_assert!(feed.ledger.is_empty());
    }
}

#[test]
fn fingerprints_are_those_of_other_implementations() {
    let chains: [(std::ops::RangeInclusive<u32>, &[u64]); 4] = [
        (1..=16, &[16_863_443_419_780_771_464]),
        (1..=32, &[16_863_443_419_780_771_464, 12_466_389_667_045_779_788]),
        (
            0..=63,
            &[
                15_310_707_395_893_867_146,
                13_769_157_705_258_532_664,
                11_879_827_756_109_914_528,
                3_888_788_807_566_526_800,
            ],
        ),
        (100..=119, &[10_823_191_264_391_160_519]),
    ];
    for adapter in [None, Some("tuned")] {
        for (prompt, wanted) in &chains {
            let prompt: Vec<u32> = prompt.clone().collect();
            let attributes =
                Arc::new(Attributes { lora_name: adapter.map(Box::from), ..Attributes::default() });
            let blocks = prompt.chunks_exact(16).enumerate().map(|(at, tokens)| VisibleBlock {
                hash: 1 + at as u64,
                content: ContentHasher::default().plain(tokens, attributes.names().namespace()),
                tokens: tokens.into(),
                block_size: 16,
                attributes: attributes.clone(),
                extra_keys: None,
            });
            let transition =
                Transition::Stored { tier: Tier::Device, parent: None, blocks: blocks.collect() };
            let reader = Reader::default();
            feed(&common(&reader, Rules::default()), 0).apply(&transition);
            let reported = reader.take_notes().into_iter().map(|note| match note {
                Note::Held(prefix) => {
                    assert_eq!(&*prefix.adapter, adapter.unwrap_or_default());
                    (prefix.fingerprint, prefix.tokens)
                }
                other => panic!("{other:?}"),
            });
            let counts = (1..).map(|blocks| 16 * blocks);
            assert_eq!(reported.collect::<Vec<_>>(), wanted.iter().copied().zip(counts).collect::<Vec<_>>());
        }
    }
}

fn path_notes(reader: &Reader) -> Vec<(u32, Option<CacheTier>)> {
    let paths: Vec<u64> = (1..=4).map(|depth| fingerprint(&vec![0; depth])).collect();
    let depth = |fingerprint: u64| 1 + paths.iter().position(|known| *known == fingerprint).unwrap() as u32;
    let reported = reader.take_notes().into_iter().map(|note| match note {
        Note::Held(prefix) => (depth(prefix.fingerprint), Some(prefix.tier)),
        Note::Gone { fingerprint, .. } => (depth(fingerprint), None),
        Note::Nothing => (0, None),
    });
    reported.collect()
}

fn chain(tier: Tier, depths: std::ops::RangeInclusive<usize>) -> Transition {
    let blocks = depths.clone().map(|depth| block(0, Kind::Plain, &vec![0; depth])).collect();
    let parent = (*depths.start() > 1).then(|| hash(0, Kind::Plain, &vec![0; depths.start() - 1]));
    Transition::Stored { tier, parent, blocks }
}

fn removal(tier: Tier, depth: usize) -> Transition {
    Transition::Removed { tier, hashes: vec![hash(0, Kind::Plain, &vec![0; depth])] }
}

#[test]
fn what_builds_on_a_hole_is_taken_back_and_reported_again() {
    let reader = Reader::default();
    let mut feed = feed(&common(&reader, Rules::default()), 0);
    feed.apply(&chain(Tier::Device, 1..=3));
    assert_eq!(
        path_notes(&reader),
        [(1, Some(CacheTier::T1)), (2, Some(CacheTier::T1)), (3, Some(CacheTier::T1))]
    );
    feed.apply(&removal(Tier::Device, 2));
    assert_eq!(path_notes(&reader), [(2, None), (3, None)]);
    feed.apply(&chain(Tier::Host, 2..=2));
    assert_eq!(path_notes(&reader), [(2, Some(CacheTier::T2)), (3, Some(CacheTier::T1))]);
    // What is behind a block that was never heard of waits for it.
    feed.forget();
    assert_eq!(path_notes(&reader), [(0, None)]);
    feed.apply(&chain(Tier::Host, 2..=3));
    assert_eq!(path_notes(&reader), []);
    feed.apply(&chain(Tier::Remote, 1..=1));
    assert_eq!(
        path_notes(&reader),
        [(1, Some(CacheTier::T3)), (2, Some(CacheTier::T2)), (3, Some(CacheTier::T2))]
    );
}

#[test]
fn what_leaves_the_device_can_be_taken_to_lie_behind_it_up_to_a_bound() {
    let reader = Reader::default();
    let mut feed = feed(&common(&reader, Rules { keep_left: 2, ..Rules::default() }), 0);
    feed.apply(&chain(Tier::Device, 1..=4));
    path_notes(&reader);
    for depth in [4, 3] {
        feed.apply(&removal(Tier::Device, depth));
        assert_eq!(path_notes(&reader), [(depth as u32, Some(CacheTier::T2))]);
    }
    // Nobody says when it ends, until the engine does.
    feed.apply(&chain(Tier::Host, 3..=3));
    feed.apply(&removal(Tier::Host, 3));
    let sure = |note: &Note| matches!(note, Note::Held(prefix) if prefix.sure);
    assert_eq!(reader.take_notes().iter().map(sure).collect::<Vec<_>>(), [true, false]);
    // The first that left is given up.
    feed.apply(&removal(Tier::Device, 2));
    assert_eq!(path_notes(&reader), [(2, Some(CacheTier::T2)), (4, None)]);
    feed.apply(&chain(Tier::Device, 2..=3));
    assert_eq!(path_notes(&reader), [(2, Some(CacheTier::T1)), (3, Some(CacheTier::T1))]);
    feed.apply(&Transition::Cleared);
    assert_eq!(path_notes(&reader), [(0, None)]);
}

#[test]
fn another_block_under_an_old_hash_takes_back_what_was_reported() {
    let reader = Reader::default();
    let mut feed = feed(&common(&reader, Rules::default()), 0);
    feed.apply(&chain(Tier::Device, 1..=3));
    let other = VisibleBlock { content: 5, ..block(0, Kind::Plain, &[0]) };
    feed.apply(&Transition::Stored { tier: Tier::Device, parent: None, blocks: vec![other] });
    let (held, of_old) = (reader.held(), fingerprint(&[0]));
    assert_eq!(held.len(), 3);
    assert!(held.contains_key(&(String::new(), 5)) && !held.contains_key(&(String::new(), of_old)));
    // A hash that is made of itself is believed by nobody, and nobody waits for it for ever.
    let parent = Some(hash(0, Kind::Plain, &[0, 0]));
    let knot = VisibleBlock { content: 6, ..block(0, Kind::Plain, &[0]) };
    feed.apply(&Transition::Stored { tier: Tier::Device, parent, blocks: vec![knot] });
    assert!(reader.held().is_empty());
}

#[test]
fn what_is_withheld_is_counted_with_what_builds_on_it() {
    let reader = Reader::default();
    let common = common(&reader, Rules::default());
    let mut feed = feed(&common, 0);
    for kind in [Kind::Salted, Kind::Numbered] {
        for depth in 1..=3 {
            feed.apply(&stored(0, Tier::Device, kind, &vec![0; depth]));
        }
    }
    let plain = VisibleBlock { hash: 77, ..block(0, Kind::Plain, &[0]) };
    let parent = Some(hash(0, Kind::Salted, &[0; 3]));
    feed.apply(&Transition::Stored { tier: Tier::Device, parent, blocks: vec![plain] });
    common.counts.add(&feed.ledger.take_withheld());
    assert_eq!(common.counts.get(Withheld::Salted), 4);
    assert_eq!(common.counts.get(Withheld::UnnamedAdapter), 3);
    assert!(reader.held().is_empty());
}
