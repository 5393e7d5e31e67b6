//! Appending to segments.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use crate::files::{Files, Out};
use crate::segment::{Kind, RecordHead, Segment};

/// A segment that is larger is followed by another.
const SEGMENT_BYTES: u64 = 64 << 20;

/// Which stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    /// The engine.
    pub engine: String,
    /// Its rank.
    pub rank: u32,
}

/// What all segments of a process say of themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Which directory.
    pub plane: [u8; 16],
    /// Which boot of the machine.
    pub boot: [u8; 16],
    /// Which process: unix milliseconds at its start.
    pub run: u64,
    /// Every record is on the disk before anybody hears of what it says.
    pub always_synced: bool,
}

#[derive(Debug)]
struct Declared {
    name: Name,
    next: u64,
}

/// The end of a journal.
#[derive(Debug)]
pub struct Log {
    files: Arc<dyn Files>,
    header: Header,
    out: Arc<dyn Out>,
    /// The segment that is appended to, and its bytes.
    segment: u64,
    bytes: u64,
    segment_bytes: u64,
    /// Earlier segments that are still there, and their bytes.
    earlier: BTreeMap<u64, u64>,
    streams: BTreeMap<u32, Declared>,
    /// What is not handed to the operating system yet.
    buffer: Vec<u8>,
}

impl Log {
    /// Begins a segment behind those that are there, which are given with their bytes.
    pub fn begin(files: Arc<dyn Files>, header: Header, earlier: BTreeMap<u64, u64>) -> io::Result<Self> {
        let segment = earlier.last_key_value().map_or(1, |(last, _)| last + 1);
        let out = files.create(&Segment::file(segment))?;
        let mut log = Self {
            files,
            header,
            out,
            segment,
            bytes: 0,
            segment_bytes: SEGMENT_BYTES,
            earlier,
            streams: BTreeMap::new(),
            buffer: Vec::new(),
        };
        log.begin_segment();
        log.write()?;
        log.files.sync_names()?;
        Ok(log)
    }

    /// Segments are followed by another one from this size on.
    pub fn set_segment_bytes(&mut self, bytes: u64) {
        self.segment_bytes = bytes;
    }

    fn begin_segment(&mut self) {
        let Header { plane, boot, run, always_synced } = self.header;
        let segment = Segment { plane, boot, run, number: self.segment, always_synced };
        self.buffer.extend_from_slice(&segment.header());
        let streams = std::mem::take(&mut self.streams);
        for (&id, declared) in &streams {
            self.write_declare(id, declared);
        }
        self.streams = streams;
    }

    fn write_declare(&mut self, id: u32, declared: &Declared) {
        let head = RecordHead { kind: Kind::Declare, stream: id, number: declared.next };
        head.write(self.segment, &mut self.buffer, |out| {
            out.extend_from_slice(&declared.name.rank.to_le_bytes());
            out.extend_from_slice(declared.name.engine.as_bytes());
        });
    }

    /// Gives a stream a number. Its next step has the number `next`.
    pub fn declare(&mut self, id: u32, name: Name, next: u64) {
        let declared = Declared { name, next };
        self.write_declare(id, &declared);
        self.streams.insert(id, declared);
    }

    /// Appends a record of a stream. Steps get the stream's next number.
    pub fn append(&mut self, kind: Kind, stream: u32, number: u64, fill: impl FnOnce(&mut Vec<u8>)) {
        if kind == Kind::Step
            && let Some(declared) = self.streams.get_mut(&stream)
        {
            declared.next = number + 1;
        }
        if kind == Kind::Gone {
            self.streams.remove(&stream);
        }
        RecordHead { kind, stream, number }.write(self.segment, &mut self.buffer, fill);
    }

    /// Hands everything to the operating system. Begins another segment where this one is large enough.
    pub fn write(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.out.append(&self.buffer)?;
        self.bytes += self.buffer.len() as u64;
        self.buffer.clear();
        // What was needed once for much is not kept for little.
        self.buffer.shrink_to(1 << 20);
        if self.bytes >= self.segment_bytes {
            self.out.sync()?;
            let out = self.files.create(&Segment::file(self.segment + 1))?;
            self.files.sync_names()?;
            self.earlier.insert(self.segment, self.bytes);
            self.segment += 1;
            self.bytes = 0;
            self.out = out;
            self.begin_segment();
            self.write()?;
        }
        Ok(())
    }

    /// What is appended to, to be synced.
    pub fn out(&self) -> Arc<dyn Out> {
        self.out.clone()
    }

    /// The streams that have a number.
    pub fn streams(&self) -> Vec<u32> {
        self.streams.keys().copied().collect()
    }

    /// The segment that is appended to.
    pub fn segment(&self) -> u64 {
        self.segment
    }

    /// How many segments there are.
    pub fn segments(&self) -> usize {
        self.earlier.len() + 1
    }

    /// Bytes of all segments.
    pub fn bytes(&self) -> u64 {
        self.earlier.values().sum::<u64>() + self.bytes
    }

    /// Removes the segments before one.
    pub fn remove_before(&mut self, segment: u64) -> io::Result<()> {
        while let Some((&first, _)) = self.earlier.first_key_value()
            && first < segment
        {
            self.files.remove(&Segment::file(first))?;
            self.earlier.pop_first();
        }
        self.files.sync_names()
    }

    /// Removes everything: what is there cannot be gone on from.
    pub fn remove_all(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        for segment in self.earlier.keys().copied().chain([self.segment]) {
            let removed = self.files.remove(&Segment::file(segment));
            result = result.and(removed);
        }
        result.and_then(|()| self.files.sync_names())
    }
}
