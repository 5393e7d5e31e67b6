//! Streams, and what their announcements do to the trie.

mod lanes;
mod remove;
mod sides;
mod store;
mod tails;
mod waiting;

use std::collections::VecDeque;
use std::sync::Arc;

use kvplane_core::Tier;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::arena::Arena;
use crate::map::Map;
use crate::shared::Shared;
use crate::trie::Trie;
use crate::{LEVELS, Operation, Options, Refused, Slot, Stats};

use tails::Tails;
use waiting::Waiting;

/// Copies beyond the first, by hash and tier.
type CopyCounts = FxHashMap<(u64, u8), u32>;

/// A lane of a stream: the blocks that it holds in any of some tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct View {
    lane: u32,
    /// The tiers, one bit each: a tier and all warmer ones.
    tiers: u8,
    /// The levels that it stands for: up to the next tier that the stream has.
    from: u8,
    to: u8,
}

/// One stream.
#[derive(Debug)]
struct Stream {
    owner: u64,
    map: Map,
    tails: Tails,
    /// One per tier that the stream has blocks in, warmest first. Most streams have one.
    views: SmallVec<[View; 1]>,
    /// Under which number its marks are kept: the first lane that it had.
    marker: Option<u32>,
    /// It had marks at some time.
    sided: bool,
    copies: CopyCounts,
    /// Blocks that several hashes of the stream name, by lane and place: how many beyond the first.
    doubles: FxHashMap<(u32, u32), u32>,
    waiting: Waiting,
}

impl Stream {
    fn new(owner: u64, arena: &mut Arena) -> Self {
        Self {
            owner,
            map: Map::new(arena),
            tails: Tails::default(),
            views: SmallVec::new(),
            marker: None,
            sided: false,
            copies: FxHashMap::default(),
            doubles: FxHashMap::default(),
            waiting: Waiting::default(),
        }
    }

    fn bytes(&self) -> usize {
        const PER_ENTRY: usize = 32;
        self.map.bytes() + (self.copies.len() + self.doubles.len()) * PER_ENTRY + self.waiting.bytes()
    }
}

/// What a stream held before it was cleared: in no answer any more, still in the trie.
#[derive(Debug)]
struct Past {
    map: Map,
    lanes: SmallVec<[u32; 1]>,
    /// Under which number it may have marks.
    marker: Option<u32>,
    /// The next table of the map.
    table: usize,
    /// The epoch in which its lanes left the answers. Who sat then may still follow them, and must find all
    /// or nothing.
    left: u64,
}

/// Everything that changes. One thread at a time has it.
#[derive(Debug)]
pub(crate) struct Writer {
    trie: Trie,
    shared: Arc<Shared>,
    streams: Vec<Option<Stream>>,
    free_slots: Vec<u32>,
    past: VecDeque<Past>,
    max_bytes: usize,
    max_waiting: usize,
    /// Bytes of the streams, without their maps' tables: those lie in the trie's arena.
    side_bytes: usize,
    lanes: u32,
    scratch: Scratch,
}

/// Room for one call's work.
#[derive(Debug, Default)]
struct Scratch {
    contents: Vec<u64>,
    /// The places of a run's blocks.
    places: Vec<u32>,
    /// The tiers that each block of a run was in before.
    before: Vec<u8>,
    /// Blocks that moved: their old place and tiers.
    moved: Vec<(u32, u8)>,
}

/// How many blocks ahead of the one at work the map's lines are asked for.
const AHEAD: usize = 12;
/// Blocks of past generations that are reclaimed along with a store.
const ALONG: usize = 64;

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>, options: &Options) -> Self {
        Self {
            trie: Trie::new(shared.clone()),
            shared,
            streams: Vec::new(),
            free_slots: Vec::new(),
            past: VecDeque::new(),
            max_bytes: options.max_bytes,
            max_waiting: options.max_waiting,
            side_bytes: 0,
            lanes: 0,
            scratch: Scratch::default(),
        }
    }

    pub(crate) fn add_stream(&mut self, owner: u64) -> Slot {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.streams.push(None);
            self.streams.len() as u32 - 1
        });
        let stream = Stream::new(owner, &mut self.trie.arena);
        self.side_bytes += stream.bytes();
        self.streams[slot as usize] = Some(stream);
        Slot(slot)
    }

    pub(crate) fn remove_stream(&mut self, slot: Slot) {
        let Some(stream) = self.streams.get_mut(slot.0 as usize).and_then(Option::take) else { return };
        self.free_slots.push(slot.0);
        self.bury(stream);
    }

    pub(crate) fn clear(&mut self, slot: Slot) {
        let Some(stream) = self.streams.get_mut(slot.0 as usize).and_then(Option::as_mut) else { return };
        let fresh = Stream::new(stream.owner, &mut self.trie.arena);
        self.side_bytes += fresh.bytes();
        let old = std::mem::replace(stream, fresh);
        self.bury(old);
    }

    fn stream_mut(&mut self, slot: Slot) -> Option<&mut Stream> {
        self.streams.get_mut(slot.0 as usize).and_then(Option::as_mut)
    }

    pub(crate) fn apply(&mut self, slot: Slot, operation: &Operation<'_>) -> Result<(), Refused> {
        match *operation {
            Operation::Store { tier: Tier::Unknown, .. } | Operation::Remove { tier: Tier::Unknown, .. } => {
                Ok(())
            }
            Operation::Store { tier, parent, blocks } => self.store(slot, tier as usize, parent, blocks),
            Operation::Remove { tier, hashes } => {
                self.remove(slot, tier as usize, hashes);
                Ok(())
            }
            Operation::SetSides([]) => Ok(()),
            Operation::SetSides(marks) => self.set_sides(slot, marks),
        }
    }

    /// What a stream held is in no answer from here on. The trie forgets it later.
    fn bury(&mut self, stream: Stream) {
        for view in &stream.views {
            self.shared.alive().clear(view.lane);
        }
        self.side_bytes -= stream.bytes();
        if stream.views.is_empty() {
            stream.map.free(&mut self.trie.arena);
            return;
        }
        self.side_bytes += stream.map.bytes();
        let lanes = stream.views.iter().map(|view| view.lane).collect();
        let left = self.shared.epochs.tag();
        let marker = stream.marker.filter(|_| stream.sided);
        self.past.push_back(Past { map: stream.map, lanes, marker, table: 0, left });
    }

    /// Forgets up to about this many blocks of past generations. Says whether there are more.
    pub(crate) fn reclaim(&mut self, blocks: usize) -> bool {
        let mut done = 0;
        while done <= blocks {
            let Some(mut past) = self.past.pop_front() else { break };
            if !self.trie.is_out_of_sight(past.left) {
                self.past.push_front(past);
                break;
            }
            if past.table < past.map.tables() {
                for (_, place, _) in past.map.table(past.table) {
                    done += 1;
                    for lane in &past.lanes {
                        let Some(block) = self.trie.locate(place) else { break };
                        // Once per extent: the first of its blocks takes the lane away, and maybe the extent
                        // with it.
                        if self.trie.knows(*lane, block.extent) {
                            if let Some(marker) = past.marker {
                                self.shared.sides.forget(marker, self.trie.spots(block.extent));
                            }
                            self.trie.drop_lane(*lane, block.extent);
                        }
                    }
                }
                past.table += 1;
                self.past.push_front(past);
            } else {
                self.side_bytes -= past.map.bytes();
                past.map.free(&mut self.trie.arena);
                for lane in past.lanes {
                    self.trie.discard_lane(lane);
                }
            }
        }
        self.trie.collect();
        if self.past.is_empty() {
            self.trie.collect_now();
        }
        !self.past.is_empty()
    }

    /// Bytes in use.
    pub(crate) fn bytes(&self) -> usize {
        self.trie.bytes() + self.side_bytes + self.shared.sides.bytes()
    }

    pub(crate) fn stats(&self) -> Stats {
        let streams = self.streams.iter().flatten();
        Stats {
            streams: streams.clone().count(),
            blocks: streams.clone().map(|stream| stream.map.len()).sum(),
            distinct: self.trie.blocks(),
            waiting: streams.map(|stream| stream.waiting.len()).sum(),
            bytes: self.bytes(),
            mark_bytes: self.shared.sides.bytes(),
            unreclaimed: self.past.iter().map(|past| past.map.len()).sum(),
        }
    }

    pub(crate) fn blocks(&self, slot: Slot) -> usize {
        self.streams.get(slot.0 as usize).and_then(Option::as_ref).map_or(0, |stream| stream.map.len())
    }

    /// A stream's block is in fewer tiers than before: the views that have none of them left lose it, unless
    /// another hash names it too.
    fn lose(trie: &mut Trie, stream: &mut Stream, place: u32, before: u8, after: u8) {
        if after == 0 {
            stream.unmark(trie, place);
        }
        for view in &stream.views {
            if before & view.tiers != 0
                && after & view.tiers == 0
                && !still_named(&mut stream.doubles, view.lane, place)
                && let Some(block) = trie.locate(place)
            {
                trie.uncover(view.lane, block.into());
            }
        }
    }
}

/// Whether another hash of the stream names the block: then one fewer does.
fn still_named(doubles: &mut FxHashMap<(u32, u32), u32>, lane: u32, place: u32) -> bool {
    if doubles.is_empty() {
        return false;
    }
    let Some(count) = doubles.get_mut(&(lane, place)) else { return false };
    *count -= 1;
    if *count == 0 {
        doubles.remove(&(lane, place));
    }
    true
}

const _: () = assert!(LEVELS <= 4, "a map's slot has four bits for tiers");
