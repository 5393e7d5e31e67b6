//! Which extent follows a block: one table for the whole index, keyed by the block's spot and the next
//! content; and another, keyed by the chained hash of the prefix that ends with an extent's first block.
//!
//! A slot is one word: a tag and the address of an extent. The extent itself says whether it is the one that
//! was looked for, so the tag may be short and readers need no second word to be consistent with the first.

use std::ptr::NonNull;

use crate::arena::LINE;
use crate::extent::{Extent, ROOT};
use crate::matching::prefetch;
use crate::sync::{AtomicU64, Ordering};

/// Slots of a bucket; with the count of those that did not fit it fills a line. Under loom there are fewer to
/// try.
pub(crate) const SLOTS: usize = if cfg!(loom) { 2 } else { 7 };
/// Addresses have 48 bits; the tag has the rest.
const TAG: u32 = 48;

#[derive(Debug)]
#[repr(align(64))]
struct Bucket {
    slots: [AtomicU64; SLOTS],
    /// Edges that belong here and lie in a later bucket: how many, and (in the upper half) how far the
    /// farthest may be.
    elsewhere: AtomicU64,
}

/// One more edge lies `distance` buckets away.
fn farther(elsewhere: u64, distance: u64) -> u64 {
    ((elsewhere >> 32).max(distance) << 32) | ((elsewhere & 0xffff_ffff) + 1)
}

/// One fewer. How far the farthest is becomes known again when there is none.
fn fewer(elsewhere: u64) -> u64 {
    if elsewhere & 0xffff_ffff == 1 { 0 } else { elsewhere - 1 }
}

/// What extents are looked for by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// The spot of the block before, and the first content.
    Path,
    /// The chained hash up to the first block.
    Prefix,
}

/// A table of edges. It does not grow: a larger one takes its place.
#[derive(Debug)]
pub(crate) struct Edges {
    buckets: Box<[Bucket]>,
    count: AtomicU64,
    by: By,
}

/// Mixes a spot and a content into the key of an edge.
#[inline]
fn key(spot: u64, content: u64) -> u64 {
    let mixed = u128::from(content ^ 0x9e37_79b9_7f4a_7c15)
        .wrapping_mul(u128::from(spot.wrapping_mul(0xd6e8_feb8_6659_fd93) | 1));
    (mixed as u64) ^ ((mixed >> 64) as u64)
}

fn pack(extent: NonNull<Extent>, key: u64) -> u64 {
    let address = extent.as_ptr().expose_provenance() as u64;
    // Processors can do more, but systems give out more only when asked to.
    assert!(address >> TAG == 0, "an address with more than {TAG} bits");
    key << TAG | address
}

fn address(slot: u64) -> *mut Extent {
    std::ptr::with_exposed_provenance_mut((slot & ((1 << TAG) - 1)) as usize)
}

impl Edges {
    pub(crate) fn new(by: By, buckets: usize) -> Self {
        let bucket =
            || Bucket { slots: std::array::from_fn(|_| AtomicU64::new(0)), elsewhere: AtomicU64::new(0) };
        Self { buckets: (0..buckets.max(1)).map(|_| bucket()).collect(), count: AtomicU64::new(0), by }
    }

    #[inline]
    fn home(&self, key: u64) -> usize {
        (((key >> 32) * self.buckets.len() as u64) >> 32) as usize
    }

    #[cfg(all(test, loom))]
    pub(crate) fn home_of(&self, spot: u64, content: u64) -> usize {
        self.home(key(spot, content))
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.buckets.len() { 0 } else { at + 1 }
    }

    /// The extent that follows a block with a content.
    ///
    /// # Safety
    /// The caller is the writer, or a reader that sat down before it got hold of this table.
    #[inline]
    pub(crate) unsafe fn find(&self, spot: u64, content: u64) -> Option<&Extent> {
        // SAFETY: by the caller.
        unsafe {
            self.search(key(spot, content), |extent| {
                extent.parent == spot && extent.contents().first() == Some(&content)
            })
        }
    }

    /// The extent with whose first block a prefix ends.
    ///
    /// # Safety
    /// As for [`Self::find`].
    #[inline]
    pub(crate) unsafe fn find_prefix(&self, prefix: u64) -> Option<&Extent> {
        // SAFETY: by the caller.
        unsafe { self.search(key(ROOT, prefix), |extent| extent.prefix == prefix) }
    }

    /// # Safety
    /// As for [`Self::find`].
    #[inline]
    unsafe fn search(&self, key: u64, is_it: impl Fn(&Extent) -> bool) -> Option<&Extent> {
        let home = self.home(key);
        let mut at = home;
        let mut distance = 0;
        loop {
            for slot in &self.buckets[at].slots {
                let slot = slot.load(Ordering::Acquire);
                if slot >> TAG == key & 0xffff && slot != 0 {
                    let extent = address(slot);
                    // The contents come at the same time as the header.
                    prefetch(extent.wrapping_add(1));
                    prefetch(extent.wrapping_add(1).wrapping_byte_add(LINE));
                    // SAFETY: an extent that the table names is not freed before every reader that sat down
                    // earlier is gone; the writer unlinks before it frees.
                    let extent = unsafe { &*extent };
                    if is_it(extent) {
                        return Some(extent);
                    }
                }
            }
            if distance >= self.buckets[home].elsewhere.load(Ordering::Acquire) >> 32 {
                return None;
            }
            distance += 1;
            at = self.after(at);
        }
    }

    /// Whether another edge should go into a larger table.
    pub(crate) fn is_full(&self) -> bool {
        self.count.load(Ordering::Relaxed) as usize >= self.buckets.len() * SLOTS * 3 / 4
    }

    /// A table with all edges of this one and room for more.
    pub(crate) fn grown(&self) -> Self {
        let grown = Self::new(self.by, self.buckets.len() * 2);
        for slot in self.buckets.iter().flat_map(|bucket| &bucket.slots) {
            if let Some(extent) = NonNull::new(address(slot.load(Ordering::Relaxed))) {
                grown.insert(extent);
            }
        }
        grown
    }

    /// The key of an extent's edge.
    fn key_of(&self, extent: NonNull<Extent>) -> u64 {
        // SAFETY: only the writer asks, for extents that it has not freed.
        let extent = unsafe { extent.as_ref() };
        match self.by {
            By::Path => key(extent.parent, extent.leftover(0)),
            By::Prefix => key(ROOT, extent.prefix),
        }
    }

    /// Puts an extent in its place. The table has room.
    pub(crate) fn insert(&self, extent: NonNull<Extent>) {
        let key = self.key_of(extent);
        let home = self.home(key);
        let mut at = home;
        let mut distance = 0;
        let slot = loop {
            let free = self.buckets[at].slots.iter().find(|slot| slot.load(Ordering::Relaxed) == 0);
            if let Some(slot) = free {
                break slot;
            }
            at = self.after(at);
            distance += 1;
        };
        if distance > 0 {
            // Said before the edge is there, so that nobody stops short of it.
            let elsewhere = &self.buckets[home].elsewhere;
            elsewhere.store(farther(elsewhere.load(Ordering::Relaxed), distance), Ordering::Release);
        }
        slot.store(pack(extent, key), Ordering::Release);
        self.count.store(self.count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// The slot of an extent, and whether it is away from home.
    fn slot_of(&self, extent: NonNull<Extent>) -> Option<(&AtomicU64, usize, bool)> {
        let key = self.key_of(extent);
        let wanted = pack(extent, key);
        let home = self.home(key);
        let mut at = home;
        loop {
            let bucket = &self.buckets[at];
            if let Some(slot) = bucket.slots.iter().find(|slot| slot.load(Ordering::Relaxed) == wanted) {
                return Some((slot, home, at != home));
            }
            at = self.after(at);
            if at == home {
                return None;
            }
        }
    }

    /// Another extent with the same key takes an extent's place, at once for every reader.
    pub(crate) fn replace(&self, old: NonNull<Extent>, new: NonNull<Extent>) {
        debug_assert_eq!(self.key_of(old), self.key_of(new));
        if let Some((slot, ..)) = self.slot_of(old) {
            slot.store(pack(new, self.key_of(new)), Ordering::Release);
        }
    }

    /// Takes an extent's edge away.
    pub(crate) fn remove(&self, extent: NonNull<Extent>) {
        if let Some((slot, home, away)) = self.slot_of(extent) {
            slot.store(0, Ordering::Release);
            if away {
                let elsewhere = &self.buckets[home].elsewhere;
                elsewhere.store(fewer(elsewhere.load(Ordering::Relaxed)), Ordering::Release);
            }
            self.count.store(self.count.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket>()
    }
}
