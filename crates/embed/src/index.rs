//! Who holds how much of a prompt, among recorders of this process.

use std::sync::{Arc, Weak};
use std::thread;

use kvplane_catalog::{Answer, Asking, Catalog, Identity, Question};
use kvplane_core::{ErrorCode, PublicError, Trust};
use kvplane_ingest::{DEFAULT_ROUTING_GROUP, NotIndexed, Stream};
use parking_lot::Mutex;

use crate::recorder::Recorder;

/// What a stream's word must be worth to be credited, where nobody says otherwise.
pub const DEFAULT_CREDIT: [Trust; 3] = [Trust::Exact, Trust::Lower, Trust::Unverified];

/// Prompts that are asked for are in this process already: there is nothing to protect.
const ANY_LENGTH: usize = usize::MAX;

/// What recorders hold, by content. Every answer is as new as the recorders are.
#[derive(Debug)]
pub struct Index {
    catalog: Arc<Catalog>,
    credit: Vec<Trust>,
    streams: Mutex<Vec<Weak<Stream>>>,
}

impl Index {
    /// An index of no recorders, which credits streams whose word is worth one of these.
    pub fn new(credit: Vec<Trust>) -> Result<Self, PublicError> {
        let catalog = Catalog::new(kvplane_ingest::PlaneOptions::default().index);
        let failed = |error: std::io::Error| {
            PublicError::new(ErrorCode::Internal, format!("cannot start the index: {error}"))
        };
        let reclaim = catalog.reclaim();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(failed)?;
        // Memory of what is gone is given back from here. It ends with the catalog.
        let run = move || runtime.block_on(reclaim);
        thread::Builder::new().name("kvp-reclaim".to_owned()).spawn(run).map_err(failed)?;
        Ok(Self { catalog, credit, streams: Mutex::default() })
    }

    /// Puts a recorder in, with whatever it has recorded by now. It goes on recording meanwhile.
    pub fn add(&self, recorder: &Recorder, model: &str) -> Result<(), PublicError> {
        let stream = recorder.stream();
        let mut streams = self.streams.lock();
        streams.retain(|known| known.upgrade().is_some_and(|known| !known.is_closed()));
        if streams.iter().any(|known| known.upgrade().is_some_and(|known| known.id() == stream.id())) {
            let message = format!("stream {} is in the index already", stream.id());
            return Err(PublicError::new(ErrorCode::Conflict, message));
        }
        let identity = Identity {
            model: model.to_owned(),
            worker_id: recorder.worker_id(),
            routing_group: DEFAULT_ROUTING_GROUP.to_owned(),
        };
        stream.join_with_history(&self.catalog, identity).map_err(|refused| match refused {
            NotIndexed::Already => PublicError::new(ErrorCode::Conflict, "the recorder is in another index"),
            NotIndexed::Closed => PublicError::new(ErrorCode::ShuttingDown, "the recorder was shut down"),
        })?;
        streams.push(Arc::downgrade(stream));
        Ok(())
    }

    /// Takes a recorder out: it is in no answer that is begun after this. Says whether it was in.
    pub fn remove(&self, recorder: &Recorder) -> bool {
        let stream = recorder.stream();
        let mut streams = self.streams.lock();
        let is_it = |known: &Weak<Stream>| std::ptr::eq(known.as_ptr(), Arc::as_ptr(stream));
        let Some(at) = streams.iter().position(is_it) else { return false };
        streams.swap_remove(at);
        stream.leave_index();
        true
    }

    /// Asks every recorder of the question's model, and hands the answer to `read`.
    pub fn ask<R>(&self, question: &Question, read: impl FnOnce(&Answer<'_>) -> R) -> Result<R, PublicError> {
        question.ask(&self.catalog, asking(&self.credit), read)
    }

    /// The models that there are.
    pub fn models(&self) -> Vec<String> {
        self.catalog.models()
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        for stream in self.streams.get_mut().iter().filter_map(Weak::upgrade) {
            stream.leave_index();
        }
    }
}

pub(crate) fn asking(credit: &[Trust]) -> Asking<'_> {
    Asking { credit, max_tokens: ANY_LENGTH }
}
