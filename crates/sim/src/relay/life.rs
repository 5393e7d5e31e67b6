//! One life of a rank: its cache, the batches that came of it, and what a snapshot needs to know.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use kvplane_wire::{OwnedEvent, OwnedRemoved, OwnedStored};
use tonic::Code;

use super::{RelayConfig, RelayService, RelayStyle, message};
use crate::cache::{Cache, Copies, Moment, Request};
use crate::config::SimConfig;
use crate::fault::Restart;
use crate::history::{History, Recorded, relive};
use crate::keys::Keys;
use crate::operate::ClearEvent;
use crate::pool::{PoolError, Report};

/// A rank.
#[derive(Debug)]
pub(super) struct Life {
    config: SimConfig,
    /// Published in messages, where there are several.
    rank: Option<u32>,
    cache: Cache,
    /// Events that are published before those of the next batch.
    held_back: Vec<OwnedEvent>,
    lived: History,
    number: u64,
    next: u64,
    kept: VecDeque<(u64, Bytes)>,
    limit: usize,
    /// Nothing was left out of `kept` but what it had no room for.
    whole: bool,
    blocks: BTreeMap<u64, Block>,
    /// Never goes back, so that no two batches are alike.
    clock: f64,
}

/// A block as a snapshot tells it.
#[derive(Debug)]
struct Block {
    /// A store of this block alone.
    store: OwnedStored,
    copies: usize,
}

impl Life {
    pub(super) fn new(config: &RelayConfig, rank: u32) -> Self {
        let engine = SimConfig {
            block_size: config.block_size,
            blocks: config.blocks,
            seed: config.seed.wrapping_add(u64::from(rank)),
            ..SimConfig::default()
        };
        Self {
            cache: Cache::new(&engine),
            config: engine,
            rank: (config.ranks > 1).then_some(rank),
            held_back: Vec::new(),
            lived: History::default(),
            number: 0,
            next: 0,
            kept: VecDeque::new(),
            limit: config.history,
            whole: true,
            blocks: BTreeMap::new(),
            clock: 1.0,
        }
    }

    pub(super) fn begin(
        &mut self,
        prompt: &[u32],
        max_tokens: usize,
        keys: Keys,
    ) -> Result<Request, PoolError> {
        let request = self.cache.begin(prompt, keys.clone(), Report::New)?;
        self.lived.push(Recorded { prompt: prompt.to_vec(), max_tokens, keys, report: Report::New });
        Ok(request)
    }

    pub(super) fn append(&mut self, request: &mut Request, token: u32) -> Result<(), PoolError> {
        self.cache.append(request, token)
    }

    pub(super) fn finish(&mut self, request: &Request) {
        self.cache.finish(request);
    }

    pub(super) fn clear(&mut self) -> Result<(), PoolError> {
        self.cache.reset(false)
    }

    /// The same, for an operator; whether it was done. It is published with what is published next, unless
    /// that goes wrong.
    pub(super) fn flush(&mut self, service: RelayService, manner: ClearEvent) -> bool {
        let before = self.cache.take_events(Moment::Decode);
        self.held_back.extend(before);
        let done = self.clear().is_ok();
        let mut clear = self.cache.take_events(Moment::Decode);
        if service == RelayService::Tokenspeed {
            clear = self.removals();
        }
        if done && manner != ClearEvent::Lost {
            self.held_back.extend(clear);
        }
        done
    }

    /// How `TokenSpeed` tells that all is gone: one removal after the other.
    fn removals(&self) -> Vec<OwnedEvent> {
        let removal = |block: &Block| OwnedRemoved {
            block_hashes: block.store.block_hashes.clone(),
            medium: block.store.medium.clone(),
            group: block.store.group,
            ..OwnedRemoved::default()
        };
        let copies = self.blocks.values().flat_map(|block| std::iter::repeat_n(block, block.copies));
        copies.map(|block| OwnedEvent::Removed(removal(block))).collect()
    }

    pub(super) fn held(&self) -> Copies {
        self.cache.groups().into_iter().next().unwrap_or_default().device
    }

    pub(super) fn next_sequence(&self) -> u64 {
        self.next
    }

    /// The batch of what the cache did since the last one. A lost one has its number all the same.
    pub(super) fn publish(&mut self, lost: bool) -> Option<Bytes> {
        let mut events = std::mem::take(&mut self.held_back);
        events.extend(self.cache.take_events(Moment::Decode));
        if events.is_empty() {
            return None;
        }
        Some(self.number_batch(&events, lost))
    }

    fn number_batch(&mut self, events: &[OwnedEvent], lost: bool) -> Bytes {
        self.remember(events);
        self.clock += 0.001;
        let batch = message::batch(self.next, self.clock, self.rank, events);
        if lost {
            self.whole = false;
        } else {
            self.kept.push_back((self.next, batch.clone()));
        }
        if self.kept.len() > self.limit {
            self.kept.pop_front();
            self.whole = false;
        }
        self.next += 1;
        batch
    }

    /// An empty cache and numbers from 0; some batches came before anybody could subscribe.
    pub(super) fn restart(&mut self, restart: Restart) {
        self.number += 1;
        self.cache = Cache::new(&self.config);
        let (lived, batches) = relive(&mut self.cache, &self.config, &self.lived, restart, self.number);
        self.lived = lived;
        self.held_back.clear();
        self.next = 0;
        self.kept.clear();
        self.whole = true;
        self.blocks.clear();
        for events in batches {
            self.number_batch(&events, false);
        }
    }

    fn remember(&mut self, events: &[OwnedEvent]) {
        for event in events {
            match event {
                OwnedEvent::Stored(stored) => {
                    for (hash, store) in message::one_by_one(stored) {
                        let block = self.blocks.entry(hash).or_insert(Block { store, copies: 0 });
                        block.copies += 1;
                    }
                }
                OwnedEvent::Removed(removed) => {
                    for hash in removed.block_hashes.iter().map(message::bits) {
                        let left = self.blocks.get_mut(&hash).map(|block| {
                            block.copies -= 1;
                            block.copies
                        });
                        if left == Some(0) {
                            self.blocks.remove(&hash);
                        }
                    }
                }
                OwnedEvent::Cleared => self.blocks.clear(),
            }
        }
    }

    /// What is held, parents first, as stores of one copy each.
    fn parents_first(&self) -> Vec<OwnedEvent> {
        let mut announced = Vec::new();
        let mut stores = Vec::new();
        for &hash in self.blocks.keys() {
            let mut branch = Vec::new();
            let mut at = Some(hash);
            while let Some((hash, block)) = at.and_then(|hash| Some((hash, self.blocks.get(&hash)?))) {
                if announced.contains(&hash) {
                    break;
                }
                announced.push(hash);
                branch.push(block);
                at = block.store.parent.as_ref().map(message::bits);
            }
            for block in branch.into_iter().rev() {
                stores.extend(std::iter::repeat_n(OwnedEvent::Stored(block.store.clone()), block.copies));
            }
        }
        stores
    }

    fn snapshot(&self, config: &RelayConfig) -> Vec<Bytes> {
        let stores = self.parents_first();
        let mut parts: Vec<&[OwnedEvent]> = stores.chunks(config.part_blocks.max(1)).collect();
        if parts.is_empty() {
            parts.push(&[]);
        }
        let cut = message::Cut {
            // Parts that are more than batches have numbers all the same.
            first: self.next.saturating_sub(parts.len() as u64),
            count: parts.len() as u32,
            blocks: stores.len() as u64,
            unknown_before: config.unknown_before,
            rank: self.rank,
        };
        (0..).zip(parts).map(|(index, stores)| message::part(&cut, index, stores)).collect()
    }

    fn after(&self, start: Option<u64>) -> impl Iterator<Item = Bytes> {
        let follows = move |sequence: u64| start.is_none_or(|start| sequence > start);
        self.kept.iter().filter(move |(sequence, _)| follows(*sequence)).map(|(_, batch)| batch.clone())
    }
}

/// What a call is sent at once, or the status that refuses it. A number is the first rank's.
pub(super) fn first_messages(config: &RelayConfig, ranks: &[Life], start: u64) -> Result<Vec<Bytes>, Code> {
    if config.style == RelayStyle::LiveOnly {
        return if start == 0 { Ok(Vec::new()) } else { Err(Code::OutOfRange) };
    }
    if start == 0 {
        let from_the_beginning = |life: &Life| -> Vec<Bytes> {
            if life.whole { life.after(None).collect() } else { life.snapshot(config) }
        };
        return Ok(ranks.iter().flat_map(from_the_beginning).collect());
    }
    let Some(life) = ranks.first() else { return Err(Code::OutOfRange) };
    let oldest = life.kept.front().map_or(life.next, |(sequence, _)| *sequence);
    if start + 1 < oldest || start >= life.next {
        return Err(Code::OutOfRange);
    }
    Ok(life.after(Some(start)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_tells_every_copy_behind_its_parent() {
        let config = RelayConfig { history: 3, ..RelayConfig::default() };
        let mut life = Life::new(&config, 0);
        for n in 0..40 {
            let prompt: Vec<u32> = (0..16 * (2 + n % 4)).map(|at| at + n / 8 * 100).collect();
            let table = life.begin(&prompt, 1, Keys::default()).unwrap();
            life.publish(false);
            life.finish(&table);
        }
        let mut announced: BTreeMap<u64, usize> = BTreeMap::new();
        for event in life.parents_first() {
            let OwnedEvent::Stored(store) = event else { panic!("a store") };
            let parent = store.parent.as_ref().map(message::bits);
            assert!(parent.is_none_or(|parent| announced.contains_key(&parent)));
            *announced.entry(message::bits(&store.block_hashes[0])).or_default() += 1;
        }
        assert_eq!(announced, life.held());
        assert_eq!(first_messages(&config, std::slice::from_ref(&life), 1), Err(Code::OutOfRange));
        assert_eq!(first_messages(&config, std::slice::from_ref(&life), life.next), Err(Code::OutOfRange));
        let last_two = first_messages(&config, std::slice::from_ref(&life), life.next - 3).unwrap();
        assert_eq!(last_two.len(), 2);
    }
}
