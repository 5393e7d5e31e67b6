//! Loading a snapshot into an empty stream, in steps.
//!
//! Blocks that the stream does not hold, but that others build on, must be in the trie before those. Until then they are held by a lane that is in no answer: the
//! scaffold. It is taken down in the background, as what a stream held before it was cleared.

use smallvec::smallvec;

use super::{Past, WaitingBlock, Writer};
use crate::map::Map;
use crate::snapshot::{LoadError, Parsed, PieceBytes};
use crate::trie::Block as Node;
use crate::{Block, LEVELS, Refused, Slot};

/// Blocks that are loaded before the lock is let go, or the end of a piece later.
const STEP: usize = 1024;

/// A block that later pieces hang from.
#[derive(Debug, Clone, Copy)]
struct Anchor {
    piece: u32,
    offset: u32,
    place: u32,
}

/// A lane that holds what the stream does not, and the places that it holds.
#[derive(Debug)]
struct Scaffold {
    lane: u32,
    places: Map,
}

/// A snapshot that is being loaded.
#[derive(Debug)]
pub(crate) struct Loading<'a> {
    snapshot: &'a Parsed<'a>,
    slot: Slot,
    /// The next of the snapshot's pieces, names, copies and waiting blocks, counted through.
    next: usize,
    /// Ascending. Those of pieces that were loaded have places.
    anchors: Vec<Anchor>,
    scaffold: Option<Scaffold>,
    contents: Vec<u64>,
    hashes: Vec<u64>,
    blocks: Vec<Block>,
}

impl<'a> Loading<'a> {
    pub(crate) fn new(snapshot: &'a Parsed<'a>, slot: Slot) -> Self {
        let mut parents: Vec<(u32, u32)> = snapshot.pieces.iter().filter_map(|piece| piece.parent).collect();
        parents.sort_unstable();
        parents.dedup();
        let anchors = parents.into_iter().map(|(piece, offset)| Anchor { piece, offset, place: 0 }).collect();
        Self {
            snapshot,
            slot,
            next: 0,
            anchors,
            scaffold: None,
            contents: Vec::new(),
            hashes: Vec::new(),
            blocks: Vec::new(),
        }
    }

    fn anchor(&self, piece: u32, offset: u32) -> Option<u32> {
        let at = self.anchors.binary_search_by_key(&(piece, offset), |anchor| (anchor.piece, anchor.offset));
        at.ok().map(|at| self.anchors[at].place)
    }

    fn anchors_of(&mut self, piece: u32) -> &mut [Anchor] {
        let from = self.anchors.partition_point(|anchor| anchor.piece < piece);
        let to = self.anchors.partition_point(|anchor| anchor.piece <= piece);
        &mut self.anchors[from..to]
    }
}

impl Writer {
    /// Makes a stream ready for a snapshot.
    pub(crate) fn begin_load(&mut self, loading: &Loading<'_>) -> Result<(), LoadError> {
        let slot = loading.slot;
        let max_waiting = self.max_waiting;
        let stream = self.stream_mut(slot).ok_or(LoadError::NoStream)?;
        if stream.map.len() > 0 || !stream.waiting.is_empty() || stream.loading {
            return Err(LoadError::NotEmpty);
        }
        if loading.snapshot.waiting.len() > max_waiting {
            return Err(Refused::Waiting.into());
        }
        stream.loading = true;
        // Snapshots of it that are being taken begin again when it is loaded.
        stream.cuts.clear();
        // While the stream is empty, a lane costs nothing.
        for tier in (0..LEVELS).filter(|tier| loading.snapshot.tiers & 1 << tier != 0) {
            self.see_tier(slot.0, tier);
        }
        Ok(())
    }

    /// Loads some more. Says whether that was all. After an error the stream is empty, unless somebody else changed it.
    pub(crate) fn load_more(&mut self, loading: &mut Loading<'_>) -> Result<bool, LoadError> {
        let slot = loading.slot;
        if self.stream_mut(slot).is_none_or(|stream| !stream.loading) {
            self.take_down(loading);
            return Err(LoadError::Disturbed);
        }
        let bytes = self.stream_bytes(slot.0);
        let outcome = self.load_items(loading);
        self.side_bytes = self.side_bytes + self.stream_bytes(slot.0) - bytes;
        self.trie.collect();
        match outcome {
            Ok(false) => return Ok(false),
            Ok(true) => {
                if let Some(stream) = self.stream_mut(slot) {
                    stream.loading = false;
                }
                self.mark(slot, loading.snapshot.sequence);
            }
            Err(_) => self.clear(slot),
        }
        self.take_down(loading);
        outcome
    }

    fn load_items(&mut self, loading: &mut Loading<'_>) -> Result<bool, LoadError> {
        let slot = loading.slot.0;
        let snapshot = loading.snapshot;
        let mut work = 0;
        while work < STEP {
            if self.bytes() >= self.max_bytes {
                return Err(Refused::Budget.into());
            }
            let mut at = loading.next;
            loading.next += 1;
            work += 1;
            if let Some(piece) = snapshot.pieces.get(at) {
                work += piece.blocks as usize;
                self.load_piece(loading, at as u32, piece).ok_or(LoadError::Contradiction)?;
                continue;
            }
            at -= snapshot.pieces.len();
            if let Some(&(known, hash, tiers)) = snapshot.names.get(at) {
                self.load_name(slot, known, hash, tiers).ok_or(LoadError::Contradiction)?;
                continue;
            }
            at -= snapshot.names.len();
            if let Some(copies) = snapshot.copies.get(at) {
                let stream = self.stream_mut(loading.slot).ok_or(LoadError::NoStream)?;
                let held =
                    stream.map.get(copies.hash).is_some_and(|(_, tiers)| tiers & 1 << copies.tier != 0);
                if !held || stream.copies.insert((copies.hash, copies.tier), copies.count).is_some() {
                    return Err(LoadError::Contradiction);
                }
                continue;
            }
            at -= snapshot.copies.len();
            let Some(&(hash, block)) = snapshot.waiting.get(at) else { return self.check_load(loading) };
            self.load_waiting(loading.slot, hash, block).ok_or(LoadError::Contradiction)?;
        }
        Ok(false)
    }

    /// Everything is loaded: is it what the snapshot says?
    fn check_load(&mut self, loading: &Loading<'_>) -> Result<bool, LoadError> {
        let stream = self.stream_mut(loading.slot).ok_or(LoadError::NoStream)?;
        let as_told = stream.map.len() as u64 == loading.snapshot.entries
            && stream.copies.len() == loading.snapshot.copies.len()
            && stream.waiting.len() == loading.snapshot.waiting.len();
        if as_told { Ok(true) } else { Err(LoadError::Contradiction) }
    }

    /// `None` if the piece contradicts what was loaded before.
    fn load_piece(&mut self, loading: &mut Loading<'_>, number: u32, piece: &PieceBytes<'_>) -> Option<()> {
        let slot = loading.slot.0;
        let mut above = None;
        if let Some((parent, offset)) = piece.parent {
            above = Some(self.trie.locate(loading.anchor(parent, offset)?)?);
        }
        let (mut contents, mut hashes) =
            (std::mem::take(&mut loading.contents), std::mem::take(&mut loading.hashes));
        contents.clear();
        contents.extend(piece.contents());
        hashes.clear();
        hashes.extend(piece.hashes());
        let (mut from, mut held) = (0, 0);
        for (count, tiers) in piece.runs() {
            let to = from + count as usize;
            let range = from as u32..to as u32;
            if tiers == 0 {
                above =
                    Some(self.build_scaffold(loading, above, &contents[from..to], number, range.start)?);
            } else {
                let run = &hashes[held..held + count as usize];
                let blocks = run.iter().zip(&contents[from..to]);
                loading.blocks.clear();
                loading.blocks.extend(blocks.map(|(&hash, &content)| Block { hash, content }));
                self.place(slot, tiers, self.trie.with_place(above), &loading.blocks);
                above = Some(self.find(slot, *run.last()?)?);
                let stream = self.streams[slot as usize].as_ref()?;
                for anchor in
                    loading.anchors_of(number).iter_mut().filter(|anchor| range.contains(&anchor.offset))
                {
                    anchor.place = stream.map.get(run[(anchor.offset - range.start) as usize])?.0;
                }
                held += run.len();
            }
            from = to;
        }
        (loading.contents, loading.hashes) = (contents, hashes);
        Some(())
    }

    /// Blocks that the stream does not hold lie below a block. Says where the last one lies.
    fn build_scaffold(
        &mut self,
        loading: &mut Loading<'_>,
        above: Option<Node>,
        contents: &[u64],
        piece: u32,
        first: u32,
    ) -> Option<Node> {
        let mut scaffold = loading
            .scaffold
            .take()
            .unwrap_or_else(|| Scaffold { lane: self.new_lane(), places: Map::new(&mut self.trie.arena) });
        let mut places = Vec::with_capacity(contents.len());
        let mut above = above;
        while places.len() < contents.len() {
            let rest = &contents[places.len()..];
            let run =
                self.trie.follow(above, rest).unwrap_or_else(|| self.trie.grow(above, rest, scaffold.lane));
            places.extend(self.trie.places(run));
            self.trie.cover(scaffold.lane, run);
            above = places.last().and_then(|place| self.trie.locate(*place));
        }
        for place in &places {
            scaffold.places.add(u64::from(*place), *place, 1, &mut self.trie.arena);
        }
        loading.scaffold = Some(scaffold);
        let here = first..first + places.len() as u32;
        for anchor in loading.anchors_of(piece).iter_mut().filter(|anchor| here.contains(&anchor.offset)) {
            anchor.place = places[(anchor.offset - first) as usize];
        }
        above
    }

    /// What only held the structure goes, in the background.
    fn take_down(&mut self, loading: &mut Loading<'_>) {
        if let Some(Scaffold { lane, places }) = loading.scaffold.take() {
            self.side_bytes += places.bytes();
            // Its lane was never in an answer: nobody follows it.
            self.past.push_back(Past {
                map: places,
                lanes: smallvec![lane],
                marker: None,
                table: 0,
                left: 0,
            });
        }
    }

    /// `None` if no block has the known hash.
    fn load_name(&mut self, slot: u32, known: u64, hash: u64, tiers: u8) -> Option<()> {
        let block = self.find(slot, known)?;
        let above = self.trie.above(block);
        let content = self.trie.content(block);
        self.place(slot, tiers, self.trie.with_place(above), &[Block { hash, content }]);
        Some(())
    }

    /// `None` if the block is held.
    fn load_waiting(&mut self, slot: Slot, hash: u64, block: WaitingBlock) -> Option<()> {
        let stream = self.stream_mut(slot)?;
        if stream.map.get(hash).is_some() {
            return None;
        }
        stream.waiting.insert(hash, block);
        Some(())
    }
}
