//! From a published message to events, in one pass.
//!
//! This is the msgpack that every engine publishes; the JSON that one of them has drained is read in
//! [`trtllm`], the protobuf of SMG's contract in [`smg`].
//!
//! ```text
//! batch  = [timestamp, [event, ...], rank?, ...]
//! event  = [kind, field, ...]              fields by position (vLLM to 0.23, SGLang to 0.5.19)
//!        | {"type": kind, name: field}     fields by name, in any order
//! ```
//!
//! Both forms may stand in one batch; nothing on the wire says which version speaks. Three rules keep one
//! bad value from costing more than itself:
//!
//! - a field of the wrong type spoils its event only: it is passed over whole and the event is rejected;
//! - a field or kind that is not known is passed over and counted;
//! - bytes that are no msgpack, or end early, break the message off: events before that point are kept.

mod draft;
mod multimodal;

#[cfg(test)]
mod tests;

use std::ops::{Range, RangeInclusive};

use crate::event::{Batch, DecodeError, Event, ExtraKey, RejectReason, Rejected, RejectedKind};
use crate::field::{Field, Kind};
use crate::hash::Hash;
use crate::msgpack::{Fault, Reader};
use crate::{smg, trtllm};

pub(crate) use self::draft::check_store;
use self::draft::{Draft, usual_store};
use self::multimodal::Text;

/// Entries that a buffer keeps between batches; more than any batch of an engine step needs.
const KEPT_ENTRIES: usize = 1 << 20;

/// Events that any message may hold, whatever its size.
pub(crate) const FREE_EVENTS: usize = 4096;

/// Beyond those, a message must have this many bytes per event. The shortest real one has fifteen, so only
/// a message made to fill memory is refused.
pub(crate) const BYTES_PER_EVENT: usize = 8;

/// How many fields a store has by position where the short way is tried first: up to the medium.
const USUAL_FIELDS: RangeInclusive<usize> = 4..=6;

/// How a payload is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dialect {
    /// Published messages of vLLM, `SGLang`, `TokenSpeed` and TensorRT-LLM's push mode.
    #[default]
    Msgpack,
    /// Drained events of TensorRT-LLM: the payload of a [`Part`](crate::trtllm::Part).
    TrtllmJson,
    /// A `KvEventBatch` of SMG's contract: protobuf.
    Smg,
}

/// Decodes messages of one or many streams; keeps its buffers between them.
#[derive(Debug, Default)]
pub struct Decoder {
    scratch: Scratch,
    texts: trtllm::Texts,
}

/// Where the numbers of a batch lie.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) hashes: Vec<Hash>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) extra_ranges: Vec<Range<usize>>,
    pub(crate) digests: Vec<u8>,
}

/// The buffers that one batch fills.
pub(crate) struct Sink<'d, 'f> {
    pub(crate) scratch: &'d mut Scratch,
    pub(crate) extra_keys: Vec<ExtraKey<'f>>,
    /// Texts among the token ids of every store so far.
    texts: Vec<Text<'f>>,
}

// === impl Decoder ===

impl Decoder {
    /// Decodes a payload of any dialect.
    pub fn decode_as<'d>(
        &'d mut self,
        dialect: Dialect,
        payload: &'d [u8],
    ) -> Result<Batch<'d, 'd>, DecodeError> {
        match dialect {
            Dialect::Msgpack => self.decode(payload),
            Dialect::TrtllmJson => Ok(self.decode_trtllm(payload)),
            Dialect::Smg => Ok(self.decode_smg(payload)),
        }
    }

    fn decode_trtllm<'d>(&'d mut self, payload: &'d [u8]) -> Batch<'d, 'd> {
        self.scratch.clear();
        self.texts.fill(payload);
        let mut sink = Sink::new(&mut self.scratch);
        let parts = trtllm::read(payload, &self.texts, &mut sink);
        parts.into_batch(sink.extra_keys, &self.scratch)
    }

    fn decode_smg<'d>(&'d mut self, message: &'d [u8]) -> Batch<'d, 'd> {
        self.scratch.clear();
        let mut sink = Sink::new(&mut self.scratch);
        let parts = smg::read(message, &mut sink);
        parts.into_batch(sink.extra_keys, &self.scratch)
    }

    /// Decodes one msgpack message.
    ///
    /// An error means that it is no batch at all. A batch that broke off comes back with what was read and
    /// with `broken` set.
    pub fn decode<'d, 'f>(&'d mut self, frame: &'f [u8]) -> Result<Batch<'d, 'f>, DecodeError> {
        self.scratch.clear();
        let mut reader = Reader::new(frame);
        let elements = reader.array_len()?;
        if elements < 2 {
            return Err(DecodeError::NotABatch);
        }
        let timestamp = reader.number()?;
        let count = reader.array_len()?;

        let mut sink = Sink::new(&mut self.scratch);
        let mut parts = Parts { timestamp, events: Vec::with_capacity(count.min(16)), ..Parts::default() };
        parts.broken = parts.read(&mut reader, elements, count, &mut sink).err();
        Ok(parts.into_batch(sink.extra_keys, &self.scratch))
    }

    /// A batch of whatever `events` puts into the buffers.
    pub(crate) fn fill<'d, 'f>(
        &'d mut self,
        timestamp: f64,
        events: impl FnOnce(&mut Sink<'_, 'f>) -> Result<Vec<Event<'f>>, RejectReason>,
    ) -> Result<Batch<'d, 'f>, RejectReason> {
        self.scratch.clear();
        let mut sink = Sink::new(&mut self.scratch);
        let parts = Parts { timestamp, events: events(&mut sink)?, ..Parts::default() };
        Ok(parts.into_batch(sink.extra_keys, &self.scratch))
    }

    /// How many bytes the buffers hold on to.
    pub fn retained_bytes(&self) -> usize {
        let Scratch { hashes, tokens, extra_ranges, digests } = &self.scratch;
        hashes.capacity() * size_of::<Hash>()
            + tokens.capacity() * size_of::<u32>()
            + extra_ranges.capacity() * size_of::<Range<usize>>()
            + digests.capacity()
            + self.texts.retained_bytes()
    }
}

// === impl Scratch ===

impl Scratch {
    /// Empties the buffers and gives back what an unusually large batch took.
    fn clear(&mut self) {
        self.hashes.clear();
        self.tokens.clear();
        self.extra_ranges.clear();
        self.digests.clear();
        self.hashes.shrink_to(KEPT_ENTRIES);
        self.tokens.shrink_to(KEPT_ENTRIES);
        self.extra_ranges.shrink_to(KEPT_ENTRIES);
        self.digests.shrink_to(KEPT_ENTRIES);
    }
}

// === impl Sink ===

impl<'d> Sink<'d, '_> {
    fn new(scratch: &'d mut Scratch) -> Self {
        Self { scratch, extra_keys: Vec::new(), texts: Vec::new() }
    }

    /// The fill levels, to come back to.
    pub(crate) fn levels(&self) -> [usize; 5] {
        let Scratch { hashes, tokens, extra_ranges, digests } = &*self.scratch;
        [hashes.len(), tokens.len(), extra_ranges.len(), digests.len(), self.extra_keys.len()]
    }

    /// Drops what was added since `levels`.
    pub(crate) fn roll_back(&mut self, [hashes, tokens, extra_ranges, digests, extra_keys]: [usize; 5]) {
        self.scratch.hashes.truncate(hashes);
        self.scratch.tokens.truncate(tokens);
        self.scratch.extra_ranges.truncate(extra_ranges);
        self.scratch.digests.truncate(digests);
        self.extra_keys.truncate(extra_keys);
    }
}

/// What is known of a batch so far, apart from what lies in the buffers; stays when the message breaks off.
#[derive(Debug, Default)]
pub(crate) struct Parts<'f> {
    pub(crate) timestamp: f64,
    pub(crate) rank: Option<i64>,
    pub(crate) events: Vec<Event<'f>>,
    pub(crate) unknown_fields: u32,
    pub(crate) broken: Option<DecodeError>,
}

// === impl Parts ===

impl<'f> Parts<'f> {
    /// The batch, over the buffers that it filled.
    fn into_batch<'d>(self, extra_keys: Vec<ExtraKey<'f>>, scratch: &'d Scratch) -> Batch<'d, 'f> {
        let Self { timestamp, rank, events, unknown_fields, broken } = self;
        Batch {
            timestamp,
            rank,
            events,
            unknown_fields,
            broken,
            extra_keys,
            hashes: &scratch.hashes,
            tokens: &scratch.tokens,
            extra_ranges: &scratch.extra_ranges,
            digests: &scratch.digests,
        }
    }

    /// Reads from the first event to the end of the message.
    fn read(
        &mut self,
        reader: &mut Reader<'f>,
        elements: usize,
        count: usize,
        sink: &mut Sink<'_, 'f>,
    ) -> Result<(), DecodeError> {
        let most = FREE_EVENTS + reader.rest().len() / BYTES_PER_EVENT;
        for _ in 0..count {
            if self.events.len() >= most {
                return Err(DecodeError::NotABatch);
            }
            let levels = sink.levels();
            self.event(reader, sink).inspect_err(|_| sink.roll_back(levels))?;
            if matches!(self.events.last(), Some(Event::Rejected(_) | Event::Unknown { .. })) {
                sink.roll_back(levels);
            }
        }
        if elements > 2 && !reader.take_nil() {
            self.rank = Some(reader.integer()?.as_i64().ok_or(DecodeError::NotABatch)?);
        }
        for _ in 3..elements {
            reader.skip_value()?;
            self.unknown_fields = self.unknown_fields.saturating_add(1);
        }
        if reader.rest().is_empty() { Ok(()) } else { Err(DecodeError::TrailingBytes) }
    }

    /// Reads one event and adds it to the others.
    fn event(&mut self, reader: &mut Reader<'f>, sink: &mut Sink<'_, 'f>) -> Result<(), DecodeError> {
        match reader.peek()? {
            0x90..=0x9f | 0xdc | 0xdd => self.by_position(reader, sink),
            0x80..=0x8f | 0xde | 0xdf => self.by_name(reader, sink),
            _ => {
                reader.skip_value()?;
                self.events.push(no_kind());
                Ok(())
            }
        }
    }

    fn by_position(&mut self, reader: &mut Reader<'f>, sink: &mut Sink<'_, 'f>) -> Result<(), DecodeError> {
        let length = reader.array_len()?;
        let Some(fields) = length.checked_sub(1) else {
            self.events.push(no_kind());
            return Ok(());
        };
        let tag = text_or_skip(reader)?;
        let Some(kind) = tag.and_then(Kind::of) else {
            reader.skip_values(fields)?;
            self.events.push(tag.map_or_else(no_kind, unknown_kind));
            return Ok(());
        };
        if kind == Kind::Stored && USUAL_FIELDS.contains(&fields) {
            let (start, levels) = (*reader, sink.levels());
            if let Some(stored) = usual_store(reader, fields, sink) {
                self.events.push(Event::Stored(stored));
                return Ok(());
            }
            *reader = start;
            sink.roll_back(levels);
        }
        let mut draft = Draft::default();
        let known = kind.positions();
        for field in known.iter().take(fields) {
            draft.read(*field, reader, sink)?;
        }
        for _ in known.len()..fields {
            reader.skip_value()?;
            draft.pass_over();
        }
        self.finish(draft, kind, sink);
        Ok(())
    }

    fn by_name(&mut self, reader: &mut Reader<'f>, sink: &mut Sink<'_, 'f>) -> Result<(), DecodeError> {
        let mut draft = Draft::default();
        let mut tag = None;
        for _ in 0..reader.map_len()? {
            let name = text_or_skip(reader)?.unwrap_or_default();
            if name == b"type" {
                tag = text_or_skip(reader)?;
            } else if let Some(field) = Field::named(name) {
                draft.read(field, reader, sink)?;
            } else {
                reader.skip_value()?;
                draft.pass_over();
            }
        }
        match tag.and_then(Kind::of) {
            Some(kind) => self.finish(draft, kind, sink),
            None => self.events.push(tag.map_or_else(no_kind, unknown_kind)),
        }
        Ok(())
    }

    fn finish(&mut self, draft: Draft<'f>, kind: Kind, sink: &mut Sink<'_, 'f>) {
        match draft.finish(kind, sink, &mut self.events) {
            Ok(unknown) => self.unknown_fields = self.unknown_fields.saturating_add(unknown),
            Err(reason) => self.events.push(Event::Rejected(Rejected { kind: kind.rejected(), reason })),
        }
    }
}

/// A text, or `None` for a value of another type, which is passed over.
fn text_or_skip<'f>(reader: &mut Reader<'f>) -> Result<Option<&'f [u8]>, DecodeError> {
    match reader.text() {
        Ok(text) => Ok(Some(text)),
        Err(Fault::Mismatch) => {
            reader.skip_value()?;
            Ok(None)
        }
        Err(fault) => Err(fault.into()),
    }
}

fn no_kind<'f>() -> Event<'f> {
    Event::Rejected(Rejected { kind: RejectedKind::Unknown, reason: RejectReason::NoKind })
}

fn unknown_kind(tag: &[u8]) -> Event<'_> {
    std::str::from_utf8(tag).map_or_else(|_| no_kind(), |kind| Event::Unknown { kind })
}

impl From<Fault> for DecodeError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Truncated => Self::Truncated,
            Fault::NotMsgpack => Self::NotMsgpack,
            Fault::Mismatch => Self::NotABatch,
        }
    }
}
