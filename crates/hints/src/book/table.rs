//! A prefix's hash to its row, without pauses: a table that grows and shrinks a thousand keys at a time.
//!
//! ```text
//! key ── mixed ──┬─ upper bits ──> directory ──> segment (up to 1,024 slots)
//!                └─ lower bits ─────────────────────┴──> slot, or one behind it
//! ```
//!
//! A full segment is split in two by the next upper bit; the directory doubles when no bit is left in it. Keys are chosen by
//! others, so they are mixed with a number that nobody outside knows.

use super::cells::Row;

/// Slots of a segment before it is split: 16 KiB, moved in some ten microseconds.
const SEGMENT_MAX: usize = 1024;
const SEGMENT_MIN: usize = 8;
/// Beyond so many upper bits segments grow instead: it would take keys that were made to collide.
const DEPTH_MAX: u32 = 24;

#[derive(Debug, Clone, Copy)]
struct Slot {
    key: u64,
    /// Nowhere where the slot is free.
    row: Row,
}

const FREE: Slot = Slot { key: 0, row: Row::NOWHERE };

#[derive(Debug)]
struct Segment {
    slots: Box<[Slot]>,
    used: usize,
    /// How many upper bits its keys share.
    depth: u32,
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
        let mixed = self.mix(key);
        let segment = &self.segments[self.segment_of(mixed)];
        segment.slots[segment.slot(mixed, key)].row
    }

    /// Where the key was or was not, there is this row now. A row that is nowhere takes the key out.
    pub(super) fn set(&mut self, key: u64, row: Row) {
        let mixed = self.mix(key);
        let mut at = self.segment_of(mixed);
        let segment = &mut self.segments[at];
        let slot = segment.slot(mixed, key);
        match (segment.slots[slot].row.is_nowhere(), row.is_nowhere()) {
            (false, false) => segment.slots[slot].row = row,
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
                if segment.used * 8 < segment.slots.len() && segment.slots.len() > SEGMENT_MIN {
                    self.resize(at, self.segments[at].slots.len() / 2);
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
        self.segments.push(Segment { slots: vec![FREE; slots].into(), used: 0, depth });
    }

    fn widen(&mut self, at: usize) {
        let Segment { ref slots, depth, .. } = self.segments[at];
        if slots.len() < SEGMENT_MAX || depth == DEPTH_MAX {
            self.resize(at, slots.len() * 2);
        } else {
            self.split(at);
        }
    }

    fn resize(&mut self, at: usize, slots: usize) {
        let old = std::mem::replace(&mut self.segments[at].slots, vec![FREE; slots].into());
        self.slots = self.slots - old.len() + slots;
        self.refill(&[at], &old);
    }

    fn split(&mut self, at: usize) {
        let depth = self.segments[at].depth + 1;
        if depth > self.depth() {
            self.directory = self.directory.iter().flat_map(|segment| [*segment; 2]).collect();
        }
        let slots = self.segments[at].slots.len();
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
        let old = std::mem::replace(&mut self.segments[at].slots, vec![FREE; slots].into());
        self.refill(&[at, other], &old);
    }

    fn refill(&mut self, segments: &[usize], old: &[Slot]) {
        for at in segments {
            self.segments[*at].used = 0;
        }
        for slot in old.iter().filter(|slot| !slot.row.is_nowhere()) {
            let mixed = self.mix(slot.key);
            let at = self.segment_of(mixed);
            self.segments[at].put(mixed, *slot);
        }
    }
}

impl Segment {
    /// At four fifths, rows of taken slots get long.
    fn is_full(&self) -> bool {
        self.used * 5 >= self.slots.len() * 4
    }

    /// Where the key is, or the free slot where it would be. One is always free.
    fn slot(&self, mixed: u64, key: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = mixed as usize & mask;
        while !self.slots[at].row.is_nowhere() && self.slots[at].key != key {
            at = (at + 1) & mask;
        }
        at
    }

    fn put(&mut self, mixed: u64, slot: Slot) {
        let at = self.slot(mixed, slot.key);
        self.slots[at] = slot;
        self.used += 1;
    }

    /// Frees a slot; those behind it move up, so that none is cut off from where it is looked for.
    fn take(&mut self, at: usize, seed: u64) {
        let mask = self.slots.len() - 1;
        let (mut free, mut next) = (at, at);
        loop {
            next = (next + 1) & mask;
            let slot = self.slots[next];
            if slot.row.is_nowhere() {
                break;
            }
            let home = mix(slot.key, seed) as usize & mask;
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(free) & mask {
                self.slots[free] = slot;
                free = next;
            }
        }
        self.slots[free] = FREE;
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

    /// Rows that can be told apart.
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
