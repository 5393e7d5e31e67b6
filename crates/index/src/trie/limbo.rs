//! Limbo: what is out of use, and may be seen by readers that sat down before it was.

use std::ptr::NonNull;

use super::Trie;
use crate::arena::Room;
use crate::crowd::Crowd;
use crate::shared::Old;

/// Something that readers may still look at.
#[derive(Debug)]
pub(super) enum Garbage {
    Room(Room),
    Crowd(NonNull<Crowd>),
    Table(Old),
    Lane(u32),
}

/// How much garbage is worth a look at the readers' seats.
const GARBAGE: usize = 64;

impl Trie {
    pub(super) fn discard_crowd(&mut self, crowd: *mut Crowd) {
        if let Some(crowd) = NonNull::new(crowd) {
            // SAFETY: it came from a box and is not freed yet.
            self.crowd_bytes -= unsafe { crowd.as_ref() }.bytes();
            self.discard(Garbage::Crowd(crowd));
        }
    }

    pub(super) fn new_crowd(&mut self, crowd: Crowd) -> *mut Crowd {
        self.crowd_bytes += crowd.bytes();
        Box::into_raw(Box::new(crowd))
    }

    pub(crate) fn discard_table(&mut self, table: Old) {
        self.discard(Garbage::Table(table));
    }

    /// A lane that no extent names any more: it may be given out again when no answer can hold it.
    pub(crate) fn discard_lane(&mut self, lane: u32) {
        self.discard(Garbage::Lane(lane));
    }

    pub(super) fn discard(&mut self, garbage: Garbage) {
        self.limbo.push_back((self.shared.epochs.tag(), garbage));
    }

    /// Whether nobody can see any more what was unlinked in an epoch.
    pub(crate) fn is_out_of_sight(&mut self, tag: u64) -> bool {
        if tag >= self.horizon {
            self.look_around();
        }
        tag < self.horizon
    }

    pub(super) fn look_around(&mut self) {
        self.shared.epochs.advance();
        self.horizon = self.shared.epochs.horizon();
    }

    /// Frees what no reader can see, when there is enough of it.
    pub(crate) fn collect(&mut self) {
        if self.limbo.len() >= GARBAGE {
            self.collect_now();
        }
    }

    /// Frees what no reader can see.
    pub(crate) fn collect_now(&mut self) {
        self.look_around();
        while let Some((tag, _)) = self.limbo.front() {
            if *tag >= self.horizon {
                break;
            }
            let Some((_, garbage)) = self.limbo.pop_front() else { break };
            // SAFETY: it was unlinked before the oldest reader sat down.
            unsafe { self.free_garbage(garbage) };
        }
    }

    /// # Safety
    /// No reader can see it.
    unsafe fn free_garbage(&mut self, garbage: Garbage) {
        // SAFETY: by the caller; each was taken out of use when it was discarded, once.
        unsafe {
            match garbage {
                Garbage::Room(room) => self.arena.give_back(room),
                Garbage::Crowd(crowd) => drop(Box::from_raw(crowd.as_ptr())),
                Garbage::Table(table) => table.free(),
                Garbage::Lane(lane) => self.free_lanes.push(lane),
            }
        }
    }
}

impl Drop for Trie {
    fn drop(&mut self) {
        for id in 1..self.cold.len() as u32 {
            if self.cold[id as usize].is_some() {
                let crowd = self.extent(id).crowd_pointer();
                self.discard_crowd(crowd);
            }
        }
        while let Some((_, garbage)) = self.limbo.pop_front() {
            // SAFETY: the trie goes with its index, and readers keep the index alive: there is none.
            unsafe { self.free_garbage(garbage) };
        }
    }
}
