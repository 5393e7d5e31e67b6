//! The files of a journal, as far as it needs them.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

/// A directory that one process has for itself.
pub trait Files: Debug + Send + Sync {
    /// The names in it.
    fn list(&self) -> io::Result<Vec<String>>;
    /// A whole file.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;
    /// A part of a file.
    fn read_at(&self, name: &str, offset: u64, bytes: usize) -> io::Result<Vec<u8>>;
    /// A new file, to be appended to. Fails where there is one of the name.
    fn create(&self, name: &str) -> io::Result<Arc<dyn Out>>;
    /// Makes a file end earlier.
    fn truncate(&self, name: &str, bytes: u64) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes sure that names that were made and removed stay so.
    fn sync_names(&self) -> io::Result<()>;
}

/// A file that is appended to.
pub trait Out: Debug + Send + Sync {
    /// Hands bytes to the operating system: they outlive this process, though not the machine.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;
    /// Makes sure that all of them outlive the machine.
    fn sync(&self) -> io::Result<()>;
}
