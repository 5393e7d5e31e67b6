//! Tiers behind the device: what is joined, what is owed, what a clear leaves, what nobody tells.

use kvplane_core::{EngineKind, Reason, Tier, Trust};
use kvplane_stream::{Change, EpochCause, JournalOptions, Limits, Semantics, Transition};
use kvplane_wire::{OwnedEvent, OwnedHash, OwnedRemoved, OwnedStored};

use crate::rig::{NOW, Rig, hashes, placeholder, remove, remove_from, store, store_in};

/// What became visible, in order: (tier, hash).
fn reported(transitions: &[Transition]) -> Vec<(Tier, u64)> {
    let mut reported = Vec::new();
    for transition in transitions {
        if let Transition::Stored { tier, blocks, .. } = transition {
            reported.extend(blocks.iter().map(|block| (*tier, block.hash)));
        }
    }
    reported
}

fn worst(rig: &Rig) -> Option<Reason> {
    rig.ledger.trust().worst().map(|worst| worst.reason)
}

#[test]
fn hashes_alone_are_joined_to_what_they_are_whichever_comes_first() {
    let mut rig = Rig::new();
    // Children before parents, and both before the device says what they are.
    let entry = rig.apply(&[placeholder(&[2], "CPU"), placeholder(&[1], "CPU")]);
    assert_eq!((reported(&entry.transitions), rig.ledger.state().unjoined()), (vec![], 2));
    assert_eq!(worst(&rig), Some(Reason::UnknownContent));
    let entry = rig.apply(&[store(&[1, 2], None)]);
    let all = [(Tier::Device, 1), (Tier::Host, 1), (Tier::Device, 2), (Tier::Host, 2)];
    assert_eq!((reported(&entry.transitions), rig.ledger.state().unjoined()), (all.to_vec(), 0));
    // After the device, and long after it: the block is known as long as others build on it.
    rig.apply(&[store(&[3, 4], Some(2)), remove(&[3])]);
    let entry = rig.apply(&[placeholder(&[4, 3], "CPU")]);
    assert_eq!(reported(&entry.transitions), [(Tier::Host, 4), (Tier::Host, 3)]);
    assert_eq!(worst(&rig), None);
}

/// An engine that offloads single blocks.
fn offloading() -> Rig {
    Rig::with(JournalOptions { offload_chunk: Some(2), ..JournalOptions::default() })
}

#[test]
fn a_cold_block_of_unknown_content_makes_a_stream_lower_while_it_is_held() {
    for medium in ["CPU", "DISK"] {
        let mut rig = offloading();
        rig.apply(&[store(&[1], None)]);
        assert_eq!(worst(&rig), None);
        rig.apply(&[placeholder(&[7], medium)]);
        let trust = rig.ledger.trust().worst().unwrap().reason;
        assert_eq!((trust, trust.trust()), (Reason::UnknownContent, Trust::Lower), "{medium}");
        rig.apply(&[remove_from(medium, &[7])]);
        assert_eq!(worst(&rig), None, "{medium}");
        // The device lets go of a block before the colder tier announces it, and computes it again.
        rig.apply(&[store(&[2], Some(1))]);
        rig.apply(&[remove(&[2])]);
        rig.apply(&[placeholder(&[2], medium)]);
        assert_eq!(worst(&rig), Some(Reason::UnknownContent), "{medium}");
        rig.apply(&[store(&[2], Some(1))]);
        assert_eq!(worst(&rig), None, "{medium}");
    }
}

#[test]
fn a_cold_block_whose_parent_was_never_announced_makes_a_stream_lower() {
    let mut rig = offloading();
    let OwnedEvent::Stored(cold) = store_in("CPU", &[3], Some(2)) else { panic!() };
    let cold = OwnedStored { extra_keys: Some(vec![None]), ..cold };
    let entry = rig.apply(&[store(&[1], None), OwnedEvent::Stored(cold)]);
    assert_eq!((reported(&entry.transitions), rig.ledger.state().waiting()), (vec![(Tier::Device, 1)], 1));
    assert_eq!(worst(&rig), Some(Reason::UnknownContent));
    // The parent is held, and known by its hash alone.
    rig.apply(&[placeholder(&[2], "CPU")]);
    assert_eq!(worst(&rig), Some(Reason::UnknownContent));
    let entry = rig.apply(&[store(&[2], Some(1))]);
    assert_eq!(reported(&entry.transitions), [(Tier::Device, 2), (Tier::Host, 2), (Tier::Host, 3)]);
    assert_eq!(worst(&rig), None);
}

#[test]
fn digests_of_the_host_are_joined_to_the_numbers_of_the_device() {
    let mut rig = Rig::new();
    rig.apply(&[store(&[5], None)]);
    let mut digest = vec![0xab; 32];
    digest[24..].copy_from_slice(&5u64.to_be_bytes());
    let OwnedEvent::Stored(host) = placeholder(&[5], "CPU") else { panic!() };
    let host = OwnedStored { block_hashes: vec![OwnedHash::Bytes(digest.clone())], group: None, ..host };
    let entry = rig.apply(&[OwnedEvent::Stored(host)]);
    assert_eq!(reported(&entry.transitions), [(Tier::Host, 5)]);
    let gone = OwnedRemoved {
        block_hashes: vec![OwnedHash::Bytes(digest)],
        medium: Some("CPU".into()),
        ..OwnedRemoved::default()
    };
    rig.apply(&[OwnedEvent::Removed(gone)]);
    assert_eq!(rig.ledger.state().blocks_by_tier()[Tier::Host.index()], 0);
}

#[test]
fn what_cannot_be_joined_is_owed_within_bounds_and_settled_by_its_removal() {
    let state = Limits { max_waiting: 2, ..Limits::default() };
    let mut rig = Rig::with(JournalOptions { state, ..JournalOptions::default() });
    rig.apply(&[store(&[1], None), placeholder(&[8, 9, 10, 1], "CPU")]);
    assert_eq!(rig.ledger.state().unjoined(), 2);
    assert_eq!((worst(&rig), rig.ledger.counters().unrecorded_blocks), (Some(Reason::WaitingOverflow), 1));
    let host = |rig: &Rig| rig.ledger.state().blocks_by_tier()[Tier::Host.index()];
    assert_eq!(host(&rig), 3, "what is known needs no room");
    rig.apply(&[remove_from("CPU", &[8])]);
    assert_eq!((rig.ledger.state().unjoined(), host(&rig)), (1, 2));
    rig.interpreter.drop_residency(&mut rig.ledger, Reason::Gap, NOW);
    assert_eq!(rig.ledger.state().unjoined(), 0);
}

#[test]
fn a_tier_whose_removals_nobody_tells_is_never_taken_as_exact() {
    let mut rig = Rig::new();
    rig.apply(&[store(&[1, 2], None), store_in("CPU", &[1], None)]);
    assert_eq!(worst(&rig), None);
    for (medium, tier) in
        [("STORAGE", Tier::Disk), ("FS", Tier::Disk), ("OBJ", Tier::Remote), ("cpu", Tier::Host)]
    {
        rig.apply(&[placeholder(&[1], medium)]);
        assert_eq!(worst(&rig), Some(Reason::UnremovedTier), "{medium}");
        assert!(rig.held().contains_key(&(Some(0), tier, 1)), "{medium}");
        // Should it tell one all the same, it is a tier like any other.
        rig.apply(&[remove_from(medium, &[1])]);
        assert_eq!(worst(&rig), None, "{medium}");
        rig.apply(&[placeholder(&[2], medium)]);
        assert_eq!(worst(&rig), None, "{medium}");
    }
}

#[test]
fn a_clear_takes_the_reason_away_with_the_blocks_and_a_restored_state_does_not() {
    let mut rig =
        Rig::with(JournalOptions { semantics: Semantics::of(EngineKind::Grpc), ..JournalOptions::default() });
    rig.apply(&[store(&[1], None), placeholder(&[1], "STORAGE")]);
    rig.interpreter.heard_from_start(&mut rig.ledger);
    assert_eq!(worst(&rig), Some(Reason::UnremovedTier));
    rig.apply(&[OwnedEvent::Cleared]);
    assert_eq!(worst(&rig), None);
}

#[test]
fn storage_elsewhere_is_remote() {
    let mut rig = Rig::new();
    let OwnedEvent::Stored(remote) = placeholder(&[1], "STORAGE") else { panic!() };
    let remote = |locality: &str| {
        OwnedEvent::Stored(OwnedStored { locality: Some(locality.to_owned()), ..remote.clone() })
    };
    let entry = rig.apply(&[store(&[1], None), remote("REMOTE"), remote("NEARBY")]);
    assert_eq!(reported(&entry.transitions), [(Tier::Device, 1), (Tier::Remote, 1)]);
    let Change::Stored(change) = &entry.changes[1] else { panic!() };
    assert_eq!((change.place.tier, change.place.medium.as_deref()), (Tier::Remote, Some("STORAGE")));
    assert!(rig.ledger.trust().has(Reason::UnknownMedium), "where that is, nobody knows");
}

#[test]
fn a_clear_empties_what_it_means_to_the_engine() {
    for (kind, unknown) in [(EngineKind::Vllm, Some(Reason::TierHistory)), (EngineKind::Tokenspeed, None)] {
        let mut rig =
            Rig::with(JournalOptions { semantics: Semantics::of(kind), ..JournalOptions::default() });
        rig.apply(&[store(&[1, 2], None), store_in("CPU", &[1, 2], None), remove(&[2])]);
        let entry = rig.apply(&[OwnedEvent::Cleared]);
        assert!(rig.held().is_empty(), "{kind}");
        assert_eq!(entry.transitions, [Transition::Cleared]);
        let Change::Cleared { places, elsewhere } = &entry.changes[0] else { panic!() };
        assert_eq!((places.len(), elsewhere[0].1.len()), (2, 2), "{kind}");
        assert_eq!(worst(&rig), unknown, "{kind}");
    }
}

#[test]
fn after_a_clear_a_tier_counts_with_what_is_stored_in_it_again() {
    let mut rig = Rig::new();
    rig.apply(&[store(&[1, 2], None), placeholder(&[1, 2], "CPU")]);
    // A store in the batch of the clear may be older than the clear.
    let entry = rig.apply(&[OwnedEvent::Cleared, store(&[3], None), placeholder(&[3, 1], "CPU")]);
    assert_eq!(rig.held().len(), 1);
    let last = entry.transitions.last().unwrap();
    assert_eq!(*last, Transition::Removed { tier: Tier::Host, hashes: vec![1, 3] });
    let entry = rig.apply(&[placeholder(&[1], "CPU")]);
    assert_eq!(reported(&entry.transitions), [(Tier::Host, 1)], "what it is was known before");
    assert_eq!(rig.ledger.trust().level(), Trust::Lower);
    // Another clear makes the other tiers no better known.
    rig.apply(&[OwnedEvent::Cleared]);
    assert_eq!(worst(&rig), Some(Reason::TierHistory));
    rig.apply(&[OwnedEvent::Cleared]);
    assert_eq!(worst(&rig), Some(Reason::TierHistory));
}

#[test]
fn a_clear_of_a_device_alone_is_exact_also_where_another_tier_was_seen_empty() {
    let mut rig = Rig::new();
    rig.apply(&[store(&[1], None), placeholder(&[1], "CPU")]);
    rig.apply(&[remove_from("CPU", &[1]), OwnedEvent::Cleared]);
    assert_eq!(worst(&rig), None);
    // Unless something of it may have been missed.
    rig.interpreter.drop_residency(&mut rig.ledger, Reason::Gap, NOW);
    rig.apply(&[placeholder(&[1], "CPU"), remove_from("CPU", &[1])]);
    rig.apply(&[OwnedEvent::Cleared]);
    assert_eq!(worst(&rig), Some(Reason::TierHistory));
}

#[test]
fn removals_from_the_wrong_place_change_nothing_and_are_counted_apart() {
    let mut rig = Rig::new();
    rig.apply(&[store(&[1, 2], None), placeholder(&[1], "CPU"), remove(&[1])]);
    assert_eq!(worst(&rig), None);
    let held = rig.held();
    // Held on the host, and said to leave a place that was never heard of; known to nobody.
    rig.apply(&[remove_from("OBJ", &[1]), remove_from("CPU", &[7])]);
    let counted =
        |rig: &Rig| (rig.ledger.counters().misplaced_removals, rig.ledger.counters().unknown_removals);
    assert_eq!((counted(&rig), worst(&rig)), ((1, 1), None));
    rig.apply(&[remove(&[8])]);
    assert_eq!((counted(&rig), worst(&rig)), ((1, 2), None));
    // It left the device before: that event did not mean what it said.
    rig.apply(&[remove(&[1])]);
    assert_eq!((counted(&rig), worst(&rig)), ((2, 2), Some(Reason::UnknownRemoval)));
    assert_eq!(rig.held(), held);
    rig.apply(&[OwnedEvent::Removed(OwnedRemoved {
        block_hashes: hashes(&[2]),
        medium: Some("GPU".into()),
        group: Some(3),
        ..OwnedRemoved::default()
    })]);
    assert_eq!((counted(&rig), rig.held()), ((3, 2), held), "another group's");
}

/// A stream whose engine was joined late: what was before is not known.
fn joined_late(options: JournalOptions) -> Rig {
    let mut rig = Rig::with(options);
    rig.interpreter.begin_epoch(&mut rig.ledger, EpochCause::SequenceWentBack, NOW);
    rig.ledger.lack_history_before(7, NOW);
    assert_eq!(worst(&rig), Some(Reason::History));
    rig
}

#[test]
fn a_clear_of_an_engine_with_an_unknown_past_says_nothing_of_tiers_behind_its_device() {
    // A host may hold blocks that were stored before anybody listened, and is not heard of until it does
    // something.
    let mut rig = joined_late(JournalOptions::default());
    rig.apply(&[OwnedEvent::Cleared, store(&[1], None)]);
    assert_eq!((worst(&rig), rig.ledger.trust().level()), (Some(Reason::TierHistory), Trust::Lower));
    rig.apply(&[OwnedEvent::Cleared]);
    assert_eq!(worst(&rig), Some(Reason::TierHistory), "the next clear says no more");
    // There is none: the operator says so.
    let mut rig = joined_late(JournalOptions { device_only: true, ..JournalOptions::default() });
    rig.apply(&[OwnedEvent::Cleared, store(&[1], None)]);
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
    // Clears of other engines reach every tier.
    let semantics = Semantics::of(EngineKind::Tokenspeed);
    let mut rig = joined_late(JournalOptions { semantics, ..JournalOptions::default() });
    rig.apply(&[OwnedEvent::Cleared]);
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
}

#[test]
fn knowing_all_blocks_of_a_device_says_nothing_of_tiers_behind_it() {
    for (device_only, reason) in [(false, Some(Reason::TierHistory)), (true, None)] {
        let mut rig = joined_late(JournalOptions { device_only, ..JournalOptions::default() });
        rig.interpreter.set_capacity(Some(2));
        rig.apply(&[store(&[1, 2], None)]);
        assert_eq!(worst(&rig), reason);
        let before = rig.ledger.trust().clone();
        rig.apply(&[]);
        assert_eq!(*rig.ledger.trust(), before);
    }
}
