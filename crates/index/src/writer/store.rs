//! A store: consecutive blocks got a copy in a tier.

use kvplane_core::Marks;

use super::{AHEAD, ALONG, Writer};
use crate::map::Before;
use crate::trie::{Block as Node, Run, Spread};
use crate::{Block, LEVELS, Refused, Slot};

impl Writer {
    pub(crate) fn store(
        &mut self,
        slot: Slot,
        tier: usize,
        parent: Option<u64>,
        blocks: &[Block],
    ) -> Result<(), Refused> {
        if self.streams.get(slot.0 as usize).is_none_or(Option::is_none) {
            return Ok(());
        }
        if self.max_bytes < usize::MAX && self.bytes() >= self.max_bytes {
            return Err(Refused::Budget);
        }
        if !self.past.is_empty() {
            self.reclaim(ALONG);
        }
        let bytes = self.stream_bytes(slot.0);
        self.see_tier(slot.0, tier);
        let outcome = self.store_blocks(slot.0, tier, parent, blocks);
        self.side_bytes = self.side_bytes + self.stream_bytes(slot.0) - bytes;
        self.trie.collect();
        outcome
    }

    pub(super) fn stream_bytes(&self, slot: u32) -> usize {
        self.streams[slot as usize].as_ref().map_or(0, super::Stream::bytes)
    }

    fn store_blocks(
        &mut self,
        slot: u32,
        tier: usize,
        parent: Option<u64>,
        blocks: &[Block],
    ) -> Result<(), Refused> {
        // Asked for before the parent is looked up, so that both come at the same time.
        if let Some(stream) = &self.streams[slot as usize] {
            for block in blocks.iter().take(AHEAD) {
                stream.map.prefetch(block.hash);
            }
        }
        let mut outcome = Ok(());
        let mut parent = parent;
        let mut rest = blocks;
        while let Some(&block) = rest.first() {
            let above = match parent {
                None => Some(None),
                Some(parent) => self.find_place(slot, parent).map(Some),
            };
            let stored = if let Some(above) = above {
                // While blocks wait, each one may be whom they wait for.
                let count = if self.somebody_waits(slot) { 1 } else { rest.len() };
                self.place(slot, 1 << tier, above, &rest[..count]);
                count
            } else if let Some(known) = self.find(slot, block.hash)
                && self.trie.content(known) == block.content
            {
                // Its parent is unknown, but the block is not: it lies where it lay.
                self.add_copy(slot, tier, block.hash);
                1
            } else {
                if !self.wait(slot, tier, parent.unwrap_or_default(), block) {
                    outcome = Err(Refused::Waiting);
                }
                1
            };
            parent = Some(rest[stored - 1].hash);
            if self.somebody_waits(slot) && self.find(slot, block.hash).is_some() {
                self.attach(slot, block.hash);
            }
            rest = &rest[stored..];
        }
        outcome
    }

    fn somebody_waits(&self, slot: u32) -> bool {
        self.streams[slot as usize].as_ref().is_some_and(|stream| !stream.waiting.is_empty())
    }

    /// Where a block of a stream lies.
    pub(super) fn find(&self, slot: u32, hash: u64) -> Option<Node> {
        self.find_place(slot, hash).map(|(block, _)| block)
    }

    /// Where a block of a stream lies, and its place.
    fn find_place(&self, slot: u32, hash: u64) -> Option<(Node, u32)> {
        let stream = self.streams[slot as usize].as_ref()?;
        let place = match stream.tails.get(hash) {
            // Blocks stay where they are, unless an extent was split.
            Some(tail) if tail.splits == self.trie.splits => return Some((tail.block, tail.place)),
            Some(tail) => tail.place,
            None => stream.map.get(hash)?.0,
        };
        Some((self.trie.locate(place)?, place))
    }

    fn add_copy(&mut self, slot: u32, tier: usize, hash: u64) {
        let Some(stream) = self.streams[slot as usize].as_ref() else { return };
        let Some((place, before)) = stream.map.get(hash) else { return };
        if before & 1 << tier != 0 {
            self.count_copy(slot, tier, hash);
        } else if let Some(block) = self.trie.locate(place) {
            let content = self.trie.content(block);
            let above = self.trie.with_place(self.trie.above(block));
            self.place(slot, 1 << tier, above, &[Block { hash, content }]);
        }
    }

    fn count_copy(&mut self, slot: u32, tier: usize, hash: u64) {
        if let Some(stream) = self.streams[slot as usize].as_mut() {
            *stream.copies.entry((hash, tier as u8)).or_default() += 1;
        }
    }

    /// Consecutive blocks lie below a block, in these tiers too.
    pub(super) fn place(&mut self, slot: u32, tiers: u8, above: Option<(Node, u32)>, blocks: &[Block]) {
        let mut contents = std::mem::take(&mut self.scratch.contents);
        contents.clear();
        contents.extend(blocks.iter().map(|block| block.content));
        let mut above = above;
        let mut done = 0;
        let splits = self.trie.splits;
        while done < blocks.len() {
            let lane = self.streams[slot as usize].as_ref().map_or(0, |stream| stream.views[0].lane);
            let node = above.map(|(node, _)| node);
            let run = self
                .trie
                .follow(node, &contents[done..])
                .unwrap_or_else(|| self.trie.grow(node, &contents[done..], lane));
            let count = (run.to - run.from) as usize;
            self.trie.places_after(above, run, &mut self.scratch.places);
            let Some(&last) = self.scratch.places.last() else { break };
            self.note(slot, tiers, &blocks[done..]);
            self.cover(slot, tiers, run);
            self.leave_old_places(slot);
            done += count;
            if done < blocks.len() {
                // Covering may have split the extent.
                above = self.trie.locate(last).map(|node| (node, last));
            } else if let (Some(stream), Some(block)) = (&mut self.streams[slot as usize], blocks.last()) {
                // Before it was covered, which may have split the extent: then it is looked for by its place.
                let at = Node { extent: run.extent, offset: run.to - 1 };
                stream.tails.set(block.hash, last, at, splits);
            }
        }
        self.scratch.contents = contents;
    }

    /// Enters blocks into the stream's map, as many as there are places.
    fn note(&mut self, slot: u32, tiers: u8, blocks: &[Block]) {
        self.scratch.before.clear();
        self.scratch.moved.clear();
        let Some(stream) = &mut self.streams[slot as usize] else { return };
        for (at, &place) in self.scratch.places.iter().enumerate() {
            if let Some(ahead) = blocks.get(at + AHEAD) {
                stream.map.prefetch(ahead.hash);
            }
            let hash = blocks[at].hash;
            let before = match stream.map.add(hash, place, tiers, &mut self.trie.arena) {
                Before::Absent => 0,
                Before::Here(before) => {
                    for tier in (0..LEVELS as u8).filter(|tier| before & tiers & 1 << tier != 0) {
                        *stream.copies.entry((hash, tier)).or_default() += 1;
                    }
                    before
                }
                Before::Elsewhere(old, before) => {
                    stream.forget_copies(hash);
                    stream.tails.forget(hash);
                    self.scratch.moved.push((old, before));
                    0
                }
            };
            self.scratch.before.push(before);
            if !stream.waiting.is_empty() {
                stream.waiting.remove(hash);
            }
        }
    }

    /// The stream's lanes hold a run of blocks, which its map knows already.
    fn cover(&mut self, slot: u32, tiers: u8, run: Run) {
        let Some(stream) = &mut self.streams[slot as usize] else { return };
        if let [view] = stream.views[..]
            && !self.trie.touches(view.lane, run)
        {
            self.trie.cover(view.lane, run);
            return;
        }
        let views = stream.views.iter().filter(|view| view.tiers & tiers != 0);
        let spread = Spread::new(&self.trie, run, views.clone().count());
        for view in views {
            let mut before = self.scratch.before.iter();
            for run in spread.now(&self.trie) {
                if self.trie.touches(view.lane, run) {
                    for (offset, before) in (run.from..run.to).zip(&mut before) {
                        if before & view.tiers == 0 && self.trie.covers(view.lane, run.extent, offset) {
                            let place = self.trie.place(Node { extent: run.extent, offset });
                            *stream.doubles.entry((view.lane, place)).or_default() += 1;
                        }
                    }
                } else {
                    before = before.as_slice()[(run.to - run.from) as usize..].iter();
                }
            }
            for run in spread.now(&self.trie) {
                self.trie.cover(view.lane, run);
            }
        }
    }

    /// Blocks that were elsewhere before are there no more.
    fn leave_old_places(&mut self, slot: u32) {
        if self.scratch.moved.is_empty() {
            return;
        }
        let moved = std::mem::take(&mut self.scratch.moved);
        if let Some(stream) = &mut self.streams[slot as usize] {
            for (place, before) in &moved {
                Self::lose(&mut self.trie, stream, *place, *before, 0);
            }
        }
        self.scratch.moved = moved;
    }

    /// A block whose parent is unknown waits, and lies nowhere else.
    fn wait(&mut self, slot: u32, tier: usize, parent: u64, block: Block) -> bool {
        let max = self.max_waiting;
        let Some(stream) = &mut self.streams[slot as usize] else { return true };
        if let Some((place, before)) = stream.map.take(block.hash, u8::MAX) {
            stream.forget_copies(block.hash);
            stream.tails.forget(block.hash);
            Self::lose(&mut self.trie, stream, place, before, 0);
        }
        stream.waiting.add(block.hash, parent, block.content, tier, max)
    }

    /// What waited for a block follows it, and what waited for that.
    fn attach(&mut self, slot: u32, parent: u64) {
        let mut parents = vec![parent];
        while let Some(parent) = parents.pop() {
            let Some(stream) = &mut self.streams[slot as usize] else { return };
            for (hash, waiting) in stream.waiting.take_children(parent) {
                let tiers = (0..LEVELS).filter(|tier| waiting.copies[*tier] > 0);
                let mut all = 0;
                for tier in tiers {
                    self.see_tier(slot, tier);
                    all |= 1 << tier;
                    if waiting.copies[tier] > 1
                        && let Some(stream) = &mut self.streams[slot as usize]
                    {
                        stream.copies.insert((hash, tier as u8), waiting.copies[tier] - 1);
                    }
                }
                let above = self.find_place(slot, parent);
                self.place(slot, all, above, &[Block { hash, content: waiting.content }]);
                if waiting.sides != Marks::default() {
                    self.mark_block(slot, hash, waiting.sides);
                }
                parents.push(hash);
            }
        }
    }
}

impl super::Stream {
    pub(super) fn forget_copies(&mut self, hash: u64) {
        if !self.copies.is_empty() {
            for tier in 0..LEVELS as u8 {
                self.copies.remove(&(hash, tier));
            }
        }
    }
}
