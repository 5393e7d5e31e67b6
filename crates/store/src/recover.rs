//! Reading a journal back.
//!
//! A journal is read twice: once to find what of each stream is there and whole, and once to take its steps
//! again. A torn end is cut off. Anything else that cannot be read voids the streams that have a hole by it,
//! and the others may lack what came last.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use kvplane_stream::{Damaged, Memory, Record as Step};

use crate::files::Files;
use crate::log::Name;
use crate::segment::{Cut, Kind, Record, Segment, u32_at};

/// A place of a journal that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// Which file.
    pub file: String,
    /// Where in it.
    pub offset: u64,
    /// Why.
    pub cut: Cut,
}

/// Where a part of a saved memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    segment: u64,
    offset: u64,
    bytes: usize,
}

/// All that a stream remembered after a step.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Saved {
    /// The last step's number.
    number: u64,
    parts: Vec<Part>,
}

/// What is there of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Which.
    pub name: Name,
    /// Its steps that are there without a hole: the first and the last of them; `None` without any.
    pub steps: Option<(u64, u64)>,
    /// It was removed.
    pub gone: bool,
    saved: Option<Saved>,
    /// Parts of one that is not complete yet.
    saving: Option<(Saved, u32)>,
}

impl Found {
    /// The number of the last step that was saved whole.
    pub fn saved(&self) -> Option<u64> {
        self.saved.as_ref().map(|saved| saved.number)
    }

    /// The number of its next step.
    pub fn next(&self) -> u64 {
        let last = self.steps.map(|(_, last)| last).max(self.saved());
        last.map_or(1, |last| last + 1)
    }

    /// Bytes of what was saved whole.
    pub fn saved_bytes(&self) -> u64 {
        self.saved.iter().flat_map(|saved| &saved.parts).map(|part| part.bytes as u64).sum()
    }

    /// Whether there is anything of it.
    pub(crate) fn begins(&self) -> bool {
        self.steps.is_some() || self.saved.is_some()
    }

    /// Whether its steps lead from something that is there to the end.
    fn is_whole(&self) -> bool {
        match (&self.saved, self.steps) {
            (Some(saved), Some((first, _))) => first <= saved.number + 1,
            (Some(_), None) => true,
            (None, Some((first, _))) => first == 1,
            (None, None) => false,
        }
    }

    fn note_step(&mut self, number: u64) {
        self.steps = match self.steps {
            Some((first, last)) if last + 1 == number => Some((first, number)),
            _ => Some((number, number)),
        };
    }

    fn note_part(&mut self, number: u64, bytes: &[u8], segment: u64, offset: usize) {
        if bytes.len() < 8 {
            return;
        }
        let (part, parts) = (u32_at(bytes, 0), u32_at(bytes, 4));
        if part == 0 {
            self.saving = Some((Saved { number, parts: Vec::new() }, parts));
        }
        let Some((saving, wanted)) = &mut self.saving else { return };
        if saving.number != number || saving.parts.len() as u32 != part || *wanted != parts {
            self.saving = None;
            return;
        }
        saving.parts.push(Part { segment, offset: offset as u64 + 8, bytes: bytes.len() - 8 });
        if part + 1 == parts {
            self.saved = self.saving.take().map(|(saved, _)| saved);
        }
    }
}

/// What is there of a journal.
#[derive(Debug)]
pub struct Recovery {
    files: Arc<dyn Files>,
    /// The segments by number, with their bytes that can be read.
    pub segments: BTreeMap<u64, u64>,
    /// What the last of them says of itself.
    pub last: Option<Segment>,
    /// The streams by number.
    pub streams: BTreeMap<u32, Found>,
    /// The process ended in order.
    pub closed: bool,
    /// The end is torn: in this segment, which can be read up to here.
    pub torn: Option<Trouble>,
    /// What else cannot be read.
    pub troubles: Vec<Trouble>,
}

/// A stream as it was when the journal ended.
#[derive(Debug)]
pub struct Recovered {
    /// Its number.
    pub id: u32,
    /// Which.
    pub name: Name,
    /// The number of its next step.
    pub next: u64,
    /// What it remembers, or why it does not.
    pub memory: Result<Memory, Damaged>,
}

/// Finds what is there. Fails where the files cannot be read, with [`io::ErrorKind::Unsupported`] where they
/// are a journal of another build, and with [`io::ErrorKind::InvalidData`] where they are none.
pub fn read(files: Arc<dyn Files>) -> io::Result<Recovery> {
    read_before(files, u64::MAX)
}

/// Removes every segment: what they say must not be gone on from.
pub fn clear(files: &dyn Files) -> io::Result<()> {
    for name in files.list()?.iter().filter(|name| Segment::number_of(name).is_some()) {
        files.remove(name)?;
    }
    files.sync_names()
}

/// The same for the segments before one.
pub(crate) fn read_before(files: Arc<dyn Files>, until: u64) -> io::Result<Recovery> {
    let mut numbers: Vec<u64> = files.list()?.iter().filter_map(|name| Segment::number_of(name)).collect();
    numbers.retain(|number| *number < until);
    numbers.sort_unstable();
    let mut recovery = Recovery {
        files,
        segments: BTreeMap::new(),
        last: None,
        streams: BTreeMap::new(),
        closed: false,
        torn: None,
        troubles: Vec::new(),
    };
    let last = numbers.last().copied();
    let mut expected = numbers.first().copied();
    for number in numbers {
        if expected != Some(number) {
            recovery.trouble(number.saturating_sub(1), 0, Cut::Short);
        }
        expected = number.checked_add(1);
        recovery.read_segment(number, Some(number) == last)?;
    }
    Ok(recovery)
}

impl Recovery {
    fn trouble(&mut self, segment: u64, offset: usize, cut: Cut) {
        self.troubles.push(Trouble { file: Segment::file(segment), offset: offset as u64, cut });
    }

    fn read_segment(&mut self, number: u64, is_last: bool) -> io::Result<()> {
        let bytes = self.files.read(&Segment::file(number))?;
        let header = match Segment::read(&bytes) {
            Ok(header) => header,
            Err(cut @ (Cut::Foreign | Cut::Version(_))) => {
                let is_ours = matches!(cut, Cut::Version(_));
                let kind = if is_ours { io::ErrorKind::Unsupported } else { io::ErrorKind::InvalidData };
                return Err(io::Error::new(kind, format!("{}: {cut}", Segment::file(number))));
            }
            Err(cut) => {
                self.end(number, (0, cut), is_last);
                return Ok(());
            }
        };
        let is_ours = self.last.is_none_or(|last| last.plane == header.plane) && header.number == number;
        if !is_ours {
            let error = format!("{} is of another journal", Segment::file(number));
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        self.last = Some(header);
        let mut offset = crate::segment::HEADER;
        loop {
            match Record::read(number, &bytes, offset) {
                Ok(None) => break,
                Ok(Some(record)) => {
                    self.closed = record.head.kind == Kind::Closed;
                    self.note(number, &record);
                    offset = record.end();
                }
                Err(cut) => {
                    self.end(number, (offset, cut), is_last);
                    break;
                }
            }
        }
        self.segments.insert(number, offset as u64);
        Ok(())
    }

    /// A segment cannot be read on from here.
    fn end(&mut self, number: u64, (offset, cut): (usize, Cut), is_last: bool) {
        self.closed = false;
        self.segments.insert(number, offset as u64);
        if is_last {
            self.torn = Some(Trouble { file: Segment::file(number), offset: offset as u64, cut });
        } else {
            self.trouble(number, offset, cut);
        }
    }

    fn note(&mut self, segment: u64, record: &Record<'_>) {
        let head = record.head;
        if head.kind == Kind::Declare {
            let Some((rank, engine)) = record.bytes.split_first_chunk() else { return };
            let name = Name {
                engine: String::from_utf8_lossy(engine).into_owned(),
                rank: u32::from_le_bytes(*rank),
            };
            self.streams.entry(head.stream).or_insert_with(|| Found {
                name,
                steps: None,
                gone: false,
                saved: None,
                saving: None,
            });
            return;
        }
        let Some(found) = self.streams.get_mut(&head.stream) else { return };
        match head.kind {
            Kind::Step => found.note_step(head.number),
            Kind::Saved => found.note_part(head.number, record.bytes, segment, record.offset),
            Kind::Gone => found.gone = true,
            Kind::Declare | Kind::Closed => {}
        }
    }

    /// Whether nothing that a subscriber has seen can be missing at the end, on a machine in this boot.
    pub fn is_complete(&self, boot: [u8; 16]) -> bool {
        let outlived = self.last.is_none_or(|last| last.boot == boot || last.always_synced);
        self.troubles.is_empty() && (self.closed || outlived)
    }

    /// The streams that can be gone on from.
    pub fn whole(&self) -> impl Iterator<Item = (u32, &Found)> {
        self.streams
            .iter()
            .filter(|(_, found)| !found.gone && found.is_whole())
            .map(|(&id, found)| (id, found))
    }

    /// The streams that cannot be, and were not removed.
    pub fn void(&self) -> impl Iterator<Item = (u32, &Found)> {
        self.streams
            .iter()
            .filter(|(_, found)| !found.gone && !found.is_whole())
            .map(|(&id, found)| (id, found))
    }

    /// Takes the steps of the streams with these numbers again, up to the segment `until`, on this many
    /// threads. Every step is compared with where it led.
    pub fn restore(&self, ids: &[u32], until: u64, threads: usize) -> io::Result<Vec<Recovered>> {
        let mut streams = Vec::new();
        for id in ids {
            let Some(found) = self.streams.get(id) else { continue };
            streams.push(Restoring { id: *id, name: found.name.clone(), next: 1, memory: self.load(found)? });
        }
        for stream in &mut streams {
            if let (Some(found), Some(_)) = (self.streams.get(&stream.id), &stream.memory) {
                stream.next = found.saved().unwrap_or(0) + 1;
            }
        }
        let share = streams.len().div_ceil(threads.max(1)).max(1);
        for (&number, &end) in self.segments.range(..until) {
            let mut bytes = self.files.read(&Segment::file(number))?;
            bytes.truncate(usize::try_from(end).unwrap_or(usize::MAX));
            let bytes = &bytes;
            if streams.len() <= share {
                follow_segment(&mut streams, number, bytes);
                continue;
            }
            std::thread::scope(|scope| {
                for share in streams.chunks_mut(share) {
                    scope.spawn(move || follow_segment(share, number, bytes));
                }
            });
        }
        Ok(streams.into_iter().map(Restoring::finish).collect())
    }

    /// What was saved of a stream.
    fn load(&self, found: &Found) -> io::Result<Option<Result<Memory, Damaged>>> {
        let Some(saved) = &found.saved else { return Ok(None) };
        let mut bytes = Vec::new();
        for part in &saved.parts {
            bytes.extend(self.files.read_at(&Segment::file(part.segment), part.offset, part.bytes)?);
        }
        Ok(Some(Memory::load(&bytes)))
    }
}

#[derive(Debug)]
struct Restoring {
    id: u32,
    name: Name,
    /// The number of the next step.
    next: u64,
    memory: Option<Result<Memory, Damaged>>,
}

/// Takes all steps in a segment of some streams.
fn follow_segment(streams: &mut [Restoring], number: u64, bytes: &[u8]) {
    let at: BTreeMap<u32, usize> = streams.iter().enumerate().map(|(at, stream)| (stream.id, at)).collect();
    let mut offset = crate::segment::HEADER;
    while let Ok(Some(record)) = Record::read(number, bytes, offset) {
        offset = record.end();
        if record.head.kind == Kind::Step
            && let Some(&at) = at.get(&record.head.stream)
        {
            streams[at].follow(record.head.number, record.bytes);
        }
    }
}

impl Restoring {
    fn follow(&mut self, number: u64, bytes: &[u8]) {
        if number != self.next {
            return;
        }
        self.next += 1;
        let step = Step::read(bytes);
        match &mut self.memory {
            Some(Err(_)) => {}
            Some(memory) => {
                let followed = match (&mut *memory, step) {
                    (Ok(memory), Ok(step)) => memory.follow(&step),
                    (_, step) => step.map(drop),
                };
                if let Err(damaged) = followed {
                    *memory = Err(damaged);
                }
            }
            None => self.memory = Some(step.and_then(|step| Memory::begin(&step))),
        }
    }

    fn finish(self) -> Recovered {
        let Self { id, name, next, memory } = self;
        Recovered { id, name, next, memory: memory.unwrap_or(Err(Damaged::NOTHING)) }
    }
}
