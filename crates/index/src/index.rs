//! A first index behind the interface that stays: the model behind a lock.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvplane_core::Tier;
use parking_lot::{Mutex, MutexGuard};

use crate::model::Model;
use crate::{Block, Depths, Match, Options, Refused, Slot, Stats};

/// All streams of one keyspace.
#[derive(Debug)]
pub struct Index {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    model: Model,
    owners: BTreeMap<u32, u64>,
    next: u32,
}

impl Index {
    /// An empty index.
    pub fn new(options: &Options) -> Arc<Self> {
        let inner = Inner { model: Model::new(options.max_waiting), owners: BTreeMap::new(), next: 0 };
        Arc::new(Self { inner: Mutex::new(inner) })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// A stream comes. `owner` is given back with answers; it must be unique among the streams of the index.
    pub fn add_stream(&self, owner: u64) -> Slot {
        let mut inner = self.lock();
        let slot = inner.next;
        inner.next += 1;
        inner.owners.insert(slot, owner);
        inner.model.add_stream(owner);
        Slot(slot)
    }

    /// A stream goes: it is in no answer that is begun after this. Memory is reclaimed by [`Self::reclaim`].
    pub fn remove_stream(&self, slot: Slot) {
        let mut inner = self.lock();
        if let Some(owner) = inner.owners.remove(&slot.0) {
            inner.model.remove_stream(owner);
        }
    }

    /// Consecutive blocks got a copy in a tier. `parent` is the block before the first, `None` at the start of a
    /// prompt. Each call adds a copy; [`Self::remove`] takes one away.
    pub fn store(
        &self,
        slot: Slot,
        tier: Tier,
        parent: Option<u64>,
        blocks: &[Block],
    ) -> Result<(), Refused> {
        let mut inner = self.lock();
        let Some(&owner) = inner.owners.get(&slot.0).filter(|_| tier != Tier::Unknown) else { return Ok(()) };
        inner.model.store(owner, tier, parent, blocks)
    }

    /// Blocks lost a copy in a tier. Says how many were not there.
    pub fn remove(&self, slot: Slot, tier: Tier, hashes: &[u64]) -> usize {
        let mut inner = self.lock();
        let Some(&owner) = inner.owners.get(&slot.0) else { return hashes.len() };
        if tier == Tier::Unknown {
            return 0;
        }
        inner.model.remove(owner, tier, hashes)
    }

    /// Nothing of the stream is held any more, in no answer that is begun after this.
    pub fn clear(&self, slot: Slot) {
        let mut inner = self.lock();
        if let Some(&owner) = inner.owners.get(&slot.0) {
            inner.model.clear(owner);
        }
    }

    /// Reclaims up to so many blocks of past generations. Says whether there is more to do.
    pub fn reclaim(&self, _blocks: usize) -> bool {
        false
    }

    /// What the index holds.
    pub fn stats(&self) -> Stats {
        let inner = self.lock();
        Stats {
            streams: inner.owners.len(),
            blocks: inner.owners.values().map(|owner| inner.model.blocks(*owner)).sum(),
            waiting: inner.owners.values().map(|owner| inner.model.waiting(*owner)).sum(),
            bytes: 0,
            unreclaimed: 0,
        }
    }

    /// Blocks that a stream holds in any tier.
    pub fn blocks(&self, slot: Slot) -> usize {
        let inner = self.lock();
        inner.owners.get(&slot.0).map_or(0, |owner| inner.model.blocks(*owner))
    }

    /// A reader. Each thread that asks has its own; making one takes a lock, asking does not.
    pub fn reader(self: &Arc<Self>) -> Reader {
        Reader { index: self.clone() }
    }
}

/// Asks an index.
#[derive(Debug)]
pub struct Reader {
    index: Arc<Index>,
}

impl Reader {
    /// How much of a prompt every stream holds. The answer lives in the caller's buffer, which is reused.
    pub fn query<'a>(&'a mut self, contents: &[u64], buffer: &'a mut Buffer) -> Answer<'a> {
        buffer.scores = self.index.lock().model.query(contents);
        Answer { buffer }
    }
}

/// Room for an answer, reused from question to question.
#[derive(Debug, Default)]
pub struct Buffer {
    scores: BTreeMap<u64, Depths>,
}

/// How much of a prompt every stream holds, at one moment.
#[derive(Debug)]
pub struct Answer<'a> {
    buffer: &'a mut Buffer,
}

impl Answer<'_> {
    /// Every stream that holds the first block in any tier, in no particular order.
    pub fn matches(&self) -> Vec<Match> {
        self.buffer.scores.iter().map(|(&owner, &depths)| Match { owner, depths }).collect()
    }
}
