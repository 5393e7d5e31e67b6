//! The cache of one simulated engine: it evicts the block that was unused for longest.
//!
//! A request pins its blocks while it runs and lets go of them from its last block to its first. Of a request
//! that is over, the tail is therefore evicted first, and a block never goes before the blocks that follow
//! it.

use rustc_hash::FxHashMap;

use super::blocks::BlockId;

/// No place: the end of the queue.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Entry {
    block: BlockId,
    /// Requests that use the block now. A block is in the queue only while there are none.
    pins: u32,
    older: u32,
    newer: u32,
}

/// Blocks of one engine, and the queue in which unused ones wait for their eviction.
#[derive(Debug)]
pub(crate) struct Cache {
    capacity: usize,
    places: FxHashMap<BlockId, u32>,
    entries: Vec<Entry>,
    vacant: Vec<u32>,
    oldest: u32,
    newest: u32,
}

impl Cache {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            places: FxHashMap::default(),
            entries: Vec::new(),
            vacant: Vec::new(),
            oldest: NONE,
            newest: NONE,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() == self.capacity
    }

    pub(crate) fn contains(&self, block: BlockId) -> bool {
        self.places.contains_key(&block)
    }

    /// How many blocks of a prompt are here, from the first on without a gap.
    pub(crate) fn depth(&self, prompt: &[BlockId]) -> usize {
        prompt.iter().take_while(|block| self.contains(**block)).count()
    }

    /// A request uses a block. `false` if it is not here.
    pub(crate) fn pin(&mut self, block: BlockId) -> bool {
        let Some(&place) = self.places.get(&block) else { return false };
        if self.entries[place as usize].pins == 0 {
            self.unlink(place);
        }
        self.entries[place as usize].pins += 1;
        true
    }

    /// A request is done with a block.
    pub(crate) fn unpin(&mut self, block: BlockId) {
        let Some(&place) = self.places.get(&block) else { return };
        let entry = &mut self.entries[place as usize];
        entry.pins -= 1;
        if entry.pins == 0 {
            self.link_newest(place);
        }
    }

    /// A new block, in use. The caller has made room.
    pub(crate) fn insert_pinned(&mut self, block: BlockId) {
        debug_assert!(!self.is_full() && !self.contains(block));
        let entry = Entry { block, pins: 1, older: NONE, newer: NONE };
        let place = if let Some(place) = self.vacant.pop() {
            self.entries[place as usize] = entry;
            place
        } else {
            self.entries.push(entry);
            self.entries.len() as u32 - 1
        };
        self.places.insert(block, place);
    }

    /// Throws out what was unused for longest, until there is room for that many. `None`, and nothing is
    /// changed, if too many are in use.
    pub(crate) fn make_room(&mut self, count: usize) -> Option<Vec<BlockId>> {
        let wanted = (self.len() + count).saturating_sub(self.capacity);
        let mut evicted = Vec::with_capacity(wanted);
        let mut place = self.oldest;
        while evicted.len() < wanted {
            if place == NONE {
                return None;
            }
            let entry = self.entries[place as usize];
            evicted.push(entry.block);
            place = entry.newer;
        }
        for &block in &evicted {
            self.remove(block);
        }
        Some(evicted)
    }

    /// Forgets a block that is not in use.
    pub(crate) fn remove(&mut self, block: BlockId) {
        let Some(place) = self.places.remove(&block) else { return };
        debug_assert_eq!(self.entries[place as usize].pins, 0);
        self.unlink(place);
        self.vacant.push(place);
    }

    /// Whether a block is here and in use.
    pub(crate) fn in_use(&self, block: BlockId) -> bool {
        self.places.get(&block).is_some_and(|&place| self.entries[place as usize].pins > 0)
    }

    fn unlink(&mut self, place: u32) {
        let Entry { older, newer, .. } = self.entries[place as usize];
        match older {
            NONE => self.oldest = newer,
            _ => self.entries[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            _ => self.entries[newer as usize].older = older,
        }
    }

    fn link_newest(&mut self, place: u32) {
        let older = self.newest;
        self.entries[place as usize].older = older;
        self.entries[place as usize].newer = NONE;
        match older {
            NONE => self.oldest = place,
            _ => self.entries[older as usize].newer = place,
        }
        self.newest = place;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(cache: &mut Cache, request: &[BlockId]) -> Vec<BlockId> {
        let missing: Vec<BlockId> = request.iter().copied().filter(|block| !cache.pin(*block)).collect();
        let evicted = cache.make_room(missing.len()).unwrap();
        for block in missing {
            cache.insert_pinned(block);
        }
        for block in request.iter().rev() {
            cache.unpin(*block);
        }
        evicted
    }

    #[test]
    fn the_tail_of_the_oldest_request_goes_first() {
        let mut cache = Cache::new(6);
        assert!(run(&mut cache, &[1, 2, 3]).is_empty());
        assert!(run(&mut cache, &[1, 20, 30]).is_empty());
        assert_eq!(run(&mut cache, &[40, 50]), [3]);
        assert_eq!(run(&mut cache, &[60, 70]), [2, 30]);
        assert_eq!(cache.depth(&[1, 20, 30]), 2);
        assert!(cache.is_full());
    }

    #[test]
    fn what_is_in_use_stays() {
        let mut cache = Cache::new(2);
        cache.insert_pinned(1);
        cache.insert_pinned(2);
        assert_eq!(cache.make_room(1), None);
        cache.unpin(2);
        assert_eq!(cache.make_room(2), None);
        assert_eq!(cache.make_room(1), Some(vec![2]));
        assert!(cache.in_use(1) && !cache.in_use(2));
    }
}
