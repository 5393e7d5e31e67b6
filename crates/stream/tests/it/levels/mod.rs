//! TensorRT-LLM's drained events: levels, blocks that are not full, windows.

#![allow(clippy::unwrap_used, unreachable_pub, reason = "tests")]

mod engine;
mod model;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvplane_core::{EngineKind, Need, Reason, Side, SpecKind, Tier, Trust};
use kvplane_stream::{
    Change, DrainFailure, DrainOptions, DrainedPart, Entry, JournalOptions, Now, Recorder, Semantics,
    Transition,
};
use kvplane_wire::trtllm;
use serde_json::{Value, json};

const NOW: Now = Now { mono: Duration::ZERO, unix_ms: 1_700_000_000_000 };

struct Rig {
    recorder: Recorder,
    block_size: Option<u32>,
    next_id: u64,
}

impl Rig {
    fn new(block_size: Option<u32>) -> Self {
        let mut rig = Self::unheard(block_size, None);
        rig.tell(&[created(4096, 100)]);
        rig
    }

    /// Of an engine that has announced nothing yet.
    fn unheard(block_size: Option<u32>, buffer: Option<usize>) -> Self {
        let keep = JournalOptions {
            semantics: Semantics::of(EngineKind::Trtllm),
            block_size,
            ..JournalOptions::default()
        };
        let follow = DrainOptions { buffer, ..DrainOptions::default() };
        Self { recorder: Recorder::of_drain(follow, keep, 0, NOW), block_size, next_id: 0 }
    }

    /// The engine has these events to tell; returns the entries that they became, unless another life began
    /// with them.
    fn tell(&mut self, events: &[(u32, Value)]) -> Vec<Arc<Entry>> {
        let before = self.recorder.ledger().cursor();
        let events = events.iter().map(|(window, data)| {
            self.next_id += 1;
            json!({"event_id": self.next_id - 1, "data": data, "window_size": window})
        });
        let events: Vec<Value> = events.collect();
        self.answer(&events);
        self.recorder.ledger().read_after(before, 100).unwrap_or_default()
    }

    /// The engine answers with these events.
    fn answer(&mut self, events: &[Value]) {
        let body = Bytes::from(serde_json::to_vec(events).unwrap());
        let drained = trtllm::split(&body).unwrap();
        self.recorder.drain_answered(NOW, drained.events - drained.unreadable, drained.unreadable);
        for part in drained.parts {
            let part = DrainedPart { first: part.first_id, last: part.last_id, payload: part.payload };
            self.recorder.drained(NOW, part);
        }
        self.recorder.drain_unreadable(NOW, drained.unreadable);
    }

    fn fail(&mut self, failure: DrainFailure) {
        self.recorder.drain_failed(NOW, failure);
    }

    /// Where a consumer that knows tiers alone believes blocks to be.
    fn visible(&self) -> BTreeSet<(Tier, u64)> {
        let mut held = BTreeSet::new();
        let first = self.recorder.ledger().window().first_cursor().unwrap();
        for entry in self.recorder.ledger().read_after(first, usize::MAX).unwrap() {
            for transition in &entry.transitions {
                match transition {
                    Transition::Stored { tier, blocks, .. } => {
                        for block in blocks {
                            assert!(held.insert((*tier, block.hash)), "told twice");
                        }
                    }
                    Transition::Removed { tier, hashes } => {
                        for hash in hashes {
                            assert!(held.remove(&(*tier, *hash)), "never told");
                        }
                    }
                    Transition::Cleared => held.clear(),
                }
            }
        }
        held
    }

    fn held(&self) -> BTreeSet<(Tier, u64)> {
        let residencies = self.recorder.ledger().state().residencies();
        residencies.map(|(place, hash, _)| (place.tier, hash)).collect()
    }

    fn trust(&self) -> (Trust, Option<Reason>) {
        let trust = self.recorder.ledger().trust();
        (trust.level(), trust.worst().map(|worst| worst.reason))
    }
}

fn created(window: u32, blocks: u64) -> (u32, Value) {
    (window, json!({"type": "created", "num_blocks_per_cache_level": [blocks, 0]}))
}

/// Blocks of this many tokens each, from a parent on.
fn stored(parent: Option<u64>, blocks: &[(u64, usize)]) -> (u32, Value) {
    let blocks: Vec<Value> = blocks
        .iter()
        .map(|&(hash, tokens)| {
            let tokens: Vec<Value> = (0..tokens)
                .map(|at| json!({"type": "unique_token", "token_id": hash * 100 + at as u64, "token_extra_id": 0}))
                .collect();
            json!({"type": "stored_block", "block_hash": hash, "tokens": tokens, "cache_level": 0, "priority": 35})
        })
        .collect();
    (4096, json!({"type": "stored", "parent_hash": parent, "blocks": blocks}))
}

fn removed(hashes: &[u64]) -> (u32, Value) {
    (4096, json!({"type": "removed", "block_hashes": hashes}))
}

fn moved(hash: u64, from: u32, to: u32) -> (u32, Value) {
    let level = json!({"type": "event_diff", "new_value": to, "old_value": from});
    (4096, json!({"type": "updated", "block_hash": hash, "cache_level": level, "priority": null}))
}

fn set(list: &[(Tier, u64)]) -> BTreeSet<(Tier, u64)> {
    list.iter().copied().collect()
}

use Tier::{Device, Host};

#[test]
fn a_block_moves_in_one_step_and_is_removed_from_wherever_it_is() {
    let mut rig = Rig::new(Some(4));
    rig.tell(&[stored(None, &[(1, 4), (2, 4)])]);
    assert_eq!(rig.trust(), (Trust::Exact, None));
    let entries = rig.tell(&[moved(2, 0, 1)]);
    assert_eq!(entries.len(), 1);
    let [Change::Stored(to), Change::Removed { place: from, .. }] = &entries[0].changes[..] else { panic!() };
    assert_eq!((to.place.tier, from.tier, to.blocks[0].tokens().is_some()), (Host, Device, true));
    let [Transition::Stored { tier: to, .. }, Transition::Removed { tier: from, .. }] =
        entries[0].transitions[..]
    else {
        panic!("whoever follows step by step sees it in both, and never in neither");
    };
    assert_eq!((to, from), (Host, Device));
    assert_eq!(rig.visible(), set(&[(Device, 1), (Host, 2)]));
    rig.tell(&[moved(2, 1, 0), moved(1, 0, 1)]);
    assert_eq!(rig.visible(), set(&[(Device, 2), (Host, 1)]));
    rig.tell(&[removed(&[1, 2, 9])]);
    assert_eq!((rig.visible(), rig.held()), (set(&[]), set(&[])));
    assert_eq!(rig.recorder.ledger().counters().unknown_removals, 1);
    assert_eq!(rig.trust(), (Trust::Exact, None));
}

#[test]
fn a_change_of_priority_alone_changes_nothing() {
    let mut rig = Rig::new(Some(4));
    rig.tell(&[stored(None, &[(1, 4)])]);
    let priority = json!({"type": "event_diff", "new_value": 35, "old_value": 50});
    rig.tell(&[(
        4096,
        json!({"type": "updated", "block_hash": 1, "cache_level": null, "priority": priority}),
    )]);
    assert_eq!(rig.visible(), set(&[(Device, 1)]));
    assert_eq!(rig.trust(), (Trust::Exact, None));
}

#[test]
fn a_partial_block_is_recorded_and_not_reported_to_those_who_know_one_size() {
    let mut rig = Rig::new(None);
    rig.tell(&[stored(None, &[(1, 4), (2, 4), (3, 1)])]);
    assert_eq!(rig.visible(), set(&[(Device, 1), (Device, 2)]));
    assert_eq!(rig.held().len(), 3);
    assert_eq!(rig.recorder.ledger().block_size(), Some(4));
    assert_eq!(rig.trust(), (Trust::Exact, None), "a smaller last block contradicts nothing");
    rig.tell(&[removed(&[3])]);
    assert_eq!(rig.held().len(), 2);
}

#[test]
fn until_a_block_has_another_behind_it_nobody_knows_whether_it_is_full() {
    let mut rig = Rig::new(None);
    rig.tell(&[stored(None, &[(1, 3)]), stored(None, &[(5, 4)])]);
    assert_eq!(rig.visible(), set(&[]));
    rig.tell(&[stored(Some(5), &[(6, 2)])]);
    assert_eq!(rig.visible(), set(&[(Device, 5)]), "5 is full, so a block has four tokens");
    rig.tell(&[stored(Some(5), &[(7, 4)])]);
    assert_eq!(rig.visible(), set(&[(Device, 5), (Device, 7)]));
    assert_eq!(rig.trust(), (Trust::Exact, None));
}

#[test]
fn a_size_that_contradicts_is_reported() {
    for blocks in [&[(1, 8), (2, 8)][..], &[(1, 5)]] {
        let mut rig = Rig::new(Some(4));
        rig.tell(&[stored(None, blocks)]);
        assert_eq!(rig.trust(), (Trust::Unverified, Some(Reason::BlockSize)), "{blocks:?}");
    }
}

#[test]
fn the_largest_window_is_the_main_one() {
    let mut rig = Rig::new(Some(4));
    rig.tell(&[created(512, 50)]);
    let (_, of_small) = stored(None, &[(1, 4)]);
    rig.tell(&[(512, of_small), stored(None, &[(2, 4)])]);
    assert_eq!(rig.visible(), set(&[(Device, 2)]));
    assert_eq!(rig.held().len(), 2, "the small window's block is recorded, beside");
    let resumption = rig.recorder.ledger().resumption();
    let side = Side {
        group: Some(512),
        kind: SpecKind::Sliding,
        need: Need::Run { blocks: 128, stride: 1, tail: false },
    };
    assert_eq!(resumption.sides, [side]);
    assert_eq!(rig.trust(), (Trust::Unverified, Some(Reason::UnknownGroup)), "the rule is not proven");
}

#[test]
fn a_larger_window_that_turns_up_late_voids_what_was_reported() {
    let mut rig = Rig::new(Some(4));
    rig.tell(&[stored(None, &[(1, 4)])]);
    let (_, of_large) = stored(None, &[(2, 4)]);
    rig.tell(&[(8192, of_large)]);
    assert_eq!(rig.visible(), set(&[(Device, 2)]));
    assert!(rig.recorder.ledger().trust().has(Reason::History));
    assert_eq!(rig.trust(), (Trust::Unverified, Some(Reason::UnknownGroup)));
}

#[test]
fn lost_events_drop_what_is_known_and_stores_heal_it() {
    let mut rig = Rig::new(Some(4));
    rig.tell(&[stored(None, &[(1, 4), (2, 4)])]);
    rig.next_id += 3;
    rig.tell(&[stored(Some(2), &[(3, 4)])]);
    assert_eq!(rig.trust().0, Trust::Lower);
    assert_eq!(
        rig.visible(),
        set(&[(Device, 1), (Device, 2), (Device, 3)]),
        "the store proves its ancestors"
    );
}

#[test]
fn as_many_blocks_as_the_engine_has_are_all_of_them() {
    let all: Vec<(u64, usize)> = (1..=100).map(|hash| (hash, 4)).collect();
    let after_a_loss = |before: &[(u32, Value)], then: &[(u32, Value)]| {
        let mut rig = Rig::new(Some(4));
        rig.tell(before);
        rig.next_id += 3;
        rig.tell(&[stored(None, &all)]);
        rig.tell(then);
        rig.trust().0
    };
    let first = stored(None, &[(1, 4)]);
    assert_eq!(after_a_loss(std::slice::from_ref(&first), &[]), Trust::Exact);
    assert_eq!(after_a_loss(&[], &[]), Trust::Lower, "another pool may have been told of in between");
    let other_pool = after_a_loss(&[created(512, 50), first], &[]);
    assert_eq!(other_pool, Trust::Unverified, "another pool was told of");
}

#[test]
fn blocks_of_the_device_are_not_all_where_there_is_a_host_tier() {
    let mut rig = Rig::unheard(Some(4), None);
    let levels = json!({"type": "created", "num_blocks_per_cache_level": [2, 5]});
    rig.tell(&[(4096, levels), stored(None, &[(1, 4)])]);
    rig.next_id += 1;
    rig.tell(&[stored(None, &[(1, 4), (2, 4)])]);
    assert_eq!(rig.trust().0, Trust::Lower);
}

#[test]
fn what_a_device_had_in_another_life_proves_nothing() {
    let mut rig = Rig::unheard(Some(4), None);
    rig.tell(&[created(4096, 2), stored(None, &[(1, 4)]), removed(&[1])]);
    rig.next_id = 1; // another life, whose beginning somebody else has read
    rig.tell(&[stored(None, &[(1, 4), (2, 4)])]);
    assert_eq!(rig.trust().0, Trust::Lower);
}

#[test]
fn a_second_store_of_a_held_block_is_reported_and_not_counted() {
    let mut rig = Rig::new(Some(4));
    rig.tell(&[stored(None, &[(1, 4)]), stored(None, &[(1, 4)])]);
    assert_eq!(rig.trust(), (Trust::Lower, Some(Reason::SharedHash)));
    assert_eq!(rig.recorder.ledger().state().copies_in(Device), 1);
}

#[test]
fn a_move_leaves_no_copy_behind_wherever_it_says_that_it_came_from() {
    let mut rig = Rig::new(Some(4));
    rig.tell(&[stored(None, &[(1, 4)]), moved(1, 0, 1), moved(1, 0, 2)]);
    assert_eq!(rig.held(), set(&[(Tier::Disk, 1)]));
    rig.tell(&[moved(1, 2, 7), moved(1, 7, 8)]);
    assert_eq!(rig.held(), set(&[(Tier::Unknown, 1)]), "levels without a name are one place");
}

#[test]
fn a_pool_that_turned_out_to_be_a_side_one_stays_so() {
    let mut rig = Rig::unheard(Some(4), None);
    rig.next_id = 7;
    let of = |window, (_, data): (u32, Value)| (window, data);
    rig.tell(&[of(512, stored(None, &[(1, 4)])), of(512, removed(&[1]))]);
    rig.tell(&[stored(None, &[(2, 4)]), of(512, stored(None, &[(1, 4)]))]);
    assert_eq!(rig.visible(), set(&[(Device, 2)]));
}

#[test]
fn when_the_size_is_learnt_parents_are_reported_before_their_children() {
    let mut rig = Rig::unheard(None, None);
    rig.next_id = 7;
    // The child waits for its parent, and lies before it.
    rig.tell(&[stored(Some(1), &[(2, 4)]), stored(None, &[(1, 4)])]);
    let entries = rig.tell(&[stored(Some(1), &[(3, 2)])]);
    let reported: Vec<u64> = entries
        .iter()
        .flat_map(|entry| &entry.transitions)
        .flat_map(|transition| match transition {
            Transition::Stored { blocks, .. } => blocks.iter().map(|block| block.hash).collect(),
            _ => Vec::new(),
        })
        .collect();
    assert_eq!(reported, [1, 2]);
}
