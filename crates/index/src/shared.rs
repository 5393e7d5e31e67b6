//! What readers see.

use std::ptr::NonNull;

use crate::LEVELS;
use crate::crowd::Bits;
use crate::edges::{By, Edges};
use crate::epoch::Epochs;
use crate::sides::Sides;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Whose a lane is.
#[derive(Debug)]
pub(crate) struct LaneInfo {
    owner: AtomicU64,
    marker: AtomicU32,
    /// The slot of its stream (upper half), and the levels that it stands for: from (inclusive), to
    /// (exclusive).
    place: AtomicU64,
}

/// Whose a lane is, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lane {
    pub(crate) owner: u64,
    pub(crate) slot: u32,
    /// Under which number the marks of its stream are found: the first lane that the stream had.
    pub(crate) marker: u32,
    pub(crate) from: u8,
    pub(crate) to: u8,
}

/// Whose the lanes are, by lane.
#[derive(Debug)]
pub(crate) struct Lanes(Box<[LaneInfo]>);

impl Lanes {
    pub(crate) fn new(lanes: usize) -> Self {
        let unknown =
            |_| LaneInfo { owner: AtomicU64::new(0), marker: AtomicU32::new(0), place: AtomicU64::new(0) };
        Self((0..lanes).map(unknown).collect())
    }

    pub(crate) fn set(&self, lane: u32, info: Lane) {
        debug_assert!(usize::from(info.to) <= LEVELS);
        let entry = &self.0[lane as usize];
        entry.owner.store(info.owner, Ordering::Relaxed);
        entry.marker.store(info.marker, Ordering::Relaxed);
        let place = u64::from(info.slot) << 32 | u64::from(info.from) << 8 | u64::from(info.to);
        entry.place.store(place, Ordering::Release);
    }

    #[inline]
    pub(crate) fn get(&self, lane: u32) -> Lane {
        let entry = &self.0[lane as usize];
        let place = entry.place.load(Ordering::Acquire);
        let owner = entry.owner.load(Ordering::Relaxed);
        let marker = entry.marker.load(Ordering::Relaxed);
        Lane { owner, slot: (place >> 32) as u32, marker, from: (place >> 8) as u8, to: place as u8 }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

/// What readers see: four tables, each replaced as a whole when it grows, and the marks of sides.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) epochs: Epochs,
    edges: AtomicPtr<Edges>,
    prefixes: AtomicPtr<Edges>,
    /// Lanes that count. A lane that goes is in no answer as soon as its bit is gone.
    alive: AtomicPtr<Bits>,
    lanes: AtomicPtr<Lanes>,
    pub(crate) sides: Sides,
}

fn boxed<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

impl Shared {
    pub(crate) fn new() -> Self {
        const FIRST_LANES: usize = 64;
        /// Under loom, tables grow within few steps.
        const FIRST_BUCKETS: usize = if cfg!(loom) { 4 } else { 16 };
        Self {
            epochs: Epochs::new(),
            edges: AtomicPtr::new(boxed(Edges::new(By::Path, FIRST_BUCKETS))),
            prefixes: AtomicPtr::new(boxed(Edges::new(By::Prefix, FIRST_BUCKETS))),
            alive: AtomicPtr::new(boxed(Bits::new(FIRST_LANES / 64))),
            lanes: AtomicPtr::new(boxed(Lanes::new(FIRST_LANES))),
            sides: Sides::new(),
        }
    }

    #[inline]
    pub(crate) fn edges(&self) -> &Edges {
        // SAFETY: a table that was replaced is freed only when nobody sits who could have read it here; the
        // writer replaces it itself.
        unsafe { &*self.edges.load(Ordering::Acquire) }
    }

    #[inline]
    pub(crate) fn prefixes(&self) -> &Edges {
        // SAFETY: as for `edges`.
        unsafe { &*self.prefixes.load(Ordering::Acquire) }
    }

    #[inline]
    pub(crate) fn alive(&self) -> &Bits {
        // SAFETY: as for `edges`.
        unsafe { &*self.alive.load(Ordering::Acquire) }
    }

    #[inline]
    pub(crate) fn lanes(&self) -> &Lanes {
        // SAFETY: as for `edges`.
        unsafe { &*self.lanes.load(Ordering::Acquire) }
    }

    /// Puts a table in another's place. The old one must outlive every reader that sits now.
    pub(crate) fn replace_edges(&self, new: Edges) -> Old {
        Old::Edges(replace(&self.edges, new))
    }

    pub(crate) fn replace_prefixes(&self, new: Edges) -> Old {
        Old::Edges(replace(&self.prefixes, new))
    }

    pub(crate) fn replace_alive(&self, new: Bits) -> Old {
        Old::Alive(replace(&self.alive, new))
    }

    pub(crate) fn replace_lanes(&self, new: Lanes) -> Old {
        Old::Lanes(replace(&self.lanes, new))
    }
}

fn replace<T>(current: &AtomicPtr<T>, new: T) -> NonNull<T> {
    let old = current.load(Ordering::Relaxed);
    current.store(boxed(new), Ordering::Release);
    // SAFETY: every table pointer comes from a box.
    unsafe { NonNull::new_unchecked(old) }
}

/// A table that was replaced.
#[derive(Debug)]
pub(crate) enum Old {
    Edges(NonNull<Edges>),
    Alive(NonNull<Bits>),
    Lanes(NonNull<Lanes>),
}

impl Old {
    /// # Safety
    /// Nobody uses the table any more.
    pub(crate) unsafe fn free(self) {
        // SAFETY: each came from a box and was taken out of its place; by the caller nobody reads it.
        unsafe {
            match self {
                Self::Edges(table) => drop(Box::from_raw(table.as_ptr())),
                Self::Alive(table) => drop(Box::from_raw(table.as_ptr())),
                Self::Lanes(table) => drop(Box::from_raw(table.as_ptr())),
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the last reference is being dropped; the tables came from boxes.
        unsafe {
            drop(Box::from_raw(self.edges.load(Ordering::Relaxed)));
            drop(Box::from_raw(self.prefixes.load(Ordering::Relaxed)));
            drop(Box::from_raw(self.alive.load(Ordering::Relaxed)));
            drop(Box::from_raw(self.lanes.load(Ordering::Relaxed)));
        }
    }
}
