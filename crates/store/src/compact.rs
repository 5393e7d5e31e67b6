//! Making old segments into saved memories.
//!
//! What the old segments say of a stream is taken again, on a thread of its own, up to where the newer ones begin; what
//! the stream remembered there is appended, and the old ones are removed. So nothing is asked of the streams,
//! and all that is dropped was read once more, and led where it led.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tracing::{error, info};

use crate::files::Files;
use crate::journal::{Item, Journal, Off};
use crate::log::Log;
use crate::recover;

/// Saved bytes of the streams that are restored at the same time, and so roughly their memory.
const AT_ONCE: u64 = 128 << 20;

#[derive(Debug)]
pub(crate) struct Compactor {
    files: Arc<dyn Files>,
    /// One at a time, until the writer has removed what it replaces.
    busy: AtomicBool,
    /// Bytes of what was saved last.
    saved: Arc<AtomicU64>,
    /// What was saved last is in this segment or before it.
    saved_in: u64,
}

impl Compactor {
    /// `saved` bytes are saved in `saved_in` and before it.
    pub(crate) fn new(files: Arc<dyn Files>, saved: u64, saved_in: u64) -> Self {
        Self { files, busy: AtomicBool::new(false), saved: Arc::new(AtomicU64::new(saved)), saved_in }
    }

    /// All streams were saved, the last of them in this segment, and what they replace is removed. Only now
    /// may the next one begin: before, it could read segments that are about to go.
    pub(crate) fn note_saved(&mut self, segment: u64) {
        self.saved_in = segment;
        self.busy.store(false, Ordering::Release);
    }

    /// Begins, if there is enough to make smaller.
    pub(crate) fn look(&self, journal: &Arc<Journal>, log: &Log) {
        let from = journal.options.compact_from.max(2 * self.saved.load(Ordering::Relaxed));
        // The last whole segment stays: subscribers that are a little behind go on from it.
        let until = log.segment().saturating_sub(1);
        // What is read must have what was saved before, or the steps that led there.
        if log.bytes() < from || log.segments() < 3 || until <= self.saved_in {
            return;
        }
        if self.busy.swap(true, Ordering::AcqRel) {
            return;
        }
        let (files, journal, saved) = (self.files.clone(), journal.clone(), self.saved.clone());
        let streams = log.streams();
        let spawned = crate::writer::spawn("kvp-compact", move || {
            let result = compact(&files, &journal, &streams, until);
            match result {
                Ok(bytes) => {
                    saved.store(bytes, Ordering::Relaxed);
                    info!(before = until, saved_bytes = bytes, "old segments of the journal replaced");
                    journal.push(Item::Drop { before: until }, 0);
                }
                Err(error) => {
                    error!(error = %error, "journal cannot be read back; it is off until kvplane is started again");
                    journal.turn_off(Off::Damaged);
                }
            }
        });
        if let Err(error) = spawned {
            self.busy.store(false, Ordering::Release);
            error!(error = %error, "cannot start a thread");
        }
    }
}

/// Saves what each of these streams remembered where the segment `until` begins. Returns how many bytes that
/// are. Those that have a hole cannot be saved: then the journal is of no use.
fn compact(files: &Arc<dyn Files>, journal: &Journal, streams: &[u32], until: u64) -> io::Result<u64> {
    let found = recover::read_before(files.clone(), until)?;
    if let Some((_, stream)) = found.void().find(|(id, stream)| streams.contains(id) && stream.begins()) {
        let trouble = found.troubles.first().or(found.torn.as_ref());
        let place =
            trouble.map(|trouble| format!(" ({} at {}: {})", trouble.file, trouble.offset, trouble.cut));
        let error =
            format!("{}/{} has a hole{}", stream.name.engine, stream.name.rank, place.unwrap_or_default());
        return Err(io::Error::new(io::ErrorKind::InvalidData, error));
    }
    let mut total = 0;
    let mut ids: Vec<u32> = Vec::new();
    let mut bytes = 0;
    let whole = found.whole().filter(|(id, _)| streams.contains(id));
    let whole: Vec<(u32, u64)> = whole.map(|(id, stream)| (id, stream.saved_bytes())).collect();
    for (at, (id, saved)) in whole.iter().enumerate() {
        ids.push(*id);
        bytes += saved.max(&(1 << 20));
        if bytes < AT_ONCE && at + 1 < whole.len() {
            continue;
        }
        for stream in found.restore(&ids, until, 1)? {
            let memory = stream.memory.map_err(|error| {
                let name = format!("{}/{}: {error}", stream.name.engine, stream.name.rank);
                io::Error::new(io::ErrorKind::InvalidData, name)
            })?;
            let bytes = memory.save();
            total += bytes.len() as u64;
            // Not counted as waiting: a large memory is no sign of a slow disk.
            journal.push(Item::Saved { id: stream.id, number: stream.next - 1, bytes }, 0);
        }
        ids.clear();
        bytes = 0;
    }
    Ok(total)
}
