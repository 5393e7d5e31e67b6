//! The trie, as the writer changes it: extents, their edges, and who holds how much of each.
//!
//! One writer at a time. What readers may see at any moment is written down in `extent`.

mod holders;
mod islands;
mod limbo;
mod split;
mod spread;

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use kvplane_core::chain_hash;

use crate::arena::{Arena, Room};
use crate::extent::{Extent, Identity, MAX_BLOCKS, ROOT, SPOTS};
use crate::matching::common;
use crate::pages::{Directory, PAGE, Pages, pages_for};
use crate::shared::Shared;

use islands::Islands;
use limbo::Garbage;
pub(crate) use spread::Spread;

/// A block of the trie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) extent: u32,
    pub(crate) offset: u32,
}

/// Consecutive blocks of one extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) extent: u32,
    pub(crate) from: u32,
    pub(crate) to: u32,
}

impl From<Block> for Run {
    fn from(Block { extent, offset }: Block) -> Self {
        Self { extent, from: offset, to: offset + 1 }
    }
}

/// What only the writer knows of an extent.
#[derive(Debug)]
struct Cold {
    room: Room,
    /// The block before its first.
    above: Option<Block>,
    pages: Pages,
    /// Extents that hang below its blocks: (offset, extent).
    children: BTreeSet<(u32, u32)>,
    /// A block whose chained hash was needed before, and that hash. Holds as long as spots mean what they
    /// meant.
    chained: (u32, u64),
    /// What lanes hold behind a hole.
    islands: Option<Box<Islands>>,
}

/// The writer's side of the trie.
#[derive(Debug)]
pub(crate) struct Trie {
    pub(crate) shared: Arc<Shared>,
    /// Where extents and the streams' tables live.
    pub(crate) arena: Arena,
    /// Where each extent is, apart from the rest: it is needed most.
    pointers: Vec<NonNull<Extent>>,
    cold: Vec<Option<Cold>>,
    free_ids: Vec<u32>,
    pub(crate) pages: Directory,
    next_origin: u64,
    /// What waits until no reader can see it, oldest first, with its epoch.
    limbo: VecDeque<(u64, Garbage)>,
    /// What has a lower tag is known to be out of sight.
    horizon: u64,
    crowd_bytes: usize,
    /// How often an extent was split: blocks have another extent and offset since.
    pub(crate) splits: u32,
    /// Lanes that nobody uses and no reader can have in an answer.
    pub(crate) free_lanes: Vec<u32>,
}

// SAFETY: the trie owns its extents and crowds; its pointers are tied to no thread, and one thread at a time
// has it.
unsafe impl Send for Trie {}

/// No chained hash is known: behind every block.
const UNCHAINED: (u32, u64) = (u32::MAX, 0);

impl Trie {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            arena: Arena::new(),
            // Number 0 is nobody's.
            pointers: vec![NonNull::dangling()],
            cold: vec![None],
            free_ids: Vec::new(),
            pages: Directory::default(),
            next_origin: SPOTS,
            limbo: VecDeque::new(),
            horizon: 0,
            crowd_bytes: 0,
            splits: 0,
            free_lanes: Vec::new(),
        }
    }

    fn cold(&self, id: u32) -> &Cold {
        let Some(cold) = &self.cold[id as usize] else { unreachable!("extent {id} was freed") };
        cold
    }

    fn cold_mut(&mut self, id: u32) -> &mut Cold {
        let Some(cold) = &mut self.cold[id as usize] else { unreachable!("extent {id} was freed") };
        cold
    }

    fn pointer(&self, id: u32) -> NonNull<Extent> {
        self.pointers[id as usize]
    }

    pub(crate) fn extent(&self, id: u32) -> &Extent {
        // SAFETY: the room of an extent that is in use holds its header, and the writer frees it last.
        unsafe { self.pointer(id).as_ref() }
    }

    /// The block with a place; `None` if it is gone.
    #[inline]
    pub(crate) fn locate(&self, place: u32) -> Option<Block> {
        self.pages.locate(place).map(|(extent, offset)| Block { extent, offset })
    }

    /// The place of a block.
    #[inline]
    pub(crate) fn place(&self, block: Block) -> u32 {
        self.cold(block.extent).pages.place(block.offset)
    }

    /// A block and its place.
    pub(crate) fn with_place(&self, block: Option<Block>) -> Option<(Block, u32)> {
        block.map(|block| (block, self.place(block)))
    }

    /// The places of the blocks of a run that follows a block with a known place. Within a page, places
    /// follow each other.
    #[inline]
    pub(crate) fn places_after(&self, above: Option<(Block, u32)>, run: Run, places: &mut Vec<u32>) {
        places.clear();
        let skipped = self.extent(run.extent).notes.skipped.get();
        let (mut offset, mut place) = match above {
            Some((block, place)) if block.extent == run.extent => (block.offset, place),
            _ => (run.from, self.place(Block { extent: run.extent, offset: run.from })),
        };
        while offset < run.to {
            // The last block of this page, or of the run.
            let end = run.to.min((((offset + skipped) / PAGE + 1) * PAGE) - skipped);
            let from = offset.max(run.from);
            places.extend((from..end).map(|at| place + (at - offset)));
            offset = end;
            if offset < run.to {
                place = self.place(Block { extent: run.extent, offset });
            }
        }
    }

    /// The places of a run of blocks.
    pub(crate) fn places(&self, run: Run) -> impl Iterator<Item = u32> + '_ {
        let pages = &self.cold(run.extent).pages;
        (run.from..run.to).map(|offset| pages.place(offset))
    }

    /// The block before a block.
    pub(crate) fn above(&self, block: Block) -> Option<Block> {
        match block.offset.checked_sub(1) {
            Some(offset) => Some(Block { extent: block.extent, offset }),
            None => self.cold(block.extent).above,
        }
    }

    pub(crate) fn content(&self, block: Block) -> u64 {
        self.extent(block.extent).leftover(block.offset)
    }

    /// The spots of an extent's blocks.
    pub(crate) fn spots(&self, id: u32) -> Range<u64> {
        let extent = self.extent(id);
        extent.origin..extent.origin + u64::from(extent.len())
    }

    /// The spot of a block, or of what is before every first one.
    pub(crate) fn spot(&self, at: Option<Block>) -> u64 {
        at.map_or(ROOT, |block| self.extent(block.extent).origin + u64::from(block.offset))
    }

    /// The blocks with these contents that follow a block, as far as they lie in one extent. At least one
    /// content is given.
    pub(crate) fn follow(&self, at: Option<Block>, contents: &[u64]) -> Option<Run> {
        if let Some(Block { extent, offset }) = at {
            let from = offset + 1;
            let rest = &self.extent(extent).contents()[from as usize..];
            let count = common(rest, contents) as u32;
            if count > 0 {
                return Some(Run { extent, from, to: from + count });
            }
            // Most prompts grow at their end, where nothing hangs: no need to look.
            if self.extent(extent).notes.hangs.get() <= offset {
                return None;
            }
        }
        // SAFETY: this is the writer.
        let child = unsafe { self.shared.edges().find(self.spot(at), contents[0]) }?;
        Some(Run { extent: child.id, from: 0, to: common(child.contents(), contents) as u32 })
    }

    /// Adds blocks that are not there yet below a block, as many as fit one extent. `lane` is who will hold
    /// them.
    pub(crate) fn grow(&mut self, at: Option<Block>, contents: &[u64], lane: u32) -> Run {
        if let Some(Block { extent, offset }) = at {
            let len = self.extent(extent).len();
            if offset + 1 == len && self.has_entry_for(extent, lane) {
                let count = self.append(extent, contents);
                if count > 0 {
                    return Run { extent, from: len, to: len + count };
                }
            }
        }
        let count = contents.len().min(MAX_BLOCKS);
        let extent = self.add_child(at, &contents[..count]);
        Run { extent, from: 0, to: count as u32 }
    }

    /// A new extent below a block.
    fn add_child(&mut self, at: Option<Block>, contents: &[u64]) -> u32 {
        let origin = self.next_origin;
        self.next_origin += SPOTS;
        let prefix = chain_hash(at.map(|above| self.chained(above)), contents[0]);
        let identity = Identity { id: self.new_id(), origin, parent: self.spot(at), prefix };
        let room = self.arena.take(Extent::bytes(contents.len()));
        let extent = Extent::create(room, identity, contents, std::ptr::null_mut());
        self.adopt(identity.id, room, contents.len() as u32, MAX_BLOCKS as u32, at, None);
        self.insert_edge(extent);
        identity.id
    }

    fn new_id(&mut self) -> u32 {
        self.free_ids.pop().unwrap_or_else(|| {
            self.cold.push(None);
            self.pointers.push(NonNull::dangling());
            self.cold.len() as u32 - 1
        })
    }

    /// Begins to know an extent.
    fn adopt(
        &mut self,
        id: u32,
        room: Room,
        len: u32,
        limit: u32,
        above: Option<Block>,
        pages: Option<Pages>,
    ) {
        let mut pages = pages.unwrap_or_default();
        self.pages.extend(id, &mut pages, len);
        let skipped = pages.skipped();
        let cold = Cold { room, above, pages, children: BTreeSet::new(), chained: UNCHAINED, islands: None };
        self.pointers[id as usize] = room.start.cast();
        self.cold[id as usize] = Some(cold);
        let notes = &self.extent(id).notes;
        notes.limit.set(limit);
        notes.skipped.set(skipped);
        if let Some(above) = above {
            self.hang(above, id);
        }
    }

    /// An extent hangs from a block.
    fn hang(&mut self, above: Block, id: u32) {
        self.cold_mut(above.extent).children.insert((above.offset, id));
        let notes = &self.extent(above.extent).notes;
        notes.hangs.set(notes.hangs.get().max(above.offset + 1));
    }

    /// The chained hash of the prefix that ends with a block.
    fn chained(&mut self, block: Block) -> u64 {
        let (mut from, mut prefix) = self.cold(block.extent).chained;
        let extent = self.extent(block.extent);
        if from > block.offset {
            (from, prefix) = (0, extent.prefix);
        }
        for content in &extent.contents()[from as usize + 1..=block.offset as usize] {
            prefix = chain_hash(Some(prefix), *content);
        }
        self.cold_mut(block.extent).chained = (block.offset, prefix);
        prefix
    }

    fn insert_edge(&mut self, extent: NonNull<Extent>) {
        if self.shared.edges().is_full() {
            let old = self.shared.replace_edges(self.shared.edges().grown());
            self.discard(Garbage::Table(old));
            let old = self.shared.replace_prefixes(self.shared.prefixes().grown());
            self.discard(Garbage::Table(old));
        }
        self.shared.edges().insert(extent);
        self.shared.prefixes().insert(extent);
    }

    /// An extent takes another's place.
    fn replace_edge(&self, old: NonNull<Extent>, new: NonNull<Extent>) {
        self.shared.edges().replace(old, new);
        self.shared.prefixes().replace(old, new);
    }

    /// Adds contents to the end of an extent, as many as may be; says how many.
    fn append(&mut self, id: u32, contents: &[u64]) -> u32 {
        let extent = self.extent(id);
        let (len, high) = (extent.len(), extent.notes.high.get());
        let mut count = (contents.len() as u32).min(extent.notes.limit.get() - len);
        let mut same = 0;
        if len < high {
            // Readers have seen these spots. They may mean the same blocks again; others only when nobody
            // looks any more. That holds in a new room too: a reader in the old one goes on by spots.
            let seen = (high - len).min(count);
            let known = if extent.notes.moved.get() { 0 } else { seen };
            same = (0..known).take_while(|at| extent.leftover(len + at) == contents[*at as usize]).count()
                as u32;
            if same < seen {
                let cut = extent.cut.get();
                if self.is_out_of_sight(cut) {
                    let notes = &self.extent(id).notes;
                    notes.high.set(len + same);
                    notes.moved.set(false);
                    self.cold_mut(id).chained = UNCHAINED;
                } else {
                    count = same;
                }
            }
        }
        if count == 0 {
            return 0;
        }
        if len + count > u32::from(self.extent(id).capacity) {
            self.resize(id, len + count + (len + count) / 6);
            same = 0;
        }
        let extent = self.extent(id);
        // SAFETY: slots from `high` on were never seen, or are out of sight; those below are not written
        // again.
        unsafe { extent.write(len + same, &contents[same as usize..count as usize]) };
        extent.set_len(len + count);
        let notes = &extent.notes;
        if len + count >= notes.high.get() {
            notes.high.set(len + count);
            notes.moved.set(false);
        }
        if pages_for(len, notes.skipped.get()) < pages_for(len + count, notes.skipped.get())
            && let Some(cold) = &mut self.cold[id as usize]
        {
            self.pages.extend(id, &mut cold.pages, len + count);
        }
        count
    }

    /// Moves an extent to a room for this many blocks, at most its limit.
    fn resize(&mut self, id: u32, blocks: u32) {
        let old = self.pointer(id);
        let limit = self.extent(id).notes.limit.get();
        let room = self.arena.take(Extent::bytes(blocks.min(limit) as usize));
        let extent = self.extent(id);
        let identity = Identity { id, origin: extent.origin, parent: extent.parent, prefix: extent.prefix };
        let new = Extent::create(room, identity, extent.contents(), extent.crowd_pointer());
        // SAFETY: just made.
        let moved = unsafe { new.as_ref() };
        for (slot, holder) in extent.holders().enumerate() {
            moved.set_entry(slot, holder);
        }
        moved.take_notes(extent);
        self.replace_edge(old, new);
        self.pointers[id as usize] = new;
        let cold = self.cold_mut(id);
        let old = std::mem::replace(&mut cold.room, room);
        self.discard(Garbage::Room(old));
    }

    /// After a lane lost blocks: cuts off what nobody holds and nothing hangs from, and frees what is left
    /// without blocks.
    pub(crate) fn settle(&mut self, id: u32) {
        let mut next = Some(id);
        while let Some(id) = next.take() {
            let extent = self.extent(id);
            let len = extent.len();
            let mut needed = self.held(id);
            if needed < len {
                needed = needed.max(extent.notes.hangs.get());
            }
            if needed == 0 {
                next = self.free(id);
            } else if needed < len {
                self.truncate(id, needed);
            }
        }
    }

    fn truncate(&mut self, id: u32, len: u32) {
        let extent = self.extent(id);
        let before = extent.len();
        extent.set_len(len);
        extent.cut.set(self.shared.epochs.tag());
        let skipped = extent.notes.skipped.get();
        // A room that is mostly empty is given back for a smaller one.
        let roomy = Extent::bytes(len as usize) * 2 < Extent::bytes(extent.capacity as usize);
        if pages_for(len, skipped) < pages_for(before, skipped)
            && let Some(cold) = &mut self.cold[id as usize]
        {
            self.pages.shrink(id, &mut cold.pages, len);
        }
        if roomy {
            self.resize(id, len + len / 8);
        }
    }

    /// Frees an extent without blocks. Says which one it hung from.
    fn free(&mut self, id: u32) -> Option<u32> {
        let pointer = self.pointer(id);
        self.shared.edges().remove(pointer);
        self.shared.prefixes().remove(pointer);
        let crowd = self.extent(id).crowd_pointer();
        self.discard_crowd(crowd);
        let mut cold = self.cold[id as usize].take()?;
        self.pages.shrink(id, &mut cold.pages, 0);
        self.free_ids.push(id);
        self.discard(Garbage::Room(cold.room));
        let above = cold.above?;
        let children = &mut self.cold_mut(above.extent).children;
        children.remove(&(above.offset, id));
        let hangs = children.last().map_or(0, |(offset, _)| offset + 1);
        self.extent(above.extent).notes.hangs.set(hangs);
        Some(above.extent)
    }

    /// Blocks of all extents.
    pub(crate) fn blocks(&self) -> usize {
        let used = (1..self.cold.len()).filter(|&id| self.cold[id].is_some());
        used.map(|id| self.extent(id as u32).len() as usize).sum()
    }

    /// Bytes in use, the arena's included.
    pub(crate) fn bytes(&self) -> usize {
        self.arena.bytes()
            + self.shared.edges().bytes()
            + self.shared.prefixes().bytes()
            + self.shared.lanes().bytes()
            + self.pages.bytes()
            + self.cold.capacity() * (size_of::<Option<Cold>>() + size_of::<NonNull<Extent>>())
            + self.crowd_bytes
    }
}
