//! Random batches in the dialects of all engines: nothing panics, what is counted is what is there, and
//! `exact` is what a naive model says.

use std::collections::BTreeMap;

use kvplane_core::{EngineKind, Tier, Trust, sglang_event_hash, sglang_page_digest};
use kvplane_stream::{Change, JournalOptions, Limits, Semantics, Tokens, Transition};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{Decoder, OwnedEvent, OwnedExtraKey, OwnedHash, OwnedRemoved, OwnedStored};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::rig::{NOW, Rig, hashes};

/// A block: which way a prompt takes at each of its blocks.
type Path = Vec<u8>;

#[derive(Debug, Clone)]
enum Happens {
    /// Blocks of a prompt, from one on.
    Store {
        path: Path,
        from: usize,
        host: bool,
    },
    Remove {
        path: Path,
        host: bool,
    },
    Clear,
}

fn happens() -> impl Strategy<Value = Happens> {
    let path = || vec(0..3_u8, 1..5);
    prop_oneof![
        8 => (path(), 0..4_usize, any::<bool>())
            .prop_map(|(path, from, host)| Happens::Store { from: from.min(path.len() - 1), path, host }),
        6 => (path(), any::<bool>()).prop_map(|(path, host)| Happens::Remove { path, host }),
        1 => Just(Happens::Clear),
    ]
}

/// Hashes as `SGLang` makes them, which any other engine may have too.
fn chain(path: &[u8]) -> Vec<i64> {
    let mut digest: Option<[u8; 32]> = None;
    let mut found = Vec::new();
    for turn in path {
        let next = sglang_page_digest(digest.as_ref(), &page(*turn));
        found.push(sglang_event_hash(&next));
        digest = Some(next);
    }
    found
}

fn page(turn: u8) -> [u32; 2] {
    [u32::from(turn), 7]
}

fn medium(host: bool) -> &'static str {
    if host { "CPU_PINNED" } else { "GPU" }
}

/// What the engine holds: one of each block in each place.
type Naive = BTreeMap<(Tier, u64), u32>;

fn tier(host: bool) -> Tier {
    if host { Tier::Host } else { Tier::Device }
}

fn tell(happens: &Happens, naive: &mut Naive, has_media: bool) -> OwnedEvent {
    let named = |host| has_media.then(|| medium(host).to_owned());
    match happens {
        Happens::Store { path, from, host } => {
            let host = *host && has_media;
            let chain = chain(path);
            // What the device computes builds on what it has.
            let is_held = |hash: &&i64| naive.contains_key(&(Tier::Device, **hash as u64));
            let held = chain.iter().take_while(is_held).count();
            let from = if host { *from } else { (*from).min(held).min(chain.len() - 1) };
            for &hash in &chain[from..] {
                naive.insert((tier(host), hash as u64), 1);
            }
            OwnedEvent::Stored(OwnedStored {
                block_hashes: chain[from..].iter().map(|&hash| OwnedHash::Signed(hash)).collect(),
                parent: from.checked_sub(1).map(|at| OwnedHash::Signed(chain[at])),
                token_ids: path[from..].iter().flat_map(|&turn| page(turn)).collect(),
                block_size: 2,
                medium: named(host),
                ..OwnedStored::default()
            })
        }
        Happens::Remove { path, host } => {
            let host = *host && has_media;
            let hash = *chain(path).last().unwrap();
            naive.remove(&(tier(host), hash as u64));
            OwnedEvent::Removed(OwnedRemoved {
                block_hashes: vec![OwnedHash::Signed(hash)],
                medium: named(host),
                ..OwnedRemoved::default()
            })
        }
        Happens::Clear => {
            naive.clear();
            OwnedEvent::Cleared
        }
    }
}

fn held(rig: &Rig) -> Naive {
    let residencies = rig.ledger.state().residencies();
    residencies.map(|(place, hash, copies)| ((place.tier, hash), copies)).collect()
}

fn apply(rig: &mut Rig, profile: Profile, events: &[OwnedEvent]) {
    let payload = encode_batch(profile, 1.0, Some(0), events);
    let mut decoder = Decoder::default();
    rig.interpreter.apply(&mut rig.ledger, rig.next, &decoder.decode(&payload).unwrap(), NOW);
    rig.next += 1;
}

fn check_books(rig: &mut Rig) {
    let state = rig.ledger.state();
    assert_eq!(state.bytes(), state.recounted_bytes());
    let held = held(rig);
    let snapshot = rig.snapshot();
    let blocks = snapshot.image.blocks.iter();
    let pictured = blocks.flat_map(|block| {
        let places = &snapshot.image.places;
        let of = move |holding: &kvplane_stream::HoldingImage| {
            ((places[usize::from(holding.place)].tier, block.hash), holding.copies)
        };
        block.holdings.iter().map(of)
    });
    assert_eq!(pictured.collect::<Naive>(), held);
}

/// A dialect: whose events mean what they mean there, and how they are written.
fn radix() -> impl Strategy<Value = (EngineKind, Profile)> {
    prop_oneof![
        Just((EngineKind::Sglang, Profile::Sglang0_5_9)),
        Just((EngineKind::Sglang, Profile::Sglang0_5_22)),
        Just((EngineKind::Tokenspeed, Profile::Tokenspeed0_1_1)),
    ]
}

/// Anything at all, as any engine might write it.
fn wild() -> impl Strategy<Value = OwnedEvent> {
    let place = || (0..3_usize, prop::option::of(0..4_u32), 0..3_usize, 0..3_usize);
    let stored = (vec(0..24_u64, 0..5), prop::option::of(0..24_u64), 0..7_usize, 0..4_u32, place(), 0..4_u8);
    let stored = stored.prop_map(|(list, parent, tokens, size, (medium, group, kind, owner), keys)| {
        let key = [
            OwnedExtraKey::Text("salt".into()),
            OwnedExtraKey::Bytes(vec![1, 2]),
            OwnedExtraKey::Multimodal("cat".into(), 1),
        ];
        let lists = vec![Some(vec![key[usize::from(keys) % 3].clone()]); list.len()];
        OwnedEvent::Stored(OwnedStored {
            block_hashes: hashes(&list),
            parent: parent.map(OwnedHash::Unsigned),
            token_ids: (0..tokens as u32 * size.max(1)).map(|at| at / size.max(1)).collect(),
            block_size: size,
            medium: [None, Some("GPU"), Some("CPU")][medium].map(str::to_owned),
            group,
            spec_kind: [None, Some("full_attention"), Some("sliding_window")][kind].map(str::to_owned),
            sliding_window: (kind == 2).then_some(4),
            ownership: [None, None, Some("store")][owner].map(str::to_owned),
            lora_name: (keys == 3).then(|| "adapter".to_owned()),
            extra_keys: (keys > 0).then_some(lists),
            ..OwnedStored::default()
        })
    });
    let removed = (vec(0..24_u64, 0..5), place()).prop_map(|(list, (medium, group, _, owner))| {
        OwnedEvent::Removed(OwnedRemoved {
            block_hashes: hashes(&list),
            medium: [None, Some("GPU"), Some("CPU")][medium].map(str::to_owned),
            group,
            ownership: [None, None, Some("store")][owner].map(str::to_owned),
            ..OwnedRemoved::default()
        })
    });
    prop_oneof![12 => stored, 8 => removed, 1 => Just(OwnedEvent::Cleared)]
}

fn anyone() -> impl Strategy<Value = (EngineKind, Profile)> {
    prop_oneof![
        Just((EngineKind::Vllm, Profile::Vllm0_32)),
        Just((EngineKind::Vllm, Profile::Vllm0_22)),
        Just((EngineKind::Sglang, Profile::Sglang0_5_22)),
        Just((EngineKind::Tokenspeed, Profile::Tokenspeed0_1_1)),
        Just((EngineKind::Trtllm, Profile::TrtllmZmq)),
        Just((EngineKind::Grpc, Profile::Vllm0_32)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::cases(384)))]

    #[test]
    fn what_radix_trees_tell_is_what_is_held(
        (kind, profile) in radix(),
        batches in vec(vec(happens(), 0..6), 1..30),
    ) {
        let options = JournalOptions { semantics: Semantics::of(kind), ..JournalOptions::default() };
        let mut rig = Rig::with(options);
        let mut naive = Naive::new();
        let has_media = profile != Profile::Tokenspeed0_1_1;
        for batch in &batches {
            let events: Vec<OwnedEvent> = batch.iter().map(|one| tell(one, &mut naive, has_media)).collect();
            apply(&mut rig, profile, &events);
            let trust = rig.ledger.trust();
            let counts = rig.ledger.state();
            prop_assert_eq!(counts.bytes(), counts.recounted_bytes());
            match trust.level() {
                Trust::Exact => prop_assert_eq!(&held(&rig), &naive, "{:?}", trust),
                Trust::Lower => {
                    let held = held(&rig);
                    prop_assert!(held.keys().all(|block| naive.contains_key(block)), "{:?}", trust);
                }
                _ => {}
            }
        }
        check_books(&mut rig);
    }

    #[test]
    fn whatever_comes_is_counted(
        (kind, profile) in anyone(),
        batches in vec(vec(wild(), 0..8), 1..20),
        scarce in any::<bool>(),
    ) {
        let max_bytes = if scarce { 9_000 } else { 1 << 20 };
        let state = Limits { max_bytes, max_waiting: 6, ..Limits::default() };
        let options = JournalOptions {
            semantics: Semantics::of(kind),
            state,
            offload_chunk: scarce.then_some(4),
            ..JournalOptions::default()
        };
        let mut rig = Rig::with(options);
        for batch in &batches {
            apply(&mut rig, profile, batch);
            let counts = rig.ledger.state();
            prop_assert_eq!(counts.bytes(), counts.recounted_bytes());
            prop_assert!(counts.waiting() <= 6);
        }
        check_books(&mut rig);
    }
}

/// Every option but whether tokens are kept.
fn twin(kind: EngineKind, keep_tokens: bool) -> Rig {
    let state = Limits { keep_tokens, max_waiting: 6, ..Limits::default() };
    Rig::with(JournalOptions { semantics: Semantics::of(kind), state, ..JournalOptions::default() })
}

fn without_tokens(transitions: &[Transition]) -> Vec<Transition> {
    let mut transitions = transitions.to_vec();
    for transition in &mut transitions {
        if let Transition::Stored { blocks, .. } = transition {
            for block in blocks {
                block.tokens = Tokens::default();
            }
        }
    }
    transitions
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::cases(384)))]

    #[test]
    fn dropping_tokens_changes_nothing_but_that_they_are_gone(
        (kind, profile) in anyone(),
        batches in vec(vec(wild(), 0..8), 1..20),
    ) {
        let (mut keeps, mut drops) = (twin(kind, true), twin(kind, false));
        for batch in &batches {
            let (from_kept, from_dropped) = (keeps.ledger.cursor(), drops.ledger.cursor());
            apply(&mut keeps, profile, batch);
            apply(&mut drops, profile, batch);
            let kept = keeps.ledger.read_after(from_kept, 10).unwrap();
            let dropped = drops.ledger.read_after(from_dropped, 10).unwrap();
            prop_assert_eq!(kept.len(), dropped.len());
            for (kept, dropped) in kept.iter().zip(&dropped) {
                prop_assert_eq!(kept.digest, dropped.digest);
                prop_assert_eq!(&without_tokens(&kept.transitions), &dropped.transitions);
                prop_assert!(dropped.untranslatable);
                for (kept, dropped) in kept.changes.iter().zip(&dropped.changes) {
                    let (Change::Stored(kept), Change::Stored(dropped)) = (kept, dropped) else { continue };
                    prop_assert!(dropped.span.is_none());
                    for (kept, dropped) in kept.blocks.iter().zip(&dropped.blocks) {
                        prop_assert!(dropped.tokens().is_none());
                        prop_assert_eq!(
                            (kept.hash, kept.copies, kept.parent(), kept.content(), kept.first_position()),
                            (dropped.hash, dropped.copies, dropped.parent(), dropped.content(), dropped.first_position())
                        );
                    }
                }
            }
            prop_assert_eq!(keeps.ledger.trust(), drops.ledger.trust());
            prop_assert_eq!(keeps.held(), drops.held());
            let state = drops.ledger.state();
            prop_assert_eq!(state.bytes(), state.recounted_bytes());
            prop_assert!(state.bytes() <= keeps.ledger.state().bytes());
        }
        for block in &drops.snapshot().image.blocks {
            prop_assert!(block.chains.iter().all(|chain| !chain.attached || chain.tokens.is_empty()));
        }
    }
}
