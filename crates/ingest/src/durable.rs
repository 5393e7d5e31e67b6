//! The durable journal of a plane: what its streams remember over a restart.
//!
//! It is opened before the plane begins. What was recovered waits here until the stream of that name is
//! there: an engine may be found minutes later. Whatever goes wrong with it is a state, a metric and a log
//! line, and nothing is heard less.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread::available_parallelism;
use std::time::Duration;

use kvplane_core::{EngineId, StreamId};
use kvplane_store::{Disk, Files, Header, Journal, Off, Recovered, Recovery};
use kvplane_stream::{JournalOptions, Memory};
use parking_lot::Mutex;
use tracing::{error, info, warn};

/// How long what was recovered waits for its stream.
const WAITS_FOR: Duration = Duration::from_mins(15);
/// How often the disk is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Says which boot of the machine this is: what another boot wrote may be less than what it told.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The rules of a plane's journal.
#[derive(Debug, Clone)]
pub struct DurableSpec {
    /// Its directory.
    pub dir: PathBuf,
    /// Its bounds, and when it is synced.
    pub options: kvplane_store::Options,
}

/// What a restart found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Restored {
    /// Streams that can be gone on with.
    pub streams: usize,
    /// Streams of which something is missing: they begin anew.
    pub void: usize,
    /// How long reading took.
    pub took: Duration,
    /// Entries that somebody was told may be missing: streams go on with other numbers.
    pub incomplete: bool,
}

/// What a durable journal looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurableStatus {
    /// Why it is off, if it is.
    pub off: Option<Off>,
    /// What it counted; zeros where it never began.
    pub counted: kvplane_store::Status,
    /// What the start found.
    pub restored: Restored,
    /// Recovered streams that are not there yet.
    pub waiting: usize,
}

/// A recovered stream's memory, and its place in the journal: its number, and that of its next step.
pub(crate) type GoesOn = (Memory, (u32, u64));

/// The durable journal of a plane.
#[derive(Debug)]
pub struct Durable {
    dir: PathBuf,
    /// Or why it never began.
    journal: Result<Arc<Journal>, Off>,
    restored: Restored,
    waiting: Mutex<BTreeMap<StreamId, Recovered>>,
    /// Above every epoch that was recovered.
    epochs_from: u64,
}

impl Durable {
    /// Opens a journal and reads it back, which takes seconds for a large one. Fails where the directory cannot be this
    /// plane's: it is another process's, or nobody may write there. Any other trouble is a journal that is off.
    pub fn open(spec: &DurableSpec) -> io::Result<Self> {
        use io::ErrorKind::{NotADirectory, PermissionDenied, ResourceBusy};
        let off = |off| Self::off(&spec.dir, off);
        let disk: Arc<dyn Files> = match Disk::take(&spec.dir) {
            Ok(disk) => Arc::new(disk),
            Err(error) if matches!(error.kind(), ResourceBusy | PermissionDenied | NotADirectory) => {
                return Err(error);
            }
            Err(error) => {
                error!(dir = %spec.dir.display(), %error, "the journal cannot be opened; it is off until kvplane is started again");
                return Ok(off(Off::of(&error)));
            }
        };
        Ok(Self::over(spec, disk))
    }

    /// The same over files that were taken already.
    pub fn over(spec: &DurableSpec, files: Arc<dyn Files>) -> Self {
        let begun = kvplane_runtime::now();
        let read = kvplane_store::read(files.clone()).and_then(|found| {
            let recovered = Self::restore(&found)?;
            Ok((found, recovered))
        });
        let (found, recovered) = match read {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                error!(dir = %spec.dir.display(), %error, "the directory has files that are no journal of this plane; the journal is off: remove them, and start again");
                return Self::off(&spec.dir, Off::Damaged);
            }
            Err(error) => {
                warn!(dir = %spec.dir.display(), %error, "the journal cannot be read; it begins anew, and so does every stream");
                let again = kvplane_store::clear(&*files).and_then(|()| kvplane_store::read(files.clone()));
                match again {
                    Ok(found) => (found, Vec::new()),
                    Err(error) => {
                        error!(dir = %spec.dir.display(), %error, "the journal cannot be begun; it is off until kvplane is started again");
                        return Self::off(&spec.dir, Off::of(&error));
                    }
                }
            }
        };
        let void = found.void().count() + recovered.iter().filter(|stream| stream.memory.is_err()).count();
        let mut durable = Self::off(&spec.dir, Off::Failed);
        durable.begin(spec, files, &found, recovered);
        durable.restored.void = void;
        durable.restored.took = kvplane_runtime::now() - begun;
        let Restored { streams, void, took, incomplete } = durable.restored;
        info!(dir = %spec.dir.display(), streams, void, took = ?took, incomplete, "journal read");
        durable
    }

    fn off(dir: &Path, off: Off) -> Self {
        Self {
            dir: dir.to_owned(),
            journal: Err(off),
            restored: Restored::default(),
            waiting: Mutex::default(),
            epochs_from: 0,
        }
    }

    /// Takes the steps of every stream that is whole again.
    fn restore(found: &Recovery) -> io::Result<Vec<Recovered>> {
        for (_, stream) in found.void() {
            let stream = StreamId::new(EngineId::new(&stream.name.engine), stream.name.rank);
            warn!(%stream, "the journal has a hole; the stream begins anew");
        }
        for trouble in found.troubles.iter().chain(&found.torn) {
            warn!(file = trouble.file, offset = trouble.offset, reason = %trouble.cut, "the journal cannot be read on from here");
        }
        let ids: Vec<u32> = found.whole().map(|(id, _)| id).collect();
        found.restore(&ids, u64::MAX, available_parallelism().map_or(1, usize::from))
    }

    fn begin(
        &mut self,
        spec: &DurableSpec,
        files: Arc<dyn Files>,
        found: &Recovery,
        recovered: Vec<Recovered>,
    ) {
        let boot = boot();
        let header = Header {
            plane: found.last.map_or_else(random_name, |last| last.plane),
            boot,
            run: kvplane_runtime::unix_ms(),
            always_synced: spec.options.sync == kvplane_store::Sync::Always,
        };
        self.restored.incomplete = !recovered.is_empty() && !found.is_complete(boot);
        let mut waiting = BTreeMap::new();
        for mut stream in recovered {
            let id = StreamId::new(EngineId::new(&stream.name.engine), stream.name.rank);
            match &mut stream.memory {
                Ok(memory) => {
                    self.epochs_from = self.epochs_from.max(memory.cursor().epoch.as_u64() + 1);
                    if self.restored.incomplete {
                        memory.may_lack_entries();
                    }
                    // Of two with one name, the later one is the stream.
                    waiting.insert(id, stream);
                }
                Err(error) => {
                    warn!(stream = %id, %error, "what was remembered cannot be used; the stream begins anew");
                }
            }
        }
        let keep: Vec<u32> = waiting.values().map(|stream| stream.id).collect();
        match Journal::start(files, header, spec.options.clone(), found, &keep) {
            Ok(journal) => {
                self.restored.streams = waiting.len();
                self.waiting = Mutex::new(waiting);
                self.journal = Ok(journal);
            }
            Err(error) => {
                error!(dir = %self.dir.display(), %error, "the journal cannot be begun; it is off until kvplane is started again");
                self.journal = Err(Off::of(&error));
            }
        }
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What it looks like.
    pub fn status(&self) -> DurableStatus {
        let counted = self.journal.as_ref().map(|journal| journal.status()).unwrap_or_default();
        let off = self.journal.as_ref().map_or_else(|off| Some(*off), |journal| journal.off());
        DurableStatus { off, counted, restored: self.restored, waiting: self.waiting.lock().len() }
    }

    /// Above every epoch that was recovered: a stream that begins anew must not repeat one.
    pub(crate) fn epochs_from(&self) -> u64 {
        self.epochs_from
    }

    /// What streams append to, while it is on.
    pub(crate) fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.as_ref().ok().filter(|journal| journal.off().is_none())
    }

    /// What is remembered of a stream with these rules. What does not fit them is forgotten.
    pub(crate) fn take(&self, id: &StreamId, keep: &JournalOptions) -> Option<GoesOn> {
        let Recovered { id: number, next, memory, .. } = self.waiting.lock().remove(id)?;
        let journal = self.journal()?;
        match memory {
            Ok(memory) if memory.fits(keep, id.rank) => Some((memory, (number, next))),
            _ => {
                info!(stream = %id, "configured otherwise than before; the stream begins anew");
                journal.forget((number, next));
                None
            }
        }
    }

    /// Forgets what no stream has asked for.
    fn forget_waiting(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        let Ok(journal) = &self.journal else { return };
        for (id, Recovered { id: number, next, .. }) in waiting {
            info!(stream = %id, "remembered, and not there any more: forgotten");
            journal.forget((number, next));
        }
    }

    /// Writes what waits, and ends.
    pub(crate) fn close(&self) {
        if let Ok(journal) = &self.journal {
            journal.close();
        }
    }
}

/// Looks after a plane's journal for as long as there is one.
pub(crate) async fn look_after(durable: Weak<Durable>) {
    let mut looks = tokio::time::interval(LOOK_EVERY);
    let forget_at = tokio::time::Instant::now() + WAITS_FOR;
    let mut forgotten = false;
    loop {
        looks.tick().await;
        let Some(durable) = durable.upgrade() else { return };
        if let Ok(journal) = &durable.journal {
            journal.check_stall();
        }
        if !forgotten && tokio::time::Instant::now() >= forget_at {
            forgotten = true;
            // Freeing states takes a while.
            let _ = tokio::task::spawn_blocking(move || durable.forget_waiting()).await;
        }
    }
}

/// Which boot of the machine this is. Where nobody says it, no two are the same.
fn boot() -> [u8; 16] {
    let text = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    match u128::from_str_radix(&digits, 16) {
        Ok(boot) if digits.len() == 32 => boot.to_be_bytes(),
        _ => random_name(),
    }
}

fn random_name() -> [u8; 16] {
    crate::plane::random_bits().to_be_bytes()
}
