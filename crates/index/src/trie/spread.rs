//! Runs of blocks, while extents are split under them.

use smallvec::{SmallVec, smallvec};

use super::{Run, Trie};

/// A run that is worked on several times, while each time may split its extent. As long as the work is not
/// finished, its blocks are held by somebody, so that their places stay valid.
#[derive(Debug)]
pub(crate) struct Spread {
    run: Run,
    places: Vec<u32>,
}

impl Spread {
    /// A run that will be worked on this many times.
    pub(crate) fn new(trie: &Trie, run: Run, times: usize) -> Self {
        let places = if times > 1 { trie.places(run).collect() } else { Vec::new() };
        Self { run, places }
    }

    /// The run as it lies now.
    pub(crate) fn now(&self, trie: &Trie) -> SmallVec<[Run; 1]> {
        if self.places.is_empty() || self.run.to <= trie.extent(self.run.extent).len() {
            return smallvec![self.run];
        }
        let mut runs: SmallVec<[Run; 1]> = SmallVec::new();
        for block in self.places.iter().filter_map(|place| trie.locate(*place)) {
            match runs.last_mut() {
                Some(last) if last.extent == block.extent && last.to == block.offset => last.to += 1,
                _ => runs.push(block.into()),
            }
        }
        runs
    }
}
