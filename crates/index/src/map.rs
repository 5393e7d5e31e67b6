//! Where a stream's blocks lie: from the engine's hash to a place in the trie and the tiers that hold it.
//!
//! Five blocks share a cache line, so that finding, adding or removing one touches one line, rarely two. The
//! map is a directory of tables of at most 32 KiB (extendible hashing): it grows a little at a time, never
//! all at once, and stays about two thirds full: fuller, and more blocks lie in a line that is not their own.
//! Tables live in an arena, in huge pages.

use std::hash::{BuildHasher, RandomState};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::LazyLock;

use crate::arena::{Arena, LARGEST as LARGEST_ROOM, Room};
use crate::matching::prefetch;

const SLOTS: usize = 5;
/// The most buckets of a table.
const LARGEST: usize = LARGEST_ROOM / size_of::<Bucket>();
/// Where in `meta` the number of blocks begins that belong to a bucket and lie in a later one: four bits.
const ELSEWHERE: u32 = 20;
/// Where in `meta` begins how many buckets away they may be: four bits.
const FARTHEST: u32 = 24;
/// Where in `meta` a filter of them begins: four bits. A block whose bit is not set lies at home or nowhere.
const FILTER: u32 = 28;
/// The most blocks of a bucket that may lie elsewhere.
const MANY: u32 = 15;
/// The most buckets that a block may be away from its own.
const REACH: u32 = 15;

/// Five blocks. A block's tiers are four bits; none means that the slot is free.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Bucket {
    hashes: [u64; SLOTS],
    places: [u32; SLOTS],
    meta: u32,
}

/// The bit of a block in its bucket's filter.
#[inline]
fn filter_bit(mixed: u64) -> u32 {
    1 << (FILTER + ((mixed >> 32) & 3) as u32)
}

const EMPTY: Bucket = Bucket { hashes: [0; SLOTS], places: [0; SLOTS], meta: 0 };

impl Bucket {
    fn iter(&self) -> impl Iterator<Item = (u64, u32, u8)> + '_ {
        let used = (0..SLOTS).filter(|slot| self.tiers(*slot) != 0);
        used.map(|slot| (self.hashes[slot], self.places[slot], self.tiers(slot)))
    }

    #[inline]
    fn tiers(&self, slot: usize) -> u8 {
        (self.meta >> (slot * 4) & 0xf) as u8
    }

    fn set_tiers(&mut self, slot: usize, tiers: u8) {
        self.meta = self.meta & !(0xf << (slot * 4)) | u32::from(tiers) << (slot * 4);
    }

    fn elsewhere(&self) -> u32 {
        self.meta >> ELSEWHERE & MANY
    }

    /// How many buckets away a block may be that belongs here.
    #[inline]
    fn farthest(&self) -> u32 {
        self.meta >> FARTHEST & REACH
    }

    /// Whether a block that belongs here may lie elsewhere.
    #[inline]
    fn may_be_elsewhere(&self, mixed: u64) -> bool {
        self.meta & filter_bit(mixed) != 0
    }

    /// Another block that belongs here lies this many buckets away. Fails when there are too many.
    fn add_elsewhere(&mut self, mixed: u64, distance: u32) -> bool {
        let count = self.elsewhere();
        if count == MANY {
            return false;
        }
        let farthest = self.farthest().max(distance);
        let rest = self.meta & !(MANY << ELSEWHERE) & !(REACH << FARTHEST);
        self.meta = rest | (count + 1) << ELSEWHERE | farthest << FARTHEST | filter_bit(mixed);
        true
    }

    /// One fewer. Where they may be is known again when there is none.
    fn remove_elsewhere(&mut self) {
        if self.elsewhere() == 1 {
            self.meta &= (1 << ELSEWHERE) - 1;
        } else {
            self.meta -= 1 << ELSEWHERE;
        }
    }

    /// One bit for each slot that is in use: bits 0, 4, 8, 12 and 16.
    #[inline]
    fn used(&self) -> u32 {
        (self.meta | self.meta >> 1 | self.meta >> 2 | self.meta >> 3) & 0x1_1111
    }

    #[inline]
    fn find(&self, hash: u64) -> Option<usize> {
        // All five are compared before any is believed: no branch per slot.
        let mut found = 0_u32;
        for slot in 0..SLOTS {
            found |= u32::from(self.hashes[slot] == hash) << (slot * 4);
        }
        let found = found & self.used();
        (found != 0).then(|| found.trailing_zeros() as usize / 4)
    }

    /// Puts a block into a free slot, if there is one.
    #[inline]
    fn put(&mut self, hash: u64, place: u32, tiers: u8) -> bool {
        let Some(slot) = self.free() else { return false };
        self.hashes[slot] = hash;
        self.places[slot] = place;
        self.meta |= u32::from(tiers) << (slot * 4);
        true
    }

    #[inline]
    fn free(&self) -> Option<usize> {
        let free = !self.used() & 0x1_1111;
        (free != 0).then(|| free.trailing_zeros() as usize / 4)
    }
}

/// The buckets of a table, in a room of an arena. The room is given back before they are dropped.
#[derive(Debug)]
struct Buckets {
    room: Room,
    count: usize,
}

impl Buckets {
    fn new(count: usize, arena: &mut Arena) -> Self {
        let room = arena.take(count * size_of::<Bucket>());
        let start: NonNull<Bucket> = room.start.cast();
        for at in 0..count {
            // SAFETY: the room is ours, aligned to a line, and has space for this many buckets.
            unsafe { start.add(at).write(EMPTY) };
        }
        Self { room, count }
    }

    fn free(self, arena: &mut Arena) {
        // SAFETY: taken from the arena that all tables of a writer use, and given back once, since this
        // consumes it.
        unsafe { arena.give_back(self.room) };
    }
}

impl Deref for Buckets {
    type Target = [Bucket];

    #[inline]
    fn deref(&self) -> &[Bucket] {
        // SAFETY: `new` has written this many buckets, and the room is ours until `free`.
        unsafe { std::slice::from_raw_parts(self.room.start.cast().as_ptr(), self.count) }
    }
}

impl DerefMut for Buckets {
    fn deref_mut(&mut self) -> &mut [Bucket] {
        // SAFETY: as above; `&mut self` is the only way to it.
        unsafe { std::slice::from_raw_parts_mut(self.room.start.cast().as_ptr(), self.count) }
    }
}

#[derive(Debug)]
struct Table {
    buckets: Buckets,
    seed: u64,
    /// With this many blocks it is full.
    limit: usize,
    len: usize,
    /// How many of the directory's bits all its blocks share.
    depth: u32,
}

/// As many blocks as this many buckets should have: 18 slots of 25.
const fn full(buckets: usize) -> usize {
    (buckets * SLOTS * 18).div_ceil(25)
}

/// This many buckets are enough for this many blocks, and some more.
const fn enough(blocks: usize) -> usize {
    blocks * 25 / (SLOTS * 18) + blocks / 40 + 1
}

/// What a store found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// The block was not known.
    Absent,
    /// It lay in the same place, in these tiers.
    Here(u8),
    /// It lay elsewhere, in these tiers. It does no more.
    Elsewhere(u32, u8),
}

/// The blocks of one stream.
#[derive(Debug)]
pub(crate) struct Map {
    directory: Vec<u32>,
    tables: Vec<Table>,
    /// The directory is indexed by this many leading bits.
    depth: u32,
    seed: u64,
    len: usize,
}

/// Nobody outside can know which hashes fall together. Tests do the same each time.
static SEED: LazyLock<u64> = LazyLock::new(|| if cfg!(test) { 1 } else { RandomState::new().hash_one(0_u8) });

#[inline]
fn mix(hash: u64, seed: u64) -> u64 {
    let mixed = u128::from(hash ^ seed) * 0x9e37_79b9_7f4a_7c15;
    mixed as u64 ^ (mixed >> 64) as u64
}

impl Table {
    fn new(buckets: usize, depth: u32, arena: &mut Arena) -> Self {
        Self { buckets: Buckets::new(buckets, arena), seed: *SEED, limit: full(buckets), len: 0, depth }
    }

    #[inline]
    fn home(&self, mixed: u64) -> usize {
        (((mixed & 0xffff_ffff) * self.buckets.len() as u64) >> 32) as usize
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.buckets.len() { 0 } else { at + 1 }
    }

    #[inline]
    fn find(&self, hash: u64, mixed: u64) -> Option<(usize, usize)> {
        let home = self.home(mixed);
        let bucket = &self.buckets[home];
        if let Some(slot) = bucket.find(hash) {
            return Some((home, slot));
        }
        if !bucket.may_be_elsewhere(mixed) {
            return None;
        }
        let mut at = home;
        for _ in 0..bucket.farthest() {
            at = self.after(at);
            if let Some(slot) = self.buckets[at].find(hash) {
                return Some((at, slot));
            }
        }
        None
    }

    /// Adds a block that is not there. Fails when there is no room near enough: then the table must grow.
    #[inline]
    fn insert(&mut self, hash: u64, mixed: u64, place: u32, tiers: u8) -> bool {
        let home = self.home(mixed);
        let mut at = home;
        let mut distance = 0;
        let slot = loop {
            if let Some(slot) = self.buckets[at].free() {
                break slot;
            }
            at = self.after(at);
            distance += 1;
            if distance > REACH || at == home {
                return false;
            }
        };
        if distance > 0 && !self.buckets[home].add_elsewhere(mixed, distance) {
            return false;
        }
        let bucket = &mut self.buckets[at];
        bucket.hashes[slot] = hash;
        bucket.places[slot] = place;
        bucket.set_tiers(slot, tiers);
        self.len += 1;
        true
    }

    #[inline]
    fn remove(&mut self, at: usize, slot: usize) {
        let home = self.home(mix(self.buckets[at].hashes[slot], self.seed));
        self.buckets[at].set_tiers(slot, 0);
        if home != at {
            self.buckets[home].remove_elsewhere();
        }
        self.len -= 1;
    }

    /// A table with those blocks of this one that are chosen by their mixed hash; `None` if it has too few
    /// buckets.
    fn copied(
        &self,
        buckets: usize,
        depth: u32,
        chosen: impl Fn(u64) -> bool,
        arena: &mut Arena,
    ) -> Option<Self> {
        let mut copy = Self::new(buckets, depth, arena);
        for (hash, place, tiers) in self.iter() {
            let mixed = mix(hash, self.seed);
            if chosen(mixed) && !copy.insert(hash, mixed, place, tiers) {
                copy.buckets.free(arena);
                return None;
            }
        }
        Some(copy)
    }

    fn is_full(&self) -> bool {
        self.len >= self.limit
    }

    fn iter(&self) -> impl Iterator<Item = (u64, u32, u8)> + '_ {
        self.buckets.iter().flat_map(Bucket::iter)
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.buckets.room.bytes as usize + size_of::<Self>()
    }
}

impl Map {
    pub(crate) fn new(arena: &mut Arena) -> Self {
        let table = Table::new(1, 0, arena);
        Self { directory: vec![0], tables: vec![table], depth: 0, seed: *SEED, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes beside the tables' buckets, which the arena counts.
    pub(crate) fn bytes(&self) -> usize {
        self.tables.len() * size_of::<Table>() + self.directory.len() * size_of::<u32>()
    }

    #[inline]
    fn table_of(&self, mixed: u64) -> usize {
        // Two shifts, since one by all 64 bits is not allowed.
        self.directory[(mixed >> 1 >> (63 - self.depth)) as usize] as usize
    }

    /// Tells the processor that a block will be looked for.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        let mixed = mix(hash, self.seed);
        let table = &self.tables[self.table_of(mixed)];
        let home: *const Bucket = &raw const table.buckets[table.home(mixed)];
        prefetch(home);
    }

    /// Where a block lies and in which tiers.
    pub(crate) fn get(&self, hash: u64) -> Option<(u32, u8)> {
        let mixed = mix(hash, self.seed);
        let table = &self.tables[self.table_of(mixed)];
        let (at, slot) = table.find(hash, mixed)?;
        Some((table.buckets[at].places[slot], table.buckets[at].tiers(slot)))
    }

    /// A block lies in a place, in these tiers too.
    pub(crate) fn add(&mut self, hash: u64, place: u32, tiers: u8, arena: &mut Arena) -> Before {
        let mixed = mix(hash, self.seed);
        let mut id = self.table_of(mixed);
        let table = &mut self.tables[id];
        if !table.is_full() {
            // Most blocks are new, and there is room in the line they belong to.
            let home = table.home(mixed);
            let bucket = &mut table.buckets[home];
            if !bucket.may_be_elsewhere(mixed)
                && bucket.find(hash).is_none()
                && bucket.put(hash, place, tiers)
            {
                table.len += 1;
                self.len += 1;
                return Before::Absent;
            }
        }
        if let Some((at, slot)) = table.find(hash, mixed) {
            let bucket = &mut table.buckets[at];
            let before = bucket.tiers(slot);
            if bucket.places[slot] == place {
                bucket.set_tiers(slot, before | tiers);
                return Before::Here(before);
            }
            let old = std::mem::replace(&mut bucket.places[slot], place);
            bucket.set_tiers(slot, tiers);
            return Before::Elsewhere(old, before);
        }
        while self.tables[id].is_full() || !self.tables[id].insert(hash, mixed, place, tiers) {
            self.grow(id, arena);
            id = self.table_of(mixed);
        }
        self.len += 1;
        Before::Absent
    }

    /// A block is in these tiers no more. Says where it lies and in which tiers it was, if it was in any of
    /// them.
    pub(crate) fn take(&mut self, hash: u64, tiers: u8) -> Option<(u32, u8)> {
        let mixed = mix(hash, self.seed);
        let id = self.table_of(mixed);
        let table = &mut self.tables[id];
        let home = table.home(mixed);
        // Most blocks lie in the line they belong to, in one tier.
        let bucket = &mut table.buckets[home];
        if let Some(slot) = bucket.find(hash)
            && bucket.tiers(slot) == tiers
        {
            bucket.meta &= !(0xf << (slot * 4));
            let place = bucket.places[slot];
            table.len -= 1;
            self.len -= 1;
            return Some((place, tiers));
        }
        let (at, slot) = table.find(hash, mixed)?;
        let bucket = &mut table.buckets[at];
        let (place, before) = (bucket.places[slot], bucket.tiers(slot));
        if before & tiers == 0 {
            return None;
        }
        if before & !tiers == 0 {
            table.remove(at, slot);
            self.len -= 1;
        } else {
            bucket.set_tiers(slot, before & !tiers);
        }
        Some((place, before))
    }

    /// A full table gets an eighth more buckets, or, at its largest, becomes two.
    fn grow(&mut self, id: usize, arena: &mut Arena) {
        let old = &self.tables[id];
        if old.buckets.len() < LARGEST {
            let mut buckets = old.buckets.len();
            let new = loop {
                buckets = (buckets * 9 / 8 + 1).min(LARGEST);
                if let Some(new) = old.copied(buckets, old.depth, |_| true, arena) {
                    break Some(new);
                }
                if buckets == LARGEST {
                    break None;
                }
            };
            if let Some(new) = new {
                self.replace(id, new, arena);
                return;
            }
        }
        self.divide(id, arena);
    }

    /// A table becomes two, by the next bit of the directory.
    fn divide(&mut self, id: usize, arena: &mut Arena) {
        let depth = self.tables[id].depth + 1;
        if depth > self.depth {
            self.directory = self.directory.iter().flat_map(|table| [*table, *table]).collect();
            self.depth += 1;
        }
        let old = &self.tables[id];
        let is_upper = |mixed: u64| mixed >> (64 - depth) & 1 == 1;
        let upper = old.iter().filter(|(hash, ..)| is_upper(mix(*hash, self.seed))).count();
        let mut half = |blocks: usize, wanted: bool| {
            let mut buckets = enough(blocks);
            loop {
                let half = old.copied(buckets, depth, |mixed| is_upper(mixed) == wanted, arena);
                if let Some(half) = half {
                    return half;
                }
                buckets = buckets * 9 / 8 + 1;
            }
        };
        let (low, high) = (half(old.len - upper, false), half(upper, true));
        let new = self.tables.len() as u32;
        for (at, table) in self.directory.iter_mut().enumerate() {
            if *table as usize == id && at >> (self.depth - depth) & 1 == 1 {
                *table = new;
            }
        }
        self.replace(id, low, arena);
        self.tables.push(high);
    }

    fn replace(&mut self, id: usize, new: Table, arena: &mut Arena) {
        let old = std::mem::replace(&mut self.tables[id], new);
        old.buckets.free(arena);
    }

    /// Gives the tables' memory back.
    pub(crate) fn free(self, arena: &mut Arena) {
        for table in self.tables {
            table.buckets.free(arena);
        }
    }

    /// The blocks of one table: (hash, place, tiers). Tables are numbered from 0; there is none from `tables`
    /// on.
    pub(crate) fn table(&self, id: usize) -> impl Iterator<Item = (u64, u32, u8)> + '_ {
        self.tables[id].iter()
    }

    pub(crate) fn tables(&self) -> usize {
        self.tables.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u32, u8)> + '_ {
        self.tables.iter().flat_map(Table::iter)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Under miri just enough that tables grow and divide.
    const STEPS: u32 = if cfg!(miri) { 1_000 } else { 400_000 };

    #[test]
    fn behaves_like_a_map_while_it_grows_and_shrinks() {
        let mut arena = Arena::new();
        let mut map = Map::new(&mut arena);
        let mut model: HashMap<u64, (u32, u8)> = HashMap::new();
        let mut state = 7_u64;
        for step in 0..STEPS {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Engines' hashes may be small numbers as well as random ones.
            let hash =
                if step % 2 == 0 { state >> 44 } else { (state >> 44).wrapping_mul(0x1234_5678_9abc_def1) };
            let tiers = 1 << (state >> 20 & 3);
            if state >> 10 & 7 < if step < STEPS / 2 { 5 } else { 3 } {
                let place = (state >> 50) as u32 & 1;
                let expected = match model.get(&hash) {
                    None => Before::Absent,
                    Some((at, before)) if *at == place => Before::Here(*before),
                    Some((at, before)) => Before::Elsewhere(*at, *before),
                };
                assert_eq!(map.add(hash, place, tiers, &mut arena), expected);
                let entry = model.entry(hash).or_insert((place, 0));
                *entry = if entry.0 == place { (place, entry.1 | tiers) } else { (place, tiers) };
            } else {
                let expected = model.get(&hash).copied().filter(|(_, before)| before & tiers != 0);
                assert_eq!(map.take(hash, tiers), expected);
                if let Some((_, before)) = expected {
                    if before & !tiers == 0 {
                        model.remove(&hash);
                    } else if let Some(entry) = model.get_mut(&hash) {
                        entry.1 &= !tiers;
                    }
                }
            }
            assert_eq!(map.len(), model.len());
            assert_eq!(map.get(hash), model.get(&hash).copied());
        }
        let all: HashMap<u64, (u32, u8)> =
            map.iter().map(|(hash, place, tiers)| (hash, (place, tiers))).collect();
        assert_eq!(all, model);
    }

    #[test]
    #[cfg_attr(miri, ignore = "counts bytes; nothing in it is new to miri")]
    fn takes_little_more_than_its_blocks() {
        for blocks in [5_000_u64, 32_768, 131_072, 500_000] {
            let mut arena = Arena::new();
            let mut map = Map::new(&mut arena);
            for hash in 0..blocks {
                map.add(hash.wrapping_mul(0xdead_beef_1234_5677), 0, 1, &mut arena);
            }
            let bytes: usize = map.tables.iter().map(Table::bytes).sum();
            let each = bytes as f64 / blocks as f64;
            assert!(each < 24.0, "{blocks}: {each}");
        }
    }
}
