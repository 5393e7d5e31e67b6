//! The tiers behind the device.

use std::collections::BTreeMap;

use kvplane_wire::{OwnedHash, OwnedStored};
use proptest::prelude::*;

use super::super::*;
use super::{begin, bits, config};
use crate::cache::Copies;

fn host(chunk: usize, chunks: usize, style: HostForm) -> HostConfig {
    HostConfig {
        block_size: 4,
        chunk,
        chunks,
        stored_chunks: 0,
        storage_medium: "STORAGE",
        style,
        hash_form: HashForm::Unsigned,
        seed: 3,
    }
}

fn pool(blocks: usize, host: HostConfig) -> Pool {
    Pool::new(PoolConfig { host: Some(host), ..config(blocks) })
}

fn serve(pool: &mut Pool, prompt: &[u32]) -> usize {
    let mut table = begin(pool, prompt).unwrap();
    // A step that computes nothing worth a block, for what is written late.
    pool.append(&mut table, 7777).unwrap();
    pool.finish(&table);
    table.cached_tokens()
}

fn text(first: u32, length: u32) -> Vec<u32> {
    (first..first + length).collect()
}

/// A consumer that counts copies on each medium.
#[derive(Default)]
struct Heard(BTreeMap<String, Copies>);

impl Heard {
    fn on(&self, medium: &str) -> Copies {
        self.0.get(medium).cloned().unwrap_or_default()
    }

    fn hear(&mut self, events: &[OwnedEvent]) {
        for event in events {
            match event {
                OwnedEvent::Stored(OwnedStored { block_hashes, medium, .. }) => {
                    let copies = self.0.entry(medium.clone().unwrap()).or_default();
                    for hash in block_hashes {
                        *copies.entry(bits(hash)).or_default() += 1;
                    }
                }
                OwnedEvent::Removed(removed) => {
                    let copies = self.0.get_mut(removed.medium.as_ref().unwrap()).unwrap();
                    for hash in &removed.block_hashes {
                        *copies.get_mut(&bits(hash)).expect("only what was stored is removed") -= 1;
                    }
                    copies.retain(|_, copies| *copies > 0);
                }
                OwnedEvent::Cleared => {
                    self.0.remove("GPU");
                }
            }
        }
    }

    /// The rule, spelled out: the device's prefix without the last token, then whole chunks of the host up to
    /// the last token, if they are worth one.
    fn predict(&self, pool: &Pool, prompt: &[u32], chunk: usize) -> usize {
        let hashes: Vec<u64> = pool.chain(prompt, &Keys::default()).iter().map(Digest::bits).collect();
        let (device, host) = (self.on("GPU"), self.on("CPU"));
        let mut found = 0;
        while found + 4 < prompt.len() && device.contains_key(&hashes[found / 4]) {
            found += 4;
        }
        let mut end = found / chunk * chunk;
        while end + chunk <= prompt.len() && host.contains_key(&hashes[(end + chunk) / 4 - 1]) {
            end += chunk;
        }
        if end >= found + chunk { end } else { found }
    }
}

proptest! {
    #[test]
    fn events_tell_what_is_held_and_the_rule_what_is_found(
        chunk in prop_oneof![Just(4usize), Just(8), Just(16)],
        describes in any::<bool>(),
        steps in proptest::collection::vec((0u32..4, 0u32..3, 1usize..40, 0u32..9, 0u32..20), 1..60),
    ) {
        let style = if describes { HostForm::SelfDescribing } else { HostForm::Placeholders };
        let mut pool = pool(14, host(chunk, 64 / chunk, style));
        let mut heard = Heard::default();
        for (first, second, length, more, reset) in steps {
            let prompt: Vec<u32> = (0..length as u32).map(|i| if i < 10 { first } else { second * 10 + i }).collect();
            let predicted = heard.predict(&pool, &prompt, chunk);
            prop_assert_eq!(pool.would_hit(&prompt, &Keys::default()), predicted);
            if let Ok(mut table) = pool.begin(&prompt, Keys::default(), Report::New) {
                prop_assert_eq!(table.cached_tokens(), predicted);
                for token in 0..more {
                    if pool.append(&mut table, token).is_err() {
                        break;
                    }
                }
                pool.finish(&table);
            }
            if reset == 0 {
                pool.reset(false).unwrap();
            }
            heard.hear(&pool.take_events());
            let state = &pool.resident()[0];
            prop_assert_eq!(&heard.on("GPU"), &state.device);
            if describes || chunk == 4 {
                prop_assert_eq!(&heard.on("CPU"), &state.host);
            } else {
                // Chunks are known by their last block alone.
                prop_assert!(heard.on("CPU").keys().all(|hash| state.host.contains_key(hash)));
                prop_assert_eq!(heard.on("CPU").len() * chunk / 4, state.host.values().sum::<usize>());
            }
        }
    }
}

#[test]
fn the_host_gives_back_what_the_device_lost_and_the_device_tells_it() {
    let mut pool = pool(8, host(8, 10, HostForm::Placeholders));
    serve(&mut pool, &text(0, 27));
    serve(&mut pool, &text(100, 27));
    pool.take_events();
    assert_eq!(
        pool.resident()[0].device.len(),
        8,
        "only the last prompt, and what was not needed of the first"
    );
    let table = begin(&mut pool, &text(0, 27)).unwrap();
    assert_eq!(table.cached_tokens(), 24);
    let stored: Vec<_> =
        pool.take_events().into_iter().filter(|event| matches!(event, OwnedEvent::Stored(_))).collect();
    let OwnedEvent::Stored(loaded) = &stored[0] else { panic!("a store") };
    assert_eq!(loaded.medium.as_deref(), Some("GPU"));
    assert_eq!(loaded.block_size, 4);
    pool.finish(&table);
}

#[test]
fn placeholders_have_one_hash_and_removals_many() {
    let mut pool = pool(40, host(8, 3, HostForm::Placeholders));
    for round in 0..6 {
        serve(&mut pool, &text(round * 100, 27));
    }
    let mut removed = Vec::new();
    for event in pool.take_events() {
        match event {
            OwnedEvent::Stored(stored) if stored.medium.as_deref() == Some("CPU") => {
                assert_eq!((stored.block_hashes.len(), stored.block_size, stored.group), (1, 0, Some(0)));
                assert_eq!((stored.parent, stored.token_ids.len(), stored.extra_keys), (None, 0, None));
            }
            OwnedEvent::Removed(event) if event.medium.as_deref() == Some("CPU") => {
                removed.push(event.block_hashes.len());
            }
            _ => {}
        }
    }
    assert!(removed.iter().any(|hashes| *hashes > 1), "{removed:?}");
}

#[test]
fn a_chunk_that_describes_itself_leaves_out_extra_keys_and_may_come_before_its_parent() {
    let mut pool = pool(400, host(8, 100, HostForm::SelfDescribing));
    let salted = Keys { salt: Some("s".into()), lora: Some("a".into()), ..Keys::default() };
    let mut reported: Vec<OwnedHash> = Vec::new();
    let mut orphans = 0;
    for round in 0..8 {
        let mut table = pool.begin(&text(round * 100, 51), salted.clone(), Report::New).unwrap();
        pool.append(&mut table, 7777).unwrap();
        pool.finish(&table);
        for event in pool.take_events() {
            let OwnedEvent::Stored(stored) = event else { continue };
            if stored.medium.as_deref() == Some("GPU") {
                assert!(stored.extra_keys.is_some());
                continue;
            }
            assert_eq!((stored.block_hashes.len(), stored.token_ids.len(), stored.block_size), (2, 8, 4));
            assert_eq!((stored.lora_name.as_deref(), stored.extra_keys), (Some("a"), None));
            orphans += usize::from(stored.parent.is_some_and(|parent| !reported.contains(&parent)));
            reported.extend(stored.block_hashes);
        }
    }
    assert!(orphans > 5, "{orphans} children came first");
}

#[test]
fn a_reset_is_reported_alike_whatever_it_empties() {
    let mut pool = pool(40, host(4, 40, HostForm::Placeholders));
    for (emptied, left) in [(false, 24), (true, 0)] {
        serve(&mut pool, &text(0, 27));
        pool.take_events();
        pool.reset(emptied).unwrap();
        assert_eq!(pool.take_events(), [OwnedEvent::Cleared]);
        assert_eq!(pool.would_hit(&text(0, 27), &Keys::default()), left);
    }
}

#[test]
fn old_releases_tell_many_raw_hashes_at_once() {
    let mut pool = pool(40, host(4, 40, HostForm::Raw { block_size: 4 }));
    serve(&mut pool, &text(0, 27));
    let raw = pool.take_events().into_iter().find_map(|event| match event {
        OwnedEvent::Stored(stored) if stored.medium.as_deref() == Some("CPU") => Some(stored),
        _ => None,
    });
    let raw = raw.unwrap();
    assert!(raw.block_hashes.len() > 1);
    assert!(raw.block_hashes.iter().all(|hash| matches!(hash, OwnedHash::Bytes(bytes) if bytes.len() == 32)));
    assert_eq!((raw.group, raw.block_size, raw.token_ids.len()), (None, 4, 0));
}

#[test]
fn storage_tells_what_it_gets_and_never_what_it_loses() {
    let mut pool = pool(8, HostConfig { stored_chunks: 14, ..host(4, 7, HostForm::Placeholders) });
    let mut heard = Heard::default();
    for round in 0..3 {
        serve(&mut pool, &text(round * 100, 27));
        heard.hear(&pool.take_events());
    }
    let state = &pool.resident()[0];
    assert_eq!((state.storage.len(), heard.on("CPU")), (14, state.host.clone()));
    assert!(heard.on("STORAGE").len() > 14);
    assert!(state.storage.keys().all(|hash| heard.on("STORAGE").contains_key(hash)));
    // The prompt before the last is on no other tier any more.
    assert_eq!(pool.would_hit(&text(100, 27), &Keys::default()), 24);
}
