//! What is compared: kvplane's index and its peers, behind one interface.
//!
//! Whatever a subject needs in a form of its own (events, prompts) is made before the clock starts. What is
//! timed are the subject's own calls.

mod chain_index;
mod crtc;
mod dynamo;
mod kvplane;
mod radix_tree;
mod staged;

use std::ops::Range;

use crate::workload::{Blocks, EngineHashes, Slice};

use kvplane::{Caches, Kvplane};

/// A column of the table: a subject, and where it can be asked in several ways, one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Column {
    /// kvplane, answering in strata.
    Kvplane,
    /// kvplane, answering with a depth for each engine.
    KvplaneDense,
    /// kvplane, asked by hashes of prefixes.
    KvplaneChained,
    /// kvplane, with engines that name the same blocks by different hashes.
    KvplaneOwnHashes,
    /// kvplane, with every block on the device and on the host.
    KvplaneTiers,
    /// kvplane, with three groups that must all be able to go on.
    KvplaneGroups,
    /// SMG's `ChainIndex` by `score_into`, its fastest call.
    ChainIndex,
    /// `ChainIndex` by `find_matches`, which returns a map.
    ChainIndexMap,
    /// Dynamo's `ConcurrentRadixTreeCompressed` in its thread pool.
    Crtc,
    /// Dynamo's `RadixTree`, on one thread.
    RadixTree,
}

impl Column {
    pub(crate) const ALL: [Self; 10] = [
        Self::Kvplane,
        Self::KvplaneDense,
        Self::KvplaneChained,
        Self::KvplaneOwnHashes,
        Self::KvplaneTiers,
        Self::KvplaneGroups,
        Self::ChainIndex,
        Self::ChainIndexMap,
        Self::Crtc,
        Self::RadixTree,
    ];

    /// The head of the column.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Kvplane => "kvplane",
            Self::KvplaneDense => "… dense answer",
            Self::KvplaneChained => "… chained hashes",
            Self::KvplaneOwnHashes => "… engines' hashes differ",
            Self::KvplaneTiers => "… two tiers",
            Self::KvplaneGroups => "… three groups",
            Self::ChainIndex => "ChainIndex",
            Self::ChainIndexMap => "… by map",
            Self::Crtc => "CRTC",
            Self::RadixTree => "RadixTree",
        }
    }
}

/// A subject that can be chosen on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Name {
    /// kvplane's index, engines agree on hashes.
    Kvplane,
    /// kvplane's index, every engine has hashes of its own.
    KvplaneOwnHashes,
    /// kvplane's index, every block on the device and on the host.
    KvplaneTiers,
    /// kvplane's index, two sliding groups beside the main one.
    KvplaneGroups,
    /// SMG's index, kv-index 2.0.0.
    ChainIndex,
    /// Dynamo's concurrent tree, dynamo-kv-router 1.6.1.
    Crtc,
    /// Dynamo's tree for one thread, dynamo-kv-router 1.6.1.
    RadixTree,
}

impl Name {
    /// An empty subject for so many engines. `None` if it cannot serve as many.
    pub(crate) fn make(self, engines: usize) -> Option<Box<dyn Subject>> {
        Some(match self {
            Self::Kvplane => Box::new(Kvplane::new(engines, EngineHashes::Equal, Caches::Plain)),
            Self::KvplaneOwnHashes => Box::new(Kvplane::new(engines, EngineHashes::Different, Caches::Plain)),
            Self::KvplaneTiers => Box::new(Kvplane::new(engines, EngineHashes::Equal, Caches::TwoTiers)),
            Self::KvplaneGroups => Box::new(Kvplane::new(engines, EngineHashes::Equal, Caches::ThreeGroups)),
            Self::ChainIndex => Box::new(chain_index::Chain::new(engines)?),
            Self::Crtc => Box::new(crtc::Crtc::new()),
            Self::RadixTree => Box::new(radix_tree::Radix::new()),
        })
    }
}

/// An index under test.
pub(crate) trait Subject {
    /// Its columns: ways to ask it. The first also stands for everything else that is measured of it.
    fn columns(&self) -> &'static [Column];

    /// Groups that hold every block, or nearly.
    fn groups(&self) -> usize {
        1
    }

    /// Tiers that announce every block.
    fn tiers(&self) -> usize {
        1
    }

    /// Makes its own form of a slice's events. Not timed.
    fn stage(&mut self, slice: &Slice, blocks: &Blocks);

    /// Applies some of the staged events, each once, in order.
    fn apply(&mut self, events: Range<usize>);

    /// Waits until everything that was applied can be seen by readers.
    fn drain(&mut self) {}

    /// Lets go of the staged events. Not timed.
    fn unstage(&mut self);

    /// Somebody who asks, on this thread.
    fn reader(&self, column: Column) -> Box<dyn Reader>;

    /// Somebody who asks on another thread, while events are applied. `None` if that cannot be.
    fn remote_reader(&self, column: Column) -> Option<Box<dyn Reader + Send>>;

    /// An engine leaves; everything that belongs to that is done when this returns.
    fn remove_engine(&mut self, engine: u32);
}

/// Asks a subject.
pub(crate) trait Reader {
    /// Takes over prompts, as the hashes of their blocks. Not timed.
    fn load(&mut self, prompts: &[Vec<u64>]);

    /// Asks about a prompt that was loaded, each once after [`Self::load`].
    fn lookup(&mut self, prompt: usize);

    /// Asks about a prompt given by its tokens.
    fn lookup_tokens(&mut self, tokens: &[u32]);

    /// Asks about a prompt that was loaded, and says how much of it each engine holds. Not timed.
    fn depths(&mut self, prompt: usize, depths: &mut [u32]);
}
