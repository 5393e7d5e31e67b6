//! A cut: a picture of a stream at one moment, made in steps while the stream goes on.
//!
//! The moment is when the cut begins. Blocks are visited a few at a time. Whoever is about to change a block that was not visited yet pictures it
//! first. So the picture is of the first moment, whatever happened since, and the writer waits for a step, not for a snapshot.
//!
//! A block is pictured as a piece and an offset. A piece is a copy of the block's extent, made once. That is enough although extents change: a
//! block that is pictured was held from the first moment on, so where it lies, what it contains and what is above it did not change either.

use smallvec::SmallVec;

use super::{Stream, Writer};
use crate::arena::Arena;
use crate::extent::MAX_BLOCKS;
use crate::map::{Cursor, Map, Passed, Visit};
use crate::pages::PAGE;
use crate::snapshot::{Copies, Entry, Picture, Piece, Strokes};
use crate::trie::{Block, Trie};
use crate::{LEVELS, Slot};

/// What a step does before it lets go of the lock, unless told otherwise; a block that is visited counts as 1. Less than 0.1 ms.
const STEP: usize = 2048;
/// What a piece counts as, beside its contents.
const PIECE: usize = 16;
/// So many contents of a piece count as 1.
const CONTENTS: usize = 16;
/// Contents of a list. Lists are made before the lock is taken: memory that is new may cost the kernel milliseconds.
const LIST: usize = 128 << 10;
/// Blocks that may change while a cut is made. A cut that is not finished by then is given up: nobody may be making it any more.
const MOST_CHANGES: usize = 4 << 20;

/// A block changed after it was visited, before the visit of its table was over.
const VISITED: u8 = 1;
/// A block changed before it was visited, or was not there before.
const SAVED: u8 = 2;

/// The stream's side of a picture that is being made.
#[derive(Debug)]
pub(crate) struct Cut {
    id: u64,
    /// The sequence that the picture is of; `None` while the cut waits for one.
    pub(crate) sequence: Option<u64>,
    /// Blocks at the moment that the picture is of.
    pub(crate) entries: usize,
    cursor: Cursor,
    /// Blocks that wait are visited from here on; `None` when all were. They are visited first.
    next_waiting: Option<u64>,
    /// Where the maps below live: they go when the cut goes.
    arena: Arena,
    /// Blocks that changed since, by hash, while their visit lay ahead.
    changed: Map,
    /// Extents that have a piece, by origin.
    pieces: Map,
    count: u32,
    /// The contents of pieces, in the last of so many lists plus one.
    contents: Vec<u64>,
    full_lists: u32,
    work: usize,
    strokes: Strokes,
}

/// The other side: who makes a picture, and what there is of it.
#[derive(Debug)]
pub(crate) struct Gathering {
    slot: Slot,
    /// Which stream: slots are used again.
    serial: u64,
    cut: Option<u64>,
    pub(crate) picture: Picture,
    /// Blocks of the table that is being visited.
    table: Vec<Entry>,
    /// By page of places: the piece that has the whole page, plus one, and the offset of the page's first place.
    pages: Vec<u64>,
    /// The next list of contents, while it is not needed yet.
    spare: Vec<u64>,
    /// The next cut, while there is none.
    fresh: Option<Cut>,
    step: usize,
}

/// What a step came to.
#[derive(Debug)]
pub(crate) enum Progress {
    /// There is no such stream any more.
    Gone,
    /// The stream was cleared: begin again.
    Lost,
    /// The cut begins with the stream's next mark.
    Waits,
    /// The cut has begun. The gathering needs room for so many pages.
    Begun(usize),
    /// There is more to do.
    More,
    /// The picture is complete.
    Finished(Box<Cut>),
}

impl Gathering {
    /// Forgets what was gathered.
    pub(crate) fn restart(&mut self) {
        *self = Self { step: self.step, ..Self::new(self.slot, self.serial) };
    }

    /// A step does so much.
    pub(crate) fn set_step(&mut self, work: usize) {
        self.step = work.max(1);
    }

    fn new(slot: Slot, serial: u64) -> Self {
        let picture = Picture::default();
        let (table, pages, spare) = (Vec::new(), Vec::new(), Vec::new());
        Self { slot, serial, cut: None, picture, table, pages, spare, fresh: None, step: STEP }
    }

    pub(crate) fn make_room(&mut self, pages: usize) {
        self.pages = vec![0; pages];
    }

    /// Does, before the lock is taken, what need not be done under it.
    pub(crate) fn prepare(&mut self) {
        if self.spare.capacity() == 0 {
            // Written to once, so that it is really there.
            self.spare = vec![u64::MAX; LIST];
            self.spare.clear();
        }
        if self.cut.is_none() && self.fresh.is_none() {
            self.fresh = Some(Cut::new());
        }
    }

    /// The piece and the offset of a place, if its page was seen before.
    #[inline]
    fn known(&self, place: u32) -> Option<(u32, u32)> {
        let page = *self.pages.get((place / PAGE) as usize)?;
        let piece = ((page >> 32) as u32).checked_sub(1)?;
        Some((piece, (page as u32).wrapping_add(place % PAGE)))
    }

    /// Remembers where a place's page lies.
    fn learn(&mut self, trie: &Trie, place: u32, piece: u32) {
        if let Some((_, first)) = trie.pages.owner(place)
            && let Some(page) = self.pages.get_mut((place / PAGE) as usize)
        {
            *page = (u64::from(piece) + 1) << 32 | u64::from(first as u32);
        }
    }
}

impl Cut {
    fn new() -> Self {
        let mut arena = Arena::new();
        let (changed, pieces) = (Map::new(&mut arena), Map::new(&mut arena));
        Self {
            id: 0,
            sequence: None,
            entries: 0,
            cursor: Cursor::default(),
            next_waiting: Some(0),
            arena,
            changed,
            pieces,
            count: 0,
            contents: Vec::new(),
            full_lists: 0,
            work: 0,
            strokes: Strokes::default(),
        }
    }

    /// Where a block lies in the picture.
    fn locate(&mut self, trie: &Trie, place: u32) -> Option<(u32, u32)> {
        let block = trie.locate(place)?;
        Some((self.piece(trie, block.extent), block.offset))
    }

    /// The piece of an extent. When it is new, what is above it gets pieces first.
    fn piece(&mut self, trie: &Trie, extent: u32) -> u32 {
        let first = |extent| Block { extent, offset: 0 };
        let mut missing: SmallVec<[u32; 8]> = SmallVec::new();
        let mut next = Some(extent);
        let mut piece = 0;
        while let Some(extent) = next {
            if let Some((known, _)) = self.pieces.get(trie.extent(extent).origin) {
                piece = known;
                break;
            }
            missing.push(extent);
            next = trie.above(first(extent)).map(|above| above.extent);
        }
        while let Some(extent) = missing.pop() {
            let parent = trie.above(first(extent)).map(|above| (piece, above.offset));
            piece = self.count;
            self.count += 1;
            let origin = trie.extent(extent).origin;
            self.pieces.add(origin, piece, 1, &mut self.arena);
            let contents = trie.extent(extent).contents();
            let blocks = contents.len() as u32;
            self.work += PIECE + contents.len() / CONTENTS;
            if self.room() < contents.len() {
                self.begin_list(Vec::with_capacity(LIST));
            }
            let (list, first) = (self.full_lists, self.contents.len() as u32);
            self.contents.extend_from_slice(contents);
            self.strokes.pieces.push(Piece { origin, parent, list, first, blocks });
        }
        piece
    }

    fn room(&self) -> usize {
        self.contents.capacity() - self.contents.len()
    }

    fn begin_list(&mut self, list: Vec<u64>) {
        let full = std::mem::replace(&mut self.contents, list);
        self.strokes.contents.push(full);
        self.full_lists += 1;
    }

    /// Blocks are about to change: those that were not visited yet are pictured.
    fn save(&mut self, trie: &Trie, before: &Before<'_>, hash: u64) {
        let Before { map, copies, waiting } = before;
        let passed = map.passed(&self.cursor, hash);
        if passed == Passed::ForGood || self.changed.get(hash).is_some() {
            return;
        }
        if passed == Passed::ForNow {
            self.changed.add(hash, 0, VISITED, &mut self.arena);
            return;
        }
        self.changed.add(hash, 0, SAVED, &mut self.arena);
        if let Some((place, tiers)) = map.get(hash) {
            let Some((piece, offset)) = self.locate(trie, place) else { return };
            self.strokes.entries.push(Entry { hash, piece, offset: offset as u16, tiers });
            self.count_copies(copies, hash, tiers);
        } else if let Some(block) = waiting.get(hash)
            && self.next_waiting.is_some_and(|next| hash >= next)
        {
            self.strokes.waiting.push((hash, block));
        }
    }

    fn count_copies(&mut self, copies: &super::CopyCounts, hash: u64, tiers: u8) {
        if copies.is_empty() {
            return;
        }
        for tier in (0..LEVELS as u8).filter(|tier| tiers & 1 << tier != 0) {
            if let Some(&count) = copies.get(&(hash, tier)) {
                self.strokes.copies.push(Copies { hash, tier, count });
            }
        }
    }

    /// Visits some blocks. Says whether all were visited.
    fn visit(&mut self, trie: &Trie, before: &Before<'_>, gathering: &mut Gathering) -> bool {
        self.work = 0;
        if let Some(from) = self.next_waiting {
            let mut rest = before.waiting.from(from);
            let some = rest.by_ref().take(gathering.step);
            let unchanged = some.filter(|(hash, _)| self.changed.get(*hash).is_none());
            self.strokes.waiting.extend(unchanged);
            self.next_waiting = rest.next().map(|(hash, _)| hash);
            return false;
        }
        while self.work < gathering.step {
            let mut cursor = self.cursor;
            self.work += 1;
            let visit = before.map.visit(&mut cursor, |block| self.picture(trie, before, gathering, block));
            self.cursor = cursor;
            match visit {
                Visit::Bucket => {}
                Visit::Table => {
                    let blocks = gathering.table.len();
                    let table = std::mem::replace(&mut gathering.table, Vec::with_capacity(blocks));
                    gathering.picture.add(Strokes { entries: table, ..Strokes::default() });
                }
                Visit::Rebuilt => {
                    // What changed after its visit will not be visited again.
                    gathering
                        .table
                        .retain(|entry| self.changed.get(entry.hash).is_some_and(|(_, how)| how == VISITED));
                }
                Visit::End => return true,
            }
        }
        false
    }

    fn picture(
        &mut self,
        trie: &Trie,
        before: &Before<'_>,
        gathering: &mut Gathering,
        block: (u64, u32, u8),
    ) {
        let (hash, place, tiers) = block;
        self.work += 1;
        if self.changed.len() > 0 && self.changed.get(hash).is_some() {
            return;
        }
        let known = gathering.known(place).or_else(|| {
            let found = self.locate(trie, place)?;
            gathering.learn(trie, place, found.0);
            Some(found)
        });
        let Some((piece, offset)) = known else { return };
        gathering.table.push(Entry { hash, piece, offset: offset as u16, tiers });
        self.count_copies(before.copies, hash, tiers);
    }
}

/// What a cut looks at in its stream.
struct Before<'a> {
    map: &'a Map,
    copies: &'a super::CopyCounts,
    waiting: &'a super::Waiting,
}

impl Stream {
    /// The cuts, and what they look at.
    fn with_cuts(&mut self) -> (&mut Vec<Cut>, Before<'_>) {
        let Self { cuts, map, copies, waiting, .. } = self;
        (cuts, Before { map, copies, waiting })
    }

    /// Begins the cuts that wait for this moment. Says whether there were any.
    fn begin_cuts(&mut self) -> bool {
        let mut any = false;
        for cut in self.cuts.iter_mut().filter(|cut| cut.sequence.is_none()) {
            (cut.sequence, cut.entries, any) = (Some(self.sequence.unwrap_or(0)), self.map.len(), true);
        }
        any
    }

    /// Whether the state is that of the sequence. A stream that never was marked has no better one.
    fn is_settled(&self) -> bool {
        !self.loading && (self.sequence.is_none() || self.settled)
    }
}

impl Writer {
    /// What was applied to a stream so far is everything up to a sequence. Says whether somebody waited for that.
    pub(crate) fn mark(&mut self, slot: Slot, sequence: u64) -> bool {
        let Some(stream) = self.stream_mut(slot) else { return false };
        (stream.sequence, stream.settled) = (Some(sequence), true);
        !stream.loading && stream.begin_cuts()
    }

    /// Blocks of a stream are about to change.
    pub(super) fn before_change(&mut self, slot: u32, hashes: impl Iterator<Item = u64>) {
        let Some(stream) = self.streams.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        (stream.settled, stream.loading) = (false, false);
        if stream.cuts.is_empty() {
            return;
        }
        let (cuts, before) = stream.with_cuts();
        for hash in hashes {
            for cut in cuts.iter_mut().filter(|cut| cut.sequence.is_some()) {
                cut.save(&self.trie, &before, hash);
            }
        }
        cuts.retain(|cut| cut.changed.len() <= MOST_CHANGES);
    }

    /// Blocks of a stream that wait for a block are about to follow it.
    pub(super) fn before_attaching(&mut self, slot: u32, parent: u64) {
        let Some(stream) = self.streams[slot as usize].as_ref() else { return };
        if !stream.cuts.is_empty() {
            let children = stream.waiting.children(parent);
            self.before_change(slot, children.into_iter());
        }
    }

    /// Who makes a picture of a stream; `None` if there is no such stream.
    pub(crate) fn gathering(&self, slot: Slot) -> Option<Gathering> {
        let stream = self.streams.get(slot.0 as usize)?.as_ref()?;
        Some(Gathering::new(slot, stream.serial))
    }

    /// Goes on with a picture, by a bounded amount of work.
    pub(crate) fn gather(&mut self, gathering: &mut Gathering) -> Progress {
        let id = self.next_serial();
        let pages = self.trie.pages.len();
        let Some(stream) = self.streams.get_mut(gathering.slot.0 as usize).and_then(Option::as_mut) else {
            return Progress::Gone;
        };
        if stream.serial != gathering.serial {
            return Progress::Gone;
        }
        let Some(wanted) = gathering.cut else {
            gathering.cut = Some(id);
            stream.cuts.extend(gathering.fresh.take().map(|cut| Cut { id, ..cut }));
            return Progress::More;
        };
        let settled = stream.is_settled();
        let Some(at) = stream.cuts.iter().position(|cut| cut.id == wanted) else { return Progress::Lost };
        if stream.cuts[at].sequence.is_none() && !settled {
            return Progress::Waits;
        }
        if settled {
            stream.begin_cuts();
        }
        if gathering.pages.is_empty() && pages > 0 {
            return Progress::Begun(pages);
        }
        let (cuts, before) = stream.with_cuts();
        let cut = &mut cuts[at];
        if cut.room() < STEP * CONTENTS + MAX_BLOCKS {
            cut.begin_list(std::mem::take(&mut gathering.spare));
        }
        let finished = cut.visit(&self.trie, &before, gathering);
        if finished {
            cut.begin_list(Vec::new());
        }
        gathering.picture.add(std::mem::take(&mut cut.strokes));
        if !finished {
            return Progress::More;
        }
        gathering.cut = None;
        Progress::Finished(Box::new(cuts.swap_remove(at)))
    }

    /// Nobody makes this picture any more.
    pub(crate) fn give_up(&mut self, gathering: &Gathering) {
        if let Some(stream) = self.stream_mut(gathering.slot)
            && stream.serial == gathering.serial
        {
            stream.cuts.retain(|cut| Some(cut.id) != gathering.cut);
        }
    }

    pub(super) fn stream_mut(&mut self, slot: Slot) -> Option<&mut Stream> {
        self.streams.get_mut(slot.0 as usize).and_then(Option::as_mut)
    }
}
