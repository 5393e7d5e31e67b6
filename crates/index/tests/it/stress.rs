//! Readers beside writers on real threads: what is not written to is answered exactly, and what is written to
//! only as it was at some time.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use kvplane_core::{Marks, Need, Resumption, Side, SpecKind, Tier};
use kvplane_index::{Block, Buffer, Depths, Index, Match, Options, Reader, Slot};

/// Streams that nobody writes to while questions are asked. More than fit one word of a set.
const STILL: u64 = if cfg!(miri) { 66 } else { 70 };
const GROWING: u64 = 1_000;
const SHRINKING: u64 = 1_001;
const WITH_A_HOLE: u64 = 1_002;
const CLEARED: u64 = 1_003;
const TWO_TIERS: u64 = 1_004;
/// Streams that come, and go again.
const PASSING: u64 = 10_000;
/// Streams that do anything.
const RESTLESS: u64 = 1_000_000;

const SHARED: usize = 120;
/// More than one extent has room for.
const LONG: usize = if cfg!(miri) { 600 } else { 4_500 };
/// Miri is some thousand times slower, and switches threads at any access.
const ROUNDS: u64 = if cfg!(miri) { 3 } else { 5_000 };

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ (mixed >> 27)) >> 33) as usize % bound
    }
}

/// The contents of a prompt; prompts share nothing.
fn prompt(number: u64, len: usize) -> Vec<u64> {
    (0..len as u64).map(|at| (number + 1) << 32 | at).collect()
}

/// One writer's view of a stream: its hashes are its contents.
#[derive(Clone, Copy)]
struct Stream<'a> {
    index: &'a Index,
    slot: Slot,
}

impl Stream<'_> {
    fn store_in(&self, tier: Tier, prompt: &[u64], from: usize, to: usize) {
        let parent = from.checked_sub(1).map(|at| prompt[at]);
        let blocks: Vec<Block> =
            prompt[from..to].iter().map(|&content| Block { hash: content, content }).collect();
        self.index.store(self.slot, tier, parent, &blocks).unwrap();
    }

    fn store(&self, prompt: &[u64], from: usize, to: usize) {
        self.store_in(Tier::Device, prompt, from, to);
    }

    /// As engines evict: the last block first.
    fn evict(&self, prompt: &[u64], from: usize, to: usize) {
        let hashes: Vec<u64> = prompt[from..to].iter().rev().copied().collect();
        self.index.remove(self.slot, Tier::Device, &hashes);
    }

    /// Every side holds these blocks.
    fn set_sides(&self, prompt: &[u64], from: usize, to: usize) {
        let marks: Vec<(u64, Marks)> = prompt[from..to].iter().map(|&hash| (hash, Marks(u64::MAX))).collect();
        self.index.set_sides(self.slot, &marks).unwrap();
    }
}

/// Streams with an odd number never have marks, the others have them on all of their blocks.
fn has_sides(owner: u64) -> bool {
    owner.is_multiple_of(2)
}

/// Three groups: a main one, and two that slide.
fn three_groups() -> Resumption {
    let sliding = |blocks| Side {
        group: None,
        kind: SpecKind::Sliding,
        need: Need::Run { blocks, stride: 1, tail: false },
    };
    Resumption { sides: vec![sliding(4), sliding(70)], ..Resumption::default() }
}

/// How far writers have got: what was begun, and what had returned.
#[derive(Default)]
struct Progress {
    growing_begun: AtomicU64,
    growing_done: AtomicU64,
    /// Generations of the cleared stream that are over.
    cleared: AtomicU64,
    /// Passing streams that are gone.
    passed: AtomicU64,
    /// Writers that have ended.
    ended: AtomicU64,
    failed: AtomicBool,
}

fn still_depth(owner: u64) -> u32 {
    (owner * 37 % SHARED as u64) as u32 + 1
}

fn passing_depth(owner: u64) -> u32 {
    (owner % 50) as u32 + 1
}

/// The prompt of a generation of the cleared stream: the first block is common to all.
fn of_generation(generation: u64) -> Vec<u64> {
    let mut contents = prompt(1_000 + generation, 30);
    contents[0] = 77;
    contents
}

/// Streams whose history is known.
struct Known<'a> {
    growing: Stream<'a>,
    shrinking: Stream<'a>,
    holed: Stream<'a>,
    cleared: Stream<'a>,
    two_tiers: Stream<'a>,
}

impl<'a> Known<'a> {
    fn new(index: &'a Index) -> Self {
        let shared = prompt(0, SHARED);
        let holding = |owner, blocks| {
            let stream = Stream { index, slot: index.add_stream(owner) };
            stream.store(&shared, 0, blocks);
            stream
        };
        Self {
            growing: holding(GROWING, 0),
            shrinking: holding(SHRINKING, 100),
            holed: holding(WITH_A_HOLE, 100),
            cleared: holding(CLEARED, 0),
            two_tiers: holding(TWO_TIERS, 10),
        }
    }
}

fn write_known(index: &Index, known: &Known<'_>, progress: &Progress) {
    let (shared, long) = (prompt(0, SHARED), prompt(1, LONG));
    let Known { growing, shrinking, holed, cleared, two_tiers } = known;
    let mut random = Random(1);
    let mut grown = 0;
    for round in 0..ROUNDS {
        let to = (grown + random.below(3)).min(LONG);
        progress.growing_begun.store(to as u64, Ordering::SeqCst);
        growing.store(&long, grown, to);
        progress.growing_done.store(to as u64, Ordering::SeqCst);
        grown = to;

        let to = 40 + random.below(60);
        shrinking.evict(&shared, to, 100);
        shrinking.store(&shared, to, 100);

        holed.evict(&shared, 50, 51);
        holed.store(&shared, 50, 51);

        let generation = round + 1;
        cleared.store(&of_generation(generation), 0, 30);
        index.clear(cleared.slot);
        progress.cleared.store(generation, Ordering::SeqCst);

        let owner = PASSING + round;
        let passing = Stream { index, slot: index.add_stream(owner) };
        passing.store(&shared, 0, passing_depth(owner) as usize);
        if has_sides(owner) {
            passing.set_sides(&shared, 0, passing_depth(owner) as usize);
        }
        index.remove_stream(passing.slot);
        progress.passed.store(owner, Ordering::SeqCst);

        // From device to host and back.
        two_tiers.store_in(Tier::Host, &shared, 0, 10);
        two_tiers.evict(&shared, 0, 10);
        two_tiers.store(&shared, 0, 10);
        index.remove(two_tiers.slot, Tier::Host, &shared[..10]);
    }
}

/// Streams that make extents split, crowds form, and tables grow.
fn write_restless(index: &Index) {
    let prompts = [prompt(0, SHARED), prompt(1, LONG)];
    let mut random = Random(2);
    let mut streams: Vec<(u64, Stream<'_>)> = Vec::new();
    let mut next = RESTLESS;
    for round in 0..4 * ROUNDS {
        if streams.len() < 20 + (round / 25) as usize {
            streams.push((next, Stream { index, slot: index.add_stream(next) }));
            next += 1;
        }
        let (_, stream) = streams[random.below(streams.len())];
        let prompt = &prompts[random.below(2)];
        let from = random.below(SHARED);
        let to = from + 1 + random.below(SHARED - from);
        match random.below(12) {
            0..4 => stream.store(prompt, 0, to),
            4 => stream.set_sides(prompt, from, to),
            5..7 => stream.store(prompt, from, to),
            7..9 => stream.evict(prompt, from, to),
            9 => stream.evict(prompt, 0, SHARED),
            10 => index.clear(stream.slot),
            _ => {
                let at = random.below(streams.len());
                let (_, gone) = streams.swap_remove(at);
                index.remove_stream(gone.slot);
                index.reclaim(500);
            }
        }
    }
}

/// Asks, and keeps what it needs for that.
struct Asking {
    reader: Reader,
    buffer: Buffer,
}

impl Asking {
    fn ask(&mut self, prompt: &[u64]) -> Vec<Match> {
        self.reader.query(prompt, &mut self.buffer).matches()
    }

    /// What streams hold, and from where they can go on.
    fn ask_sides(&mut self, prompt: &[u64], needs: &Resumption) -> Vec<(Match, Depths)> {
        let mut answer = self.reader.query(prompt, &mut self.buffer);
        let matches = answer.matches();
        let mut depths = Vec::new();
        answer.resume(&matches, needs, None, &mut depths);
        matches.into_iter().zip(depths).collect()
    }
}

fn depths(matches: &[Match], owner: u64) -> Depths {
    let mut found = matches.iter().filter(|found| found.owner == owner);
    let depths = found.next().map_or([0; 4], |found| found.depths);
    assert!(found.next().is_none(), "{owner} is named twice");
    depths
}

/// Asks until the writers have ended. Says how often.
fn read(index: &Arc<Index>, progress: &Progress, writers: u64) -> u64 {
    let (shared, long) = (prompt(0, SHARED), prompt(1, LONG));
    let mut asking = Asking { reader: index.reader(), buffer: Buffer::default() };
    let needs = three_groups();
    let mut grown = 0;
    let mut rounds = 0;
    while progress.ended.load(Ordering::SeqCst) < writers && !progress.failed.load(Ordering::SeqCst) {
        rounds += 1;
        let passed = progress.passed.load(Ordering::SeqCst);
        let matches = asking.ask(&shared);
        for owner in 0..STILL {
            assert_eq!(depths(&matches, owner), [still_depth(owner); 4], "stream {owner} was not written to");
        }
        for found in matches.iter().filter(|found| (PASSING..RESTLESS).contains(&found.owner)) {
            assert!(found.owner > passed, "{} was gone", found.owner);
            assert!(found.depths[0] <= passing_depth(found.owner));
        }
        for (found, resumable) in asking.ask_sides(&shared, &needs) {
            assert!(resumable.iter().zip(&found.depths).all(|(resumable, held)| resumable <= held));
            match found.owner {
                0..STILL if has_sides(found.owner) => assert_eq!(resumable, found.depths),
                0..STILL | PASSING..RESTLESS if !has_sides(found.owner) => {
                    assert_eq!(resumable, [0; 4], "stream {} never had marks", found.owner);
                }
                _ => {}
            }
        }
        let shrunk = depths(&matches, SHRINKING)[0];
        assert!((40..=100).contains(&shrunk), "{shrunk}");
        let holed = depths(&matches, WITH_A_HOLE)[0];
        assert!([50, 100].contains(&holed), "{holed}");
        for found in &matches {
            assert!(found.depths.is_sorted(), "{found:?}");
        }
        // Always in one of the two.
        assert_eq!(depths(&matches, TWO_TIERS)[3], 10);

        let least = progress.growing_done.load(Ordering::SeqCst) as u32;
        let depth = depths(&asking.ask(&long), GROWING)[0];
        let most = progress.growing_begun.load(Ordering::SeqCst) as u32;
        assert!((least.max(grown)..=most).contains(&depth), "{depth} of {least}..={most}, {grown} before");
        grown = depth;

        let generation = progress.cleared.load(Ordering::SeqCst);
        let old = depths(&asking.ask(&of_generation(generation)), CLEARED)[0];
        assert!(old <= 1, "{old} blocks of a generation that was cleared");
    }
    rounds
}

/// Says that a thread has failed, so that the others end.
struct Alarm<'a>(&'a Progress);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.failed.store(true, Ordering::SeqCst);
        }
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn readers_beside_writers() {
    let index = Index::new(&Options::default());
    let shared = prompt(0, SHARED);
    for owner in 0..STILL {
        let stream = Stream { index: &index, slot: index.add_stream(owner) };
        stream.store(&shared, 0, still_depth(owner) as usize);
        if has_sides(owner) {
            stream.set_sides(&shared, 0, still_depth(owner) as usize);
        }
    }
    let known = Known::new(&index);
    let progress = Progress::default();
    let (index, known, progress) = (&index, &known, &progress);
    let rounds: Vec<u64> = thread::scope(|scope| {
        let readers: Vec<_> = (0..2).map(|_| scope.spawn(move || read(index, progress, 2))).collect();
        scope.spawn(move || {
            let _alarm = Alarm(progress);
            write_known(index, known, progress);
        });
        scope.spawn(move || {
            let _alarm = Alarm(progress);
            write_restless(index);
        });
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    });
    assert!(rounds.iter().all(|rounds| *rounds > 0), "{rounds:?}");
}
