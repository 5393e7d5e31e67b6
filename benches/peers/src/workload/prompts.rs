//! Prompts to ask about, holes to make, and the right answers.

use rustc_hash::FxHashSet;

use super::{BlockId, Kind, Slice, Source, World};

impl World {
    /// Up to `count` different prompts of exactly `depth` blocks that some engine holds completely, in random order.
    pub(crate) fn cached_prompts(&mut self, depth: usize, count: usize) -> Vec<Vec<BlockId>> {
        let mut chains: Vec<&[BlockId]> = match &self.source {
            Source::Conversations(conversations) => conversations.chains().collect(),
            Source::Trace(trace) => trace.chains().collect(),
        };
        chains.extend(self.fleet.chains());
        chains.retain(|chain| chain.len() >= depth);
        self.rng.shuffle(&mut chains);
        let mut seen = FxHashSet::default();
        let is_cached =
            |prompt: &[BlockId]| self.fleet.caches.iter().any(|cache| cache.depth(prompt) == depth);
        let prompts = chains.into_iter().map(|chain| &chain[..depth]);
        let prompts = prompts.filter(|prompt| seen.insert(prompt[depth - 1]) && is_cached(prompt));
        prompts.take(count).map(<[BlockId]>::to_vec).collect()
    }

    /// How much of a prompt each engine holds.
    pub(crate) fn depths(&self, prompt: &[BlockId]) -> Vec<u32> {
        self.fleet.caches.iter().map(|cache| cache.depth(prompt) as u32).collect()
    }

    /// Removes the block in the middle of each prompt, wherever it is held and not in use. Returns the
    /// removals, and the stores that bring the blocks back.
    pub(crate) fn make_holes(&mut self, prompts: &[Vec<BlockId>]) -> Holes {
        let mut holes = Holes::default();
        let mut seen = FxHashSet::default();
        let mut middles: Vec<(usize, &Vec<BlockId>)> = prompts
            .iter()
            .map(|prompt| (prompt.len() / 2, prompt))
            .filter(|(middle, prompt)| *middle > 0 && seen.insert(prompt[*middle]))
            .collect();
        // Where two holes are in one prompt, the first is mended first: nobody stores a block before its parent.
        middles.sort_by_key(|(middle, _)| *middle);
        for (middle, prompt) in middles {
            let (parent, block) = (prompt[middle - 1], prompt[middle]);
            for (engine, cache) in self.fleet.caches.iter_mut().enumerate() {
                if cache.contains(block) && !cache.in_use(block) {
                    cache.remove(block);
                    holes.made.push(engine as u32, Kind::Remove, &[block]);
                    holes.mended.push(engine as u32, Kind::Store { parent: Some(parent) }, &[block]);
                }
            }
        }
        holes
    }

    /// Holds the blocks again that [`Self::make_holes`] removed.
    pub(crate) fn mend_holes(&mut self, holes: &Holes) {
        for event in &holes.mended.events {
            let cache = &mut self.fleet.caches[event.engine as usize];
            for &block in holes.mended.blocks(event) {
                cache.insert_pinned(block);
                cache.unpin(block);
            }
        }
    }
}

/// Blocks that go missing in the middle of prompts, and come back.
#[derive(Debug, Default)]
pub(crate) struct Holes {
    pub(crate) made: Slice,
    pub(crate) mended: Slice,
}
