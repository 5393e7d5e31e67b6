//! Whole questions beside whole announcements. These are long, so fewer preemptions are explored.

use std::sync::Arc;

use kvplane_core::Tier;
use loom::thread;

use super::explore;
use crate::extent::HOLDERS;
use crate::{Block, Buffer, Depths, Index, Options, Slot};

/// A stream whose depth is not looked at.
const OTHERS: u64 = 100;

fn index() -> Arc<Index> {
    Index::new(&Options::default())
}

fn blocks(contents: &[u64]) -> Vec<Block> {
    contents.iter().map(|&content| Block { hash: content, content }).collect()
}

fn store(index: &Index, slot: Slot, parent: Option<u64>, contents: &[u64]) {
    index.store(slot, Tier::Device, parent, &blocks(contents)).unwrap();
}

fn remove(index: &Index, slot: Slot, contents: &[u64]) {
    assert_eq!(index.remove(slot, Tier::Device, contents), 0);
}

/// Streams that hold the same blocks, as many as an extent has entries.
fn others(index: &Index, contents: &[u64]) -> Vec<Slot> {
    let add = |at| {
        let slot = index.add_stream(OTHERS + at);
        store(index, slot, None, contents);
        slot
    };
    (0..HOLDERS as u64).map(add).collect()
}

/// What an owner holds, by level.
fn ask(reader: &mut crate::Reader, prompt: &[u64], owner: u64) -> Depths {
    let mut buffer = Buffer::default();
    let answer = reader.query(prompt, &mut buffer);
    let matches = answer.matches();
    assert!(matches.iter().filter(|found| found.owner == owner).count() <= 1);
    matches.iter().find(|found| found.owner == owner).map_or([0; 4], |found| found.depths)
}

/// Asks twice beside a writer. What an owner is said to hold must have been true at some time, and not before
/// what was said last.
fn asks(
    index: &Arc<Index>,
    prompt: &'static [u64],
    owner: u64,
    history: &'static [u32],
) -> thread::JoinHandle<()> {
    let mut reader = index.reader();
    thread::spawn(move || {
        let mut last = 0;
        for _ in 0..2 {
            let depth = ask(&mut reader, prompt, owner)[0];
            let when = history[last..].iter().position(|then| *then == depth);
            last += when.unwrap_or_else(|| panic!("{depth} after {last} of {history:?}"));
        }
    })
}

#[test]
fn a_prompt_grows_within_its_extent_and_beyond_its_room() {
    explore(3, || {
        let index = index();
        let slot = index.add_stream(1);
        store(&index, slot, None, &[1]);
        let reader = asks(&index, &[1, 2, 3, 4], 1, &[1, 2, 3, 4]);
        store(&index, slot, Some(1), &[2]);
        store(&index, slot, Some(2), &[3, 4]);
        reader.join().unwrap();
    });
}

#[test]
fn an_end_is_evicted_and_another_takes_its_place() {
    explore(3, || {
        let index = index();
        let slot = index.add_stream(1);
        store(&index, slot, None, &[1, 2, 3]);
        // Of 1, 2, 9 nothing but the first block is ever there together with 9: 2 goes before 8 comes, and 9
        // follows 8.
        let reader = asks(&index, &[1, 2, 9], 1, &[2, 1]);
        remove(&index, slot, &[3, 2]);
        store(&index, slot, Some(1), &[8, 9]);
        reader.join().unwrap();
    });
}

/// A long end goes, and the rest moves to a smaller room. What comes then has the same spots as what a reader
/// may just have compared.
#[test]
fn whoever_compared_an_end_that_went_does_not_go_on_behind_another() {
    const BEFORE: u64 = 200;
    const MATCHED: u64 = 100;
    explore(2, || {
        let index = index();
        let slot = index.add_stream(1);
        let old: Vec<u64> = (0..BEFORE).collect();
        let new: Vec<u64> = (1_001..1_000 + BEFORE).collect();
        store(&index, slot, None, &old);
        let mut reader = index.reader();
        let asking = thread::spawn(move || {
            let mut prompt: Vec<u64> = (0..MATCHED).collect();
            prompt.push(9_999);
            let depth = ask(&mut reader, &prompt, 1)[0];
            assert!([MATCHED as u32, 1].contains(&depth), "{depth}");
        });
        let gone: Vec<u64> = old[1..].iter().rev().copied().collect();
        remove(&index, slot, &gone);
        store(&index, slot, Some(0), &new);
        // A branch where the reader's prompt left the old contents.
        store(&index, slot, Some(1_000 + MATCHED - 1), &[9_999]);
        asking.join().unwrap();
    });
}

#[test]
fn a_hole_is_made_and_filled() {
    explore(3, || {
        let index = index();
        let slot = index.add_stream(1);
        store(&index, slot, None, &[1, 2, 3]);
        let reader = asks(&index, &[1, 2, 3], 1, &[3, 1, 3]);
        remove(&index, slot, &[2]);
        store(&index, slot, Some(1), &[2]);
        reader.join().unwrap();
    });
}

#[test]
fn lanes_without_an_entry_left_form_a_crowd() {
    explore(2, || {
        let index = index();
        let slots = others(&index, &[1, 2, 3]);
        let late = index.add_stream(1);
        // A stream that is there already does not seem to hold less for a moment.
        let reader = asks(&index, &[1, 2, 3], OTHERS, &[3]);
        store(&index, late, None, &[1, 2]);
        reader.join().unwrap();
        drop(slots);
    });
}

#[test]
fn a_lane_leaves_a_crowd_and_comes_back() {
    explore(3, || {
        let index = index();
        others(&index, &[1, 2, 3]);
        let slot = index.add_stream(1);
        store(&index, slot, None, &[1, 2, 3]);
        let reader = asks(&index, &[1, 2, 3], 1, &[3, 2, 3, 0]);
        remove(&index, slot, &[3]);
        store(&index, slot, Some(2), &[3]);
        remove(&index, slot, &[3, 2, 1]);
        reader.join().unwrap();
    });
}

#[test]
fn a_lane_comes_and_joins_a_crowd() {
    explore(3, || {
        let index = index();
        others(&index, &[1, 2, 3]);
        let last = index.add_stream(2);
        store(&index, last, None, &[1, 2, 3]);
        let slot = index.add_stream(1);
        let reader = asks(&index, &[1, 2, 3], 1, &[0, 2, 3]);
        store(&index, slot, None, &[1, 2]);
        store(&index, slot, Some(2), &[3]);
        reader.join().unwrap();
    });
}

#[test]
fn a_lane_leaves_a_crowd_further_down() {
    explore(3, || {
        let index = index();
        let first = index.add_stream(1);
        // A branch, so that the prompt goes over two extents.
        store(&index, first, None, &[1, 2, 9]);
        others(&index, &[1, 2, 3]);
        let slot = index.add_stream(2);
        store(&index, slot, None, &[1, 2, 3]);
        let reader = asks(&index, &[1, 2, 3, 4], 2, &[3, 2]);
        remove(&index, slot, &[3]);
        reader.join().unwrap();
    });
}

#[test]
fn an_extent_is_split_while_it_is_read() {
    explore(3, || {
        let index = index();
        let slots = others(&index, &[1, 2, 3, 4]);
        let slot = index.add_stream(1);
        store(&index, slot, None, &[1, 2, 3, 4]);
        // Everybody stops elsewhere, until there are no entries left.
        remove(&index, slots[0], &[4]);
        remove(&index, slots[1], &[4, 3]);
        remove(&index, slots[2], &[4, 3, 2]);
        remove(&index, slots[3], &[4]);
        let reader = asks(&index, &[1, 2, 3, 4, 5], 1, &[4, 3]);
        remove(&index, slot, &[4]);
        reader.join().unwrap();
    });
}

#[test]
fn the_table_of_edges_grows() {
    explore(3, || {
        let index = index();
        let slot = index.add_stream(1);
        for first in 0..5 {
            store(&index, slot, None, &[10 + first]);
        }
        let reader = asks(&index, &[14], 1, &[1]);
        store(&index, slot, None, &[15]);
        reader.join().unwrap();
    });
}

#[test]
fn a_stream_is_cleared_and_reclaimed_and_comes_back() {
    explore(3, || {
        let index = index();
        let slot = index.add_stream(1);
        // Two extents: reclaiming takes more than one step, and no step may be seen.
        store(&index, slot, None, &[1, 2]);
        store(&index, slot, Some(1), &[9]);
        remove(&index, slot, &[2]);
        let reader = asks(&index, &[1, 9], 1, &[2, 0]);
        index.clear(slot);
        index.reclaim(10);
        store(&index, slot, None, &[5]);
        reader.join().unwrap();
    });
}

#[test]
fn the_next_stream_in_a_slot_is_not_taken_for_the_one_before() {
    explore(3, || {
        let index = index();
        let [slot, between, _] = [1, 3, 4].map(|owner| {
            let slot = index.add_stream(owner);
            store(&index, slot, None, &[1, 2]);
            slot
        });
        // The next stream's entry comes to lie where a reader of the first one's has yet to look.
        remove(&index, between, &[2, 1]);
        let mut reader = index.reader();
        let asking = thread::spawn(move || {
            let mut buffer = Buffer::default();
            for found in reader.query(&[1, 2], &mut buffer).matches() {
                assert!(
                    [(1, [2; 4]), (2, [1; 4]), (4, [2; 4])].contains(&(found.owner, found.depths)),
                    "{found:?}"
                );
            }
        });
        index.remove_stream(slot);
        let next = index.add_stream(2);
        store(&index, next, None, &[1]);
        asking.join().unwrap();
    });
}

#[test]
fn a_colder_tier_comes() {
    explore(3, || {
        let index = index();
        let slot = index.add_stream(1);
        store(&index, slot, None, &[1, 2]);
        let mut reader = index.reader();
        let asking = thread::spawn(move || {
            let depths = ask(&mut reader, &[1, 2, 3], 1);
            assert!([[2; 4], [2, 3, 3, 3]].contains(&depths), "{depths:?}");
        });
        index.store(slot, Tier::Host, Some(2), &blocks(&[3])).unwrap();
        asking.join().unwrap();
    });
}
