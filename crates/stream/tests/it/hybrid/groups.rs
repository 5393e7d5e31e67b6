//! What is made of groups, case by case. A block's hash is where it ends, in tokens of one prompt.

use std::ops::Range;

use kvplane_core::{Marks, Need, Reason, SpecKind, Tier, Trust};
use kvplane_stream::{EpochCause, JournalOptions, Transition};
use kvplane_wire::{OwnedEvent, OwnedRemoved, OwnedStored};

use crate::rig::{NOW, Rig, hashes};

/// A group as the engine describes it: number, kind, window, block size.
type Layers = (u32, &'static str, Option<u32>, u32);

const FULL: Layers = (0, "full_attention", None, 4);
const WINDOW: Layers = (1, "sliding_window", Some(9), 4);

/// A group stores the blocks that end at `ends`, of what was computed.
fn store((group, kind, window, size): Layers, ends: &[u64], computed: Range<u32>) -> OwnedEvent {
    OwnedEvent::Stored(OwnedStored {
        block_hashes: hashes(ends),
        parent: (computed.start > 0).then(|| hashes(&[computed.start.into()]).remove(0)),
        token_ids: computed.collect(),
        block_size: size,
        medium: Some("GPU".into()),
        group: Some(group),
        spec_kind: Some(kind.into()),
        sliding_window: window,
        ..OwnedStored::default()
    })
}

fn remove(group: u32, ends: &[u64]) -> OwnedEvent {
    OwnedEvent::Removed(OwnedRemoved {
        block_hashes: hashes(ends),
        medium: Some("GPU".into()),
        group: Some(group),
        ..OwnedRemoved::default()
    })
}

/// On the host, announced by hashes alone.
fn offload(group: Option<u32>, ends: &[u64]) -> OwnedEvent {
    let block_hashes = hashes(ends);
    let medium = Some("CPU".into());
    OwnedEvent::Stored(OwnedStored { block_hashes, medium, group, ..OwnedStored::default() })
}

/// The blocks that are announced in a tier.
fn reported(transitions: &[Transition]) -> Vec<(Tier, u64)> {
    let mut reported = Vec::new();
    for transition in transitions {
        match transition {
            Transition::Stored { tier, blocks, .. } => {
                reported.extend(blocks.iter().map(|block| (*tier, block.hash)));
            }
            Transition::Removed { tier, hashes } => {
                reported.retain(|(held, hash)| held != tier || !hashes.contains(hash));
            }
            Transition::Cleared => reported.clear(),
        }
    }
    reported
}

/// The blocks with a mark of the first side on the device, in entries or a whole state.
fn marked(marks: &[(u64, Marks)], channel: usize) -> Vec<u64> {
    let mut marked: Vec<u64> =
        marks.iter().filter(|(_, marks)| marks.has(0, channel)).map(|(hash, _)| *hash).collect();
    marked.sort_unstable();
    marked
}

#[test]
fn a_sparse_store_is_resolved_by_the_full_group_behind_it_in_the_batch() {
    let mut rig = Rig::new();
    let entry = rig.apply(&[store(WINDOW, &[4, 12, 16], 0..16), store(FULL, &[4, 8, 12, 16], 0..16)]);
    assert_eq!(marked(&entry.marks, Marks::whole(0)), [4, 12, 16]);
    let needs = entry.resumption.as_ref().unwrap();
    assert_eq!(needs.sides[0].need, Need::Run { blocks: 2, stride: 1, tail: false });
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
    // Announced is the state now, of the blocks that changed.
    let entry = rig.apply(&[remove(1, &[12])]);
    assert_eq!(entry.marks, [(12, Marks::default())]);
    let entry = rig.apply(&[remove(0, &[12]), store(WINDOW, &[12], 8..12)]);
    assert_eq!(entry.marks, [], "what the main group does not hold has no marks");
    let entry = rig.apply(&[store(FULL, &[12], 8..12)]);
    assert_eq!(marked(&entry.marks, Marks::whole(0)), [12]);
}

#[test]
fn needs_are_reported_in_main_blocks() {
    let run = |blocks, stride, tail| Need::Run { blocks, stride, tail };
    for (kind, window, size, need) in [
        ("sliding_window", Some(1), 8, run(0, 1, false)),
        ("sliding_window", Some(10), 8, run(2, 1, false)),
        ("sliding_window_mla", Some(17), 16, run(1, 2, false)),
        ("sliding_window", Some(13), 4, run(1, 1, true)),
        ("mamba", None, 8, run(1, 1, false)),
        ("mamba", None, 32, run(1, 4, false)),
        ("mamba", None, 4, run(0, 1, true)),
        ("mla_attention", None, 16, Need::Prefix { stride: 2 }),
        ("full_attention", None, 4, Need::Prefix { stride: 1 }),
    ] {
        let mut rig = Rig::new();
        // A group is there also if it keeps nothing.
        rig.apply(&[store((0, "full_attention", None, 8), &[8, 16], 0..16)]);
        rig.apply(&[store((3, kind, window, size), &[], 0..32)]);
        assert_eq!(rig.ledger.resumption().sides[0].need, need, "{kind} {window:?} {size}");
        assert_eq!(rig.ledger.resumption().sides[0].group, Some(3));
        assert_eq!(rig.ledger.trust().level(), Trust::Exact);
    }
}

#[test]
fn what_is_not_understood_is_never_counted_for_more() {
    let unknown = [(2, "cross_attention", None, 4), (2, "sliding_window", None, 4)];
    for group in unknown {
        let mut rig = Rig::new();
        rig.apply(&[store(FULL, &[4, 8], 0..8), store(group, &[4, 8], 0..8)]);
        assert_eq!(rig.ledger.resumption().sides[0].need, Need::Prefix { stride: 1 });
        assert_eq!(rig.ledger.trust().worst().unwrap().reason, Reason::UnknownGroup);
    }
    // Sizes without a common boundary, and more groups than there is room for.
    let many = (1..=9).map(|number| (number, "sliding_window", Some(9), 4)).collect();
    for sides in [vec![(2, "sliding_window", Some(9), 6)], many] {
        let mut rig = Rig::new();
        let mut events: Vec<OwnedEvent> = sides.iter().map(|&side| store(side, &[12, 24], 0..24)).collect();
        events.push(store(FULL, &[4, 8, 12, 16, 20, 24], 0..24));
        rig.apply(&events);
        let needs = rig.ledger.resumption();
        assert_eq!(needs.resumable(6, |_, _| false), 0);
        assert_eq!(rig.ledger.all_marks(), []);
        assert_eq!(rig.ledger.trust().worst().unwrap().reason, Reason::GroupLayout);
    }
}

#[test]
fn without_a_full_group_one_is_held_against_whole_prefixes() {
    let mut rig = Rig::new();
    let entry = rig.apply(&[store(WINDOW, &[4, 8], 0..8), store((2, "mamba", None, 4), &[8], 0..8)]);
    assert_eq!(reported(&entry.transitions), [(Tier::Device, 4), (Tier::Device, 8)]);
    assert_eq!(marked(&entry.marks, Marks::whole(0)), [8]);
    let worst = rig.ledger.trust().worst().unwrap().reason;
    assert_eq!((worst, worst.trust()), (Reason::NoFullGroup, Trust::Lower));
    // One turns up: only what it holds is announced from then on.
    let entry = rig.apply(&[store(FULL, &[4, 8], 0..8), remove(0, &[8])]);
    let removed = Transition::Removed { tier: Tier::Device, hashes: vec![4, 8] };
    assert_eq!(entry.transitions[0], removed);
    assert_eq!(reported(&entry.transitions), [(Tier::Device, 4)]);
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
    let groups: Vec<_> = rig.ledger.groups().iter().map(|group| (group.kind(), group.is_main)).collect();
    let expected = [(SpecKind::Sliding, false), (SpecKind::State, false), (SpecKind::Full, true)];
    assert_eq!(groups, expected);
}

#[test]
fn a_group_that_turns_out_to_be_another_is_marked_anew() {
    let mut rig = Rig::new();
    rig.apply(&[store(WINDOW, &[4, 8], 0..8), store(FULL, &[4, 8, 12], 0..12)]);
    let wider = (1, "sliding_window", Some(18), 4);
    let entry = rig.apply(&[store(wider, &[12], 8..12)]);
    assert_eq!(
        entry.resumption.as_ref().unwrap().sides[0].need,
        Need::Run { blocks: 5, stride: 1, tail: false }
    );
    assert_eq!(marked(&entry.marks, Marks::whole(0)), [4, 8, 12]);
    // It is the full one, and the full one is not.
    let entry = rig.apply(&[store((1, "full_attention", None, 4), &[], 0..4)]);
    assert_eq!(entry.transitions, [], "the first full group is the main one");
    let entry = rig.apply(&[store((0, "mamba", None, 4), &[], 0..4), remove(1, &[12])]);
    assert_eq!(entry.transitions, [Transition::Removed { tier: Tier::Device, hashes: vec![12] }]);
    assert_eq!(entry.resumption.as_ref().unwrap().sides.len(), 2, "numbers stay");
    assert_eq!(marked(&entry.marks, Marks::whole(1)), [4, 8]);
}

#[test]
fn small_blocks_mark_the_main_block_that_they_are_part_of() {
    let mut rig = Rig::new();
    let full = (0, "full_attention", None, 8);
    // Three of its blocks: a main block, and the end of the one before.
    let small = (1, "sliding_window", Some(13), 4);
    let entry = rig.apply(&[store(small, &[4, 8, 12, 16, 20, 24], 0..24), store(full, &[8, 16, 24], 0..24)]);
    assert_eq!(marked(&entry.marks, Marks::whole(0)), [8, 16, 24]);
    let entry = rig.apply(&[remove(1, &[12])]);
    assert!(marked(&entry.marks, Marks::whole(0)).is_empty());
    assert_eq!(marked(&entry.marks, Marks::tail(0)), [16]);
    let needs = rig.ledger.resumption().clone();
    let marks: Vec<Marks> = [8, 16, 24]
        .iter()
        .map(|&end| rig.ledger.all_marks().into_iter().find(|(hash, _)| *hash == end).unwrap().1)
        .collect();
    assert_eq!(needs.resumable(3, |at, channel| marks[at as usize].has(0, channel)), 3);
    assert_eq!(needs.resumable(2, |at, channel| marks[at as usize].has(0, channel)), 1);
    let entry = rig.apply(&[store(small, &[12], 8..12)]);
    assert_eq!(marked(&entry.marks, Marks::whole(0)), [16]);
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
    // Where it is not said which of them are kept, less is counted, and that is said.
    rig.apply(&[store(small, &[28], 24..32), store(full, &[32], 24..32)]);
    assert_eq!(rig.ledger.trust().worst().unwrap().reason, Reason::GroupLayout);
}

#[test]
fn a_block_that_is_not_full_is_recorded_and_never_reported() {
    let full = (0, "full_attention", None, 8);
    let partial = (0, "full_attention", None, 4);
    let mut rig = Rig::new();
    // It comes first, and looks like any other.
    let entry = rig.apply(&[store(partial, &[4], 0..4)]);
    assert_eq!(reported(&entry.transitions), [(Tier::Device, 4)]);
    // Promoted: what it seemed to be is taken back. Whether the larger one is full is not known either.
    let entry = rig.apply(&[remove(0, &[4]), store(full, &[8], 0..8), store(partial, &[12], 8..12)]);
    assert_eq!(entry.transitions, [Transition::Removed { tier: Tier::Device, hashes: vec![4] }]);
    assert_eq!(rig.ledger.trust().worst().unwrap().reason, Reason::GroupLayout);
    let state = (1, "mamba", None, 8);
    let entry = rig.apply(&[store(state, &[16], 0..16), store(full, &[8, 16], 0..16)]);
    assert_eq!(reported(&entry.transitions), [(Tier::Device, 8), (Tier::Device, 16)]);
    let entry = rig.apply(&[store(partial, &[20], 16..20), store((1, "mamba", None, 4), &[20], 16..20)]);
    assert_eq!((&entry.transitions[..], &entry.marks[..]), (&[][..], &[][..]));
    assert_eq!(rig.held()[&(Some(0), Tier::Device, 20)], 1);
    assert_eq!(rig.ledger.counters().block_size_contradictions, 0);
    assert_eq!((rig.ledger.block_size(), rig.ledger.trust().level()), (Some(8), Trust::Exact));
}

#[test]
fn a_block_that_is_not_full_contradicts_no_configured_size() {
    let mut rig = Rig::with(JournalOptions { block_size: Some(8), ..JournalOptions::default() });
    rig.apply(&[store((0, "full_attention", None, 4), &[4], 0..4)]);
    assert!(rig.ledger.trust().has(Reason::BlockSize), "until it is known that there are others");
    rig.apply(&[store((0, "full_attention", None, 8), &[8], 0..8)]);
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
}

#[test]
fn in_a_cache_with_several_groups_a_size_is_known_once_it_is_sure() {
    let mut rig = Rig::new();
    let entry = rig.apply(&[store(WINDOW, &[], 0..4), store(FULL, &[4], 0..4)]);
    assert_eq!(entry.transitions, []);
    assert_eq!(rig.ledger.trust().worst().unwrap().reason, Reason::GroupLayout);
    let entry = rig.apply(&[store(FULL, &[8, 12], 4..12)]);
    assert_eq!(reported(&entry.transitions), [(Tier::Device, 4), (Tier::Device, 8), (Tier::Device, 12)]);
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
}

#[test]
fn events_without_a_group_mean_the_only_one() {
    let mut rig = Rig::new();
    rig.apply(&[store((2, "full_attention", None, 4), &[4, 8], 0..8)]);
    let entry = rig.apply(&[offload(None, &[4])]);
    assert_eq!(reported(&entry.transitions), [(Tier::Host, 4)]);
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
    // With several it cannot be known which one they mean.
    let entry = rig.apply(&[store(WINDOW, &[4, 8], 0..8)]);
    assert_eq!(entry.transitions, [Transition::Removed { tier: Tier::Host, hashes: vec![4] }]);
    assert_eq!(rig.ledger.trust().worst().unwrap().reason, Reason::UnknownGroup);
    // One that has a number has the kind that was announced elsewhere.
    let entry = rig.apply(&[offload(Some(1), &[8]), offload(Some(2), &[8])]);
    assert_eq!(reported(&entry.transitions), [(Tier::Host, 8)]);
    let marks = entry.marks.iter().find(|(hash, _)| *hash == 8).unwrap().1;
    assert_eq!(marks.0.count_ones(), 2, "on the device and on the host");
}

#[test]
fn what_an_engine_gives_up_is_reported_at_the_beginning_of_every_life() {
    let mut rig = Rig::with(JournalOptions { eagle: true, ..JournalOptions::default() });
    let before = rig.ledger.cursor();
    rig.interpreter.begin_epoch(&mut rig.ledger, EpochCause::DifferentBatch, NOW);
    assert!(rig.ledger.read_after(before, 1).is_err());
    let first = rig.ledger.window().first_cursor().unwrap();
    let entry = rig.ledger.read_after(first, 1).unwrap().remove(0);
    assert!(entry.resumption.as_ref().is_some_and(|needs| needs.drops_last));
    let entry = rig.apply(&[store(FULL, &[4, 8], 0..8)]);
    assert_eq!((entry.resumption.is_none(), &entry.marks[..]), (true, &[][..]));
}
