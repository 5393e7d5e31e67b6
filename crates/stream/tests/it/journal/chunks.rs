//! Chunks of blocks, in which tiers behind the device give them back.

use std::collections::BTreeMap;

use kvplane_core::{Marks, Reason, Tier};
use kvplane_stream::JournalOptions;
use kvplane_wire::{OwnedEvent, OwnedStored};

use crate::rig::{Rig, placeholder, remove, remove_from, store, store_in, stored};

/// Tokens of a chunk; blocks have two.
fn chunks_of(tokens: u32) -> Rig {
    Rig::with(JournalOptions { offload_chunk: Some(tokens), ..JournalOptions::default() })
}

fn host(rig: &Rig) -> BTreeMap<u64, u32> {
    let held = rig.held().into_iter().filter(|((_, tier, _), _)| *tier == Tier::Host);
    held.map(|((_, _, hash), copies)| (hash, copies)).collect()
}

fn unit(rig: &Rig) -> u32 {
    rig.ledger.resumption().units[Tier::Host.index()]
}

fn worst(rig: &Rig) -> Option<Reason> {
    rig.ledger.trust().worst().map(|worst| worst.reason)
}

#[test]
fn a_placeholder_stands_for_its_chunk_and_chunks_share_blocks() {
    let mut rig = chunks_of(6);
    rig.apply(&[store(&[1, 2, 3, 4, 5, 6], None), store(&[7], Some(2))]);
    rig.apply(&[placeholder(&[3, 6], "CPU")]);
    assert_eq!(
        (host(&rig), unit(&rig)),
        (BTreeMap::from([(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]), 3)
    );
    // Another prompt that shares two blocks of a chunk.
    rig.apply(&[placeholder(&[7], "CPU")]);
    assert_eq!((host(&rig)[&1], host(&rig)[&2], host(&rig)[&7]), (2, 2, 1));
    rig.apply(&[remove_from("CPU", &[3])]);
    assert_eq!(host(&rig), BTreeMap::from([(1, 1), (2, 1), (4, 1), (5, 1), (6, 1), (7, 1)]));
    rig.apply(&[remove_from("CPU", &[7, 6])]);
    assert_eq!((host(&rig), worst(&rig)), (BTreeMap::new(), None));
    assert_eq!(rig.device().len(), 7);
}

#[test]
fn a_connector_that_serves_whole_prompts_has_what_it_holds_marked() {
    let mut behind = Marks::default();
    behind.set(Tier::Host, Marks::BEHIND);
    let marked = |rig: &Rig| {
        let mut marked: Vec<u64> = rig.ledger.all_marks().into_iter().map(|(hash, _)| hash).collect();
        marked.sort_unstable();
        marked
    };
    let mut rig = chunks_of(2);
    rig.apply(&[store(&[1, 2, 3], None)]);
    assert!(!rig.ledger.resumption().whole_prompt && rig.ledger.all_marks().is_empty());
    rig.apply(&[placeholder(&[2, 3], "CPU")]);
    assert!(rig.ledger.resumption().whole_prompt);
    assert_eq!(rig.ledger.all_marks().iter().filter(|(_, marks)| *marks == behind).count(), 2);
    assert_eq!(marked(&rig), [2, 3]);
    rig.apply(&[remove_from("CPU", &[3])]);
    assert_eq!(marked(&rig), [2], "the device still has it");
    rig.apply(&[remove(&[2])]);
    assert_eq!(marked(&rig), [2], "the host still has it");
}

#[test]
fn a_chunk_counts_once_it_is_known_what_it_is_of() {
    let mut rig = chunks_of(4);
    rig.apply(&[placeholder(&[4, 2, 2], "CPU")]);
    assert_eq!(host(&rig), BTreeMap::from([(2, 2), (4, 1)]));
    rig.apply(&[store(&[3, 4], Some(2))]);
    assert_eq!(host(&rig), BTreeMap::from([(2, 2), (4, 1)]), "what comes before is not known yet");
    rig.apply(&[store(&[1, 2], None)]);
    assert_eq!(host(&rig), BTreeMap::from([(1, 2), (2, 2), (3, 1), (4, 1)]));
    rig.apply(&[placeholder(&[2], "CPU"), remove_from("CPU", &[2, 4])]);
    assert_eq!(host(&rig), BTreeMap::from([(1, 2), (2, 2)]));
    // The device lets go of its own; the host's chunk stays whole.
    rig.apply(&[remove(&[4, 3, 2, 1])]);
    assert_eq!((host(&rig), worst(&rig)), (BTreeMap::from([(1, 2), (2, 2)]), None));
    rig.apply(&[remove_from("CPU", &[2, 2])]);
    assert_eq!((rig.ledger.state().entries(), rig.ledger.counters().unknown_removals), (0, 0));
}

#[test]
fn the_end_of_a_first_block_shows_that_chunks_are_blocks() {
    let mut rig = Rig::new();
    rig.apply(&[store(&[1, 2, 3, 4], None)]);
    rig.apply(&[placeholder(&[4], "CPU")]);
    assert_eq!((unit(&rig), worst(&rig)), (4, Some(Reason::ChunkSize)));
    rig.apply(&[placeholder(&[2], "CPU")]);
    assert_eq!((unit(&rig), worst(&rig)), (2, Some(Reason::ChunkSize)));
    rig.apply(&[placeholder(&[1], "CPU")]);
    assert_eq!((unit(&rig), worst(&rig)), (1, None));
    assert_eq!(host(&rig), BTreeMap::from([(1, 1), (2, 1), (4, 1)]));
}

#[test]
fn a_store_that_describes_itself_shows_the_size_of_chunks() {
    let mut rig = Rig::new();
    rig.apply(&[store(&[1, 2, 3, 4], None), store_in("CPU", &[1, 2], None)]);
    assert_eq!((unit(&rig), worst(&rig)), (2, None));
    // Not all are announced like that.
    rig.apply(&[placeholder(&[4], "CPU")]);
    assert_eq!(host(&rig), BTreeMap::from([(1, 1), (2, 1), (3, 1), (4, 1)]));
    rig.apply(&[remove_from("CPU", &[4]), remove_from("CPU", &[1, 2])]);
    assert!(host(&rig).is_empty());
    // Stores with keys are announced block by block, in any number.
    let keyed = OwnedStored {
        extra_keys: Some(vec![None; 3]),
        medium: Some("CPU".into()),
        ..stored(&[1, 2, 3], None)
    };
    rig.apply(&[OwnedEvent::Stored(keyed)]);
    assert_eq!((unit(&rig), worst(&rig)), (2, None));
}

#[test]
fn old_placeholders_say_the_size_of_chunks() {
    let mut rig = Rig::new();
    let OwnedEvent::Stored(old) = placeholder(&[2, 4], "CPU") else { panic!() };
    let old = OwnedEvent::Stored(OwnedStored { block_size: 4, group: None, ..old });
    rig.apply(&[store(&[1, 2, 3, 4], None), old]);
    assert_eq!((host(&rig).len(), unit(&rig), worst(&rig)), (4, 2, None));
}

#[test]
fn what_contradicts_the_size_of_chunks_is_forgotten_and_reported() {
    // A chunk that ends before one can.
    let mut rig = chunks_of(8);
    rig.apply(&[store(&[1, 2, 3, 4], None), placeholder(&[4], "CPU")]);
    assert_eq!(host(&rig).len(), 4);
    rig.apply(&[placeholder(&[2], "CPU")]);
    assert!(host(&rig).is_empty());
    assert!(rig.ledger.trust().has(Reason::TierHistory));
    rig.apply(&[placeholder(&[2], "CPU")]);
    assert_eq!((host(&rig).len(), unit(&rig)), (1, 4));
    assert!(rig.ledger.trust().has(Reason::ChunkSize));
    // A store of another size.
    let mut rig = chunks_of(8);
    rig.apply(&[store(&[1, 2, 3], None), store_in("CPU", &[1, 2, 3], None)]);
    assert!(host(&rig).is_empty());
    rig.apply(&[store_in("CPU", &[1, 2, 3], None)]);
    assert_eq!((unit(&rig), worst(&rig)), (12, Some(Reason::TierHistory)));
}

#[test]
fn a_size_that_fits_no_block_counts_nothing_behind_the_device() {
    let mut rig = chunks_of(5);
    rig.apply(&[store(&[1, 2], None), placeholder(&[1], "CPU")]);
    assert_eq!((unit(&rig), worst(&rig)), (u32::MAX, Some(Reason::ChunkSize)));
}
