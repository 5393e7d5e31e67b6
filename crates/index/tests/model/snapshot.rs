//! Snapshots: a loaded stream is the one that was pictured, at the sequence that the snapshot says.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::atomic::{AtomicU64, Ordering};

use kvplane_core::{Tier, digest};
use kvplane_index::model::Model;
use kvplane_index::{Block, Index, LoadError, Options, Refused, Slot, Snapshot, Step as Progress, Taking};
use proptest::prelude::*;

use crate::history::{Both, Step, cases, step};

const STREAMS: usize = 3;
const MANY: usize = 14;

/// A stream in an index of its own, loaded from a snapshot, is what the model says, and stays so.
fn loads_as(both: &Both, model: &Model, stream: usize, snapshot: &Snapshot, later: &[Step]) {
    let mut alone = both.with_only(model, stream);
    let (slot, owner) = alone.slots[stream];
    assert_eq!(alone.index.load(slot, &snapshot.chunks), Ok(snapshot.sequence));
    assert_eq!(model.blocks(owner) as u64, snapshot.entries);
    alone.check();
    for step in later {
        alone.apply(step);
        alone.check();
    }
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn a_loaded_stream_behaves_as_the_first(
        before in proptest::collection::vec(step(STREAMS), 1..50),
        after in proptest::collection::vec(step(STREAMS), 1..15),
    ) {
        let mut both = Both::new(STREAMS);
        for step in &before {
            both.apply(step);
        }
        for stream in 0..STREAMS {
            let (slot, owner) = both.slots[stream];
            both.index.mark(slot, 7);
            let snapshot = both.index.snapshot(slot).unwrap();
            prop_assert_eq!(snapshot.sequence, 7);
            loads_as(&both, &both.model, stream, &snapshot, &after);

            // The copy takes over; the first stays as it is.
            let copy = both.add();
            both.model.copy_stream(owner, copy.1);
            both.index.load(copy.0, &snapshot.chunks).unwrap();
            let first = std::mem::replace(&mut both.slots[stream], copy);
            both.slots.push(first);
            both.check();
        }
        for step in &after {
            both.apply(step);
            both.check();
        }
        for (slot, _) in std::mem::take(&mut both.slots) {
            both.index.remove_stream(slot);
        }
        while both.index.reclaim(1000) {}
        prop_assert_eq!((both.index.stats().blocks, both.index.stats().unreclaimed), (0, 0));
    }

    #[test]
    fn a_snapshot_is_of_its_sequence_whatever_happens_meanwhile(
        before in proptest::collection::vec(step(STREAMS), 1..30),
        meanwhile in proptest::collection::vec(interleaved(STREAMS), 1..60),
        work in 1..12_usize,
    ) {
        interleave(STREAMS, &before, &meanwhile, work);
    }

    /// More streams than an extent has entries: extents are split while they are pictured.
    #[test]
    fn and_whatever_other_streams_do(
        before in proptest::collection::vec(step(MANY), 100..200),
        meanwhile in proptest::collection::vec(interleaved(MANY), 50..100),
        work in 1..12_usize,
    ) {
        interleave(MANY, &before, &meanwhile, work);
    }
}

/// Something happens, is marked or not, and then a snapshot goes on by some steps.
fn interleaved(streams: usize) -> impl Strategy<Value = (Step, bool, usize)> {
    (step(streams), any::<bool>(), 0..12_usize)
}

/// Takes snapshots of the first stream in tiny steps, with announcements between them.
fn interleave(streams: usize, before: &[Step], meanwhile: &[(Step, bool, usize)], work: usize) {
    let mut both = Both::new(streams);
    for step in before {
        both.apply(step);
    }
    let mut models = vec![both.model.clone()];
    both.index.mark(both.slots[0].0, 0);
    let begin = |both: &Both| both.index.begin_snapshot(both.slots[0].0).unwrap().with_steps_of(work);
    let mut taking: Taking = begin(&both);
    let mut pictured = both.slots[0];
    let mut is_marked = true;
    for (step, mark, steps) in meanwhile {
        both.apply(step);
        is_marked &= !step.is_of(0);
        // A stream that never was marked could be pictured at any moment.
        if *mark || matches!(step, Step::Replace { stream: 0 }) {
            both.index.mark(both.slots[0].0, models.len() as u64);
            models.push(both.model.clone());
            is_marked = true;
        }
        // Between two marks a snapshot that was not begun would wait.
        for _ in 0..if is_marked { *steps } else { 0 } {
            match taking.step() {
                Progress::More => {}
                Progress::Done(snapshot) => {
                    loads_as(&both, &models[snapshot.sequence as usize], 0, &snapshot, &[]);
                    taking = begin(&both);
                }
                Progress::Gone => {
                    assert_ne!(both.slots[0], pictured);
                    (taking, pictured) = (begin(&both), both.slots[0]);
                }
            }
        }
    }
}

/// A long prompt of a conversation: the hashes and contents of some of its blocks.
fn conversation(number: u64, from: u64, to: u64) -> Vec<Block> {
    const SYSTEM_PROMPT: u64 = 40;
    let content = |at: u64| if at < SYSTEM_PROMPT { at + 1 } else { number << 32 | at };
    (from..to)
        .map(|at| Block { hash: content(at).wrapping_mul(0x9e37_79b9_7f4a_7c15), content: content(at) })
        .collect()
}

/// Turns of conversations, each some blocks longer than the one before.
fn converse(mut store: impl FnMut(Option<u64>, &[Block]), conversations: u64, turns: u64) {
    for turn in 0..turns {
        for number in 0..conversations {
            let from = if turn == 0 { 0 } else { 60 + turn * 13 };
            let blocks = conversation(number, from, 60 + (turn + 1) * 13);
            let parent = from.checked_sub(1).map(|before| conversation(number, before, from)[0].hash);
            store(parent, &blocks);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "counts bytes over many cycles; nothing in it is new to miri")]
fn an_entry_takes_at_most_20_bytes() {
    let index = Index::new(&Options::default());
    let streams: Vec<Slot> = (0..16).map(|owner| index.add_stream(owner)).collect();
    for (at, slot) in streams.iter().enumerate() {
        converse(
            |parent, blocks| index.store(*slot, Tier::Device, parent, blocks).unwrap(),
            40 + at as u64,
            10 + at as u64,
        );
    }
    for slot in streams {
        let snapshot = index.snapshot(slot).unwrap();
        let bytes: usize = snapshot.chunks.iter().map(Vec::len).sum();
        assert_eq!(snapshot.entries as usize, index.blocks(slot));
        assert!(
            bytes as f64 <= 20.0 * snapshot.entries as f64,
            "{bytes} bytes, {} entries",
            snapshot.entries
        );
        assert!(snapshot.chunks.iter().all(|chunk| chunk.len() <= 1 << 20));
    }
}

/// What happened to a stream, to be told again.
#[derive(Debug, Clone)]
enum Announcement {
    Stored(Option<u64>, Vec<Block>),
    Removed(Vec<u64>),
    Cleared,
}

fn announcements(rounds: u64) -> Vec<Announcement> {
    let mut all = Vec::new();
    for round in 0..rounds {
        let mut stored =
            |parent: Option<u64>, blocks: &[Block]| all.push(Announcement::Stored(parent, blocks.to_vec()));
        converse(&mut stored, 30, 6);
        for number in 0..30 {
            let from = 60 + (number * 7 + round * 11) % 60;
            let mut gone: Vec<u64> = conversation(number, from, 138).iter().map(|block| block.hash).collect();
            gone.reverse();
            all.push(Announcement::Removed(gone));
        }
        if round % 4 == 3 {
            all.push(Announcement::Cleared);
        }
    }
    all
}

#[test]
fn a_snapshot_beside_writers_is_of_its_sequence() {
    const SNAPSHOTS: u64 = if cfg!(miri) { 1 } else { 12 };
    let index = Index::new(&Options::default());
    let slots: Vec<Slot> = (0..3).map(|owner| index.add_stream(owner)).collect();
    let history = announcements(if cfg!(miri) { 1 } else { 9 });
    let taken = AtomicU64::new(0);
    let apply = |slot: Slot, announcement: &Announcement| match announcement {
        Announcement::Stored(parent, blocks) => index.store(slot, Tier::Device, *parent, blocks).unwrap(),
        Announcement::Removed(hashes) => assert_eq!(index.remove(slot, Tier::Device, hashes), 0),
        Announcement::Cleared => index.clear(slot),
    };
    let snapshots: Vec<Snapshot> = std::thread::scope(|scope| {
        // Each tells its stream's history again and again, until enough snapshots were taken.
        for (at, slot) in slots.iter().enumerate() {
            let (history, taken, index, apply) = (&history, &taken, &index, &apply);
            scope.spawn(move || {
                let mut sequence = 0;
                while taken.load(Ordering::Relaxed) < SNAPSHOTS {
                    // Batches of three, in which a snapshot must not begin.
                    for batch in history.chunks(3) {
                        for announcement in batch {
                            apply(*slot, announcement);
                        }
                        sequence += 1;
                        index.mark(*slot, sequence + at as u64 * 1_000_000_000);
                    }
                    apply(*slot, &Announcement::Cleared);
                }
            });
        }
        let take = |_| {
            let snapshot = index.begin_snapshot(slots[0]).map(|mut taking| {
                taking = taking.with_steps_of(64);
                loop {
                    if let Progress::Done(snapshot) = taking.step() {
                        return snapshot;
                    }
                }
            });
            taken.fetch_add(1, Ordering::Relaxed);
            snapshot.unwrap()
        };
        (0..SNAPSHOTS).map(take).collect()
    });
    let batches: Vec<&[Announcement]> = history.chunks(3).collect();
    for snapshot in snapshots {
        let mut model = Model::new(65_536);
        model.add_stream(0);
        // The history begins anew from nothing; before the first mark nothing was announced.
        let applied = match snapshot.sequence as usize {
            0 => 0,
            sequence => (sequence - 1) % batches.len() + 1,
        };
        for announcement in batches[..applied].iter().copied().flatten() {
            match announcement {
                Announcement::Stored(parent, blocks) => {
                    model.store(0, Tier::Device, *parent, blocks).unwrap();
                }
                Announcement::Removed(hashes) => assert_eq!(model.remove(0, Tier::Device, hashes), 0),
                Announcement::Cleared => model.clear(0),
            }
        }
        let loaded = Index::new(&Options::default());
        let slot = loaded.add_stream(0);
        assert_eq!(loaded.load(slot, &snapshot.chunks), Ok(snapshot.sequence));
        assert_eq!(loaded.blocks(slot), model.blocks(0));
        let mut reader = loaded.reader();
        let mut buffer = kvplane_index::Buffer::default();
        let view = model.view();
        for number in 0..30 {
            let contents: Vec<u64> = conversation(number, 0, 200).iter().map(|block| block.content).collect();
            let answer = reader.query(&contents, &mut buffer).matches();
            let expected = view.query(&contents).get(&0).copied();
            assert_eq!(answer.first().map(|found| found.depths), expected);
        }
    }
}

/// A small snapshot with something of everything.
fn small() -> Snapshot {
    let index = Index::new(&Options::default());
    let slot = index.add_stream(1);
    let block = |hash, content| Block { hash, content };
    let all: Vec<Block> = (1..9).map(|at| block(at, at * 100)).collect();
    index.store(slot, Tier::Device, None, &all).unwrap();
    index.store(slot, Tier::Host, None, &all[..3]).unwrap();
    index.store(slot, Tier::Device, None, &all[..1]).unwrap();
    index.store(slot, Tier::Device, Some(1), &[block(20, 200), block(21, 777)]).unwrap();
    index.store(slot, Tier::Disk, Some(99), &[block(30, 1), block(31, 2)]).unwrap();
    assert_eq!(index.remove(slot, Tier::Device, &[5]), 0);
    index.mark(slot, 5);
    index.snapshot(slot).unwrap()
}

/// Tries to load chunks that are not right. Nothing is loaded then.
fn try_load<C: AsRef<[u8]>>(chunks: &[C]) -> Result<u64, LoadError> {
    let index = Index::new(&Options::default());
    let other = index.add_stream(1);
    index.store(other, Tier::Device, None, &[Block { hash: 1, content: 100 }]).unwrap();
    let slot = index.add_stream(2);
    let before = index.stats();
    let outcome = index.load(slot, chunks);
    if outcome.is_err() {
        while index.reclaim(1000) {}
        let after = index.stats();
        assert_eq!((after.blocks, after.waiting, after.unreclaimed), (before.blocks, 0, 0));
    }
    outcome
}

#[test]
fn damaged_bytes_are_refused() {
    let chunks = small().chunks;
    assert_eq!(chunks.len(), 4, "one of each kind");
    assert_eq!(try_load(&chunks), Ok(5));
    for chunk in 0..chunks.len() {
        let whole = chunks[chunk].clone();
        for at in 0..whole.len() {
            let mut damaged = chunks.clone();
            damaged[chunk][at] ^= 0x10;
            let expected = match at {
                4..6 => LoadError::Version(u16::from_le_bytes([damaged[chunk][4], damaged[chunk][5]])),
                _ => LoadError::Damaged { chunk },
            };
            assert_eq!(try_load(&damaged), Err(expected), "{chunk} {at}");
            damaged[chunk] = whole[..at].to_vec();
            assert_eq!(try_load(&damaged), Err(LoadError::Damaged { chunk }), "{chunk} {at}");
        }
    }
}

#[test]
fn chunks_that_do_not_belong_together_are_refused() {
    let chunks = small().chunks;
    assert_eq!(try_load::<Vec<u8>>(&[]), Err(LoadError::Incomplete { chunks: 1 }));
    assert_eq!(try_load(&chunks[..3]), Err(LoadError::Incomplete { chunks: 4 }));
    let swapped = [&chunks[0], &chunks[2], &chunks[1], &chunks[3]];
    assert_eq!(try_load(&swapped), Err(LoadError::Incomplete { chunks: 4 }));
    let index = Index::new(&Options::default());
    let empty = index.snapshot(index.add_stream(1)).unwrap();
    let mixed = [&chunks[0], &empty.chunks[0]];
    assert!(matches!(try_load(&mixed), Err(LoadError::Incomplete { .. } | LoadError::Mixed { .. })));
    let mixed = [&chunks[0], &chunks[1], &chunks[2], &empty.chunks[0]];
    assert_eq!(try_load(&mixed), Err(LoadError::Mixed { chunk: 3 }));
}

proptest! {
    #![proptest_config(cases(2000))]

    /// Bytes that are wrong and have the right check: an error or a stream, never a panic.
    #[test]
    fn no_bytes_break_it(chunk in 0..4_usize, changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..6)) {
        const CHECK: usize = 8;
        let mut chunks = small().chunks;
        let bytes = &mut chunks[chunk];
        let end = bytes.len() - CHECK;
        for (at, byte) in changes {
            bytes[usize::from(at) % end] = byte;
        }
        let check = digest(&bytes[..end]) as u64;
        bytes[end..].copy_from_slice(&check.to_le_bytes());
        let _ = try_load(&chunks);
    }
}

#[test]
fn only_an_empty_stream_takes_a_snapshot() {
    let snapshot = small();
    let index = Index::new(&Options { max_waiting: 1, ..Options::default() });
    let slot = index.add_stream(1);
    assert_eq!(index.load(slot, &snapshot.chunks), Err(LoadError::Refused(Refused::Waiting)));
    index.store(slot, Tier::Device, None, &[Block { hash: 1, content: 1 }]).unwrap();
    assert_eq!(index.load(slot, &snapshot.chunks), Err(LoadError::NotEmpty));
    index.remove_stream(slot);
    assert_eq!(index.load(slot, &snapshot.chunks), Err(LoadError::NoStream));
    assert!(index.snapshot(slot).is_none());

    let full = Index::new(&Options { max_bytes: 1, ..Options::default() });
    let slot = full.add_stream(1);
    assert_eq!(full.load(slot, &snapshot.chunks), Err(LoadError::Refused(Refused::Budget)));
    assert_eq!(full.blocks(slot), 0);
}

#[test]
#[cfg_attr(miri, ignore = "counts bytes over many cycles; nothing in it is new to miri")]
fn a_stream_of_many_chunks_goes_through() {
    let index = Index::new(&Options::default());
    let slot = index.add_stream(1);
    converse(|parent, blocks| index.store(slot, Tier::Device, parent, blocks).unwrap(), 600, 25);
    index.mark(slot, 3);
    let snapshot = index.snapshot(slot).unwrap();
    println!("{} entries, longest hold {:?}", snapshot.entries, snapshot.longest_hold);
    assert!(snapshot.chunks.len() > 2);
    let loaded = Index::new(&Options::default());
    let slot = loaded.add_stream(1);
    loaded.load(slot, &snapshot.chunks).unwrap();
    assert_eq!(loaded.blocks(slot) as u64, snapshot.entries);
    let again = loaded.snapshot(slot).unwrap();
    assert_eq!((again.sequence, again.entries), (3, snapshot.entries));
}
