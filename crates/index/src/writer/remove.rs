//! A removal: blocks lost a copy in a tier.

use super::{AHEAD, Stream, Writer, still_named};
use crate::Slot;
use crate::trie::{Run, Spread, Trie};

/// Blocks of one extent, found one after the other, that the same views of the stream lose.
struct Pending {
    run: Run,
    /// One bit per view.
    views: u8,
}

impl Writer {
    pub(crate) fn remove(&mut self, slot: Slot, tier: usize, hashes: &[u64]) -> usize {
        let Some(stream) = self.streams.get_mut(slot.0 as usize).and_then(Option::as_mut) else {
            return hashes.len();
        };
        self.side_bytes -= stream.bytes();
        let mut unknown = 0;
        let mut pending: Option<Pending> = None;
        if hashes.len() > 1 {
            for hash in hashes.iter().take(AHEAD) {
                stream.map.prefetch(*hash);
            }
        }
        for (at, &hash) in hashes.iter().enumerate() {
            if let Some(ahead) = hashes.get(at + AHEAD) {
                stream.map.prefetch(*ahead);
            }
            if stream.take_copy(hash, tier as u8) {
                continue;
            }
            let Some((place, before)) = stream.map.take(hash, 1 << tier) else {
                unknown += usize::from(!stream.waiting.take_copy(hash, tier));
                continue;
            };
            let after = before & !(1 << tier);
            if after == 0 {
                stream.tails.forget(hash);
                stream.unmark(&self.trie, place);
            }
            let mut views = 0;
            for (at, view) in stream.views.iter().enumerate() {
                let lost = before & view.tiers != 0 && after & view.tiers == 0;
                if lost && !still_named(&mut stream.doubles, view.lane, place) {
                    views |= 1 << at;
                }
            }
            let Some(block) = self.trie.locate(place).filter(|_| views != 0) else { continue };
            // Engines evict from the end of a prompt: most blocks are the neighbour of the one before.
            if let Some(pending) = &mut pending
                && pending.run.extent == block.extent
                && pending.run.from == block.offset + 1
                && pending.views == views
            {
                pending.run.from = block.offset;
                continue;
            }
            let next = Pending { run: block.into(), views };
            if let Some(done) = pending.replace(next) {
                flush(&mut self.trie, stream, &done);
                // What was just done may have split the next one's extent, or moved it.
                if let (Some(pending), Some(block)) = (&mut pending, self.trie.locate(place)) {
                    pending.run = block.into();
                }
            }
        }
        if let Some(done) = pending {
            flush(&mut self.trie, stream, &done);
        }
        self.side_bytes += stream.bytes();
        self.trie.collect();
        unknown
    }
}

/// The views lose the blocks.
fn flush(trie: &mut Trie, stream: &Stream, pending: &Pending) {
    if let [view] = stream.views[..] {
        trie.uncover(view.lane, pending.run);
        return;
    }
    let lanes = stream.views.iter().enumerate().filter(|(at, _)| pending.views & 1 << at != 0);
    let spread = Spread::new(trie, pending.run, pending.views.count_ones() as usize);
    for (_, view) in lanes {
        for run in spread.now(trie) {
            trie.uncover(view.lane, run);
        }
    }
}

impl Stream {
    /// One of several copies goes: the block stays.
    fn take_copy(&mut self, hash: u64, tier: u8) -> bool {
        if self.copies.is_empty() {
            return false;
        }
        let Some(count) = self.copies.get_mut(&(hash, tier)) else { return false };
        *count -= 1;
        if *count == 0 {
            self.copies.remove(&(hash, tier));
        }
        true
    }
}
