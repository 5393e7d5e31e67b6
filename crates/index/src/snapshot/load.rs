//! Loading a snapshot.

use super::decode::parse;
use crate::sync::hand_over;
use crate::writer::Loading;
use crate::{Index, Refused, Slot};

/// Why a snapshot was not loaded. The stream is empty then, unless it was not before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The chunk does not hold what was written.
    #[error("chunk {chunk} of the snapshot is damaged")]
    Damaged {
        /// Which, from 0.
        chunk: usize,
    },
    /// The bytes are of a version that is not known here.
    #[error("snapshots of version {0} cannot be read")]
    Version(u16),
    /// Chunks are missing, too many, or not in order.
    #[error("the snapshot is not complete: it has {chunks} chunks, to be given in order")]
    Incomplete {
        /// How many it has.
        chunks: u32,
    },
    /// The chunk is of another snapshot than the first.
    #[error("chunk {chunk} is of another snapshot")]
    Mixed {
        /// Which, from 0.
        chunk: usize,
    },
    /// The parts of the snapshot contradict each other.
    #[error("the snapshot contradicts itself")]
    Contradiction,
    /// There is no such stream.
    #[error("there is no such stream")]
    NoStream,
    /// The stream holds something already.
    #[error("the stream is not empty")]
    NotEmpty,
    /// The stream was changed while the snapshot was loaded.
    #[error("the stream was changed while the snapshot was loaded")]
    Disturbed,
    /// The index has no room for it.
    #[error(transparent)]
    Refused(#[from] Refused),
}

impl Index {
    /// Loads a snapshot into an empty stream, and marks it. Says the snapshot's sequence.
    ///
    /// Everything is checked before anything is loaded. Other streams go on meanwhile: the writer's lock is held for a few thousand blocks at a time. Until it
    /// is done, answers about the stream say less than it holds, never more.
    pub fn load<C: AsRef<[u8]>>(&self, slot: Slot, chunks: &[C]) -> Result<u64, LoadError> {
        let parsed = parse(chunks.iter().map(AsRef::as_ref))?;
        let mut loading = Loading::new(&parsed, slot);
        self.writer.lock().begin_load(&loading)?;
        let mut done = false;
        while !done {
            let mut writer = self.writer.lock();
            done = writer.load_more(&mut loading)?;
            hand_over(writer);
        }
        self.marked.give();
        Ok(parsed.sequence)
    }
}
