//! Input that is made to fill memory, to deceive or to waste time.

use kvplane_core::{Reason, Trust};
use kvplane_stream::{JournalOptions, Limits};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{Decoder, OwnedEvent, OwnedExtraKey, OwnedStored, RejectedKind};

use crate::rig::{NOW, Rig, remove, store, stored};

fn worst(rig: &Rig) -> Option<Reason> {
    rig.ledger.trust().worst().map(|worst| worst.reason)
}

fn with(change: impl FnOnce(&mut OwnedStored)) -> OwnedEvent {
    let mut one = stored(&[1], None);
    change(&mut one);
    OwnedEvent::Stored(one)
}

fn salted(hash: u64, salt: &str, parent: Option<u64>) -> OwnedEvent {
    let keys = Some(vec![Some(vec![OwnedExtraKey::Text(salt.to_owned())])]);
    OwnedEvent::Stored(OwnedStored { extra_keys: keys, ..stored(&[hash], parent) })
}

#[test]
fn names_that_are_too_long_cost_their_event_alone() {
    let long = || Some("x".repeat(1025));
    let key = |key| Some(vec![Some(vec![key])]);
    let changes: [&dyn Fn(&mut OwnedStored); 9] = [
        &|stored| stored.medium = long(),
        &|stored| stored.lora_name = long(),
        &|stored| stored.spec_kind = long(),
        &|stored| stored.locality = long(),
        &|stored| stored.ownership = long(),
        &|stored| stored.session_id = long(),
        &|stored| stored.extra_keys = key(OwnedExtraKey::Text(long().unwrap())),
        &|stored| stored.extra_keys = key(OwnedExtraKey::Bytes(vec![1; 1025])),
        &|stored| stored.extra_keys = key(OwnedExtraKey::Multimodal(long().unwrap(), 0)),
    ];
    for (at, change) in changes.iter().enumerate() {
        let mut rig = Rig::new();
        rig.apply(&[with(change), store(&[2], None)]);
        assert_eq!(rig.device().into_keys().collect::<Vec<_>>(), [2], "{at}");
        assert_eq!(rig.ledger.counters().rejected, [((RejectedKind::Store, "name_too_long"), 1)], "{at}");
        assert_eq!(worst(&rig), Some(Reason::MalformedStore), "{at}");
    }
    // The longest that there may be.
    let mut rig = Rig::new();
    rig.apply(&[with(|stored| stored.ownership = Some("x".repeat(1024)))]);
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
}

#[test]
fn texts_count_in_the_state_and_in_the_window() {
    let mut rig = Rig::new();
    for at in 0..500 {
        let salt = format!("{at:0>1000}");
        rig.apply(&[salted(at, &salt, None)]);
    }
    let state = rig.ledger.state();
    // The salt, and the key that it came in.
    assert!(state.bytes() > 1_000_000, "{}", state.bytes());
    assert!(rig.ledger.window_bytes() > 1_000_000, "{}", rig.ledger.window_bytes());
    assert_eq!(state.bytes(), state.recounted_bytes());
    // What is shared is counted once.
    let mut rig = Rig::new();
    for at in 0..500 {
        let adapter = Some("a".repeat(1000));
        rig.apply(&[OwnedEvent::Stored(OwnedStored { lora_name: adapter, ..stored(&[at], None) })]);
    }
    assert!(rig.ledger.state().bytes() < 300_000, "{}", rig.ledger.state().bytes());
    assert_eq!(rig.ledger.state().bytes(), rig.ledger.state().recounted_bytes());
    // Nothing of it is left.
    let all: Vec<u64> = (0..500).collect();
    rig.apply(&[remove(&all)]);
    assert_eq!(rig.ledger.state().bytes(), rig.ledger.state().recounted_bytes());
    assert_eq!(rig.ledger.state().entries(), 0);
}

#[test]
fn the_limit_of_a_state_holds_for_hashes_alone_and_for_texts() {
    let max_bytes = 4 << 20;
    let options =
        JournalOptions { state: Limits { max_bytes, ..Limits::default() }, ..JournalOptions::default() };
    let mut rig = Rig::with(options);
    for at in 0..200_u64 {
        let salt = format!("{at:0>1000}");
        rig.apply(&(0..100).map(|block| salted(at * 100 + block, &salt, None)).collect::<Vec<_>>());
    }
    assert!(rig.ledger.trust().has(Reason::Budget));
    let bytes = rig.ledger.state().bytes();
    assert!(bytes <= max_bytes + max_bytes / 10 && bytes > max_bytes / 2, "{bytes}");
}

#[test]
fn a_hash_of_blocks_that_differ_in_their_keys_is_ambiguous() {
    let image = |id: &str| {
        with(|stored| {
            stored.extra_keys = Some(vec![Some(vec![OwnedExtraKey::Multimodal(id.to_owned(), 0)])]);
        })
    };
    let adapter = |name: &str| with(|stored| stored.lora_name = Some(name.to_owned()));
    let plain = || store(&[1], None);
    for (first, second) in [
        (salted(1, "one", None), salted(1, "two", None)),
        (salted(1, "one", None), plain()),
        (plain(), salted(1, "two", None)),
        (adapter("one"), adapter("two")),
        (adapter("one"), plain()),
        (image("cat"), image("dog")),
    ] {
        let mut rig = Rig::new();
        rig.apply(std::slice::from_ref(&first));
        rig.apply(std::slice::from_ref(&first));
        assert_eq!(rig.ledger.trust().level(), Trust::Exact, "{first:?}");
        rig.apply(&[second]);
        assert_eq!(worst(&rig), Some(Reason::AmbiguousHash), "{first:?}");
    }
    // A salt is announced with the first block alone, and inherited from there.
    let mut rig = Rig::new();
    for _ in 0..2 {
        rig.apply(&[salted(1, "one", None), store(&[2, 3], Some(1))]);
        rig.apply(&[store(&[3], Some(2))]);
    }
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
}

fn batch_of_rank(rig: &mut Rig, rank: u32, events: &[OwnedEvent]) {
    let payload = encode_batch(Profile::Vllm0_32, 1.0, Some(rank), events);
    rig.interpreter.apply(&mut rig.ledger, rig.next, &Decoder::default().decode(&payload).unwrap(), NOW);
    rig.next += 1;
}

#[test]
fn a_batch_of_another_rank_is_never_credited() {
    let mut rig = Rig::new();
    batch_of_rank(&mut rig, 0, &[store(&[1], None)]);
    assert_eq!(rig.ledger.trust().level(), Trust::Exact);
    batch_of_rank(&mut rig, 1, &[store(&[2], None)]);
    assert_eq!((worst(&rig), rig.ledger.trust().level()), (Some(Reason::ForeignRank), Trust::Unsound));
    assert_eq!(rig.ledger.counters().foreign_rank, 1);
    // The other rank's clear says nothing of this one; its own does.
    batch_of_rank(&mut rig, 1, &[OwnedEvent::Cleared]);
    assert_eq!(worst(&rig), Some(Reason::ForeignRank));
    batch_of_rank(&mut rig, 0, &[OwnedEvent::Cleared]);
    assert!(!rig.ledger.trust().has(Reason::ForeignRank));
}

#[test]
fn an_engine_of_one_rank_may_name_its_number_in_a_larger_whole() {
    let mut rig = Rig::with(JournalOptions { sole_rank: true, ..JournalOptions::default() });
    batch_of_rank(&mut rig, 3, &[store(&[1], None)]);
    batch_of_rank(&mut rig, 3, &[store(&[2], Some(1))]);
    assert_eq!((rig.ledger.trust().level(), rig.ledger.counters().foreign_rank), (Trust::Exact, 2));
    // Two of them interleave.
    batch_of_rank(&mut rig, 2, &[store(&[3], None)]);
    assert_eq!(worst(&rig), Some(Reason::ForeignRank));
}

#[test]
fn blocks_that_build_on_each_other_at_two_sizes_are_let_go_of() {
    let limits = Limits { max_bytes: 1 << 20, ..Limits::default() };
    let mut rig = Rig::with(JournalOptions { state: limits, ..JournalOptions::default() });
    let sized = |hash: u64, parent: u64| {
        let tokens = vec![1; 3];
        OwnedEvent::Stored(OwnedStored { token_ids: tokens, block_size: 3, ..stored(&[hash], Some(parent)) })
    };
    let mut most = 0;
    for at in 0..20_000_u64 {
        let (a, b) = (2 * at + 1, 2 * at + 2);
        rig.apply(&[store(&[a], None), store(&[b], Some(a)), sized(a, b), remove(&[a, a, b])]);
        assert_eq!(rig.device().len(), 0);
        most = most.max(rig.ledger.state().entries());
    }
    assert!(most < 10_000, "{most} entries of nothing");
    assert!(!rig.ledger.trust().has(Reason::Budget), "room was made: {:?}", rig.ledger.trust());
    assert_eq!(rig.ledger.state().bytes(), rig.ledger.state().recounted_bytes());
}

#[test]
fn a_group_whose_kind_changes_all_the_time_is_of_no_known_kind() {
    let kind = |kind: &str| with(|stored| stored.spec_kind = Some(kind.to_owned()));
    let mut rig = Rig::new();
    for at in 0..40 {
        rig.apply(&[kind(if at % 2 == 0 { "full_attention" } else { "mamba" })]);
    }
    assert_eq!(rig.ledger.trust().level(), Trust::Unverified);
    assert!(rig.ledger.trust().has(Reason::UnknownGroup));
}
