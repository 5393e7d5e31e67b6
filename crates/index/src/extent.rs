//! An extent: a stretch of the trie without a branch that matters, as readers see it.
//!
//! ```text
//! | len, used | origin | parent | crowd | id, capacity, notes | holders ... | cut | prefix | contents ... |
//!   one line is all that most questions read, beside the contents they compare
//! ```
//!
//! **Who holds what.** A lane (a stream, up to a tier) holds the first `cutoff` blocks of an extent. Lanes
//! that share one cutoff form the *crowd*; any other has an entry of its own, and an entry goes before a bit
//! in the crowd. What a lane holds behind a hole is the writer's business: no answer depends on it.
//!
//! **What readers may rely on**, since they take no lock:
//! - contents below `len` do not change while a reader sits that could have read that `len` (see `epoch`);
//! - a spot means another block only when no reader sits that knew it as the block before. So a reader that
//!   compared contents with a prompt may look for what follows them, and may believe a cutoff that it reads
//!   later;
//! - a lane's cutoff changes by one store: to its entry, or to its bit. A bit is set or cleared, and an entry
//!   removed, only when the other says the same already. Readers look at entries first, then at the crowd and
//!   once at each of its words, so that what they read was true at one moment in between;
//! - whatever cannot be said by one store is built aside as a new extent and put in place by one store to its
//!   edge.

use std::ptr::NonNull;

use crate::arena::{LARGEST, Room};
use crate::crowd::Crowd;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Entries of an extent. The first two share the header's first line. Under loom there are fewer, so that
/// crowds and splits are reached within few steps.
pub(crate) const HOLDERS: usize = if cfg!(loom) { 4 } else { 8 };
/// The most blocks an extent has.
pub(crate) const MAX_BLOCKS: usize = (LARGEST - size_of::<Extent>()) / size_of::<u64>();
/// Spots that an extent reserves: more than it has blocks.
pub(crate) const SPOTS: u64 = 4096;
/// The spot before every first block.
pub(crate) const ROOT: u64 = 0;

/// The header. Contents follow it in the same room.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Extent {
    len: AtomicU32,
    /// Entries from here on are empty.
    used: AtomicU32,
    /// The spot of the first block. Block i has spot `origin + i`, for ever: a split leaves spots as they
    /// are.
    pub(crate) origin: u64,
    /// The spot of the block before the first.
    pub(crate) parent: u64,
    crowd: AtomicPtr<Crowd>,
    pub(crate) id: u32,
    pub(crate) capacity: u16,
    pub(crate) notes: Notes,
    holders: [AtomicU64; HOLDERS],
    /// The epoch in which its end was last cut off: the writer's own.
    pub(crate) cut: Note<WriterU64>,
    /// Chained hash of the prefix that ends with the first block.
    pub(crate) prefix: u64,
}

/// Numbers that the writer keeps at hand, in the line that it needs anyway. No reader looks at them.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Spots below meant something to readers.
    pub(crate) high: Note<WriterU16>,
    /// The most blocks it may have: behind that, spots belong to a part that was split off.
    pub(crate) limit: Note<WriterU16>,
    /// One past the last block from which an extent hangs.
    pub(crate) hangs: Note<WriterU16>,
    /// Whether a lane holds blocks behind a hole.
    pub(crate) islands: Note<WriterU8>,
    /// Whether slots behind the end do not hold what their spots meant, since it lay in another room.
    pub(crate) moved: Note<WriterU8>,
    /// Places of the first page that lie before the first block.
    pub(crate) skipped: Note<WriterU16>,
}

// Atomic only because readers have references to the header; not loom's, since only one thread uses them.
type WriterU8 = std::sync::atomic::AtomicU8;
type WriterU16 = std::sync::atomic::AtomicU16;
type WriterU64 = std::sync::atomic::AtomicU64;

/// A number of the writer's.
#[derive(Debug, Default)]
pub(crate) struct Note<T>(T);

impl Note<WriterU8> {
    #[inline]
    pub(crate) fn get(&self) -> bool {
        self.0.load(std::sync::atomic::Ordering::Relaxed) != 0
    }

    #[inline]
    pub(crate) fn set(&self, value: bool) {
        self.0.store(u8::from(value), std::sync::atomic::Ordering::Relaxed);
    }
}

impl Note<WriterU16> {
    #[inline]
    pub(crate) fn get(&self) -> u32 {
        u32::from(self.0.load(std::sync::atomic::Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn set(&self, value: u32) {
        debug_assert!(u16::try_from(value).is_ok());
        self.0.store(value as u16, std::sync::atomic::Ordering::Relaxed);
    }
}

impl Note<WriterU64> {
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, std::sync::atomic::Ordering::Relaxed);
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Extent>() == 2 * crate::arena::LINE, "two lines, the second rarely read");

/// A lane and how much it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) lane: u32,
    pub(crate) cutoff: u32,
}

impl Holder {
    fn pack(self) -> u64 {
        (u64::from(self.lane) + 1) << 32 | u64::from(self.cutoff)
    }

    fn unpack(packed: u64) -> Option<Self> {
        (packed != 0).then(|| Self { lane: ((packed >> 32) - 1) as u32, cutoff: packed as u32 })
    }
}

/// What never changes about an extent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Identity {
    pub(crate) id: u32,
    pub(crate) origin: u64,
    pub(crate) parent: u64,
    pub(crate) prefix: u64,
}

impl Extent {
    /// Bytes of an extent for this many blocks.
    pub(crate) fn bytes(blocks: usize) -> usize {
        size_of::<Self>() + blocks * size_of::<u64>()
    }

    /// Makes an extent in a room. Nobody else sees it until it has an edge.
    pub(crate) fn create(
        room: Room,
        identity: Identity,
        contents: &[u64],
        crowd: *mut Crowd,
    ) -> NonNull<Self> {
        let capacity = ((room.bytes as usize - size_of::<Self>()) / size_of::<u64>()).min(MAX_BLOCKS);
        assert!(contents.len() <= capacity);
        let Identity { id, origin, parent, prefix } = identity;
        let header = Self {
            len: AtomicU32::new(contents.len() as u32),
            used: AtomicU32::new(0),
            origin,
            parent,
            crowd: AtomicPtr::new(crowd),
            id,
            capacity: capacity as u16,
            notes: Notes::default(),
            holders: std::array::from_fn(|_| AtomicU64::new(0)),
            cut: Note::default(),
            prefix,
        };
        header.notes.high.set(contents.len() as u32);
        let extent = room.start.cast::<Self>();
        // For `start`, and for the edges, which keep addresses.
        room.start.as_ptr().expose_provenance();
        // SAFETY: the room is fresh, a multiple of a line long and aligned to one, and has space for the
        // header and `capacity` contents behind it.
        unsafe {
            extent.write(header);
            let start = extent.add(1).cast::<u64>().as_ptr();
            start.copy_from_nonoverlapping(contents.as_ptr(), contents.len());
        }
        extent
    }

    /// What the writer noted of the same extent, before it moved here. Slots behind the end are fresh, spots
    /// are not.
    pub(crate) fn take_notes(&self, old: &Self) {
        self.take_spots(old, 0);
        self.notes.limit.set(old.notes.limit.get());
        self.notes.hangs.set(old.notes.hangs.get());
        self.notes.islands.set(old.notes.islands.get());
        self.notes.skipped.set(old.notes.skipped.get());
    }

    /// From a block of another extent on, this one has its spots, and those behind the end meant something
    /// there.
    pub(crate) fn take_spots(&self, old: &Self, from: u32) {
        let high = old.notes.high.get() - from;
        self.notes.high.set(high);
        self.notes.moved.set(high > self.len());
        self.cut.set(old.cut.get());
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len.load(Ordering::Acquire)
    }

    /// Where the contents begin. A reference to the header gives no right to what lies behind it; the room's
    /// own pointer does, which `create` exposed.
    #[inline]
    fn start(&self) -> *mut u64 {
        std::ptr::with_exposed_provenance_mut(std::ptr::from_ref(self).addr() + size_of::<Self>())
    }

    /// The contents that a reader or the writer may look at.
    #[inline]
    pub(crate) fn contents(&self) -> &[u64] {
        let len = self.len() as usize;
        // SAFETY: slots below `len` were written before `len` was published, and are not written again while
        // anyone sits who could have read this `len` (the writer waits for that before it uses a slot again).
        unsafe { std::slice::from_raw_parts(self.start(), len) }
    }

    /// What lies in a slot at or behind `len` that was in use before. Only the writer asks.
    pub(crate) fn leftover(&self, at: u32) -> u64 {
        debug_assert!(at < u32::from(self.capacity));
        // SAFETY: within the room; the writer, who alone writes slots, has written it before.
        unsafe { self.start().add(at as usize).read() }
    }

    /// Writes contents behind `len`, unseen. Only the writer calls it.
    ///
    /// # Safety
    /// No reader sits that could have read a `len` above `at`. That the slots already hold these contents is
    /// not enough: writing the same value beside a reader is a race too, so the caller leaves such slots out.
    pub(crate) unsafe fn write(&self, at: u32, contents: &[u64]) {
        debug_assert!(at as usize + contents.len() <= self.capacity as usize && at >= self.len());
        // SAFETY: within the room, and by the caller nobody reads these slots.
        unsafe { self.start().add(at as usize).copy_from_nonoverlapping(contents.as_ptr(), contents.len()) };
    }

    /// Shows what was written, or cuts the end off.
    pub(crate) fn set_len(&self, len: u32) {
        self.len.store(len, Ordering::Release);
    }

    /// The entries, at one moment each.
    #[inline]
    pub(crate) fn holders(&self) -> impl Iterator<Item = Holder> + '_ {
        let used = self.used.load(Ordering::Acquire) as usize;
        self.holders[..used.min(HOLDERS)]
            .iter()
            .filter_map(|slot| Holder::unpack(slot.load(Ordering::Acquire)))
    }

    /// The crowd. Ask for it after the entries.
    #[inline]
    pub(crate) fn crowd(&self) -> Option<&Crowd> {
        // SAFETY: a crowd is freed only when no reader sits that could have read it here, and the writer
        // itself frees none that an extent of its still names.
        unsafe { self.crowd.load(Ordering::Acquire).as_ref() }
    }

    pub(crate) fn crowd_pointer(&self) -> *mut Crowd {
        self.crowd.load(Ordering::Relaxed)
    }

    pub(crate) fn set_crowd(&self, crowd: *mut Crowd) {
        self.crowd.store(crowd, Ordering::Release);
    }

    /// The slot of a lane's entry.
    pub(crate) fn entry(&self, lane: u32) -> Option<usize> {
        let used = self.used.load(Ordering::Relaxed) as usize;
        let wanted = u64::from(lane) + 1;
        self.holders[..used].iter().position(|slot| slot.load(Ordering::Relaxed) >> 32 == wanted)
    }

    /// An empty slot.
    pub(crate) fn free_entry(&self) -> Option<usize> {
        self.holders.iter().position(|slot| slot.load(Ordering::Relaxed) == 0)
    }

    pub(crate) fn entry_cutoff(&self, slot: usize) -> u32 {
        self.holders[slot].load(Ordering::Relaxed) as u32
    }

    pub(crate) fn set_entry(&self, slot: usize, holder: Holder) {
        // The slot last: it alone says when. Somebody may look at it who read `used` when there were more.
        if slot >= self.used.load(Ordering::Relaxed) as usize {
            self.used.store(slot as u32 + 1, Ordering::Release);
        }
        self.holders[slot].store(holder.pack(), Ordering::Release);
    }

    pub(crate) fn clear_entry(&self, slot: usize) {
        self.holders[slot].store(0, Ordering::Release);
        let used = self.used.load(Ordering::Relaxed) as usize;
        let last = self.holders[..used].iter().rposition(|slot| slot.load(Ordering::Relaxed) != 0);
        self.used.store(last.map_or(0, |last| last as u32 + 1), Ordering::Release);
    }

    /// How much a lane holds, from the first block on.
    #[inline]
    pub(crate) fn cutoff(&self, lane: u32) -> u32 {
        for holder in self.holders() {
            if holder.lane == lane {
                return holder.cutoff;
            }
        }
        self.crowd().filter(|crowd| crowd.has(lane)).map_or(0, |crowd| crowd.upto)
    }
}
