//! Memory for extents and tables: ranges of huge pages.
//!
//! The smallest free range that is large enough is taken, at the lowest address; ranges that are given back
//! join their neighbours; a chunk that is free as a whole goes back to the system. So memory stays flat while
//! sizes come and go. A small arena has one chunk, which never goes back: there free pages do, so that
//! hundreds of small indexes do not keep what each had at its peak.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;

/// Rooms come in multiples of a cache line.
pub(crate) const LINE: usize = 64;
/// The largest room. Miri looks at all of a slice whenever it is made anew, and tables are slices: smaller
/// ones there.
pub(crate) const LARGEST: usize = if cfg!(miri) { 4 * 1024 } else { 32 * 1024 };

/// One huge page. Under miri less: it keeps notes of every word, and goes through them often.
const CHUNK: usize = if cfg!(miri) { 16 * LARGEST } else { 2 * 1024 * 1024 };
const LINES: u32 = (CHUNK / LINE) as u32;
/// Chunks that are free as a whole and are kept all the same.
const SPARE: usize = 1;

/// What a small page has.
const PAGE: usize = 4 * 1024;
/// Bytes given back after which the free pages of a small arena go back to the system: seldom enough for the
/// calls not to matter.
const TRIM_AFTER: usize = 128 * 1024;
/// Free ranges below this keep their pages: they are soon used again.
const TRIM_FROM: u32 = (4 * PAGE / LINE) as u32;

/// A piece of memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) start: NonNull<u8>,
    chunk: u32,
    pub(crate) bytes: u32,
}

// SAFETY: a room is a piece of memory that its holder owns; it is tied to no thread.
unsafe impl Send for Room {}

/// A line of a chunk.
type Line = (u32, u32);

/// Where extents and tables live.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    /// `None` where a chunk went back.
    chunks: Vec<Option<NonNull<u8>>>,
    /// Numbers of chunks that went back.
    gone: Vec<u32>,
    /// Free ranges: by their first line, how many lines they have.
    free: BTreeMap<Line, u32>,
    /// The same, by size.
    by_size: BTreeSet<(u32, Line)>,
    spare: usize,
    in_use: usize,
    /// Bytes given back since free pages last went back to the system.
    loose: usize,
}

// SAFETY: an arena owns its chunks; nothing in it is tied to a thread.
unsafe impl Send for Arena {}

impl Arena {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Bytes of the rooms in use.
    pub(crate) fn bytes(&self) -> usize {
        self.in_use
    }

    /// A room of at least this many bytes (at most [`LARGEST`]). What is in it is arbitrary.
    pub(crate) fn take(&mut self, bytes: usize) -> Room {
        debug_assert!(bytes <= LARGEST);
        let lines = bytes.div_ceil(LINE) as u32;
        let fitting = self.by_size.range((lines, (0, 0))..).next().copied();
        let (size, at) = fitting.unwrap_or_else(|| self.grow());
        self.remove_free(at, size);
        if size > lines {
            self.add_free((at.0, at.1 + lines), size - lines);
        }
        self.spare -= usize::from(size == LINES);
        self.in_use += lines as usize * LINE;
        Room { start: self.address(at), chunk: at.0, bytes: lines * LINE as u32 }
    }

    /// Gives a room back.
    ///
    /// # Safety
    /// The room came from this arena, was not given back before, and nobody uses it any more.
    pub(crate) unsafe fn give_back(&mut self, room: Room) {
        self.in_use -= room.bytes as usize;
        let base = self.address((room.chunk, 0));
        // SAFETY: by the caller the room lies in this chunk, at a multiple of a line.
        let first = unsafe { room.start.offset_from(base) } as usize / LINE;
        let (mut at, mut size) = ((room.chunk, first as u32), room.bytes / LINE as u32);
        if let Some((&before, &lines)) = self.free.range(..at).next_back()
            && before.0 == at.0
            && before.1 + lines == at.1
        {
            self.remove_free(before, lines);
            (at, size) = (before, size + lines);
        }
        let after = (at.0, at.1 + size);
        if let Some(&lines) = self.free.get(&after) {
            self.remove_free(after, lines);
            size += lines;
        }
        if size == LINES {
            if self.spare == SPARE {
                self.release(at.0);
                return;
            }
            self.spare += 1;
        }
        self.add_free(at, size);
        self.loose += room.bytes as usize;
        if self.loose >= TRIM_AFTER {
            self.trim();
        }
    }

    /// Gives the pages of larger free ranges back to the system, where there is one chunk: it has small
    /// pages. Larger arenas have huge ones, which would be split.
    fn trim(&mut self) {
        self.loose = 0;
        if self.chunks.iter().flatten().count() > 1 {
            return;
        }
        for (&at, &lines) in self.free.iter().filter(|(_, lines)| **lines >= TRIM_FROM) {
            drop_pages(self.address(at), lines as usize * LINE);
        }
    }

    fn add_free(&mut self, at: Line, lines: u32) {
        self.free.insert(at, lines);
        self.by_size.insert((lines, at));
    }

    fn remove_free(&mut self, at: Line, lines: u32) {
        self.free.remove(&at);
        self.by_size.remove(&(lines, at));
    }

    fn address(&self, (chunk, line): Line) -> NonNull<u8> {
        let Some(start) = self.chunks[chunk as usize] else { unreachable!("chunk {chunk} went back") };
        // SAFETY: a line of a chunk lies within it.
        unsafe { start.add(line as usize * LINE) }
    }

    /// A new chunk, as a free range.
    fn grow(&mut self) -> (u32, Line) {
        let layout = chunk_layout();
        // SAFETY: the layout has a size.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        // A small index costs the pages that it uses; from the second chunk on it is large enough for huge
        // ones.
        let others = self.chunks.iter().flatten().count();
        back(start, others > 0);
        if others == 1 {
            self.chunks.iter().flatten().for_each(|&first| back(first, true));
        }
        let number = self.gone.pop().unwrap_or_else(|| {
            self.chunks.push(None);
            self.chunks.len() as u32 - 1
        });
        self.chunks[number as usize] = Some(start);
        self.spare += 1;
        self.add_free((number, 0), LINES);
        (LINES, (number, 0))
    }

    /// A chunk goes back to the system. It is no free range any more.
    fn release(&mut self, number: u32) {
        if let Some(start) = self.chunks[number as usize].take() {
            self.gone.push(number);
            // SAFETY: allocated by `grow` with this layout, and none of its rooms is in use.
            unsafe { dealloc(start.as_ptr(), chunk_layout()) };
        }
    }
}

/// Asks for huge pages under a chunk, or for none.
fn back(chunk: NonNull<u8>, huge: bool) {
    // Miri has no madvise.
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        // SAFETY: the chunk is ours, aligned and of this length; the call changes how it is backed, not what
        // is in it.
        unsafe { libc::madvise(chunk.as_ptr().cast(), CHUNK, advice) };
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = (chunk, huge);
}

/// Gives the whole pages of a free range back to the system. They read as zeros until something is written to
/// them.
fn drop_pages(start: NonNull<u8>, bytes: usize) {
    // Miri has no madvise.
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        let skipped = start.as_ptr().align_offset(PAGE);
        let length = bytes.saturating_sub(skipped) / PAGE * PAGE;
        if length > 0 {
            // SAFETY: the range is part of a chunk, which is private memory of the allocator's, and free:
            // nobody relies on what is in it. The pages lie within the range, so that nothing beside it
            // changes.
            unsafe { libc::madvise(start.as_ptr().add(skipped).cast(), length, libc::MADV_DONTNEED) };
        }
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = (start, bytes);
}

fn chunk_layout() -> Layout {
    const { assert!(CHUNK.is_power_of_two()) };
    // SAFETY: a power of two that is not zero, and a size that is a multiple of it.
    unsafe { Layout::from_size_align_unchecked(CHUNK, CHUNK) }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for number in 0..self.chunks.len() as u32 {
            // An arena that is dropped has no reader left.
            self.release(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Miri is some thousand times slower.
    const ROUNDS: u32 = if cfg!(miri) { 200 } else { 20_000 };
    const SIZES: usize = if cfg!(miri) { 32 * LINE } else { LARGEST };

    #[test]
    fn rooms_do_not_overlap_and_are_used_again() {
        let mut arena = Arena::new();
        let mut rooms = Vec::new();
        let mut state = 1_u64;
        for round in 0..ROUNDS {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if rooms.len() > 300 || (round % 3 == 0 && !rooms.is_empty()) {
                let (room, mark): (Room, u8) = rooms.swap_remove((state >> 33) as usize % rooms.len());
                // SAFETY: the room is in use and was filled with its mark.
                let bytes = unsafe { std::slice::from_raw_parts(room.start.as_ptr(), room.bytes as usize) };
                // As a whole: byte by byte is very slow under miri.
                assert_eq!(bytes, vec![mark; bytes.len()]);
                // SAFETY: taken below, given back once.
                unsafe { arena.give_back(room) };
            } else {
                let room = arena.take(1 + (state >> 40) as usize % SIZES);
                let mark = round as u8;
                // SAFETY: the room was just taken and has this length.
                unsafe { room.start.as_ptr().write_bytes(mark, room.bytes as usize) };
                rooms.push((room, mark));
            }
        }
        // A room has 16 KiB on average; a tenth more is what the holes between them may take, and the last
        // chunk.
        let chunks = arena.chunks.iter().flatten().count();
        assert!(
            chunks * CHUNK < arena.bytes() + arena.bytes() / 8 + 2 * CHUNK,
            "{chunks} for {}",
            arena.bytes()
        );
        for (room, _) in rooms {
            // SAFETY: taken above, given back once.
            unsafe { arena.give_back(room) };
        }
        assert_eq!(arena.bytes(), 0);
        assert_eq!(
            (arena.chunks.iter().flatten().count(), arena.free.len(), arena.by_size.len()),
            (SPARE, 1, 1)
        );
    }

    /// Free pages of a small arena read as zeros once they went back; those in use keep what is in them.
    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn free_pages_of_a_small_arena_go_back_to_the_system() {
        let mut arena = Arena::new();
        let rooms: Vec<Room> = (0..32).map(|_| arena.take(LARGEST)).collect();
        for room in &rooms {
            // SAFETY: the room was just taken and has this length.
            unsafe { room.start.as_ptr().write_bytes(7, LARGEST) };
        }
        let (kept, free): (Vec<_>, Vec<_>) = rooms.iter().enumerate().partition(|(at, _)| at % 8 == 0);
        for (_, room) in &free {
            // SAFETY: taken above, given back once.
            unsafe { arena.give_back(**room) };
        }
        let bytes_of = |room: &Room, value: u8| {
            // SAFETY: the chunk of the room is there as long as the arena; nobody writes to it.
            let bytes = unsafe { std::slice::from_raw_parts(room.start.as_ptr(), LARGEST) };
            bytes.iter().map(|byte| usize::from(*byte == value)).sum::<usize>()
        };
        assert!(kept.iter().all(|(_, room)| bytes_of(room, 7) == LARGEST));
        let zeros: usize = free.iter().map(|(_, room)| bytes_of(room, 0)).sum();
        let freed = free.len() * LARGEST;
        assert!(zeros >= freed - TRIM_AFTER - 4 * PAGE, "{zeros} of {freed}");
        for (_, room) in kept {
            // SAFETY: taken above, given back once.
            unsafe { arena.give_back(*room) };
        }
    }
}
