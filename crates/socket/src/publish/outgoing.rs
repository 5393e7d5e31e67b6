//! What waits to be sent to one peer: first in, first out, bounded in messages and in bytes.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::zmtp::command::{self, PingContext};

/// What a waiting message costs besides its own bytes.
const ENTRY_BYTES: usize = 64;

/// Unsent answers to PINGs; more are not answered. A kvplane has as many PINGs under way at most.
const MAX_PONGS: usize = 16;

/// Entries and bytes that are moved to the writing thread at once.
const MOVED_ENTRIES: usize = 1024;
const MOVED_BYTES: usize = 1 << 20;

/// What may wait for one peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    messages: usize,
    bytes: usize,
}

impl Limits {
    /// `send_hwm` as libzmq has it: 0 is without limit.
    pub(super) fn new(send_hwm: i32, bytes: usize) -> Self {
        let messages = usize::try_from(send_hwm).ok().filter(|&messages| messages > 0);
        Self { messages: messages.unwrap_or(usize::MAX), bytes }
    }
}

/// A message or an answer, encoded. Subscribers share the bytes of a message.
#[derive(Debug)]
struct Entry {
    bytes: Bytes,
    is_pong: bool,
}

/// Messages and bytes that are there, or that were written.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Amount {
    messages: usize,
    pongs: usize,
    bytes: usize,
}

impl Amount {
    fn add(&mut self, entry: &Entry) {
        *if entry.is_pong { &mut self.pongs } else { &mut self.messages } += 1;
        self.bytes += entry.bytes.len() + ENTRY_BYTES;
    }

    fn subtract(&mut self, other: Self) {
        self.messages = self.messages.saturating_sub(other.messages);
        self.pongs = self.pongs.saturating_sub(other.pongs);
        self.bytes = self.bytes.saturating_sub(other.bytes);
    }
}

/// The queue of one peer. What was moved to the writing thread counts until that has written it.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    entries: VecDeque<Entry>,
    held: Amount,
}

impl Outgoing {
    /// Whether a message of `size` bytes may wait. One that is above the limit by itself may wait alone.
    pub(super) fn has_room(&self, size: usize, limits: &Limits) -> bool {
        let bytes = self.held.bytes.saturating_add(size).saturating_add(ENTRY_BYTES);
        self.held.messages < limits.messages && (bytes <= limits.bytes || self.held.messages == 0)
    }

    /// Appends a message.
    pub(super) fn push(&mut self, message: Bytes) {
        self.append(Entry { bytes: message, is_pong: false });
    }

    /// Appends the answer to a PING, behind every message that was sent before.
    pub(super) fn push_pong(&mut self, context: &PingContext) {
        if self.held.pongs < MAX_PONGS {
            let mut bytes = Vec::new();
            command::pong(context, &mut bytes);
            self.append(Entry { bytes: bytes.into(), is_pong: true });
        }
    }

    /// So much of what was moved has been written.
    pub(super) fn written(&mut self, amount: Amount) {
        self.held.subtract(amount);
    }

    /// Moves the next entries to `writing`; false when there are none.
    pub(super) fn move_to(&mut self, writing: &mut Writing) -> bool {
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            let fits = bytes < MOVED_BYTES;
            bytes += entry.bytes.len();
            fits
        };
        let count = self.entries.iter().take(MOVED_ENTRIES).take_while(fits).count();
        writing.entries.extend(self.entries.drain(..count));
        if self.entries.is_empty() && self.entries.capacity() > MOVED_ENTRIES {
            self.entries = VecDeque::new();
        }
        count > 0
    }

    fn append(&mut self, entry: Entry) {
        self.held.add(&entry);
        self.entries.push_back(entry);
    }
}

/// What is being written to one peer, by the thread that does so.
#[derive(Debug, Default)]
pub(super) struct Writing {
    entries: VecDeque<Entry>,
    /// Bytes of the first entry that were written.
    head: usize,
}

impl Writing {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The next bytes to write: as many small entries as `buffer` has room for, or a large one as it is.
    pub(super) fn gather<'a>(&'a self, buffer: &'a mut [u8]) -> &'a [u8] {
        let mut head = self.head;
        let mut filled = 0;
        for entry in &self.entries {
            let bytes = &entry.bytes[head..];
            let Some(space) = buffer.get_mut(filled..filled + bytes.len()) else {
                if filled == 0 {
                    return bytes;
                }
                break;
            };
            space.copy_from_slice(bytes);
            filled += bytes.len();
            head = 0;
        }
        &buffer[..filled]
    }

    /// This many bytes were written; returns what that completes.
    pub(super) fn advance(&mut self, count: usize) -> Amount {
        let mut written = Amount::default();
        self.head += count;
        while let Some(entry) = self.entries.front()
            && entry.bytes.len() <= self.head
        {
            self.head -= entry.bytes.len();
            written.add(entry);
            self.entries.pop_front();
        }
        written
    }
}

impl std::ops::AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        self.messages += other.messages;
        self.pongs += other.pongs;
        self.bytes += other.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(size: usize, value: u8) -> Bytes {
        vec![value; size].into()
    }

    #[test]
    fn messages_and_bytes_are_bounded_until_they_are_written() {
        let limits = Limits::new(3, 10_000);
        let mut outgoing = Outgoing::default();
        for value in 0..3 {
            assert!(outgoing.has_room(100, &limits));
            outgoing.push(message(100, value));
        }
        assert!(!outgoing.has_room(100, &limits));
        let mut writing = Writing::default();
        assert!(outgoing.move_to(&mut writing));
        assert!(!outgoing.has_room(100, &limits), "it is not written yet");
        assert_eq!(writing.advance(99), Amount::default());
        let written = writing.advance(1);
        outgoing.written(written);
        assert!(outgoing.has_room(100, &limits));
        assert!(!outgoing.has_room(10_000, &limits));
        outgoing.written(writing.advance(200));
        assert!(outgoing.has_room(1 << 30, &limits), "a large message may wait alone");
        assert!(writing.is_empty());
    }

    #[test]
    fn no_limit_in_messages_is_still_one_in_bytes() {
        let limits = Limits::new(0, 1 << 20);
        let mut outgoing = Outgoing::default();
        let mut count = 0;
        while outgoing.has_room(0, &limits) {
            outgoing.push(Bytes::new());
            count += 1;
        }
        assert_eq!(count, (1 << 20) / ENTRY_BYTES);
    }

    #[test]
    fn answers_wait_behind_messages_and_are_few() {
        let mut outgoing = Outgoing::default();
        outgoing.push(message(3, 7));
        for n in 0..100 {
            outgoing.push_pong(&PingContext::counter(n));
        }
        let (mut writing, mut buffer) = (Writing::default(), [0; 1000]);
        assert!(outgoing.move_to(&mut writing));
        let bytes = writing.gather(&mut buffer).to_vec();
        assert!(bytes.starts_with(b"\x07\x07\x07\x04\x0d\x04PONG\0\0\0\0\0\0\0\0\x04"), "{bytes:?}");
        assert_eq!(bytes.len(), 3 + MAX_PONGS * 15);
        outgoing.written(writing.advance(bytes.len()));
        assert!(outgoing.has_room(1, &Limits::new(1, 100)));
    }

    #[test]
    fn bytes_come_out_as_they_went_in_whatever_is_written_at_once() {
        for step in [1, 7, 64, 1000, 100_000] {
            let mut outgoing = Outgoing::default();
            let mut expected = Vec::new();
            for (size, value) in [(10, 1), (0, 2), (5000, 3), (1, 4), (200, 5), (4096, 6), (60, 7)] {
                expected.extend_from_slice(&vec![value; size]);
                outgoing.push(message(size, value));
            }
            let (mut writing, mut buffer, mut out) = (Writing::default(), [0; 4096], Vec::new());
            while !writing.is_empty() || outgoing.move_to(&mut writing) {
                let bytes = writing.gather(&mut buffer);
                let count = bytes.len().min(step);
                out.extend_from_slice(&bytes[..count]);
                outgoing.written(writing.advance(count));
            }
            assert_eq!(out, expected, "{step}");
            assert_eq!(outgoing.held, Amount::default());
        }
    }
}
