mod capture;
mod host;
mod hybrid;

use std::collections::{BTreeMap, VecDeque};

use kvplane_wire::OwnedExtraKey;
use proptest::prelude::*;

use super::*;
use crate::cache::Copies;

fn config(blocks: usize) -> PoolConfig {
    PoolConfig {
        block_size: 4,
        groups: Vec::new(),
        blocks,
        seed: 7,
        hash_form: HashForm::Unsigned,
        habits: Habits::Vllm,
        eagle: false,
        keeps_tails_only: true,
        keeps_partial: true,
        host: None,
    }
}

fn begin(pool: &mut Pool, prompt: &[u32]) -> Result<Table, PoolError> {
    pool.begin(prompt, Keys::default(), Report::New)
}

/// What the only group of a pool has.
fn resident(pool: &Pool) -> Copies {
    let mut groups = pool.resident();
    assert_eq!(groups.len(), 1);
    groups.remove(0).device
}

fn bits(hash: &kvplane_wire::OwnedHash) -> u64 {
    match hash {
        kvplane_wire::OwnedHash::Unsigned(bits) => *bits,
        kvplane_wire::OwnedHash::Signed(bits) => bits.cast_unsigned(),
        kvplane_wire::OwnedHash::Bytes(bytes) => {
            u64::from_be_bytes(bytes[bytes.len() - 8..].try_into().unwrap())
        }
        kvplane_wire::OwnedHash::Hex(_) => panic!("vLLM sends no digits"),
    }
}

/// A consumer that counts copies: what the events alone say is cached.
#[derive(Default)]
struct Heard(BTreeMap<u64, usize>);

impl Heard {
    fn hear(&mut self, events: &[OwnedEvent]) {
        for event in events {
            match event {
                OwnedEvent::Stored(stored) => {
                    assert_eq!(
                        stored.token_ids.len(),
                        stored.block_hashes.len() * stored.block_size as usize
                    );
                    assert!(stored.parent.as_ref().is_none_or(|parent| self.0.contains_key(&bits(parent))));
                    stored.block_hashes.iter().for_each(|hash| *self.0.entry(bits(hash)).or_default() += 1);
                }
                OwnedEvent::Removed(removed) => {
                    for hash in &removed.block_hashes {
                        let copies = self.0.get_mut(&bits(hash)).expect("only what was stored is removed");
                        *copies -= 1;
                        if *copies == 0 {
                            self.0.remove(&bits(hash));
                        }
                    }
                }
                OwnedEvent::Cleared => self.0.clear(),
            }
        }
    }
}

/// The pool's rules by prefix instead of by hash, and by scanning instead of by index.
struct Naive {
    queue: VecDeque<usize>,
    /// The prefix that a block ends, and when it was stored: of equal copies the oldest is reused.
    content: Vec<Option<(usize, Vec<u32>)>>,
    holders: Vec<u32>,
    stores: usize,
}

impl Naive {
    fn new(blocks: usize) -> Self {
        Self {
            queue: (0..blocks).collect(),
            content: vec![None; blocks],
            holders: vec![0; blocks],
            stores: 0,
        }
    }

    fn begin(&mut self, prompt: &[u32]) -> Option<(Vec<usize>, usize)> {
        let prefix = |n: usize| prompt[..n * 4].to_vec();
        let mut held = Vec::new();
        while (held.len() + 1) * 4 < prompt.len() {
            let wanted = prefix(held.len() + 1);
            let copies = self.content.iter().enumerate().filter_map(|(block, content)| {
                content.as_ref().filter(|(_, prefix)| *prefix == wanted).map(|(stored, _)| (*stored, block))
            });
            let Some((_, block)) = copies.min() else { break };
            held.push(block);
        }
        let hits = held.len();
        let fresh = prompt.len().div_ceil(4) - hits;
        let left = self.queue.iter().filter(|block| !held.contains(block)).count();
        if left < fresh {
            return None;
        }
        self.queue.retain(|block| !held.contains(block));
        for _ in 0..fresh {
            let block = self.queue.pop_front()?;
            self.content[block] = None;
            held.push(block);
        }
        for &block in &held {
            self.holders[block] += 1;
        }
        for (index, &block) in held.iter().enumerate().take(prompt.len() / 4).skip(hits) {
            self.stores += 1;
            self.content[block] = Some((self.stores, prefix(index + 1)));
        }
        Some((held, hits))
    }

    fn finish(&mut self, held: &[usize]) {
        for &block in held.iter().rev() {
            self.holders[block] -= 1;
            if self.holders[block] == 0 && self.content[block].is_some() {
                self.queue.push_back(block);
            } else if self.holders[block] == 0 {
                self.queue.push_front(block);
            }
        }
    }

    fn copies(&self) -> Vec<usize> {
        let mut counts: BTreeMap<&Vec<u32>, usize> = BTreeMap::new();
        self.content.iter().flatten().for_each(|(_, prefix)| *counts.entry(prefix).or_default() += 1);
        let mut counts: Vec<_> = counts.into_values().collect();
        counts.sort_unstable();
        counts
    }
}

fn sorted(resident: &BTreeMap<u64, usize>) -> Vec<usize> {
    let mut counts: Vec<_> = resident.values().copied().collect();
    counts.sort_unstable();
    counts
}

proptest! {
    /// Few prompts and few blocks, up to two requests at a time: reuse, copies and evictions all happen.
    #[test]
    fn the_pool_does_what_a_naive_one_does(
        steps in proptest::collection::vec((0u32..3, 0u32..3, 1usize..20, any::<bool>()), 1..60),
    ) {
        let mut pool = Pool::new(config(12));
        let mut naive = Naive::new(12);
        let mut heard = Heard::default();
        let mut running = VecDeque::new();
        for (first, second, length, keep) in steps {
            let prompt: Vec<u32> = (0..length as u32).map(|i| if i < 4 { first } else { second * 10 + i }).collect();
            let expected = naive.begin(&prompt);
            let got = begin(&mut pool, &prompt);
            prop_assert_eq!(got.is_ok(), expected.is_some());
            if let (Ok(table), Some((held, hits))) = (got, expected) {
                prop_assert_eq!(table.cached_tokens(), hits * 4);
                running.push_back((table, held));
            }
            heard.hear(&pool.take_events());
            prop_assert_eq!(&heard.0, &resident(&pool));
            prop_assert_eq!(sorted(&heard.0), naive.copies());
            while running.len() > usize::from(keep) {
                let Some((table, held)) = running.pop_front() else { break };
                pool.finish(&table);
                naive.finish(&held);
            }
        }
    }
}

#[test]
fn a_prompt_of_whole_blocks_recomputes_its_last_block_as_a_second_copy() {
    let mut pool = Pool::new(config(10));
    let prompt: Vec<u32> = (0..8).collect();
    let first = begin(&mut pool, &prompt).unwrap();
    pool.finish(&first);
    assert_eq!(pool.would_hit(&prompt, &Keys::default()), 4);
    let second = begin(&mut pool, &prompt).unwrap();
    assert_eq!(second.cached_tokens(), 4);
    assert_eq!(sorted(&resident(&pool)), [1, 2]);
    let OwnedEvent::Stored(stored) = pool.take_events().pop().unwrap() else { panic!("a store") };
    assert_eq!((stored.block_hashes.len(), stored.parent.is_some()), (1, true));
}

#[test]
fn the_end_of_a_prompt_is_evicted_before_its_beginning() {
    let mut pool = Pool::new(config(4));
    let old: Vec<u32> = (0..12).collect();
    let table = begin(&mut pool, &old).unwrap();
    pool.finish(&table);
    // One block was never used, so a request of two takes it and the old prompt's last.
    let new = begin(&mut pool, &[90, 91, 92, 93, 94, 95, 96, 97]).unwrap();
    assert_eq!(pool.would_hit(&[&old[..], &[1]].concat(), &Keys::default()), 8);
    pool.finish(&new);
}

#[test]
fn generated_tokens_fill_and_announce_blocks_one_by_one() {
    let mut pool = Pool::new(config(4));
    let mut table = begin(&mut pool, &[1, 2, 3]).unwrap();
    assert!(pool.take_events().is_empty());
    for token in 4..13 {
        pool.append(&mut table, token).unwrap();
    }
    let stores = pool.take_events();
    assert_eq!(stores.len(), 3);
    pool.finish(&table);
    assert_eq!(pool.would_hit(&(1..=13).collect::<Vec<_>>(), &Keys::default()), 12);
}

#[test]
fn held_blocks_are_neither_evicted_nor_reset() {
    let mut pool = Pool::new(config(3));
    let table = begin(&mut pool, &(0..12).collect::<Vec<_>>()).unwrap();
    assert_eq!(begin(&mut pool, &[5]).unwrap_err(), PoolError::Full);
    assert_eq!(pool.reset(false), Err(PoolError::Held));
    pool.finish(&table);
    pool.take_events();
    assert_eq!(pool.reset(false), Ok(()));
    assert_eq!(pool.take_events(), [OwnedEvent::Cleared]);
    assert!(resident(&pool).is_empty());
}

#[test]
fn adapters_and_salts_are_worlds_of_their_own() {
    let mut pool = Pool::new(config(16));
    let prompt: Vec<u32> = (0..9).collect();
    let keyed = Keys { lora: Some("lora-a".into()), salt: Some("s".into()), ..Keys::default() };
    for keys in [Keys::default(), keyed.clone(), Keys { salt: None, ..keyed }] {
        assert_eq!(pool.would_hit(&prompt, &keys), 0);
        let table = pool.begin(&prompt, keys.clone(), Report::New).unwrap();
        pool.finish(&table);
        assert_eq!(pool.would_hit(&prompt, &keys), 8);
    }
    let text = |key: &str| OwnedExtraKey::Text(key.to_owned());
    let OwnedEvent::Stored(stored) = &pool.take_events()[1] else { panic!("a store") };
    assert_eq!(stored.lora_name.as_deref(), Some("lora-a"));
    let expected = vec![Some(vec![text("lora-a"), text("s")]), Some(vec![text("lora-a")])];
    assert_eq!(stored.extra_keys, Some(expected));
}

#[test]
fn every_hash_form_ends_in_the_same_bits() {
    let digest = Digest::of(1, None, &[1, 2, 3, 4], &[]);
    for form in [HashForm::Unsigned, HashForm::Signed, HashForm::Bytes16, HashForm::Bytes32] {
        assert_eq!(bits(&digest.in_form(form)), digest.bits());
    }
}

#[test]
fn tensorrt_llm_caches_a_block_once() {
    let mut pool = Pool::new(PoolConfig { habits: Habits::Trtllm, ..config(12) });
    let prompt: Vec<u32> = (0..8).collect();
    let first = begin(&mut pool, &prompt).unwrap();
    let second = begin(&mut pool, &[&prompt[..], &[8, 9, 10, 11]].concat()).unwrap();
    let third = begin(&mut pool, &prompt).unwrap();
    let mut heard = Heard::default();
    heard.hear(&pool.take_events());
    assert_eq!(heard.0, resident(&pool));
    assert_eq!(sorted(&heard.0), [1, 1, 1]);
    for table in [&first, &second, &third] {
        pool.finish(table);
    }
    begin(&mut pool, &(100..148).collect::<Vec<_>>()).unwrap();
    heard.hear(&pool.take_events());
    assert_eq!(heard.0, resident(&pool));
    assert_eq!(heard.0.len(), 12);
}
