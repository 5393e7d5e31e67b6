//! Copies: what a second store means, and what their sum proves.

use std::collections::BTreeMap;

use bytes::Bytes;
use kvplane_core::{Reason, Trust};
use kvplane_stream::{Ask, Change, Duplicates, EpochCause, JournalOptions, Options, Recorder};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{OwnedEvent, OwnedRemoved, OwnedStored};

use crate::rig::{NOW, Rig, hashes, remove, store, stored};

fn presence() -> Rig {
    Rig::with(JournalOptions { duplicates: Duplicates::Presence, ..JournalOptions::default() })
}

#[test]
fn presence_counts_no_copies_and_says_so_with_the_first() {
    let mut rig = presence();
    rig.apply(&[store(&[1, 2], None)]);
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
    rig.apply(&[store(&[2], Some(1))]);
    assert_eq!(rig.ledger.trust().worst().unwrap().reason, Reason::Presence);
    rig.apply(&[remove(&[2])]);
    assert_eq!(rig.device(), BTreeMap::from([(1, 1)]));
}

#[test]
fn what_is_announced_again_and_gone_on_with_is_no_copy() {
    let mut rig = Rig::new();
    rig.apply(&[store(&[1, 2], None)]);
    let entry = rig.apply(&[store(&[1, 2], None), store(&[3], Some(2))]);
    assert_eq!(rig.device(), BTreeMap::from([(1, 1), (2, 1), (3, 1)]));
    assert_eq!((entry.changes.len(), rig.ledger.counters().reannounced_blocks), (1, 2));
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
    // Where that is asked for, it may also end with a block that is not full: a copy, or not.
    rig.apply(&[store(&[1, 2], None)]);
    assert_eq!(rig.device(), BTreeMap::from([(1, 1), (2, 1), (3, 1)]));
    assert_eq!(rig.ledger.trust().level(), Trust::Exact, "one copy is certain");
    rig.apply(&[remove(&[2])]);
    assert_eq!(rig.ledger.trust().worst().unwrap().reason, Reason::Presence, "there may be another");
}

#[test]
fn a_second_copy_is_one() {
    let mut rig = Rig::new();
    rig.apply(&[store(&[1, 2], None)]);
    // Nobody goes on from it in its batch, or only somewhere else.
    rig.apply(&[store(&[1, 2], None), store(&[3], Some(1))]);
    rig.apply(&[store(&[1, 2], None)]);
    assert_eq!(rig.device(), BTreeMap::from([(1, 3), (2, 3), (3, 1)]));
    // Something in it is new.
    rig.apply(&[remove(&[2, 2, 2]), store(&[1, 2], None), store(&[4], Some(2))]);
    assert_eq!(rig.device(), BTreeMap::from([(1, 4), (2, 1), (3, 1), (4, 1)]));
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
}

#[test]
fn a_single_block_that_is_gone_on_with_may_be_either() {
    let mut rig = Rig::new();
    rig.apply(&[store(&[1], None)]);
    rig.apply(&[store(&[1], None), store(&[2], Some(1))]);
    assert_eq!(rig.device(), BTreeMap::from([(1, 1), (2, 1)]));
    assert_eq!(rig.ledger.trust().level(), Trust::Exact, "held it is in either case");
    // One copy goes: another may be left.
    rig.apply(&[remove(&[1])]);
    assert_eq!(rig.device(), BTreeMap::from([(2, 1)]));
    assert_eq!(rig.ledger.trust().worst().unwrap().reason, Reason::Presence);
    // It was a copy, and is gone now too.
    rig.apply(&[remove(&[1])]);
    assert_eq!((rig.ledger.trust().level(), rig.ledger.counters().unknown_removals), (Trust::Exact, 0));
}

#[test]
fn a_store_proves_that_a_copy_that_was_possible_is_there() {
    let mut rig = Rig::new();
    rig.apply(&[store(&[1], None)]);
    rig.apply(&[store(&[1], None), store(&[2], Some(1)), remove(&[1])]);
    assert_eq!(rig.ledger.trust().worst().unwrap().reason, Reason::Presence);
    rig.apply(&[store(&[3], Some(1))]);
    assert_eq!(rig.device(), BTreeMap::from([(1, 1), (2, 1), (3, 1)]));
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
    // Nothing is left in doubt: the next removal is the last.
    rig.apply(&[remove(&[1])]);
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
    rig.apply(&[remove(&[2, 3])]);
    rig.apply(&[store(&[1], None), OwnedEvent::Cleared]);
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
}

#[test]
fn a_clear_ends_all_doubt_about_copies() {
    let mut rig = Rig::new();
    rig.apply(&[store(&[1], None)]);
    rig.apply(&[store(&[1], None), store(&[2], Some(1)), remove(&[1])]);
    rig.apply(&[OwnedEvent::Cleared]);
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
    rig.apply(&[store(&[1], None)]);
    rig.apply(&[remove(&[1])]);
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
}

#[test]
fn what_may_have_been_a_report_is_no_copy_once_reports_are_seen() {
    let mut rig = Rig::new();
    rig.apply(&[store(&[1, 2, 3], None)]);
    rig.apply(&[store(&[1, 2], None)]);
    rig.apply(&[store(&[1, 2], None), remove(&[1])]);
    assert_eq!(rig.device(), BTreeMap::from([(1, 2), (2, 3), (3, 1)]));
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
    rig.interpreter.set_capacity(Some(4));
    rig.apply(&[store(&[1, 2, 3], None), store(&[4], Some(3))]);
    let held = BTreeMap::from([(1, 1), (2, 1), (3, 1), (4, 1)]);
    assert_eq!(rig.device(), held, "all that is left of the first is what the fourth proves");
    assert_eq!(rig.ledger.trust().level(), Trust::Exact, "each of them is held for certain");
    // There may be more of the second.
    rig.apply(&[remove(&[2])]);
    assert_eq!(rig.ledger.trust().worst().unwrap().reason, Reason::Presence);
    // As many copies as there are blocks prove nothing any more.
    rig.apply(&[store(&[5], Some(3)), remove(&[2]), remove(&[2])]);
    assert_eq!((rig.device().get(&2), rig.ledger.trust().level()), (None, Trust::Exact));
}

fn sliding(list: &[u64], parent: Option<u64>) -> OwnedEvent {
    OwnedEvent::Stored(OwnedStored {
        group: Some(1),
        spec_kind: Some("sliding_window".into()),
        sliding_window: Some(4),
        ..stored(list, parent)
    })
}

/// A hybrid cache in which the window has let go of the first block.
fn hybrid() -> Rig {
    let mut rig = Rig::new();
    let OwnedEvent::Stored(window) = sliding(&[1, 2, 3, 4], None) else { panic!() };
    let window = OwnedStored { block_hashes: hashes(&[2, 3, 4]), ..window };
    rig.apply(&[OwnedEvent::Stored(window), store(&[1, 2, 3, 4], None)]);
    rig
}

#[test]
fn what_a_window_announces_again_and_does_not_hold_is_not_held() {
    let mut rig = hybrid();
    let held = rig.held();
    // Both orders of the groups.
    rig.apply(&[sliding(&[1, 2, 3, 4], None), store(&[1, 2, 3, 4], None), store(&[5], Some(4))]);
    rig.apply(&[store(&[1, 2, 3, 4], None), store(&[6], Some(4)), sliding(&[1, 2, 3, 4], None)]);
    let old: BTreeMap<_, _> = rig.held().into_iter().filter(|((_, _, hash), _)| *hash <= 4).collect();
    assert_eq!(old, held);
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
    // Nobody goes on from it: it may be a copy, but full reports are asked for.
    rig.apply(&[sliding(&[1, 2, 3, 4], None), store(&[1, 2, 3, 4], None)]);
    assert!(rig.ledger.trust().has(Reason::Reannounced));
}

#[test]
fn a_first_report_that_is_not_gone_on_with_gives_a_window_nothing_that_it_does_not_hold() {
    let mut rig = hybrid();
    let window =
        |rig: &Rig| rig.held().into_keys().filter(|(group, _, _)| *group == Some(1)).collect::<Vec<_>>();
    let held = window(&rig);
    rig.apply(&[sliding(&[1, 2, 3, 4], None), store(&[1, 2, 3, 4], None)]);
    assert_eq!(window(&rig), held);
    assert!(rig.ledger.trust().has(Reason::Reannounced), "it may have been computed again");
}

#[test]
fn a_prompt_that_is_computed_again_because_of_a_window_has_copies_in_every_group() {
    // The window needs two blocks: from its two last ones a longer prompt goes on, but not this one.
    let mut rig = hybrid();
    rig.apply(&[sliding(&[1, 2], None), store(&[1, 2], None)]);
    let copies: Vec<u32> = rig.held().into_values().collect();
    assert_eq!(copies, [2, 2, 1, 1, 1, 2, 1, 1]);
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
}

#[test]
fn a_prompt_of_which_a_window_is_lost_may_be_computed_again_beside_a_longer_one() {
    let lost = |hash: u64| {
        OwnedEvent::Removed(OwnedRemoved {
            block_hashes: hashes(&[hash]),
            medium: Some("GPU".into()),
            group: Some(1),
            ..OwnedRemoved::default()
        })
    };
    let again = [sliding(&[1, 2, 3, 4], None), store(&[1, 2, 3, 4], None), store(&[5], Some(4))];
    // From its end one can go on, from before it one cannot: it was reported, or computed and then gone on
    // from.
    let mut rig = hybrid();
    rig.apply(&[lost(2)]);
    rig.apply(&again);
    assert!(rig.ledger.trust().has(Reason::Reannounced));
    // Nobody could go on from any of it: it was computed.
    let mut rig = hybrid();
    rig.apply(&[lost(3)]);
    rig.apply(&again);
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
    assert_eq!(rig.held().into_values().sum::<u32>(), 4 + 2 + 4 + 4 + 1);
}

#[test]
fn more_copies_than_the_engine_has_blocks_prove_that_some_are_none() {
    let mut rig = Rig::new();
    rig.interpreter.set_capacity(Some(3));
    rig.apply(&[store(&[1, 2], None), store(&[2], Some(1))]);
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
    rig.apply(&[store(&[2], Some(1))]);
    assert!(rig.device().is_empty());
    let worst = rig.ledger.trust().worst().unwrap();
    assert_eq!((worst.reason, worst.reason.trust()), (Reason::OverCount, Trust::Lower));
    assert_eq!(rig.ledger.counters().over_counts, 1);
    let last = rig.ledger.read_after(rig.ledger.cursor(), 1).unwrap();
    assert!(last.is_empty());
    // A store proves what came before it; copies are not counted any more.
    let entry = rig.apply(&[store(&[3], Some(2)), store(&[3], Some(2))]);
    assert_eq!(rig.device(), BTreeMap::from([(1, 1), (2, 1), (3, 1)]));
    assert!(matches!(&entry.changes[0], Change::Stored(proven) if proven.blocks.len() == 2));
    assert_eq!(
        rig.ledger.trust().worst().unwrap().reason,
        Reason::OverCount,
        "as many as there are prove nothing"
    );
}

#[test]
fn a_new_life_has_yet_to_say_how_many_blocks_it_has() {
    let mut rig = Rig::new();
    rig.interpreter.set_capacity(Some(1));
    rig.interpreter.begin_epoch(&mut rig.ledger, EpochCause::SequenceWentBack, NOW);
    rig.interpreter.heard_from_start(&mut rig.ledger);
    rig.apply(&[store(&[1, 2], None)]);
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
    rig.interpreter.set_capacity(Some(1));
    rig.apply(&[]);
    assert_eq!(rig.ledger.trust().worst().unwrap().reason, Reason::OverCount);
}

#[test]
fn an_answer_that_was_asked_for_in_another_life_says_nothing_of_this_one() {
    let follow = Options { replay: false, ..Options::default() };
    let mut recorder = Recorder::new(follow, JournalOptions::default(), 0, NOW);
    let hints = |recorder: &mut Recorder| -> Vec<u64> {
        let asks = recorder.take_asks().into_iter();
        asks.filter_map(|ask| if let Ask::Hint { id } = ask { Some(id) } else { None }).collect()
    };
    let batch = |events: &[OwnedEvent]| Bytes::from(encode_batch(Profile::Vllm0_32, 1.0, Some(0), events));
    recorder.connected(NOW);
    let first = hints(&mut recorder)[0];
    recorder.hint(NOW, first, Some(1), None);
    recorder.live(NOW, 0, batch(&[store(&[1, 2], None)]));
    recorder.live(NOW, 1, batch(&[store(&[3], Some(2))]));
    // It is back at its first number.
    recorder.live(NOW, 0, batch(&[store(&[5, 6], None)]));
    assert_eq!(recorder.counters().restarts, 1);
    let asked = hints(&mut recorder);
    recorder.hint(NOW, first, Some(1), Some(1));
    recorder.live(NOW, 1, batch(&[]));
    assert_eq!(recorder.ledger().counters().over_counts, 0);
    recorder.hint(NOW, *asked.last().unwrap(), Some(2), Some(1));
    recorder.live(NOW, 2, batch(&[]));
    assert_eq!(recorder.ledger().counters().over_counts, 1);
}
