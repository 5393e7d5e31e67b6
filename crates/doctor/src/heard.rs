//! What was heard of one stream, summed up. No token, hash or key is kept.

use std::collections::{BTreeMap, BTreeSet};

use kvplane_core::{SpecKind, Tier};
use kvplane_wire::{Batch, Decoder, Event, Hash, Layout};

/// Distinct words that are kept of anything an engine may name at will; more of them say nothing new.
const MAX_WORDS: usize = 8;
/// A word of an engine is shown up to this many characters.
const MAX_WORD: usize = 60;

/// A batch's place: its number, and the publisher's clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mark {
    /// The engine's number.
    pub sequence: u64,
    /// Seconds since 1970, by the publisher's clock.
    pub timestamp: f64,
}

/// How block hashes are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Width {
    /// A 64-bit integer.
    Integer,
    /// A digest of this many bytes.
    Bytes(usize),
    /// A digest in hexadecimal digits, of this many bytes.
    Hex(usize),
}

impl std::fmt::Display for Width {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Integer => f.write_str("integers"),
            Self::Bytes(count) => write!(f, "{count} bytes"),
            Self::Hex(count) => write!(f, "{count} bytes in hexadecimal digits"),
        }
    }
}

/// What was heard of one stream.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Heard {
    /// Batches.
    pub batches: u64,
    /// Messages that are no batches.
    pub malformed: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// The one with the lowest number.
    pub first: Option<Mark>,
    /// The one with the highest.
    pub last: Option<Mark>,
    /// Ranks that batches name.
    pub ranks: BTreeSet<i64>,
    /// Tokens per block, of whole blocks on the device.
    pub block_sizes: BTreeSet<u32>,
    /// Whether blocks in the host's memory are published.
    pub has_host: bool,
    /// How hashes are written.
    pub widths: BTreeSet<Width>,
    /// What could not be read, by a word for the reason, and how often.
    pub unread: BTreeMap<String, u64>,
    /// Our clock minus the publisher's, in seconds: when a live batch came, the one nearest to 0; of a ring,
    /// whose batches may be of any age, only where the last is from the future.
    pub skew: Option<f64>,
}

impl Heard {
    /// A message that is no batch came.
    pub fn note_malformed(&mut self, reason: &str) {
        self.malformed += 1;
        self.unread(format!("message: {reason}"));
    }

    /// A batch came; live ones with the time on our clock.
    pub fn note(&mut self, decoder: &mut Decoder, sequence: u64, payload: &[u8], now: Option<f64>) {
        self.batches += 1;
        self.bytes += payload.len() as u64;
        let batch = match decoder.decode(payload) {
            Ok(batch) => batch,
            Err(error) => return self.unread(format!("batch: {}", error.as_str())),
        };
        if let Some(error) = batch.broken {
            self.unread(format!("batch: {}", error.as_str()));
        }
        let mark = Mark { sequence, timestamp: batch.timestamp };
        if self.first.is_none_or(|first| sequence < first.sequence) {
            self.first = Some(mark);
        }
        if self.last.is_none_or(|last| sequence > last.sequence) {
            self.last = Some(mark);
        }
        if let Some(now) = now.filter(|_| batch.timestamp > 0.0) {
            let skew = now - batch.timestamp;
            if self.skew.is_none_or(|least| skew.abs() < least.abs()) {
                self.skew = Some(skew);
            }
        }
        if self.ranks.len() < MAX_WORDS {
            self.ranks.extend(batch.rank);
        }
        for event in &batch.events {
            self.event(&batch, event);
        }
    }

    /// The last batch that a ring has was read at this time on our clock.
    pub(crate) fn note_ring_end(&mut self, now: f64) {
        self.skew = self.last.map(|last| now - last.timestamp).filter(|skew| *skew < 0.0);
    }

    /// Batches per second by the publisher's own clock, where enough were heard for long enough to tell.
    pub fn rate(&self) -> Option<f64> {
        /// Fewer, or all within less, are a burst and not a rate.
        const ENOUGH: u64 = 16;
        const SECONDS: f64 = 1.0;
        let (first, last) = self.first.zip(self.last)?;
        let (batches, seconds) = (last.sequence - first.sequence, last.timestamp - first.timestamp);
        (batches >= ENOUGH && seconds >= SECONDS).then(|| batches as f64 / seconds)
    }

    fn event(&mut self, batch: &Batch<'_, '_>, event: &Event<'_>) {
        match event {
            Event::Stored(stored) => {
                self.widths(batch, batch.stored_hashes(stored));
                let tier = Tier::from_medium(stored.medium);
                if tier == Tier::Unknown {
                    self.unread(format!("medium {}", shown(stored.medium.unwrap_or_default())));
                }
                self.has_host |= tier == Tier::Host;
                if tier == Tier::Device
                    && batch.layout(stored) == Layout::Dense
                    && self.block_sizes.len() < MAX_WORDS
                {
                    self.block_sizes.insert(stored.block_size);
                }
                if let Some(kind) = stored.spec_kind
                    && SpecKind::from_wire(kind) == SpecKind::Unknown
                {
                    self.unread(format!("group of kind {}", shown(kind)));
                }
            }
            Event::Removed(removed) => self.widths(batch, batch.removed_hashes(removed)),
            Event::Unknown { kind } => self.unread(format!("event of kind {}", shown(kind))),
            Event::Rejected(rejected) => {
                self.unread(format!("{}: {}", rejected.kind.as_str(), rejected.reason.as_str()));
            }
            Event::Cleared { .. } | Event::Moved(_) | Event::Created(_) => {}
        }
    }

    fn widths(&mut self, batch: &Batch<'_, '_>, hashes: &[Hash]) {
        // One engine writes the hashes of one event alike.
        let Some(hash) = hashes.first().filter(|_| self.widths.len() < MAX_WORDS) else { return };
        let width = match batch.wide(*hash) {
            None => Width::Integer,
            Some(digest) if hash.is_hex() => Width::Hex(digest.len()),
            Some(digest) => Width::Bytes(digest.len()),
        };
        self.widths.insert(width);
    }

    fn unread(&mut self, what: String) {
        if self.unread.len() < MAX_WORDS || self.unread.contains_key(&what) {
            *self.unread.entry(what).or_default() += 1;
        }
    }
}

/// A word of an engine, made harmless: short, and without anything that a terminal obeys.
pub(crate) fn shown(word: &str) -> String {
    let cut: String = word.chars().take(MAX_WORD).collect();
    format!("{cut:?}")
}
