//! A bus in memory, with every fault that one can have. For tests.

use std::collections::BTreeMap;

use bytes::Bytes;
use kvplane_core::StreamId;

use crate::own::Owned;

/// One shard of a bus, and the records of who owns what.
#[derive(Debug)]
pub struct MemoryBus {
    created: u64,
    next: u64,
    messages: Vec<(u64, Bytes)>,
    records: BTreeMap<StreamId, Owned>,
    /// How often it was made anew or lost what it had taken: readers of before are behind its back.
    upsets: u64,
}

impl Default for MemoryBus {
    fn default() -> Self {
        Self { created: 1, next: 1, messages: Vec::new(), records: BTreeMap::new(), upsets: 0 }
    }
}

/// A message: when the bus was made, the message's number there, and its bytes.
pub type Message = ((u64, u64), Bytes);

impl MemoryBus {
    /// Takes a message. Returns its number.
    pub fn publish(&mut self, bytes: Bytes) -> u64 {
        let number = self.next;
        self.next += 1;
        self.messages.push((number, bytes));
        number
    }

    /// The first message behind a reader that read up to a number of a bus that was made then.
    pub fn after(&self, (created, number): (u64, u64)) -> Option<Message> {
        let from = if created == self.created { number } else { 0 };
        let found = self.messages.iter().find(|(at, _)| *at > from)?;
        Some(((self.created, found.0), found.1.clone()))
    }

    /// When it was made, and its last number.
    pub fn end(&self) -> (u64, u64) {
        (self.created, self.next - 1)
    }

    /// Everything is lost, and it is made anew.
    pub fn rebirth(&mut self) {
        self.created += 1;
        self.next = 1;
        self.messages.clear();
        self.upsets += 1;
    }

    /// The last messages are lost though it had taken them, and their numbers are given again.
    pub fn lose_last(&mut self, count: usize) {
        self.messages.truncate(self.messages.len().saturating_sub(count));
        self.next = self.messages.last().map_or(1, |(number, _)| number + 1);
        self.upsets += 1;
    }

    /// How often it lost something that readers may have.
    pub fn upsets(&self) -> u64 {
        self.upsets
    }

    /// Who owns a stream, as recorded.
    pub fn record(&self, stream: &StreamId) -> Option<&Owned> {
        self.records.get(stream)
    }

    /// Sets the record, if it is still this one.
    pub fn claim(&mut self, stream: &StreamId, seen: Option<u64>, owned: Owned) -> bool {
        if self.records.get(stream).map(|record| record.generation) != seen {
            return false;
        }
        self.records.insert(stream.clone(), owned);
        true
    }

    /// All records are lost.
    pub fn lose_records(&mut self) {
        self.records.clear();
    }
}
