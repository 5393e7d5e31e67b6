//! A directory on a disk.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::files::{Files, Out};

/// Held while a process has the directory.
const LOCK: &str = "lock";

/// Tokens are prompts: nobody else reads them.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// A directory that is locked for this process.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    /// Unlocked when it is closed, by whatever ends the process.
    _lock: Option<File>,
}

impl Disk {
    /// Takes a directory, which is made if need be. Fails with [`io::ErrorKind::ResourceBusy`] where another
    /// process has it.
    pub fn take(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)?;
        std::fs::set_permissions(path, Permissions::from_mode(DIRECTORY_MODE))?;
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .open(path.join(LOCK))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: Some(lock) }),
            Err(std::fs::TryLockError::WouldBlock) => Err(io::ErrorKind::ResourceBusy.into()),
            Err(std::fs::TryLockError::Error(error)) => Err(error),
        }
    }

    /// A directory opened for reading, whether locked or not.
    pub fn look_at(path: &Path) -> io::Result<Self> {
        std::fs::read_dir(path)?;
        Ok(Self { path: path.to_owned(), _lock: None })
    }
}

impl Files for Disk {
    fn list(&self) -> io::Result<Vec<String>> {
        let names = std::fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name().into_string()));
        Ok(names.collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        std::fs::read(self.path.join(name))
    }

    fn read_at(&self, name: &str, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let mut read = vec![0; bytes];
        File::open(self.path.join(name))?.read_exact_at(&mut read, offset)?;
        Ok(read)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn Out>> {
        let file =
            OpenOptions::new().append(true).create_new(true).mode(FILE_MODE).open(self.path.join(name))?;
        Ok(Arc::new(DiskOut(file)))
    }

    fn truncate(&self, name: &str, bytes: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.path.join(name))?;
        file.set_len(bytes)?;
        file.sync_data()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

#[derive(Debug)]
struct DiskOut(File);

impl Out for DiskOut {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.0).write_all(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}
