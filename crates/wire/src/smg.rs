//! SMG's `KvEventBatch`: what engines and relays stream through `SubscribeKvEvents`.
//!
//! ```text
//! KvEventBatch    1 sequence   2 timestamp   3* KvCacheEvent   4 dp_rank   7 KvSnapshotChunk   8 EngineLoad
//! KvCacheEvent    1 event_id   one of: 2 KvBlocksStored   3 KvBlocksRemoved   4 KvCacheCleared
//! KvBlocksStored  1* KvBlock   2 parent   3 tier   4 medium   5 group   6 kind   7 window   8 locality
//!                 9 ownership   10 session   11 lora_name   12 cache_salt
//! KvBlock         1 hash   2* tokens   3 block_size   4 lora_id   5 cache_level   6* KvBlockExtraKey
//! KvBlocksRemoved 1* hashes   2 cache_level   3 tier   4 medium   5 group   6 locality   7 ownership
//! KvCacheCleared  1 ownership
//! KvSnapshotChunk 1 index   2 count   3 blocks   4 unknown_before
//! EngineLoad      9 load_only
//! ```
//!
//! Every block has its own tokens and may have its own size, so one store may become several
//! [`Stored`](crate::Stored)s, each the parent of the next. Hashes are the 64 bits of a signed number. Where
//! blocks lie is given in up to three ways: the engine's own word counts, then the tier, then the level; none
//! means the device.
//!
//! As everywhere, a bad value costs its event, a field that is not known is counted, and bytes that are no
//! protobuf break the message off.

pub(crate) mod fields;
pub mod generate;
mod outline;
mod stored;

#[cfg(test)]
mod tests;

use crate::decode::{BYTES_PER_EVENT, FREE_EVENTS, Parts, Sink};
use crate::event::{DecodeError, Event, RejectReason, Rejected, RejectedKind, Removed, bounded};
use crate::hash::Hash;
use fields::{Fields, Value};

pub use outline::{Outline, SnapshotChunk, outline};

/// Why an event could not be read.
enum Trouble {
    /// The message breaks off here.
    Broken(DecodeError),
    /// The event is whole but of no use.
    Unfit(RejectReason),
}

/// Reads a message to its end, or to where it breaks off.
pub(crate) fn read<'f>(message: &'f [u8], sink: &mut Sink<'_, 'f>) -> Parts<'f> {
    let mut read = Parts::default();
    let mut reader =
        Reader { read: &mut read, sink, most_events: FREE_EVENTS + message.len() / BYTES_PER_EVENT };
    let broken = reader.batch(message).err();
    read.broken = broken;
    read
}

/// The bytes of a `SubscribeKvEventsRequest`: what follows `start`, and load records from the beginning.
pub fn subscribe_request(start: u64) -> Vec<u8> {
    let mut request = Vec::with_capacity(13);
    if start != 0 {
        request.push(1 << 3);
        let mut rest = start;
        while rest >= 0x80 {
            request.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        request.push(rest as u8);
    }
    // Load records are signs of life before the first batch.
    request.extend_from_slice(&[2 << 3, 1]);
    request
}

struct Reader<'r, 'd, 'f> {
    read: &'r mut Parts<'f>,
    sink: &'r mut Sink<'d, 'f>,
    /// A message of many tiny events is made to fill memory.
    most_events: usize,
}

impl<'f> Reader<'_, '_, 'f> {
    fn batch(&mut self, message: &'f [u8]) -> Result<(), DecodeError> {
        let mut fields = Fields::of(message);
        while let Some((number, value)) = fields.next()? {
            match (number, value) {
                (2, Value::Fixed64(bits)) => self.read.timestamp = f64::from_bits(bits),
                (3, Value::Bytes(event)) => self.event(event)?,
                (4, Value::Varint(rank)) => self.read.rank = Some(rank as i64),
                (1 | 7 | 8, _) => {} // the outline's
                _ => self.pass_over(),
            }
        }
        Ok(())
    }

    fn event(&mut self, message: &'f [u8]) -> Result<(), DecodeError> {
        let mut fields = Fields::of(message);
        let mut data = None;
        loop {
            match fields.next() {
                Ok(None) => break,
                Ok(Some((1, _))) => {}
                Ok(Some((kind @ 2..=4, Value::Bytes(bytes)))) => data = Some((kind, bytes)),
                Ok(Some(_)) => self.pass_over(),
                Err(_) => return self.push(rejected(RejectedKind::Unknown, RejectReason::BadType)),
            }
        }
        let Some((kind, bytes)) = data else { return self.push(Event::Unknown { kind: "unknown" }) };
        let (levels, events) = (self.sink.levels(), self.read.events.len());
        let (kind, done) = match kind {
            2 => (RejectedKind::Store, self.stored(bytes)),
            3 => (RejectedKind::Removal, self.removed(bytes)),
            _ => (RejectedKind::Removal, self.cleared(bytes)),
        };
        match done {
            Ok(()) => Ok(()),
            Err(trouble) => {
                self.sink.roll_back(levels);
                self.read.events.truncate(events);
                match trouble {
                    Trouble::Broken(error) => Err(error),
                    Trouble::Unfit(reason) => self.push(rejected(kind, reason)),
                }
            }
        }
    }

    fn removed(&mut self, message: &'f [u8]) -> Result<(), Trouble> {
        let start = self.sink.scratch.hashes.len();
        let mut place = Place::default();
        let mut removed = Removed {
            hashes: start..start,
            medium: None,
            anywhere: false,
            group: None,
            locality: None,
            ownership: None,
        };
        let mut fields = Fields::of(message);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => value.varints(|bits| {
                    self.sink.scratch.hashes.push(narrow(bits));
                    Ok::<_, Trouble>(())
                })?,
                2 => place.level = Some(value.varint()?),
                3 => place.tier = Some(value.varint()?),
                4 => place.medium = Some(name(value)?),
                5 => removed.group = Some(value.number()?),
                6 => removed.locality = locality(value.varint()?),
                7 => removed.ownership = Some(name(value)?),
                _ => self.pass_over(),
            }
        }
        removed.hashes = start..self.sink.scratch.hashes.len();
        removed.medium = Some(place.name());
        Ok(self.push(Event::Removed(removed))?)
    }

    fn cleared(&mut self, message: &'f [u8]) -> Result<(), Trouble> {
        let mut ownership = None;
        let mut fields = Fields::of(message);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => ownership = Some(name(value)?),
                _ => self.pass_over(),
            }
        }
        Ok(self.push(Event::Cleared { ownership })?)
    }

    fn push(&mut self, event: Event<'f>) -> Result<(), DecodeError> {
        if self.read.events.len() >= self.most_events {
            return Err(DecodeError::NotABatch);
        }
        self.read.events.push(event);
        Ok(())
    }

    fn pass_over(&mut self) {
        self.read.unknown_fields = self.read.unknown_fields.saturating_add(1);
    }
}

/// Where blocks lie, in the words of the contract.
#[derive(Debug, Clone, Copy, Default)]
struct Place<'f> {
    medium: Option<&'f str>,
    tier: Option<u64>,
    level: Option<u64>,
}

impl<'f> Place<'f> {
    /// One word for it, the same for a store and for the removal that ends it.
    fn name(self) -> &'f str {
        let by_level = match self.level.unwrap_or(0) {
            0 => "GPU",
            1 => "CPU",
            2 => "DISK",
            3 => "EXTERNAL",
            _ => "UNKNOWN_LEVEL",
        };
        self.medium.unwrap_or(match self.tier {
            None | Some(0) => by_level,
            Some(1) => "GPU",
            Some(2) => "CPU",
            Some(3) => "DISK",
            Some(4) => "EXTERNAL",
            Some(_) => "UNKNOWN_TIER",
        })
    }
}

fn locality(word: u64) -> Option<&'static str> {
    match word {
        0 => None,
        1 => Some("LOCAL"),
        2 => Some("REMOTE"),
        _ => Some("UNKNOWN"),
    }
}

/// A name that is kept.
fn name(value: Value<'_>) -> Result<&str, Trouble> {
    bounded(value.text()?).map_err(Trouble::Unfit)
}

fn narrow(bits: u64) -> Hash {
    Hash::integer(bits, false)
}

fn rejected<'f>(kind: RejectedKind, reason: RejectReason) -> Event<'f> {
    Event::Rejected(Rejected { kind, reason })
}

impl From<DecodeError> for Trouble {
    fn from(error: DecodeError) -> Self {
        Self::Broken(error)
    }
}

impl From<fields::Fault> for Trouble {
    /// Within an event bad bytes cost the event: its length says where the next one begins.
    fn from(_: fields::Fault) -> Self {
        Self::Unfit(RejectReason::BadType)
    }
}

impl From<fields::Fault> for DecodeError {
    fn from(fault: fields::Fault) -> Self {
        match fault {
            fields::Fault::Truncated => Self::Truncated,
            fields::Fault::NotProtobuf => Self::NotProtobuf,
            fields::Fault::Mismatch => Self::NotABatch,
        }
    }
}
