//! Files in memory, with every fault that a disk can have. For tests.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::files::{Files, Out};

#[derive(Debug, Clone, Default)]
struct Content {
    bytes: Vec<u8>,
    /// This many outlive the machine.
    synced: usize,
}

#[derive(Debug, Default)]
struct Inner {
    files: BTreeMap<String, Content>,
    /// The error of the next append or sync, and of all that follow.
    fails: Option<io::ErrorKind>,
    /// Appends may write this many bytes more; then the disk is full.
    room: Option<usize>,
    /// Syncs say that they did it, and did not.
    lies: bool,
    /// Appends hang.
    held: bool,
}

/// Files in memory. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct MemoryFiles(Arc<(Mutex<Inner>, Condvar)>);

impl MemoryFiles {
    /// Every append and sync fails from now on; `None` ends that.
    pub fn fail(&self, kind: Option<io::ErrorKind>) {
        self.inner().fails = kind;
    }

    /// The disk has room for this many more bytes.
    pub fn fill_up_after(&self, bytes: Option<usize>) {
        self.inner().room = bytes;
    }

    /// Appends hang from now on, or go on.
    pub fn hold(&self, held: bool) {
        self.inner().held = held;
        self.0.1.notify_all();
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.0.lock()
    }

    /// Syncs are lost from now on.
    pub fn lose_syncs(&self) {
        self.inner().lies = true;
    }

    /// The machine loses its power: what was not synced is gone, but for `kept` bytes of each file.
    pub fn lose_power(&self, kept: usize) {
        for content in self.inner().files.values_mut() {
            let left = (content.synced + kept).min(content.bytes.len());
            content.bytes.truncate(left);
        }
    }

    /// Changes a file behind the journal's back.
    pub fn damage(&self, name: &str, damage: impl FnOnce(&mut Vec<u8>)) {
        if let Some(content) = self.inner().files.get_mut(name) {
            damage(&mut content.bytes);
            content.synced = content.bytes.len();
        }
    }

    /// Other files with the same content.
    #[must_use]
    pub fn copied(&self) -> Self {
        let files = self.inner().files.clone();
        Self(Arc::new((Mutex::new(Inner { files, ..Inner::default() }), Condvar::new())))
    }
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Files for MemoryFiles {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.inner().files.keys().cloned().collect())
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        self.inner().files.get(name).map(|content| content.bytes.clone()).ok_or_else(missing)
    }

    fn read_at(&self, name: &str, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let inner = self.inner();
        let content = inner.files.get(name).ok_or_else(missing)?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let part = from.checked_add(bytes).and_then(|end| content.bytes.get(from..end));
        part.map(<[u8]>::to_vec).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn Out>> {
        let mut inner = self.inner();
        if let Some(kind) = inner.fails {
            return Err(kind.into());
        }
        if inner.files.insert(name.to_owned(), Content::default()).is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        Ok(Arc::new(MemoryOut { files: self.clone(), name: name.to_owned() }))
    }

    fn truncate(&self, name: &str, bytes: u64) -> io::Result<()> {
        let mut inner = self.inner();
        let content = inner.files.get_mut(name).ok_or_else(missing)?;
        content.bytes.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
        content.synced = content.bytes.len();
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner().files.remove(name).map(drop).ok_or_else(missing)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.inner().fails.map_or(Ok(()), |kind| Err(kind.into()))
    }
}

#[derive(Debug)]
struct MemoryOut {
    files: MemoryFiles,
    name: String,
}

impl Out for MemoryOut {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut inner = self.files.inner();
        while inner.held {
            self.files.0.1.wait(&mut inner);
        }
        if let Some(kind) = inner.fails {
            return Err(kind.into());
        }
        // A disk that is full takes what it has room for.
        let taken = inner.room.map_or(bytes.len(), |room| room.min(bytes.len()));
        inner.room = inner.room.map(|room| room - taken);
        let content = inner.files.get_mut(&self.name).ok_or_else(missing)?;
        content.bytes.extend_from_slice(&bytes[..taken]);
        if taken < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn sync(&self) -> io::Result<()> {
        let mut inner = self.files.inner();
        if let Some(kind) = inner.fails {
            return Err(kind.into());
        }
        let lies = inner.lies;
        let content = inner.files.get_mut(&self.name).ok_or_else(missing)?;
        if !lies {
            content.synced = content.bytes.len();
        }
        Ok(())
    }
}
