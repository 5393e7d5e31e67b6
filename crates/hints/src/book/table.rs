//! A prefix's hash to its row, without pauses: a table that grows and shrinks a thousand keys at a time.
//!
//! ```text
//! key ── mixed ──┬─ upper bits ──> directory ──> segment (up to 1,024 slots)
//!                └─ lower bits ─────────────────────┴──> group of four slots, or one behind it
//! ```
//!
//! A group is a line of the processor's cache, and all of it is compared at once.
//!
//! A full segment is split in two by the next upper bit; the directory doubles when no bit is left in it.
//! Keys are chosen by others, so they are mixed with a number that nobody outside knows.

use super::cells::Row;

/// Slots of a segment before it is split: 16 KiB, moved in some ten microseconds.
const SEGMENT_MAX: usize = 1024;
const SEGMENT_MIN: usize = 8;
/// Beyond this many upper bits segments grow instead: it would take keys that were made to collide.
const DEPTH_MAX: u32 = 24;

#[derive(Debug, Clone, Copy)]
struct Slot {
    key: u64,
    /// Nowhere where the slot is free.
    row: Row,
}

const FREE: Slot = Slot { key: 0, row: Row::NOWHERE };

const GROUP: usize = 4;

#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Group([Slot; GROUP]);

/// Slots in a row, and around to the first again. A key is in the first group that its lower bits name,
/// unless that was full; before it no slot is free from there on.
#[derive(Debug)]
struct Segment {
    groups: Box<[Group]>,
    used: usize,
    /// How many upper bits its keys share.
    depth: u32,
}

/// Where a key is looked for first, as long as the table does not change.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spot {
    segment: u32,
    group: u32,
}

/// Rows by key.
#[derive(Debug)]
pub(super) struct Table {
    seed: u64,
    /// By the upper bits: which segment. Its length is a power of two.
    directory: Vec<u32>,
    segments: Vec<Segment>,
    keys: usize,
    slots: usize,
}

impl Table {
    pub(super) fn new(seed: u64) -> Self {
        let mut table = Self { seed, directory: vec![0], segments: Vec::new(), keys: 0, slots: 0 };
        table.add(SEGMENT_MIN, 0);
        table
    }

    pub(super) fn len(&self) -> usize {
        self.keys
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots * size_of::<Slot>()
            + self.segments.capacity() * size_of::<Segment>()
            + self.directory.capacity() * size_of::<u32>()
    }

    pub(super) fn get(&self, key: u64) -> Row {
        self.get_at(self.spot(key), key)
    }

    /// Where a key is looked for first.
    pub(super) fn spot(&self, key: u64) -> Spot {
        let mixed = self.mix(key);
        let segment = self.segment_of(mixed);
        Spot { segment: segment as u32, group: self.segments[segment].home(mixed) as u32 }
    }

    /// A load from there, and nothing that has to wait for it: many of them go on at once.
    pub(super) fn touch(&self, spot: Spot) -> u64 {
        self.segments[spot.segment as usize].groups[spot.group as usize].0[0].key
    }

    pub(super) fn get_at(&self, spot: Spot, key: u64) -> Row {
        self.segments[spot.segment as usize].get(spot.group as usize, key)
    }

    /// Where the key was or was not, there is this row now. A row that is nowhere takes the key out.
    pub(super) fn set(&mut self, key: u64, row: Row) {
        let mixed = self.mix(key);
        let mut at = self.segment_of(mixed);
        let segment = &mut self.segments[at];
        let slot = segment.find(mixed, key);
        match (segment.slot(slot).row.is_nowhere(), row.is_nowhere()) {
            (false, false) => segment.slot_mut(slot).row = row,
            (true, true) => {}
            (true, false) => {
                while self.segments[at].is_full() {
                    self.widen(at);
                    at = self.segment_of(mixed);
                }
                self.segments[at].put(mixed, Slot { key, row });
                self.keys += 1;
            }
            (false, true) => {
                segment.take(slot, self.seed);
                self.keys -= 1;
                if segment.used * 8 < segment.slots() && segment.slots() > SEGMENT_MIN {
                    self.resize(at, self.segments[at].slots() / 2);
                }
            }
        }
    }

    fn mix(&self, key: u64) -> u64 {
        mix(key, self.seed)
    }

    fn segment_of(&self, mixed: u64) -> usize {
        self.directory[upper(mixed, self.depth())] as usize
    }

    fn depth(&self) -> u32 {
        self.directory.len().trailing_zeros()
    }

    fn add(&mut self, slots: usize, depth: u32) {
        self.slots += slots;
        self.segments.push(Segment { groups: free(slots), used: 0, depth });
    }

    fn widen(&mut self, at: usize) {
        let (slots, depth) = (self.segments[at].slots(), self.segments[at].depth);
        if slots < SEGMENT_MAX || depth == DEPTH_MAX {
            self.resize(at, slots * 2);
        } else {
            self.split(at);
        }
    }

    fn resize(&mut self, at: usize, slots: usize) {
        let old = std::mem::replace(&mut self.segments[at].groups, free(slots));
        self.slots = self.slots - old.len() * GROUP + slots;
        self.refill(&[at], &old);
    }

    fn split(&mut self, at: usize) {
        let depth = self.segments[at].depth + 1;
        if depth > self.depth() {
            self.directory = self.directory.iter().flat_map(|segment| [*segment; 2]).collect();
        }
        let slots = self.segments[at].slots();
        let other = self.segments.len();
        self.add(slots, depth);
        self.segments[at].depth = depth;
        // Every other stretch of the directory that pointed here points there.
        let stretch = 1 << (self.depth() - depth);
        for (position, segment) in self.directory.iter_mut().enumerate() {
            if *segment as usize == at && position / stretch % 2 == 1 {
                *segment = other as u32;
            }
        }
        let old = std::mem::replace(&mut self.segments[at].groups, free(slots));
        self.refill(&[at, other], &old);
    }

    fn refill(&mut self, segments: &[usize], old: &[Group]) {
        for at in segments {
            self.segments[*at].used = 0;
        }
        for slot in old.iter().flat_map(|group| &group.0).filter(|slot| !slot.row.is_nowhere()) {
            let mixed = self.mix(slot.key);
            let at = self.segment_of(mixed);
            self.segments[at].put(mixed, *slot);
        }
    }
}

fn free(slots: usize) -> Box<[Group]> {
    vec![Group([FREE; GROUP]); slots / GROUP].into()
}

impl Segment {
    fn slots(&self) -> usize {
        self.groups.len() * GROUP
    }

    /// At four fifths, ways to a free slot get long. One is always free.
    fn is_full(&self) -> bool {
        self.used * 5 >= self.slots() * 4
    }

    /// The group where a key is looked for first.
    fn home(&self, mixed: u64) -> usize {
        mixed as usize & (self.groups.len() - 1)
    }

    fn get(&self, home: usize, key: u64) -> Row {
        let mut at = home;
        loop {
            let group = &self.groups[at].0;
            let mut row = Row::NOWHERE;
            for slot in group {
                // Free slots have a key too, but their row is nowhere.
                if slot.key == key && !slot.row.is_nowhere() {
                    row = slot.row;
                }
            }
            if !row.is_nowhere() || group[GROUP - 1].row.is_nowhere() {
                return row;
            }
            at = (at + 1) & (self.groups.len() - 1);
        }
    }

    /// The slot where the key is, or the free one where it would be.
    fn find(&self, mixed: u64, key: u64) -> usize {
        let mask = self.slots() - 1;
        let mut at = self.home(mixed) * GROUP;
        while !self.slot(at).row.is_nowhere() && self.slot(at).key != key {
            at = (at + 1) & mask;
        }
        at
    }

    fn slot(&self, at: usize) -> Slot {
        self.groups[at / GROUP].0[at % GROUP]
    }

    fn slot_mut(&mut self, at: usize) -> &mut Slot {
        &mut self.groups[at / GROUP].0[at % GROUP]
    }

    fn put(&mut self, mixed: u64, slot: Slot) {
        let at = self.find(mixed, slot.key);
        *self.slot_mut(at) = slot;
        self.used += 1;
    }

    /// Frees a slot; those behind it move up, so that none is cut off from where it is looked for.
    fn take(&mut self, at: usize, seed: u64) {
        let mask = self.slots() - 1;
        let (mut free, mut next) = (at, at);
        loop {
            next = (next + 1) & mask;
            let slot = self.slot(next);
            if slot.row.is_nowhere() {
                break;
            }
            let home = self.home(mix(slot.key, seed)) * GROUP;
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(free) & mask {
                *self.slot_mut(free) = slot;
                free = next;
            }
        }
        *self.slot_mut(free) = FREE;
        self.used -= 1;
    }
}

fn upper(mixed: u64, bits: u32) -> usize {
    mixed.checked_shr(u64::BITS - bits).unwrap_or(0) as usize
}

/// One to one, and every bit of the result depends on every bit of the key and the seed.
fn mix(key: u64, seed: u64) -> u64 {
    let mut mixed = (key ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= mixed >> 32;
    mixed = mixed.wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ (mixed >> 32)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::book::cells::{Cell, Cells, Seen};
    use crate::prefix::CacheTier;

    /// Rows that differ.
    fn rows(cells: &mut Cells, count: u32) -> Vec<Row> {
        let cell = Cell { seen: Seen::reported(1, CacheTier::T1), tokens: 1 };
        (0..count).map(|who| cells.insert(Row::NOWHERE, who, cell, false)).collect()
    }

    #[test]
    fn it_holds_what_a_map_holds_while_it_grows_and_shrinks() {
        let mut cells = Cells::default();
        let rows = rows(&mut cells, 7);
        let (mut table, mut map) = (Table::new(99), HashMap::new());
        let mut number = 1_u64;
        for step in 0..60_000_u64 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let key = (number >> 33) % 20_000;
            // First mostly in, then mostly out.
            if (number >> 20) % 10 < if step < 30_000 { 8 } else { 1 } {
                let row = rows[(number % 7) as usize];
                table.set(key, row);
                map.insert(key, row);
            } else {
                table.set(key, Row::NOWHERE);
                map.remove(&key);
            }
        }
        assert_eq!(table.len(), map.len());
        for key in 0..20_000 {
            assert_eq!(table.get(key), map.get(&key).copied().unwrap_or(Row::NOWHERE), "{key}");
        }
        for key in 0..20_000 {
            table.set(key, Row::NOWHERE);
        }
        assert_eq!(table.len(), 0);
        assert!(table.bytes() < 20_000, "{}", table.bytes());
    }

    #[test]
    fn keys_in_a_row_spread_over_slots() {
        let mut cells = Cells::default();
        let row = rows(&mut cells, 1)[0];
        let mut table = Table::new(3);
        for key in 0..100_000_u64 {
            table.set(key << 40, row);
        }
        assert!(table.bytes() < 100_000 * 44, "{}", table.bytes());
    }
}
