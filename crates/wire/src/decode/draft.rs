//! An event while its fields come in, in any order and perhaps before its kind.

use std::ops::Range;

use crate::event::{DecodeError, Event, ExtraKey, MAX_NAME, RejectReason, Removed, Stored, bounded};
use crate::field::{Field, Kind};
use crate::hash::Hash;
use crate::msgpack::{Fault, Integer, Reader};

use super::multimodal::{add_keys, items, mixed_tokens};
use super::{Scratch, Sink};

/// The fields read so far. Every kind's fields are a part of a store's.
#[derive(Default)]
pub(super) struct Draft<'f> {
    stored: Stored<'f>,
    /// Where the ranges of the store's multimodal items lie, one per block.
    items: Option<Range<usize>>,
    /// Where the texts among its tokens lie.
    texts: Range<usize>,
    seen: u32,
    /// Which fields have a fault.
    faulty: u32,
    faults: [Option<RejectReason>; Field::COUNT],
    unknown: u32,
}

/// Why a field could not be read.
pub(super) enum Trouble {
    /// The message breaks off here.
    Broken(DecodeError),
    /// The value is whole but of no use.
    Unfit(RejectReason),
}

// === impl Draft ===

impl<'f> Draft<'f> {
    /// Reads one field. A value that does not fit is passed over and remembered as the field's fault, for
    /// the kind may not be known yet. Of a repeated field the last one counts.
    pub(super) fn read(
        &mut self,
        field: Field,
        reader: &mut Reader<'f>,
        sink: &mut Sink<'_, 'f>,
    ) -> Result<(), DecodeError> {
        let start = reader.position();
        self.seen |= field.bit();
        self.faulty &= !field.bit();
        match self.assign(field, reader, sink) {
            Ok(()) => Ok(()),
            Err(Trouble::Broken(error)) => Err(error),
            Err(Trouble::Unfit(reason)) => {
                self.faulty |= field.bit();
                self.faults[field as usize] = Some(reason);
                reader.seek(start);
                Ok(reader.skip_value()?)
            }
        }
    }

    /// Counts a field that is not known.
    pub(super) fn pass_over(&mut self) {
        self.unknown = self.unknown.saturating_add(1);
    }

    /// Adds the event to `events`; how many fields of it were not known.
    ///
    /// An event is large beside the few bytes that most of them were, so it is moved once: to where it stays.
    pub(super) fn finish(
        mut self,
        kind: Kind,
        sink: &mut Sink<'_, 'f>,
        events: &mut Vec<Event<'f>>,
    ) -> Result<u32, RejectReason> {
        if kind.required() & !self.seen != 0 {
            return Err(RejectReason::MissingField);
        }
        let faulty = self.faulty & kind.known();
        if faulty != 0 {
            let first = self.faults[faulty.trailing_zeros() as usize];
            return Err(first.unwrap_or(RejectReason::BadType));
        }
        let foreign = self.seen & !kind.known();
        match kind {
            Kind::Stored => {
                check_store(&self.stored, sink)?;
                if self.items.is_some() || !self.texts.is_empty() {
                    add_keys(&mut self.stored, self.items, self.texts, sink)?;
                }
                events.push(Event::Stored(self.stored));
            }
            Kind::Removed => events.push(Event::Removed(Removed {
                hashes: self.stored.hashes,
                medium: self.stored.medium,
                anywhere: false,
                group: self.stored.group,
                locality: self.stored.locality,
                ownership: self.stored.ownership,
            })),
            Kind::Cleared => events.push(Event::Cleared { ownership: self.stored.ownership }),
        }
        Ok(self.unknown.saturating_add(foreign.count_ones()))
    }

    fn assign(
        &mut self,
        field: Field,
        reader: &mut Reader<'f>,
        sink: &mut Sink<'_, 'f>,
    ) -> Result<(), Trouble> {
        let stored = &mut self.stored;
        match field {
            Field::Hashes => stored.hashes = hashes(reader, sink.scratch)?,
            Field::Parent => {
                stored.parent =
                    if reader.take_nil() { None } else { Some(hash(reader, &mut sink.scratch.digests)?) }
            }
            Field::Tokens => (stored.tokens, stored.bigrams, self.texts) = tokens(reader, sink)?,
            Field::BlockSize => stored.block_size = block_size(reader)?,
            Field::LoraId => stored.lora_id = optional(reader, Integer::as_i64)?,
            Field::Medium => stored.medium = optional_text(reader)?,
            Field::LoraName => stored.lora_name = optional_text(reader)?,
            Field::Metadata => self.metadata(reader)?,
            Field::LoraNameOrMetadata => {
                if matches!(reader.peek(), Ok(0x80..=0x8f | 0xde | 0xdf)) {
                    self.metadata(reader)?;
                } else {
                    stored.lora_name = optional_text(reader)?;
                }
            }
            Field::ExtraKeys => stored.extra_keys = extra_keys(reader, sink)?,
            Field::Group => stored.group = optional(reader, Integer::as_u32)?,
            Field::SpecKind => stored.spec_kind = optional_text(reader)?,
            Field::SlidingWindow => stored.sliding_window = optional(reader, Integer::as_u32)?,
            Field::Locality => stored.locality = optional_text(reader)?,
            Field::Ownership => stored.ownership = optional_text(reader)?,
            Field::SessionId => stored.session_id = optional_text(reader)?,
            Field::CacheSalt => stored.cache_salt = optional_text(reader)?,
            Field::MultimodalKeys => {
                let unknown;
                (self.items, unknown) = items(reader, sink)?;
                self.unknown = self.unknown.saturating_add(unknown);
            }
        }
        Ok(())
    }

    /// `SGLang`'s map behind the medium.
    fn metadata(&mut self, reader: &mut Reader<'f>) -> Result<(), Trouble> {
        for _ in 0..reader.map_len()? {
            if reader.text()? == b"cache_salt" {
                self.stored.cache_salt = optional_text(reader)?;
            } else {
                reader.skip_value()?;
                self.pass_over();
            }
        }
        Ok(())
    }
}

/// A store with no more than six fields by position, each of its usual type and for each hash its tokens:
/// what `TokenSpeed` and `SGLang` without a salt send. `SGLang` did so page by page for long, which is why
/// the way here is short. `None` for anything else, with some of it read.
pub(super) fn usual_store<'f>(
    reader: &mut Reader<'f>,
    fields: usize,
    sink: &mut Sink<'_, 'f>,
) -> Option<Stored<'f>> {
    let hashes = hashes(reader, sink.scratch).ok()?;
    let parent = if reader.take_nil() { None } else { Some(hash(reader, &mut sink.scratch.digests).ok()?) };
    let (tokens, bigrams, texts) = tokens(reader, sink).ok()?;
    let block_size = block_size(reader).ok()?;
    if fields > 4 && !reader.take_nil() {
        return None;
    }
    let medium = if fields > 5 { optional_text(reader).ok()? } else { None };
    let positions = if bigrams { tokens.len() / 2 } else { tokens.len() };
    let is_dense = block_size > 0 && hashes.len() * block_size as usize == positions;
    if !is_dense || !texts.is_empty() {
        return None;
    }
    Some(Stored { hashes, tokens, bigrams, parent, block_size, medium, ..Stored::default() })
}

/// Whether a store's parts go together.
pub(crate) fn check_store(stored: &Stored<'_>, sink: &Sink<'_, '_>) -> Result<(), RejectReason> {
    let blocks = stored.hashes.len();
    let ids = stored.tokens.len();
    let positions = if stored.bigrams { ids / 2 } else { ids };
    if blocks > 0 && positions > 0 {
        if stored.block_size == 0 {
            return Err(RejectReason::BadBlockSize);
        }
        if blocks as u64 * u64::from(stored.block_size) > positions as u64 {
            return Err(RejectReason::TooFewTokens);
        }
    }
    // Keys without a block, or blocks without an entry, would give blocks an identity by guess.
    let keyed =
        stored.extra_keys.as_ref().map_or(0, |ranges| sink.scratch.extra_ranges[ranges.clone()].len());
    if keyed == 0 || keyed == blocks { Ok(()) } else { Err(RejectReason::BadType) }
}

fn hashes(reader: &mut Reader<'_>, scratch: &mut Scratch) -> Result<Range<usize>, Trouble> {
    let Scratch { hashes: out, digests, .. } = scratch;
    let count = reader.array_len()?;
    let start = out.len();
    out.reserve(count.min(reader.rest().len()));
    for _ in 0..count {
        out.push(match reader.take_u64() {
            Some(bits) => Hash::integer(bits, false),
            None => hash(reader, digests)?,
        });
    }
    Ok(start..out.len())
}

fn hash(reader: &mut Reader<'_>, digests: &mut Vec<u8>) -> Result<Hash, Trouble> {
    match reader.integer() {
        Ok(Integer { bits, negative }) => Ok(Hash::integer(bits, negative)),
        Err(Fault::Mismatch) => digest(reader, digests),
        Err(fault) => Err(fault.into()),
    }
}

fn digest(reader: &mut Reader<'_>, digests: &mut Vec<u8>) -> Result<Hash, Trouble> {
    let read = match reader.binary() {
        Ok(bytes) => Hash::from_bytes(bytes, digests),
        Err(Fault::Mismatch) => {
            let digits = reader.text().map_err(|fault| unfit(fault, RejectReason::BadHash))?;
            Hash::from_hex(digits, digests)
        }
        Err(fault) => return Err(fault.into()),
    };
    read.ok_or(Trouble::Unfit(RejectReason::BadHash))
}

/// The range of the ids, whether they are bigrams, and the range of the texts among them.
fn tokens<'f>(
    reader: &mut Reader<'f>,
    sink: &mut Sink<'_, 'f>,
) -> Result<(Range<usize>, bool, Range<usize>), Trouble> {
    let count = reader.array_len()?;
    let out = &mut sink.scratch.tokens;
    let start = out.len();
    let bad_token = |fault| unfit(fault, RejectReason::BadToken);
    if count > 0 && matches!(reader.peek()?, 0x90..=0x9f | 0xdc | 0xdd) {
        reader.u32_pairs(count, out).map_err(bad_token)?;
        return Ok((start..out.len(), true, 0..0));
    }
    let first = reader.position();
    let texts = match reader.u32s(count, out) {
        Ok(()) => 0..0,
        Err(Fault::Mismatch) => {
            out.truncate(start);
            reader.seek(first);
            mixed_tokens(reader, count, sink)?
        }
        Err(fault) => return Err(bad_token(fault)),
    };
    Ok((start..sink.scratch.tokens.len(), false, texts))
}

fn block_size(reader: &mut Reader<'_>) -> Result<u32, Trouble> {
    let size = reader.integer().map_err(|fault| unfit(fault, RejectReason::BadBlockSize))?;
    size.as_u32().ok_or(Trouble::Unfit(RejectReason::BadBlockSize))
}

fn optional<T>(
    reader: &mut Reader<'_>,
    convert: impl Fn(Integer) -> Option<T>,
) -> Result<Option<T>, Trouble> {
    if reader.take_nil() {
        return Ok(None);
    }
    convert(reader.integer()?).map(Some).ok_or(Trouble::Unfit(RejectReason::BadType))
}

fn optional_text<'f>(reader: &mut Reader<'f>) -> Result<Option<&'f str>, Trouble> {
    if reader.take_nil() {
        return Ok(None);
    }
    let text = std::str::from_utf8(reader.text()?).map_err(|_| Trouble::Unfit(RejectReason::BadType))?;
    bounded(text).map(Some).map_err(Trouble::Unfit)
}

fn extra_keys<'f>(reader: &mut Reader<'f>, sink: &mut Sink<'_, 'f>) -> Result<Option<Range<usize>>, Trouble> {
    if reader.take_nil() {
        return Ok(None);
    }
    let start = sink.scratch.extra_ranges.len();
    for _ in 0..reader.array_len()? {
        let first = sink.extra_keys.len();
        if !reader.take_nil() {
            for _ in 0..reader.array_len()? {
                sink.extra_keys.push(extra_key(reader)?);
            }
        }
        sink.scratch.extra_ranges.push(first..sink.extra_keys.len());
    }
    Ok(Some(start..sink.scratch.extra_ranges.len()))
}

fn extra_key<'f>(reader: &mut Reader<'f>) -> Result<ExtraKey<'f>, Trouble> {
    let raw = reader.raw_value()?;
    if raw.len() > MAX_NAME {
        return Err(Trouble::Unfit(RejectReason::NameTooLong));
    }
    let mut inner = Reader::new(raw);
    let named = match raw.first() {
        Some(0xa0..=0xbf | 0xd9..=0xdb) => text(&mut inner).map(ExtraKey::Text),
        Some(0xc4..=0xc6) => inner.binary().ok().map(ExtraKey::Bytes),
        Some(0x90..=0x9f | 0xdc | 0xdd) => multimodal(&mut inner),
        _ => inner.integer().ok().and_then(Integer::as_i64).map(ExtraKey::Integer),
    };
    Ok(named.unwrap_or(ExtraKey::Other(raw)))
}

fn multimodal<'f>(reader: &mut Reader<'f>) -> Option<ExtraKey<'f>> {
    if reader.array_len().ok()? != 2 {
        return None;
    }
    let id = text(reader)?;
    let offset = reader.integer().ok()?.as_i64()?;
    Some(ExtraKey::Multimodal { id, offset })
}

fn text<'f>(reader: &mut Reader<'f>) -> Option<&'f str> {
    std::str::from_utf8(reader.text().ok()?).ok()
}

pub(super) fn unfit(fault: Fault, reason: RejectReason) -> Trouble {
    match fault {
        Fault::Mismatch => Trouble::Unfit(reason),
        broken => Trouble::Broken(broken.into()),
    }
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        unfit(fault, RejectReason::BadType)
    }
}
