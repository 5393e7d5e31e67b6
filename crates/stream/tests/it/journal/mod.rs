//! What batches make of the state: copies, chains, places, bounds.

#![allow(clippy::unwrap_used, reason = "tests")]

mod chunks;
mod copies;
mod cost;
mod dialects;
mod evidence;
mod hostile;
mod tiers;

use std::collections::BTreeMap;

use kvplane_core::{
    ContentHasher, EngineKind, Namespace, Reason, Tier, Trust, sglang_event_hash, sglang_page_digest,
};
use kvplane_stream::{Change, JournalOptions, Layout, Limits, Semantics, StoreCause, Transition};
use kvplane_wire::{OwnedEvent, OwnedExtraKey, OwnedHash, OwnedStored};

use crate::rig::{NOW, Rig, hashes, placeholder, remove, store, stored};

#[test]
fn two_stores_and_one_removal_still_there() {
    let mut rig = Rig::new();
    rig.apply(&[store(&[1, 2], None), store(&[2], Some(1))]);
    assert_eq!(rig.device(), BTreeMap::from([(1, 1), (2, 2)]));
    let entry = rig.apply(&[remove(&[2])]);
    assert_eq!(rig.device(), BTreeMap::from([(1, 1), (2, 1)]));
    assert!(entry.transitions.is_empty(), "nothing changed for those who count nothing");
    rig.apply(&[remove(&[2, 2])]);
    assert_eq!(rig.device(), BTreeMap::from([(1, 1)]));
    assert_eq!(rig.ledger.counters().unknown_removals, 1);
}

#[test]
fn a_hole_is_reported_as_such_and_filled_again() {
    let mut rig = Rig::new();
    rig.apply(&[store(&[1, 2, 3], None)]);
    rig.apply(&[remove(&[2])]);
    let snapshot = rig.snapshot();
    let reported: Vec<Transition> = snapshot.as_transitions();
    assert!(matches!(&reported[0], Transition::Stored { parent: None, blocks, .. } if blocks.len() == 3));
    assert_eq!(reported[1], Transition::Removed { tier: Tier::Device, hashes: vec![2] });
    let order: Vec<u64> =
        snapshot.parents_first().iter().map(|&at| snapshot.image.blocks[at as usize].hash).collect();
    assert_eq!(order, [1, 2, 3]);
    let entry = rig.apply(&[store(&[2], Some(1))]);
    assert!(matches!(&entry.transitions[..], [Transition::Stored { parent: Some(1), .. }]));
    // The ancestors of what goes are kept only as long as somebody builds on them.
    rig.apply(&[remove(&[3, 2, 1])]);
    assert_eq!(rig.ledger.state().entries(), 0);
}

#[test]
fn an_unknown_parent_waits_uncredited_and_is_attached_when_it_comes() {
    let mut rig = Rig::new();
    let entry = rig.apply(&[store(&[3, 4], Some(2))]);
    assert!(entry.transitions.is_empty(), "never a root");
    assert_eq!(rig.ledger.state().waiting(), 2);
    assert_eq!(rig.device().len(), 2, "it is held all the same");
    let entry = rig.apply(&[store(&[1, 2], None)]);
    assert_eq!(rig.ledger.state().waiting(), 0);
    let Transition::Stored { parent: None, blocks, .. } = &entry.transitions[0] else { panic!("{entry:?}") };
    assert_eq!(blocks.iter().map(|b| b.hash).collect::<Vec<_>>(), [1, 2, 3, 4]);
}

#[test]
fn a_salt_is_inherited_and_separates_content() {
    let salted = |list: &[u64], parent| {
        let keys = list.iter().enumerate().map(|(at, _)| {
            (at == 0 && Option::<u64>::is_none(&parent)).then(|| vec![OwnedExtraKey::Text("tenant".into())])
        });
        OwnedEvent::Stored(OwnedStored { extra_keys: Some(keys.collect()), ..stored(list, parent) })
    };
    let mut rig = Rig::new();
    rig.apply(&[salted(&[1], None)]);
    let entry = rig.apply(&[salted(&[2], Some(1))]);
    let Change::Stored(change) = &entry.changes[0] else { panic!() };
    let expected = ContentHasher::default().plain(&[4, 5], Namespace::new(None, Some("tenant")));
    assert_eq!(change.blocks[0].content(), Some(expected));
}

#[test]
fn images_and_adapters_separate_content() {
    let with = |lora: Option<&str>, keys: Option<Vec<OwnedExtraKey>>| {
        OwnedEvent::Stored(OwnedStored {
            lora_name: lora.map(str::to_owned),
            extra_keys: Some(vec![keys]),
            ..stored(&[1], None)
        })
    };
    let text = |text: &str| OwnedExtraKey::Text(text.into());
    let image = |id: &str, offset| OwnedExtraKey::Multimodal(id.into(), offset);
    let events = [
        with(None, None),
        with(Some("a"), Some(vec![text("a")])),
        with(Some("b"), Some(vec![text("b")])),
        with(None, Some(vec![image("x", 0)])),
        with(None, Some(vec![image("y", 0)])),
        with(None, Some(vec![image("x", -1)])),
        with(None, Some(vec![OwnedExtraKey::Bytes(vec![7; 32])])),
        with(Some("a"), Some(vec![text("a"), image("x", 0), text("salt")])),
    ];
    let mut contents: Vec<u64> = Vec::new();
    for event in events {
        let entry = Rig::new().apply(&[event]);
        let Change::Stored(change) = &entry.changes[0] else { panic!() };
        contents.push(change.blocks[0].content().unwrap());
    }
    // The adapter's name among the keys is the adapter, not a further key.
    assert_eq!(contents[1], ContentHasher::default().plain(&[2, 3], Namespace::new(Some("a"), None)));
    let mut unique = contents.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), contents.len());
}

#[test]
fn groups_tiers_and_owners_are_places_of_their_own() {
    let place = |group, medium: &str, owner: Option<&str>| {
        OwnedEvent::Stored(OwnedStored {
            medium: Some(medium.into()),
            group: Some(group),
            ownership: owner.map(str::to_owned),
            spec_kind: Some(if group == 0 { "full_attention" } else { "sliding_window" }.into()),
            ..stored(&[1, 2], None)
        })
    };
    let mut rig = Rig::new();
    let entry = rig.apply(&[
        place(0, "GPU", None),
        place(1, "GPU", None),
        place(0, "CPU", None),
        place(0, "GPU", Some("kvcr")),
    ]);
    assert_eq!(rig.ledger.state().blocks_by_tier(), [6, 2, 0, 0, 0]);
    let tiers: Vec<Tier> = entry
        .transitions
        .iter()
        .map(|t| if let Transition::Stored { tier, .. } = t { *tier } else { panic!() })
        .collect();
    assert_eq!(tiers, [Tier::Device, Tier::Host], "side groups and owners are left out");
}

#[test]
fn sparse_stores_and_placeholders_are_kept_as_they_are() {
    let mut rig = Rig::new();
    let sparse = OwnedStored {
        block_hashes: hashes(&[2]),
        group: Some(1),
        spec_kind: Some("sliding_window".into()),
        sliding_window: Some(128),
        ..stored(&[1, 2, 3], None)
    };
    let placeholder = OwnedStored {
        block_hashes: hashes(&[9]),
        medium: Some("STORAGE".into()),
        locality: Some("REMOTE".into()),
        group: Some(0),
        ..OwnedStored::default()
    };
    let entry =
        rig.apply(&[OwnedEvent::Stored(sparse), OwnedEvent::Stored(placeholder), store(&[1, 2, 3], None)]);
    let Change::Stored(change) = &entry.changes[0] else { panic!() };
    assert_eq!((change.layout, change.span.as_ref().unwrap().len()), (Layout::Sparse, 6));
    assert_eq!((change.place.sliding_window, change.blocks[0].tokens().is_none()), (Some(128), true));
    let Change::Stored(change) = &entry.changes[1] else { panic!() };
    assert_eq!(
        (change.layout, change.place.tier, change.place.locality.as_deref()),
        (Layout::HashOnly, Tier::Remote, Some("REMOTE"))
    );
    let counters = rig.ledger.counters();
    assert_eq!((counters.sparse_stores, counters.placeholder_stores), (1, 1));
    assert_eq!(rig.held().len(), 5);
    let empty = OwnedStored { block_hashes: Vec::new(), ..stored(&[1], None) };
    rig.apply(&[OwnedEvent::Stored(empty)]);
    assert_eq!(rig.held().len(), 5);
}

#[test]
fn after_a_loss_a_store_proves_its_ancestors() {
    let mut rig = Rig::new();
    rig.apply(&[store(&[1, 2, 3], None), store(&[7], None)]);
    rig.interpreter.drop_residency(&mut rig.ledger, Reason::Gap, NOW);
    assert!(rig.device().is_empty());
    let entry = rig.apply(&[store(&[4], Some(3))]);
    let Change::Stored(proven) = &entry.changes[0] else { panic!() };
    assert_eq!(proven.cause, StoreCause::Proven);
    assert_eq!(rig.device().keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4], "7 may be gone");
    assert_eq!(rig.ledger.trust().level(), Trust::Lower);
    assert_eq!(rig.ledger.known_from(), Some(1));
    rig.apply(&[OwnedEvent::Cleared, store(&[5], None)]);
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
}

#[test]
fn a_clear_is_exact_until_another_tier_with_an_unknown_past_turns_up() {
    let mut rig = Rig::new();
    rig.interpreter.drop_residency(&mut rig.ledger, Reason::Gap, NOW);
    rig.apply(&[OwnedEvent::Cleared]);
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
    rig.apply(&[OwnedEvent::Stored(OwnedStored { medium: Some("CPU".into()), ..stored(&[1], None) })]);
    assert!(rig.ledger.trust().has(Reason::TierHistory));
}

#[test]
fn budgets_make_it_lower_and_never_forget_unannounced() {
    let limits = Limits { max_bytes: 8_000, max_waiting: 3, ..Limits::default() };
    let mut rig = Rig::with(JournalOptions { state: limits, ..JournalOptions::default() });
    rig.apply(&[store(&[100, 101, 102, 103, 104], Some(99))]);
    assert!(rig.ledger.trust().has(Reason::WaitingOverflow));
    assert_eq!(rig.ledger.state().waiting(), 3);
    for chain in 0..100 {
        rig.apply(&[store(&[chain * 2 + 1, chain * 2 + 2], None)]);
    }
    assert!(rig.ledger.trust().has(Reason::Budget));
    assert!(rig.ledger.state().bytes() < 8_600);
    assert!(rig.ledger.counters().unrecorded_blocks > 0);
    let before = rig.device();
    rig.apply(&[remove(&[1])]);
    assert_eq!(rig.device().len(), before.len() - 1, "what is recorded is followed");
}

#[test]
fn unknown_media_and_block_sizes_that_contradict_are_unverified() {
    let mut rig = Rig::with(JournalOptions { block_size: Some(16), ..JournalOptions::default() });
    rig.apply(&[store(&[1], None)]);
    assert!(rig.ledger.trust().has(Reason::BlockSize));
    let mut rig = Rig::new();
    rig.apply(&[OwnedEvent::Stored(OwnedStored { medium: Some("tape".into()), ..stored(&[1], None) })]);
    assert!(rig.ledger.trust().has(Reason::UnknownMedium));
    assert_eq!(rig.ledger.trust().level(), Trust::Unverified);
}

#[test]
fn wide_hashes_resolve_by_their_last_bytes_and_are_kept_whole() {
    let mut digest = vec![0xab; 32];
    digest[24..].copy_from_slice(&5u64.to_be_bytes());
    let mut rig = Rig::new();
    let wide = OwnedStored { block_hashes: vec![OwnedHash::Bytes(digest.clone())], ..stored(&[5], None) };
    let entry = rig.apply(&[OwnedEvent::Stored(wide)]);
    let Change::Stored(change) = &entry.changes[0] else { panic!() };
    assert_eq!(change.blocks[0].wide().map(|wide| &wide[..]), Some(&digest[..]));
    assert_eq!(rig.snapshot().image.blocks[0].wide.as_deref(), Some(&digest[..]));
    // The same block by its integer.
    rig.apply(&[remove(&[5])]);
    assert!(rig.device().is_empty());
}

#[test]
fn a_snapshot_is_the_state_at_its_moment_whatever_happens_meanwhile() {
    let mut rig = Rig::new();
    for chain in 0..50u64 {
        rig.apply(&[store(&[chain * 3 + 1, chain * 3 + 2, chain * 3 + 3], None)]);
    }
    let truth = rig.device();
    let mut builder = rig.ledger.begin_snapshot();
    let cursor = rig.ledger.cursor();
    for step in 0..50u64 {
        rig.ledger.step_snapshot(&mut builder, 2).unwrap();
        builder.gather();
        rig.apply(&[
            remove(&[(49 - step) * 3 + 3]),
            store(&[1_000 + step], None),
            store(&[step * 3 + 1], None),
        ]);
    }
    while !builder.gather() {
        rig.ledger.step_snapshot(&mut builder, 7).unwrap();
    }
    let snapshot = builder.finish();
    assert_eq!(snapshot.cursor, cursor);
    let pictured: BTreeMap<u64, u32> = snapshot
        .image
        .blocks
        .iter()
        .filter(|block| !block.holdings.is_empty())
        .map(|block| (block.hash, block.holdings.iter().map(|h| h.copies).sum()))
        .collect();
    assert_eq!(pictured, truth);
    // A drop of everything aborts a cut under way.
    let mut builder = rig.ledger.begin_snapshot();
    rig.interpreter.drop_residency(&mut rig.ledger, Reason::Gap, NOW);
    assert!(rig.ledger.step_snapshot(&mut builder, 2).is_err());
}

#[test]
fn one_hash_for_two_different_blocks_is_never_taken_as_exact() {
    // What an engine does whose hashes are of a page's tokens alone: the same page behind another.
    let mut rig = Rig::new();
    rig.apply(&[store(&[1, 7], None), store(&[1, 7], None)]);
    assert_eq!(rig.ledger.trust().level(), Trust::Exact, "a second copy is no contradiction");
    rig.apply(&[store(&[2], None), store(&[7], Some(2))]);
    let worst = rig.ledger.trust().worst().unwrap();
    assert_eq!((worst.reason, worst.reason.trust()), (Reason::AmbiguousHash, Trust::Unsound));
}

/// A rig that records an `SGLang`, and the store of its first page under the hash that it gives plain
/// prompts.
fn sglang() -> (Rig, OwnedEvent, u64) {
    let semantics = Semantics::of(EngineKind::Sglang);
    let rig = Rig::with(JournalOptions { semantics, ..JournalOptions::default() });
    let hash = sglang_event_hash(&sglang_page_digest(None, &[2, 3])) as u64;
    let page = OwnedStored { block_hashes: hashes(&[hash]), ..stored(&[1], None) };
    (rig, OwnedEvent::Stored(page), hash)
}

fn contents(rig: &mut Rig) -> BTreeMap<u64, u64> {
    let snapshot = rig.snapshot();
    let blocks = snapshot.image.blocks.iter();
    blocks.filter_map(|block| Some((block.hash, block.attached_chain()?.content))).collect()
}

#[test]
fn a_namespace_that_only_the_hash_shows_matches_no_plain_prompt() {
    let (mut rig, plain, hash) = sglang();
    rig.apply(&[plain, store(&[1], None)]);
    let contents = contents(&mut rig);
    assert_ne!(contents[&hash], contents[&1], "equal tokens, and one of them in a namespace without a name");
    assert_eq!(contents[&hash], ContentHasher::default().plain(&[2, 3], Namespace::PLAIN));
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
}

#[test]
fn hashes_that_cannot_be_computed_again_are_reported_and_void_once_one_can() {
    let (mut rig, plain, hash) = sglang();
    rig.apply(&[store(&[1], None)]);
    assert_eq!(rig.ledger.trust().worst().unwrap().reason, Reason::UnprovenHash);
    let entry = rig.apply(&[plain]);
    assert_eq!(entry.transitions[0], Transition::Cleared, "what looked plain before was not");
    assert_eq!(rig.device().into_keys().collect::<Vec<_>>(), [hash]);
    assert_eq!(rig.ledger.trust().worst().unwrap().reason, Reason::History);
}

#[test]
fn two_blocks_with_one_hash_go_together_where_a_block_is_held_once() {
    let (mut rig, plain, hash) = sglang();
    rig.apply(&[plain.clone(), plain]);
    assert_eq!(rig.ledger.trust().worst().unwrap().reason, Reason::SharedHash);
    assert_eq!(rig.device(), BTreeMap::from([(hash, 1)]));
    rig.apply(&[remove(&[hash])]);
    assert_eq!(rig.device(), BTreeMap::new());
}

#[test]
fn a_block_without_tokens_that_is_gone_within_its_batch_is_not_looked_at_again() {
    for gone in [OwnedEvent::Cleared, remove(&[9])] {
        let mut rig = Rig::new();
        rig.apply(&[store(&[1, 2], None)]);
        rig.apply(&[placeholder(&[9], "GPU"), gone]);
        assert!(!rig.ledger.untranslatable(), "nothing is held that cannot be told");
    }
}

#[test]
fn a_block_whose_tokens_come_later_is_reported_once_wherever_it_is() {
    let mut rig = Rig::new();
    rig.apply(&[placeholder(&[1], "GPU"), placeholder(&[1], "CPU")]);
    let entry = rig.apply(&[store(&[1], None)]);
    let reported: Vec<_> = entry
        .transitions
        .iter()
        .map(|transition| match transition {
            Transition::Stored { tier, blocks, .. } => (*tier, blocks[0].hash),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(reported, [(Tier::Device, 1), (Tier::Host, 1)]);
}

#[test]
fn chains_are_stores_alone_and_end_at_holes() {
    let mut rig = Rig::new();
    rig.apply(&[store(&[1, 2], None), store(&[11], None), store(&[3], Some(2)), store(&[12], Some(11))]);
    rig.apply(&[store(&[4], Some(3)), store(&[5], Some(3)), store(&[13, 14], Some(12))]);
    let chains = |rig: &mut Rig| -> Vec<(Option<u64>, Vec<u64>)> {
        let reported = rig.snapshot().as_chains().into_iter().map(|reported| match reported {
            Transition::Stored { tier: Tier::Device, parent, blocks } => {
                (parent, blocks.iter().map(|block| block.hash).collect())
            }
            other => panic!("{other:?}"),
        });
        reported.collect()
    };
    let whole = [(None, vec![1, 2, 3]), (None, vec![11, 12, 13, 14]), (Some(3), vec![4]), (Some(3), vec![5])];
    assert_eq!(chains(&mut rig), whole);
    // What lies behind a hole counts for nobody who reads this, until the hole is filled.
    rig.apply(&[remove(&[12, 5])]);
    assert_eq!(chains(&mut rig), [(None, vec![1, 2, 3, 4]), (None, vec![11])]);
    rig.apply(&[store(&[12], Some(11))]);
    assert_eq!(chains(&mut rig), [(None, vec![1, 2, 3, 4]), (None, vec![11, 12, 13, 14])]);
}
