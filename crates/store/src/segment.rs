//! The format of a segment.
//!
//! ```text
//!  0        4         6       8          24         40        48         56        60       64
//!  | "KVPJ" | version | flags | plane 16 | boot 16  | run u64 | number u64 | crc32c | 0 u32 |  records ...
//!
//!  | length u32 | crc32c u32 | kind u8 | stream u32 | number u64 | `length` bytes |
//! ```
//!
//! Numbers are little-endian. The header's checksum is of all before it. A record's is of its kind, stream,
//! number and bytes, and begins with the segment's number: a record that was left on the disk by another
//! segment is none. *plane* names the directory, *boot* the machine's boot in which the segment was written,
//! *run* the process (unix milliseconds at its start), *number* is one more than the segment's before.
//! Segments are called `00000001.kvj` and so on.
//!
//! | kind | stream | number | bytes |
//! |---|---|---|---|
//! | 1 declare | its number | the next record's | rank u32, the engine's id |
//! | 2 step | its number | gapless from 1 | a [record](kvplane_stream::Record) |
//! | 3 saved | its number | the last record's that it has | part u32, parts u32, a part of a [memory](kvplane_stream::Memory) |
//! | 4 gone | its number | the last record's | nothing: the stream was removed |
//! | 5 closed | 0 | 0 | nothing: the process ended in order, and everything is on the disk |
//!
//! Every segment declares the streams that it has records of.

/// Bytes before the first record.
pub(crate) const HEADER: usize = 64;
/// Bytes before a record's own.
pub(crate) const RECORD_HEADER: usize = 21;
const MAGIC: &[u8; 4] = b"KVPJ";
/// Of this format. Another one is not read.
pub(crate) const VERSION: u16 = 1;
/// Every record is on the disk before anybody hears of what it says.
const ALWAYS_SYNCED: u16 = 1;

/// What a segment says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Which directory.
    pub plane: [u8; 16],
    /// Which boot of the machine.
    pub boot: [u8; 16],
    /// Which process: unix milliseconds at its start.
    pub run: u64,
    /// Which segment.
    pub number: u64,
    /// Every record is on the disk before anybody hears of what it says.
    pub always_synced: bool,
}

impl Segment {
    pub(crate) fn header(&self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(MAGIC);
        header[4..6].copy_from_slice(&VERSION.to_le_bytes());
        header[6..8].copy_from_slice(&(u16::from(self.always_synced) * ALWAYS_SYNCED).to_le_bytes());
        header[8..24].copy_from_slice(&self.plane);
        header[24..40].copy_from_slice(&self.boot);
        header[40..48].copy_from_slice(&self.run.to_le_bytes());
        header[48..56].copy_from_slice(&self.number.to_le_bytes());
        let crc = crc32c::crc32c(&header[..56]);
        header[56..60].copy_from_slice(&crc.to_le_bytes());
        header
    }

    /// Reads a header, and why it is none.
    pub fn read(bytes: &[u8]) -> Result<Self, Cut> {
        let header = bytes.get(..HEADER).ok_or(Cut::Short)?;
        if header[..4] != *MAGIC {
            return Err(Cut::Foreign);
        }
        if u32_at(header, 56) != crc32c::crc32c(&header[..56]) || u32_at(header, 60) != 0 {
            return Err(Cut::Checksum);
        }
        if u16_at(header, 4) != VERSION {
            return Err(Cut::Version(u16_at(header, 4)));
        }
        let mut segment = Self {
            plane: [0; 16],
            boot: [0; 16],
            run: u64_at(header, 40),
            number: u64_at(header, 48),
            always_synced: u16_at(header, 6) & ALWAYS_SYNCED != 0,
        };
        segment.plane.copy_from_slice(&header[8..24]);
        segment.boot.copy_from_slice(&header[24..40]);
        Ok(segment)
    }

    /// Its file.
    pub fn file(number: u64) -> String {
        format!("{number:08}.kvj")
    }

    /// The number of a segment by the name of its file.
    pub fn number_of(file: &str) -> Option<u64> {
        let number = file.strip_suffix(".kvj")?.parse().ok()?;
        (Self::file(number) == file).then_some(number)
    }
}

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A stream has a number.
    Declare = 1,
    /// A step of a stream.
    Step = 2,
    /// A part of all that a stream remembers.
    Saved = 3,
    /// A stream was removed.
    Gone = 4,
    /// The process ended in order.
    Closed = 5,
}

impl Kind {
    fn of(number: u8) -> Option<Self> {
        [Self::Declare, Self::Step, Self::Saved, Self::Gone, Self::Closed]
            .into_iter()
            .find(|kind| *kind as u8 == number)
    }
}

/// A record without its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHead {
    /// What it is.
    pub kind: Kind,
    /// Of which stream.
    pub stream: u32,
    /// Its number among those of the stream.
    pub number: u64,
}

/// A record of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'b> {
    /// What it is of.
    pub head: RecordHead,
    /// Where its bytes begin.
    pub offset: usize,
    /// Its bytes.
    pub bytes: &'b [u8],
}

/// Why a segment cannot be read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Cut {
    /// It ends within a record, or its header.
    #[error("it ends too early")]
    Short,
    /// A checksum is wrong.
    #[error("a checksum is wrong")]
    Checksum,
    /// A record is of an unknown kind.
    #[error("a record is of an unknown kind")]
    Kind,
    /// It is no segment.
    #[error("it is no journal segment")]
    Foreign,
    /// Its format is another.
    #[error("its format is version {0}, and this build reads version {VERSION}")]
    Version(u16),
}

impl RecordHead {
    /// Appends a record to `out`, which is of a segment. `fill` writes its bytes.
    pub(crate) fn write(self, segment: u64, out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
        let at = out.len();
        out.resize(at + 8, 0);
        out.push(self.kind as u8);
        out.extend_from_slice(&self.stream.to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
        fill(out);
        let length = (out.len() - at - RECORD_HEADER) as u32;
        let crc = crc32c::crc32c_append(seed(segment), &out[at + 8..]);
        out[at..at + 4].copy_from_slice(&length.to_le_bytes());
        out[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
    }
}

impl<'b> Record<'b> {
    /// The record at an offset of a segment; `None` at its end.
    pub fn read(segment: u64, bytes: &'b [u8], offset: usize) -> Result<Option<Self>, Cut> {
        let rest = bytes.get(offset..).ok_or(Cut::Short)?;
        if rest.is_empty() {
            return Ok(None);
        }
        if rest.len() < RECORD_HEADER {
            return Err(Cut::Short);
        }
        let end = RECORD_HEADER.checked_add(u32_at(rest, 0) as usize).ok_or(Cut::Short)?;
        let record = rest.get(..end).ok_or(Cut::Short)?;
        if crc32c::crc32c_append(seed(segment), &record[8..]) != u32_at(record, 4) {
            return Err(Cut::Checksum);
        }
        let kind = Kind::of(record[8]).ok_or(Cut::Kind)?;
        let head = RecordHead { kind, stream: u32_at(record, 9), number: u64_at(record, 13) };
        Ok(Some(Self { head, offset: offset + RECORD_HEADER, bytes: &record[RECORD_HEADER..] }))
    }

    /// Where the next one begins.
    pub fn end(&self) -> usize {
        self.offset + self.bytes.len()
    }
}

/// The records of a segment that was read, in their order, up to the end or to what cannot be read.
#[derive(Debug)]
pub struct Records<'b> {
    segment: u64,
    bytes: &'b [u8],
    offset: usize,
}

impl<'b> Records<'b> {
    /// Those of a segment with this number.
    pub fn of(segment: u64, bytes: &'b [u8]) -> Self {
        Self { segment, bytes, offset: HEADER }
    }

    /// Where the next one begins.
    pub fn offset(&self) -> usize {
        self.offset
    }
}

impl<'b> Iterator for Records<'b> {
    type Item = Result<Record<'b>, Cut>;

    fn next(&mut self) -> Option<Self::Item> {
        match Record::read(self.segment, self.bytes, self.offset) {
            Ok(None) => None,
            Ok(Some(record)) => {
                self.offset = record.end();
                Some(Ok(record))
            }
            Err(cut) => {
                // Nothing behind it can be told from chance.
                self.bytes = &[];
                self.offset = 0;
                Some(Err(cut))
            }
        }
    }
}

impl Kind {
    /// In one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Declare => "declare",
            Self::Step => "step",
            Self::Saved => "saved",
            Self::Gone => "gone",
            Self::Closed => "closed",
        }
    }
}

fn seed(segment: u64) -> u32 {
    crc32c::crc32c(&segment.to_le_bytes())
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}
