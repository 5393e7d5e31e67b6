//! Memory for extents: size classes in slabs, slabs in huge pages.
//!
//! A room is at most [`LARGEST`] bytes. Slabs hold rooms of one size; a slab whose last room is given back serves any other size next, and a
//! chunk whose last slab is empty goes back to the system, so that memory stays flat while sizes change.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Rooms come in multiples of a cache line.
pub(crate) const LINE: usize = 64;
/// The largest room.
pub(crate) const LARGEST: usize = 32 * 1024;

const SLAB: usize = 128 * 1024;
/// One huge page.
const CHUNK: usize = 2 * 1024 * 1024;
const SLABS: usize = CHUNK / SLAB;
/// Chunks that hold nothing and are kept all the same.
const SPARE: usize = 1;
/// Sizes between a power of two and the next.
const STEPS: usize = 8;
const CLASSES: usize = 64;

const NONE: u32 = u32::MAX;

/// A piece of memory of the size of its class.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) start: NonNull<u8>,
    slab: u32,
    pub(crate) bytes: u32,
}

// SAFETY: a room is a piece of memory that whoever has it owns; it is tied to no thread.
unsafe impl Send for Room {}

#[derive(Debug)]
struct Slab {
    start: NonNull<u8>,
    /// The class it serves; `None` while it is empty.
    class: Option<u8>,
    /// Rooms in use.
    used: u32,
    /// Rooms that were never used lie from here on.
    fresh: u32,
    /// The first room that was given back; each of them names the next in its first bytes.
    free: u32,
}

/// Where extents live.
#[derive(Debug)]
pub(crate) struct Arena {
    chunks: Vec<Chunk>,
    /// Chunks that went back; their numbers, and those of their slabs, are used again.
    gone: Vec<u32>,
    /// The slabs of chunk n are those from `n * SLABS` on.
    slabs: Vec<Slab>,
    /// Slabs that hold nothing. One whose chunk went back is dropped from the list when it is met.
    empty: Vec<u32>,
    /// Chunks that hold nothing.
    spare: usize,
    /// By class: slabs that may have room. One that has none is dropped from the list when it is met.
    open: [Vec<u32>; CLASSES],
    in_use: usize,
}

/// A huge page.
#[derive(Debug)]
struct Chunk {
    /// `None` when it went back.
    start: Option<NonNull<u8>>,
    /// Slabs in use.
    used: u32,
}

// SAFETY: an arena owns its chunks; nothing in it is tied to a thread.
unsafe impl Send for Arena {}

/// The class of the smallest room that has so many bytes.
fn class_of(bytes: usize) -> usize {
    let lines = bytes.div_ceil(LINE);
    if lines <= STEPS {
        return lines;
    }
    let power = (lines - 1).ilog2() as usize;
    let step = 1 << (power - STEPS.ilog2() as usize);
    let above = (lines - (1 << power)).div_ceil(step);
    STEPS + (power - STEPS.ilog2() as usize) * STEPS + above
}

/// The size of a class's rooms.
fn bytes_of(class: usize) -> usize {
    if class <= STEPS {
        return class * LINE;
    }
    let octave = (class - STEPS - 1) / STEPS;
    let above = (class - STEPS - 1) % STEPS + 1;
    ((STEPS << octave) + (above << octave)) * LINE
}

impl Arena {
    pub(crate) fn new() -> Self {
        Self {
            chunks: Vec::new(),
            gone: Vec::new(),
            spare: 0,
            slabs: Vec::new(),
            empty: Vec::new(),
            open: [const { Vec::new() }; CLASSES],
            in_use: 0,
        }
    }

    /// Bytes taken by slabs that hold something.
    pub(crate) fn bytes(&self) -> usize {
        self.in_use
    }

    /// A room of at least so many bytes (at most [`LARGEST`]). What is in it is arbitrary.
    pub(crate) fn take(&mut self, bytes: usize) -> Room {
        debug_assert!(bytes <= LARGEST);
        let class = class_of(bytes);
        let size = bytes_of(class);
        let rooms = (SLAB / size) as u32;
        let id = loop {
            let Some(&id) = self.open[class].last() else { break self.open_slab(class) };
            let slab = &self.slabs[id as usize];
            if slab.class == Some(class as u8) && (slab.free != NONE || slab.fresh < rooms) {
                break id;
            }
            self.open[class].pop();
        };
        let slab = &mut self.slabs[id as usize];
        slab.used += 1;
        let index = if slab.free == NONE {
            slab.fresh += 1;
            slab.fresh - 1
        } else {
            let index = slab.free;
            // SAFETY: the room lies in the slab, is not in use, and its first bytes name the next free one.
            slab.free = unsafe { slab.start.add(index as usize * size).cast::<u32>().read() };
            index
        };
        // SAFETY: `index < rooms`, so the room lies in the slab.
        let start = unsafe { slab.start.add(index as usize * size) };
        Room { start, slab: id, bytes: size as u32 }
    }

    /// Gives a room back.
    ///
    /// # Safety
    /// The room came from this arena, was not given back before, and nobody uses it any more.
    pub(crate) unsafe fn give_back(&mut self, room: Room) {
        let class = class_of(room.bytes as usize);
        let slab = &mut self.slabs[room.slab as usize];
        slab.used -= 1;
        if slab.used == 0 {
            self.close_slab(room.slab);
            return;
        }
        let was_full = slab.free == NONE && slab.fresh == (SLAB / room.bytes as usize) as u32;
        // SAFETY: the room lies in the slab, at a multiple of its size.
        let offset = unsafe { room.start.offset_from(slab.start) } as usize;
        // SAFETY: by the caller the room is ours again; it is at least a line long and aligned to one.
        unsafe { room.start.cast::<u32>().write(slab.free) };
        slab.free = (offset / room.bytes as usize) as u32;
        if was_full {
            self.open[class].push(room.slab);
        }
    }

    fn open_slab(&mut self, class: usize) -> u32 {
        let id = loop {
            let Some(id) = self.empty.pop() else {
                self.grow();
                continue;
            };
            // Listed twice, or its chunk went back since.
            if self.slabs[id as usize].class.is_none() && self.chunks[id as usize / SLABS].start.is_some() {
                break id;
            }
        };
        let chunk = &mut self.chunks[id as usize / SLABS];
        self.spare -= usize::from(chunk.used == 0);
        chunk.used += 1;
        let slab = &mut self.slabs[id as usize];
        (slab.class, slab.used, slab.fresh, slab.free) = (Some(class as u8), 0, 0, NONE);
        self.open[class].push(id);
        self.in_use += SLAB;
        id
    }

    /// A slab holds nothing any more.
    fn close_slab(&mut self, id: u32) {
        self.slabs[id as usize].class = None;
        self.in_use -= SLAB;
        let number = id as usize / SLABS;
        let chunk = &mut self.chunks[number];
        chunk.used -= 1;
        if chunk.used > 0 || self.spare < SPARE {
            self.spare += usize::from(chunk.used == 0);
            self.empty.push(id);
        } else if let Some(start) = chunk.start.take() {
            self.gone.push(number as u32);
            // SAFETY: allocated by `grow` with this layout, and none of its rooms is in use.
            unsafe { dealloc(start.as_ptr(), chunk_layout()) };
        }
    }

    fn grow(&mut self) {
        let layout = chunk_layout();
        // SAFETY: the layout has a size.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        // SAFETY: the chunk is ours, aligned and of this length; the call changes how it is backed, not what is in it.
        #[cfg(target_os = "linux")]
        unsafe {
            libc::madvise(start.as_ptr().cast(), CHUNK, libc::MADV_HUGEPAGE);
        }
        let number = self.gone.pop().unwrap_or_else(|| {
            self.chunks.push(Chunk { start: None, used: 0 });
            let slab = || Slab { start, class: None, used: 0, fresh: 0, free: NONE };
            self.slabs.extend(std::iter::repeat_with(slab).take(SLABS));
            self.chunks.len() as u32 - 1
        });
        self.chunks[number as usize] = Chunk { start: Some(start), used: 0 };
        self.spare += 1;
        for at in (0..SLABS).rev() {
            let id = number as usize * SLABS + at;
            // SAFETY: `at * SLAB < CHUNK`.
            self.slabs[id].start = unsafe { start.add(at * SLAB) };
            self.empty.push(id as u32);
        }
    }
}

fn chunk_layout() -> Layout {
    const { assert!(CHUNK.is_power_of_two()) };
    // SAFETY: a power of two that is not zero, and a size that is a multiple of it.
    unsafe { Layout::from_size_align_unchecked(CHUNK, CHUNK) }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for start in self.chunks.drain(..).filter_map(|chunk| chunk.start) {
            // SAFETY: allocated by `grow` with this layout; whoever drops the arena has no reader left.
            unsafe { dealloc(start.as_ptr(), chunk_layout()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_fit_and_waste_little() {
        for bytes in 1..=LARGEST {
            let got = bytes_of(class_of(bytes));
            assert!(got >= bytes && got.is_multiple_of(LINE), "{bytes} got {got}");
            assert!(got - bytes < LINE + bytes / STEPS, "{bytes} got {got}");
            assert_eq!(bytes_of(class_of(got)), got, "{bytes}");
        }
        assert!(class_of(LARGEST) < CLASSES);
    }

    #[test]
    fn rooms_do_not_overlap_and_are_used_again() {
        let mut arena = Arena::new();
        let mut rooms = Vec::new();
        let mut state = 1_u64;
        for round in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if rooms.len() > 300 || (round % 3 == 0 && !rooms.is_empty()) {
                let (room, mark): (Room, u8) = rooms.swap_remove((state >> 33) as usize % rooms.len());
                // SAFETY: the room is in use and was filled with its mark.
                let bytes = unsafe { std::slice::from_raw_parts(room.start.as_ptr(), room.bytes as usize) };
                assert!(bytes.iter().all(|byte| *byte == mark));
                // SAFETY: taken below, given back once.
                unsafe { arena.give_back(room) };
            } else {
                let room = arena.take(1 + (state >> 40) as usize % LARGEST);
                let mark = round as u8;
                // SAFETY: the room was just taken and has this length.
                unsafe { room.start.as_ptr().write_bytes(mark, room.bytes as usize) };
                rooms.push((room, mark));
            }
        }
        assert!(arena.bytes() < 60 * CHUNK, "{} bytes", arena.bytes());
        for (room, _) in rooms {
            // SAFETY: taken above, given back once.
            unsafe { arena.give_back(room) };
        }
        assert_eq!(arena.bytes(), 0);
    }
}
