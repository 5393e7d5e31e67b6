//! The threads behind a journal.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tracing::{error, info, warn};

use crate::compact::Compactor;
use crate::files::{Files, Out};
use crate::journal::{Item, Journal, Off, Options, Sync};
use crate::log::{Header, Log};
use crate::recover::Recovery;
use crate::segment::{Kind, Segment};

/// Bytes of a part of a saved memory.
const PART: usize = 4 << 20;

/// What is to be synced.
type Dirty = Arc<Mutex<Option<Arc<dyn Out>>>>;

impl Journal {
    /// Goes on behind what was found, with threads of its own. Of the streams that were found, those with the numbers
    /// `keep` can be gone on with ([`Journal::stream`]); the others are as good as removed.
    pub fn start(
        files: Arc<dyn Files>,
        header: Header,
        options: Options,
        found: &Recovery,
        keep: &[u32],
    ) -> io::Result<Arc<Self>> {
        if let Some(torn) = &found.torn {
            files.truncate(&torn.file, torn.offset)?;
        }
        let mut earlier: BTreeMap<u64, u64> = found.segments.clone();
        // A segment without a header has nothing, and would not be read again.
        let empty: Vec<u64> = earlier.iter().filter(|(_, bytes)| **bytes == 0).map(|(&at, _)| at).collect();
        for number in empty {
            if earlier.last_key_value().is_some_and(|(&last, _)| last == number) {
                files.remove(&Segment::file(number))?;
                earlier.remove(&number);
            }
        }
        let next_id = found.streams.last_key_value().map_or(0, |(&id, _)| id);
        let mut log = Log::begin(files.clone(), header, earlier)?;
        let first = log.segment();
        log.set_segment_bytes(options.segment);
        for (&id, stream) in found.streams.iter().filter(|(_, stream)| !stream.gone) {
            if keep.contains(&id) {
                log.declare(id, stream.name.clone(), stream.next());
            } else {
                log.append(Kind::Gone, id, stream.next() - 1, |_| {});
            }
        }
        log.write()?;
        let journal = Arc::new(Self::new(options, next_id));
        let saved = found.whole().map(|(_, stream)| stream.saved_bytes()).sum();
        let writer = Writer {
            journal: journal.clone(),
            log,
            dirty: Dirty::default(),
            compactor: Compactor::new(files, saved, first - 1),
        };
        spawn("kvp-sync", {
            let (journal, dirty) = (journal.clone(), writer.dirty.clone());
            move || sync_now_and_then(&journal, &dirty)
        })?;
        spawn("kvp-journal", move || writer.run())?;
        Ok(journal)
    }
}

pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

#[derive(Debug)]
struct Writer {
    journal: Arc<Journal>,
    log: Log,
    dirty: Dirty,
    compactor: Compactor,
}

impl Writer {
    fn run(mut self) {
        loop {
            let (items, closing) = {
                let mut queue = self.journal.queue.lock();
                while queue.items.is_empty() && !queue.closing && self.journal.off().is_none() {
                    self.journal.wake.wait(&mut queue);
                }
                queue.bytes = 0;
                (std::mem::take(&mut queue.items), queue.closing)
            };
            self.journal.counters.queued_bytes.store(0, Ordering::Relaxed);
            if self.journal.off().is_none()
                && let Err(error) = self.write(items)
            {
                error!(error = %error, "journal failed; it is off until kvplane is started again");
                self.journal.turn_off(Off::of(&error));
            }
            if let Some(off) = self.journal.off() {
                self.end(off);
                return;
            }
            if closing {
                self.close();
                return;
            }
            self.compactor.look(&self.journal, &self.log);
        }
    }

    fn write(&mut self, items: Vec<Item>) -> io::Result<()> {
        let mut written = Vec::new();
        let before = self.log.bytes();
        for item in items {
            match item {
                Item::Declare { id, name, next } => self.log.declare(id, name, next),
                Item::Steps { id, first, records, sequence, to } => {
                    for (number, record) in (first..).zip(&records) {
                        self.log.append(Kind::Step, id, number, |out| record.write(out));
                    }
                    self.journal.counters.steps.fetch_add(records.len() as u64, Ordering::Relaxed);
                    written.push((to, sequence));
                }
                Item::Saved { id, number, bytes } => {
                    let parts = bytes.len().div_ceil(PART).max(1) as u32;
                    for (part, bytes) in (0_u32..).zip(bytes.chunks(PART)) {
                        self.log.append(Kind::Saved, id, number, |out| {
                            out.extend_from_slice(&part.to_le_bytes());
                            out.extend_from_slice(&parts.to_le_bytes());
                            out.extend_from_slice(bytes);
                        });
                        self.journal.give(|| self.log.write())?;
                    }
                }
                Item::Drop { before } => {
                    self.journal.give(|| self.log.write())?;
                    // What replaces them must outlive the machine before they go.
                    self.journal.give(|| self.log.out().sync())?;
                    self.journal.give(|| self.log.remove_before(before))?;
                    self.compactor.note_saved(self.log.segment());
                    self.journal.counters.compactions.fetch_add(1, Ordering::Relaxed);
                }
                Item::Gone { id, number } => self.log.append(Kind::Gone, id, number, |_| {}),
            }
        }
        self.journal.give(|| self.log.write())?;
        let counters = &self.journal.counters;
        counters.written_bytes.fetch_add(self.log.bytes().saturating_sub(before), Ordering::Relaxed);
        counters.bytes.store(self.log.bytes(), Ordering::Relaxed);
        counters.segments.store(self.log.segments() as u64, Ordering::Relaxed);
        match self.journal.options.sync {
            Sync::Always => self.journal.give(|| self.log.out().sync())?,
            Sync::Every(_) => *self.dirty.lock() = Some(self.log.out()),
            Sync::Off => {}
        }
        for (to, sequence) in written {
            to.written(sequence);
        }
        if self.log.bytes() > self.journal.options.max_disk {
            warn!(
                bytes = self.log.bytes(),
                max_disk = self.journal.options.max_disk,
                "journal is larger than it may be"
            );
            self.journal.turn_off(Off::Limit);
        }
        Ok(())
    }

    /// Streams go on without it: what is there must not be gone on from.
    fn end(mut self, off: Off) {
        match self.log.remove_all() {
            Ok(()) => error!(reason = off.as_str(), "journal is off: its files were removed"),
            Err(error) => error!(
                reason = off.as_str(), error = %error,
                "journal is off, and its files cannot be removed: remove them before the next start"
            ),
        }
        self.done();
    }

    fn close(mut self) {
        self.log.append(Kind::Closed, 0, 0, |_| {});
        let closed = self.log.write().and_then(|()| self.log.out().sync());
        match closed {
            Ok(()) => info!("journal closed"),
            Err(error) => error!(error = %error, "journal not closed cleanly"),
        }
        self.done();
    }

    fn done(self) {
        self.journal.queue.lock().closed = true;
        self.journal.ended.notify_all();
    }
}

fn sync_now_and_then(journal: &Journal, dirty: &Dirty) {
    let Sync::Every(pause) = journal.options.sync else { return };
    loop {
        if journal.off().is_some() || wait(journal, pause) {
            return;
        }
        let out = dirty.lock().take();
        if let Some(Err(error)) = out.map(|out| out.sync()) {
            error!(error = %error, "journal cannot be synced; it is off until kvplane is started again");
            journal.turn_off(Off::of(&error));
            return;
        }
    }
}

/// Waits for a while. True once the journal is closed.
fn wait(journal: &Journal, pause: Duration) -> bool {
    let until = kvplane_runtime::now() + pause;
    let mut queue = journal.queue.lock();
    while !queue.closed && journal.off().is_none() && !journal.ended.wait_until(&mut queue, until).timed_out()
    {
    }
    queue.closed
}
