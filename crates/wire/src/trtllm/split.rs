//! From a drained body to parts that stand for themselves.
//!
//! Every rank counts its events from 0, and rank 0 merges all of them into one list. A part is what a
//! stream takes in at a time: consecutive events of one rank.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use super::json::{Fault, Reader};

/// Most events of a part.
pub const PART_EVENTS: usize = 1024;

/// Bytes of a body that are read. As large as any message of an engine may be here; a server with room for
/// ten thousand events of full blocks has a third of it to say.
pub const MAX_BODY_BYTES: usize = 64 << 20;

/// Parts that a body may have. A list of 64 ranks that is cut after every thousandth event does not come
/// near; only one made to fill memory does.
const MAX_PARTS: usize = 1 << 16;

/// What a drain brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drained {
    /// By rank, and in the order in which each rank's events stood in the list.
    pub parts: Vec<Part>,
    /// How many elements the list has.
    pub events: usize,
    /// How many of those are in no part: no object, or without a number or rank that can be read. Any of
    /// them may have been a removal.
    pub unreadable: usize,
}

/// Events of one rank, with numbers that follow one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The attention-DP rank; 0 where the server names none.
    pub rank: u32,
    /// The first event's id.
    pub first_id: u64,
    /// The last event's id.
    pub last_id: u64,
    /// How many events there are, at most [`PART_EVENTS`].
    pub count: usize,
    /// Whether one of them is a `created`: a new life has begun.
    pub created: bool,
    /// The events, separated by commas: what [`Dialect::TrtllmJson`](crate::Dialect::TrtllmJson) decodes.
    /// Shares the body's memory when nothing of another rank stood in between.
    pub payload: Bytes,
}

/// Why a body is no list of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SplitError {
    /// It is no JSON: an error page, for instance.
    #[error("not JSON")]
    NotJson,
    /// It is JSON, but no list.
    #[error("not a list of events")]
    NotAList,
    /// It ends before the list does.
    #[error("list ends early")]
    Truncated,
    /// It is larger than any drain, or cut into more parts.
    #[error("larger than a drain may be")]
    TooLarge,
}

impl SplitError {
    /// The word for counters and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotJson => "not_json",
            Self::NotAList => "not_a_list",
            Self::Truncated => "truncated",
            Self::TooLarge => "too_large",
        }
    }
}

/// Cuts a drained body into parts. Of each event only its number, its rank and its kind are read.
pub fn split(body: &Bytes) -> Result<Drained, SplitError> {
    if body.len() > MAX_BODY_BYTES {
        return Err(SplitError::TooLarge);
    }
    let mut reader = Reader::new(body);
    let mut items = reader.enter(b'[').map_err(|fault| match fault {
        Fault::Mismatch => outermost_fault(reader),
        fault => fault.into(),
    })?;
    let mut drain = Drain { body, open: BTreeMap::new(), parts: Vec::new(), events: 0, unreadable: 0 };
    while reader.next(&mut items)? {
        reader.peek()?;
        let start = reader.position();
        let head = read_head(&mut reader)?;
        drain.add(head, start..reader.position())?;
    }
    match reader.peek() {
        Err(_) => Ok(drain.finish()),
        Ok(_) => Err(SplitError::NotJson),
    }
}

/// What is wrong with a body that begins with something else than a list.
fn outermost_fault(mut reader: Reader<'_>) -> SplitError {
    let is_object_or_text = matches!(reader.peek(), Ok(b'{' | b'"'));
    match reader.skip_value() {
        // Letters are JSON only as one of its words, which nobody answers with.
        Ok(()) if is_object_or_text || reader.peek().is_err() => SplitError::NotAList,
        Ok(()) => SplitError::NotJson,
        Err(fault) => fault.into(),
    }
}

/// What an event says about its place among the others.
struct Head {
    id: u64,
    rank: u32,
    created: bool,
}

/// Passes over one event. `None` if it has no place among the others.
fn read_head(reader: &mut Reader<'_>) -> Result<Option<Head>, Fault> {
    let mut items = match reader.enter(b'{') {
        Err(Fault::Mismatch) => return reader.skip_value().map(|()| None),
        items => items?,
    };
    let mut id = None;
    let mut rank = Some(0);
    let mut created = false;
    while let Some(key) = reader.next_key(&mut items)? {
        match key {
            b"event_id" => id = number_or_skip(reader)?,
            b"attention_dp_rank" if reader.take_null() => rank = Some(0),
            b"attention_dp_rank" => rank = number_or_skip(reader)?.and_then(|rank| rank.try_into().ok()),
            b"data" => {
                created = kind_of_data(*reader)? == Some(b"created");
                reader.skip_value()?;
            }
            _ => reader.skip_value()?,
        }
    }
    Ok(id.zip(rank).map(|(id, rank)| Head { id, rank, created }))
}

fn number_or_skip(reader: &mut Reader<'_>) -> Result<Option<u64>, Fault> {
    match reader.unsigned() {
        Err(Fault::Mismatch) => reader.skip_value().map(|()| None),
        number => number.map(Some),
    }
}

/// The kind that an event's data names, wherever it stands in it; looked up ahead of the reader.
pub(super) fn kind_of_data(mut ahead: Reader<'_>) -> Result<Option<&[u8]>, Fault> {
    let mut items = match ahead.enter(b'{') {
        Err(Fault::Mismatch) => return Ok(None),
        items => items?,
    };
    while let Some(key) = ahead.next_key(&mut items)? {
        match (key, ahead.text()) {
            (b"type", Ok(kind)) => return Ok(Some(kind.bytes)),
            (_, Ok(_)) => {}
            (_, Err(Fault::Mismatch)) => ahead.skip_value()?,
            (_, Err(fault)) => return Err(fault),
        }
    }
    Ok(None)
}

/// The parts while the list is read.
struct Drain<'b> {
    body: &'b Bytes,
    /// Each rank's part that may go on.
    open: BTreeMap<u32, OpenPart>,
    parts: Vec<Part>,
    events: usize,
    unreadable: usize,
}

struct OpenPart {
    first_id: u64,
    last_id: u64,
    created: bool,
    payload: Payload,
    /// Which element of the list its last event is.
    last_index: usize,
}

enum Payload {
    /// Events that stand beside one another in the body.
    Stretch(Range<usize>),
    /// Events that did not, copied together.
    Copied(Vec<u8>),
}

impl Drain<'_> {
    fn add(&mut self, head: Option<Head>, range: Range<usize>) -> Result<(), SplitError> {
        let index = self.events;
        self.events += 1;
        let Some(head) = head else {
            self.unreadable += 1;
            return Ok(());
        };
        if let Some(part) = self.open.get_mut(&head.rank) {
            if part.goes_on_with(head.id) {
                part.append(&head, index, range, self.body);
                return Ok(());
            }
            if let Some(part) = self.open.remove(&head.rank) {
                self.parts.push(part.close(head.rank, self.body));
            }
        }
        if self.parts.len() + self.open.len() >= MAX_PARTS {
            return Err(SplitError::TooLarge);
        }
        self.open.insert(
            head.rank,
            OpenPart {
                first_id: head.id,
                last_id: head.id,
                created: head.created,
                payload: Payload::Stretch(range),
                last_index: index,
            },
        );
        Ok(())
    }

    fn finish(mut self) -> Drained {
        for (rank, part) in self.open {
            self.parts.push(part.close(rank, self.body));
        }
        // Stable: the parts of a rank were closed in their order.
        self.parts.sort_by_key(|part| part.rank);
        Drained { parts: self.parts, events: self.events, unreadable: self.unreadable }
    }
}

impl OpenPart {
    fn count(&self) -> usize {
        (self.last_id - self.first_id) as usize + 1
    }

    fn goes_on_with(&self, id: u64) -> bool {
        self.last_id.checked_add(1) == Some(id) && self.count() < PART_EVENTS
    }

    fn append(&mut self, head: &Head, index: usize, range: Range<usize>, body: &[u8]) {
        let is_next = self.last_index + 1 == index;
        self.last_id = head.id;
        self.last_index = index;
        self.created |= head.created;
        match &mut self.payload {
            Payload::Stretch(stretch) if is_next => stretch.end = range.end,
            Payload::Stretch(stretch) => {
                let copied = [&body[stretch.clone()], b",", &body[range]].concat();
                self.payload = Payload::Copied(copied);
            }
            Payload::Copied(bytes) => {
                bytes.push(b',');
                bytes.extend_from_slice(&body[range]);
            }
        }
    }

    fn close(self, rank: u32, body: &Bytes) -> Part {
        Part {
            rank,
            first_id: self.first_id,
            last_id: self.last_id,
            count: self.count(),
            created: self.created,
            payload: match self.payload {
                Payload::Stretch(stretch) => body.slice(stretch),
                Payload::Copied(bytes) => bytes.into(),
            },
        }
    }
}

impl From<Fault> for SplitError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Truncated => Self::Truncated,
            Fault::NotJson => Self::NotJson,
            Fault::Mismatch => Self::NotAList,
        }
    }
}
