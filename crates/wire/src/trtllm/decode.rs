//! From a part's payload to events.
//!
//! One event may become several: blocks of a store that differ in size, level or salt are stores of their
//! own, each with the block before it as its parent. An update without a move becomes none. As in the other
//! dialect, a value that does not fit costs its event, and bytes that are no JSON break the message off.

use crate::decode::{BYTES_PER_EVENT, FREE_EVENTS, Parts, Sink};
use crate::event::{Created, DecodeError, Event, Moved, RejectReason, Rejected, RejectedKind, Removed};

use super::field::Seen;
use super::json::{Fault, Reader};
use super::split::kind_of_data;
use super::texts::Texts;

/// Reads all events of a payload. `texts` are the escaped ones of the same payload.
pub(crate) fn read<'f>(payload: &'f [u8], texts: &'f Texts, sink: &mut Sink<'_, 'f>) -> Parts<'f> {
    let mut parser = Parser { reader: Reader::new(payload), texts, sink, out: Parts::default() };
    parser.out.broken = parser.events(FREE_EVENTS + payload.len() / BYTES_PER_EVENT).err();
    parser.out
}

/// Why an event could not be read.
pub(super) enum Trouble {
    /// The message breaks off here.
    Broken(Fault),
    /// The event is whole but of no use.
    Unfit(RejectReason),
}

/// Reads events into the buffers of a batch.
pub(super) struct Parser<'s, 'd, 'f> {
    pub(super) reader: Reader<'f>,
    pub(super) texts: &'f Texts,
    pub(super) sink: &'s mut Sink<'d, 'f>,
    pub(super) out: Parts<'f>,
}

/// What an event says beside its data.
#[derive(Default)]
struct Scope {
    window: Option<u32>,
    layer_group: Option<u32>,
}

impl Parser<'_, '_, '_> {
    fn events(&mut self, most: usize) -> Result<(), DecodeError> {
        while self.reader.peek().is_ok() {
            if self.out.events.len() >= most {
                return Err(DecodeError::NotABatch);
            }
            let start = self.reader.position();
            let (levels, kept) = (self.sink.levels(), self.out.events.len());
            if let Err(trouble) = self.event() {
                self.sink.roll_back(levels);
                self.out.events.truncate(kept);
                let reason = match trouble {
                    Trouble::Broken(fault) => return Err(fault.into()),
                    Trouble::Unfit(reason) => reason,
                };
                self.reader.seek(start);
                let kind = rejected_kind(self.reader);
                self.reader.skip_value()?;
                self.out.events.push(Event::Rejected(Rejected { kind, reason }));
            }
            if !self.reader.take(b',') {
                return if self.reader.peek().is_ok() { Err(DecodeError::NotJson) } else { Ok(()) };
            }
        }
        Ok(())
    }

    fn event(&mut self) -> Result<(), Trouble> {
        let no_kind = Trouble::Unfit(RejectReason::NoKind);
        let mut items = match self.reader.enter(b'{') {
            Err(Fault::Mismatch) => return Err(no_kind),
            items => items?,
        };
        let (levels, first) = (self.sink.levels(), self.out.events.len());
        let mut seen = Seen::default();
        let mut scope = Scope::default();
        let mut has_data = false;
        while let Some(key) = self.reader.next_key(&mut items)? {
            match key {
                b"event_id" => self.skip_known(&mut seen, 0)?,
                b"data" => {
                    if self.is_again(&mut seen, 1) {
                        self.sink.roll_back(levels);
                        self.out.events.truncate(first);
                    }
                    self.data()?;
                    has_data = true;
                }
                b"window_size" => {
                    self.is_again(&mut seen, 2);
                    scope.window = self.optional_u32()?;
                }
                b"attention_dp_rank" => {
                    self.is_again(&mut seen, 3);
                    self.out.rank = self.optional_u32()?.map(i64::from);
                }
                b"layer_group_id" => {
                    self.is_again(&mut seen, 4);
                    scope.layer_group = self.optional_u32()?;
                }
                b"hash_algo" => self.skip_known(&mut seen, 5)?,
                _ => self.skip_unknown()?,
            }
        }
        if !has_data {
            return Err(no_kind);
        }
        self.out.events[first..].iter_mut().for_each(|event| scope.place(event));
        Ok(())
    }

    fn data(&mut self) -> Result<(), Trouble> {
        match kind_of_data(self.reader)? {
            None => Err(Trouble::Unfit(RejectReason::NoKind)),
            Some(b"stored") => self.stored(),
            Some(b"removed") => self.removed(),
            Some(b"updated") => self.updated(),
            Some(b"created") => self.created(),
            Some(kind) => {
                let kind = std::str::from_utf8(kind).map_err(|_| Trouble::Unfit(RejectReason::NoKind))?;
                self.reader.skip_value()?;
                self.out.events.push(Event::Unknown { kind });
                Ok(())
            }
        }
    }

    fn stored(&mut self) -> Result<(), Trouble> {
        let (levels, first) = (self.sink.levels(), self.out.events.len());
        let mut items = self.reader.enter(b'{')?;
        let mut seen = Seen::default();
        let mut parent = None;
        let mut has_blocks = false;
        while let Some(key) = self.reader.next_key(&mut items)? {
            match key {
                b"type" => self.skip_known(&mut seen, 0)?,
                b"parent_hash" => {
                    self.is_again(&mut seen, 1);
                    parent = Some(if self.reader.take_null() { None } else { Some(self.hash()?) });
                }
                b"blocks" => {
                    if self.is_again(&mut seen, 2) {
                        self.sink.roll_back(levels);
                        self.out.events.truncate(first);
                    }
                    self.blocks()?;
                    has_blocks = true;
                }
                _ => self.skip_unknown()?,
            }
        }
        // Taking an absent parent for the start of a prompt would be a guess.
        let parent = parent.filter(|_| has_blocks).ok_or(Trouble::Unfit(RejectReason::MissingField))?;
        if let Some(Event::Stored(stored)) = self.out.events.get_mut(first) {
            stored.parent = parent;
        }
        Ok(())
    }

    fn removed(&mut self) -> Result<(), Trouble> {
        let mut items = self.reader.enter(b'{')?;
        let mut seen = Seen::default();
        let mut hashes = None;
        while let Some(key) = self.reader.next_key(&mut items)? {
            match key {
                b"type" => self.skip_known(&mut seen, 0)?,
                b"block_hashes" => {
                    self.is_again(&mut seen, 1);
                    let start = self.sink.scratch.hashes.len();
                    let mut list = self.reader.enter(b'[')?;
                    while self.reader.next(&mut list)? {
                        let hash = self.hash()?;
                        self.sink.scratch.hashes.push(hash);
                    }
                    hashes = Some(start..self.sink.scratch.hashes.len());
                }
                _ => self.skip_unknown()?,
            }
        }
        self.out.events.push(Event::Removed(Removed {
            hashes: hashes.ok_or(Trouble::Unfit(RejectReason::MissingField))?,
            medium: None,
            anywhere: true,
            group: None,
            locality: None,
            ownership: None,
        }));
        Ok(())
    }

    fn updated(&mut self) -> Result<(), Trouble> {
        let mut items = self.reader.enter(b'{')?;
        let mut seen = Seen::default();
        let mut hash = None;
        let mut levels = None;
        while let Some(key) = self.reader.next_key(&mut items)? {
            match key {
                b"type" => self.skip_known(&mut seen, 0)?,
                b"block_hash" => {
                    self.is_again(&mut seen, 1);
                    hash = Some(self.hash()?);
                }
                b"cache_level" => {
                    self.is_again(&mut seen, 2);
                    levels = if self.reader.take_null() { None } else { Some(self.difference()?) };
                }
                b"priority" => self.skip_known(&mut seen, 3)?,
                _ => self.skip_unknown()?,
            }
        }
        let hash = hash.ok_or(Trouble::Unfit(RejectReason::MissingField))?;
        let media = levels.map(|(from, to)| (medium(from), medium(to)));
        if let Some((from, to)) = media.filter(|(from, to)| from != to) {
            self.out.events.push(Event::Moved(Moved { hash, from, to, group: None, window: None }));
        }
        Ok(())
    }

    /// The old and the new value of something that changed.
    fn difference(&mut self) -> Result<(u64, u64), Trouble> {
        let mut items = self.reader.enter(b'{')?;
        let mut seen = Seen::default();
        let (mut old, mut new) = (None, None);
        while let Some(key) = self.reader.next_key(&mut items)? {
            match key {
                b"type" => self.skip_known(&mut seen, 0)?,
                b"old_value" => {
                    self.is_again(&mut seen, 1);
                    old = Some(self.reader.unsigned()?);
                }
                b"new_value" => {
                    self.is_again(&mut seen, 2);
                    new = Some(self.reader.unsigned()?);
                }
                _ => self.skip_unknown()?,
            }
        }
        old.zip(new).ok_or(Trouble::Unfit(RejectReason::MissingField))
    }

    fn created(&mut self) -> Result<(), Trouble> {
        let mut items = self.reader.enter(b'{')?;
        let mut seen = Seen::default();
        let (mut device_blocks, mut other_blocks) = (None, 0_u64);
        while let Some(key) = self.reader.next_key(&mut items)? {
            match key {
                b"type" => self.skip_known(&mut seen, 0)?,
                b"num_blocks_per_cache_level" => {
                    self.is_again(&mut seen, 1);
                    (device_blocks, other_blocks) = (None, 0);
                    let mut list = self.reader.enter(b'[')?;
                    while self.reader.next(&mut list)? {
                        let blocks = self.reader.unsigned()?;
                        match device_blocks {
                            None => device_blocks = Some(blocks),
                            Some(_) => other_blocks = other_blocks.saturating_add(blocks),
                        }
                    }
                }
                _ => self.skip_unknown()?,
            }
        }
        let device_blocks = device_blocks.ok_or(Trouble::Unfit(RejectReason::MissingField))?;
        let created = Created { device_blocks, other_blocks, group: None, window: None };
        self.out.events.push(Event::Created(created));
        Ok(())
    }
}

impl Scope {
    /// Says where an event happened. Windows tell pools apart where layer groups do not.
    fn place(&self, event: &mut Event<'_>) {
        let group = self.layer_group.or(self.window);
        match event {
            Event::Stored(stored) => {
                stored.group = group;
                stored.sliding_window = self.window;
            }
            Event::Removed(removed) => removed.group = group,
            Event::Moved(moved) => {
                moved.group = group;
                moved.window = self.window;
            }
            Event::Created(created) => {
                created.group = group;
                created.window = self.window;
            }
            Event::Cleared { .. } | Event::Unknown { .. } | Event::Rejected(_) => {}
        }
    }
}

/// The medium of a cache level. A level that is not known has a name that no medium has.
pub(super) fn medium(level: u64) -> &'static str {
    match level {
        0 => "GPU",
        1 => "CPU",
        2 => "DISK",
        _ => "UNKNOWN_LEVEL",
    }
}

/// What an event that cannot be read would have been. A lost update leaves a block where it is no more.
fn rejected_kind(mut reader: Reader<'_>) -> RejectedKind {
    let Ok(mut items) = reader.enter(b'{') else { return RejectedKind::Unknown };
    while let Ok(Some(key)) = reader.next_key(&mut items) {
        if key == b"data" {
            return match kind_of_data(reader) {
                Ok(Some(b"stored")) => RejectedKind::Store,
                Ok(Some(b"removed" | b"updated")) => RejectedKind::Removal,
                _ => RejectedKind::Unknown,
            };
        }
        if reader.skip_value().is_err() {
            break;
        }
    }
    RejectedKind::Unknown
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Mismatch => Self::Unfit(RejectReason::BadType),
            broken => Self::Broken(broken),
        }
    }
}

impl From<Fault> for DecodeError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Truncated => Self::Truncated,
            Fault::NotJson | Fault::Mismatch => Self::NotJson,
        }
    }
}
