//! An extent whose holders differ too much becomes several, each with few that hold only a part of it.
//!
//! All parts are built aside. The later ones get their edges first; then one store puts the first part in the
//! place of the whole. A reader sees the whole or the parts.

use std::collections::BTreeMap;
use std::ptr::NonNull;

use super::{Block, Trie, UNCHAINED};
use crate::crowd::Crowd;
use crate::extent::{Extent, HOLDERS, Holder, Identity};

/// Lanes that hold only a part of a part; the rest of the entries stays free.
const PARTIAL: usize = HOLDERS / 2;

impl Trie {
    /// Splits an extent. Says its parts and where each begins; the first keeps the number.
    pub(super) fn split(&mut self, id: u32) -> Vec<(u32, u32)> {
        self.splits = self.splits.wrapping_add(1);
        let held: Vec<(u32, Vec<(u32, u32)>)> =
            self.lanes_of(id).into_iter().map(|lane| (lane, self.stretches(lane, id))).collect();
        let cuts = self.choose_cuts(id, &held);
        let len = self.extent(id).len();
        let contents = self.extent(id).contents().to_vec();
        let mut parts = vec![(id, 0)];
        for (at, &start) in cuts.iter().enumerate() {
            let end = cuts.get(at + 1).copied().unwrap_or(len);
            let (before, begins) = parts[at];
            let above = Block { extent: before, offset: start - begins - 1 };
            let part = self.split_off(id, above, start, &contents[start as usize..end as usize], end == len);
            self.assign(part, &held, start, end);
            parts.push((part, start));
        }
        self.hang_children(id, &parts);
        for (part, _) in &parts[1..] {
            let pointer = self.pointer(*part);
            self.insert_edge(pointer);
        }
        self.replace_first(id, &contents[..cuts.first().map_or(len, |cut| *cut) as usize], &held);
        parts
    }

    /// Where to cut: at the crowd's cutoff, and wherever enough lanes stop before the next cut. Nowhere if
    /// all who hold anything hold all: then a new crowd is what is needed.
    fn choose_cuts(&self, id: u32, held: &[(u32, Vec<(u32, u32)>)]) -> Vec<u32> {
        let extent = self.extent(id);
        let len = extent.len();
        let crowd = extent.crowd().map(|crowd| crowd.upto);
        let ends = held.iter().flat_map(|(_, stretches)| stretches).map(|(_, end)| *end);
        let mut ends: Vec<u32> = ends.filter(|end| *end < len && Some(*end) != crowd).collect();
        ends.sort_unstable();
        let every =
            ends.chunks(PARTIAL).filter(|chunk| chunk.len() == PARTIAL).map(|chunk| chunk[PARTIAL - 1]);
        let mut cuts: Vec<u32> = crowd.into_iter().chain(every).filter(|cut| *cut < len).collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts
    }

    /// Makes a later part of an extent: no edge, no holders yet.
    fn split_off(&mut self, whole: u32, above: Block, start: u32, contents: &[u64], last: bool) -> u32 {
        let new = self.new_id();
        let prefix = self.chained(Block { extent: whole, offset: start });
        let extent = self.extent(whole);
        let origin = extent.origin + u64::from(start);
        let identity = Identity { id: new, origin, parent: origin - 1, prefix };
        // Only the last part may grow: behind any other, the spots are taken.
        let limit = if last { extent.notes.limit.get() - start } else { contents.len() as u32 };
        let room = self.arena.take(Extent::bytes(contents.len()));
        Extent::create(room, identity, contents, std::ptr::null_mut());
        // The places go along. They are still the ones of the part before, whichever that is.
        let before = self.cold[above.extent as usize].as_mut();
        let pages = before.map(|cold| self.pages.split(above.extent, &mut cold.pages, above.offset + 1, new));
        self.adopt(new, room, contents.len() as u32, limit, Some(above), pages);
        if last {
            self.extent(new).take_spots(self.extent(whole), start);
        }
        new
    }

    /// Says who holds how much of a part that nobody sees yet.
    fn assign(&mut self, part: u32, held: &[(u32, Vec<(u32, u32)>)], start: u32, end: u32) {
        let mut cutoffs: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (lane, stretches) in held {
            for (from, to) in stretches {
                let (from, to) = (from.max(&start) - start, to.min(&end).saturating_sub(start));
                if from >= to {
                    continue;
                }
                if from == 0 {
                    cutoffs.entry(to).or_default().push(*lane);
                } else {
                    let islands = &mut self.cold_mut(part).islands;
                    islands.get_or_insert_default().add(*lane, from, to);
                    self.extent(part).notes.islands.set(true);
                }
            }
        }
        let entries: usize = cutoffs.values().map(Vec::len).sum();
        let crowd = (entries > PARTIAL).then(|| cutoffs.iter().max_by_key(|(_, lanes)| lanes.len()));
        if let Some(upto) = crowd.flatten().map(|(upto, _)| *upto)
            && let Some(lanes) = cutoffs.remove(&upto)
        {
            let crowd = Crowd::new(upto, self.width());
            for lane in lanes {
                crowd.add(lane);
            }
            let crowd = self.new_crowd(crowd);
            self.extent(part).set_crowd(crowd);
        }
        let holders = cutoffs
            .iter()
            .flat_map(|(&cutoff, lanes)| lanes.iter().map(move |&lane| Holder { lane, cutoff }));
        for (slot, holder) in holders.enumerate() {
            self.extent(part).set_entry(slot, holder);
        }
    }

    /// What hung from the whole hangs from its parts.
    fn hang_children(&mut self, id: u32, parts: &[(u32, u32)]) {
        for (offset, child) in std::mem::take(&mut self.cold_mut(id).children) {
            // The second part hangs from the first already.
            let at = parts.partition_point(|(_, start)| *start <= offset) - 1;
            let (part, start) = parts[at];
            let above = Block { extent: part, offset: offset - start };
            self.cold_mut(child).above = Some(above);
            self.hang(above, child);
        }
    }

    /// The first part takes the place of the whole.
    fn replace_first(&mut self, id: u32, contents: &[u64], held: &[(u32, Vec<(u32, u32)>)]) {
        let extent = self.extent(id);
        let end = contents.len() as u32;
        let whole = end == extent.len();
        let identity = Identity { id, origin: extent.origin, parent: extent.parent, prefix: extent.prefix };
        let crowd = extent.crowd_pointer();
        let old = self.pointer(id);
        let room = self.arena.take(Extent::bytes(contents.len()));
        let new: NonNull<Extent> = Extent::create(room, identity, contents, std::ptr::null_mut());
        // SAFETY: just made.
        let first = unsafe { new.as_ref() };
        first.take_notes(self.extent(id));
        first.notes.hangs.set(self.cold(id).children.last().map_or(0, |(offset, _)| offset + 1));
        first.notes.islands.set(false);
        if !whole {
            first.notes.limit.set(end);
            first.notes.high.set(end);
            first.notes.moved.set(false);
        }
        let cold = self.cold_mut(id);
        cold.chained = UNCHAINED;
        cold.islands = None;
        let old_room = std::mem::replace(&mut cold.room, room);
        self.pointers[id as usize] = new;
        self.assign(id, held, 0, end);
        self.replace_edge(old, new);
        self.discard(super::Garbage::Room(old_room));
        self.discard_crowd(crowd);
    }
}
