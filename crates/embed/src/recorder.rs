//! A stream that is fed by calls.

use std::sync::Arc;

use kvplane_core::{EngineId, EngineKind, ErrorCode, PublicError, StateDigest, StreamId, default_worker_id};
use kvplane_ingest::{HandedOver, NotHandedOver, Stream, StreamStatus};
use kvplane_stream::{HandedOptions, JournalOptions, Limits, OnGap, Recovery, Semantics, Worker};
use kvplane_wire::OwnedEvent;
use kvplane_wire::dynamo::WorkerKvQueryResponse;

use crate::moment::{Moment, NUMBERING, refusal};

/// What is recorded, and within which bounds.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The engine's name.
    pub engine: String,
    /// Its data-parallel rank.
    pub rank: u32,
    /// Which software it is: what its events mean.
    pub kind: EngineKind,
    /// The engine's number in answers; without one it is made of its name.
    pub worker_id: Option<u64>,
    /// Tokens per block; without, the first store says it.
    pub block_size: Option<u32>,
    /// Batches in the replay window.
    pub max_events: usize,
    /// Bytes in the replay window.
    pub max_bytes: usize,
    /// Bytes of the live state.
    pub max_state_bytes: usize,
    /// The engine's cache is empty when the first batch comes.
    pub from_start: bool,
    /// What a missing number does.
    pub on_gap: OnGap,
}

impl Settings {
    /// Those of an engine of which only the name is known.
    pub fn new(engine: &str) -> Self {
        let keep = JournalOptions::default();
        Self {
            engine: engine.to_owned(),
            rank: 0,
            kind: EngineKind::Vllm,
            worker_id: None,
            block_size: None,
            max_events: keep.max_batches,
            max_bytes: keep.max_bytes,
            max_state_bytes: keep.state.max_bytes,
            from_start: true,
            on_gap: OnGap::Drop,
        }
    }

    fn check(&self) -> Result<(), PublicError> {
        let positive = |field, number: usize| match number {
            0 => Err(PublicError::field(field, "must be at least 1")),
            _ => Ok(()),
        };
        if self.engine.is_empty() {
            return Err(PublicError::field("engine", "must not be empty"));
        }
        if matches!(self.kind, EngineKind::Grpc | EngineKind::Kvplane) {
            return Err(PublicError::field("kind", "engines of this kind are not recorded in their process"));
        }
        positive("block_size", self.block_size.map_or(1, |size| size as usize))?;
        positive("max_events", self.max_events)?;
        positive("max_bytes", self.max_bytes)?;
        positive("max_state_bytes", self.max_state_bytes)
    }
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotAnswered {
    /// The recorder was shut down.
    #[error("the recorder was shut down")]
    Closed,
}

impl From<NotAnswered> for PublicError {
    fn from(error: NotAnswered) -> Self {
        Self::new(ErrorCode::ShuttingDown, error.to_string())
    }
}

/// The recorder of one rank, to be called from any thread. A call waits for no reader: where a budget is used
/// up, the oldest goes.
#[derive(Debug)]
pub struct Recorder {
    stream: Arc<Stream>,
    worker: Worker,
    block_size: Option<u32>,
}

impl Recorder {
    /// A recorder without any input yet.
    pub fn new(settings: &Settings) -> Result<Self, PublicError> {
        settings.check()?;
        let id = StreamId::new(EngineId::new(&settings.engine), settings.rank);
        let worker_id = settings.worker_id.unwrap_or_else(|| default_worker_id(&id.engine));
        let keep = JournalOptions {
            max_batches: settings.max_events,
            max_bytes: settings.max_bytes,
            state: Limits { max_bytes: settings.max_state_bytes, ..Limits::default() },
            block_size: settings.block_size,
            semantics: Semantics::of(settings.kind),
            transitions_only: true,
            sole_rank: true,
            ..JournalOptions::default()
        };
        let follow = HandedOptions { from_start: settings.from_start, on_gap: settings.on_gap };
        Ok(Self {
            worker: Worker { id: worker_id, rank: settings.rank },
            stream: Arc::new(Stream::handed_over(id, follow, keep)),
            block_size: settings.block_size,
        })
    }

    /// The stream itself, to put it into an index.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// The engine's number in answers.
    pub fn worker_id(&self) -> u64 {
        self.worker.id
    }

    /// Tokens per block, as the settings say.
    pub fn block_size(&self) -> Option<u32> {
        self.block_size
    }

    /// Records a message as the engine publishes it. Without a number it gets the next.
    pub fn apply_frame(&self, number: Option<u64>, payload: &[u8]) -> Result<HandedOver, NotHandedOver> {
        self.stream.hand_frame(number, payload)
    }

    /// Records events under one number. Without one they get the next.
    pub fn apply(&self, number: Option<u64>, events: &[OwnedEvent]) -> Result<HandedOver, NotHandedOver> {
        self.stream.hand_events(number, events)
    }

    /// The answer to a router that recovers.
    pub fn recover(&self, recovery: Recovery) -> Result<WorkerKvQueryResponse, NotAnswered> {
        if let Some(refusal) = recovery.refusal() {
            return Ok(refusal);
        }
        if let Some(refusal) = self.refusal()? {
            return Ok(refusal);
        }
        let Some(answer) = recovery.from_window(self.worker, NUMBERING, self.stream.window()) else {
            return self.snapshot().map(|moment| moment.recover());
        };
        // Once more: a batch that made it worth nothing may have come meanwhile, and be part of the answer.
        Ok(self.refusal()?.unwrap_or(answer))
    }

    /// The refusal, if the state is not to be given out now.
    fn refusal(&self) -> Result<Option<WorkerKvQueryResponse>, NotAnswered> {
        let (trust, continuity) = self.stream.worth();
        // After the look at its worth: a stream that is being closed has a worth, and nothing in it.
        self.open().map(|()| refusal(self.stream.id(), &trust, continuity))
    }

    /// The same as JSON.
    pub fn recover_json(&self, recovery: Recovery) -> Result<String, NotAnswered> {
        self.recover(recovery).map(|answer| to_json(&answer))
    }

    /// The whole state, at a moment after the call. Events are recorded meanwhile.
    pub fn snapshot(&self) -> Result<Moment, NotAnswered> {
        let snapshot = self.stream.snapshot_here();
        self.open()?;
        Ok(Moment { stream: self.stream.id().clone(), worker: self.worker, snapshot })
    }

    /// Digest of the resident state.
    pub fn digest(&self) -> StateDigest {
        self.stream.digest()
    }

    /// What the stream looks like.
    pub fn status(&self) -> StreamStatus {
        self.stream.status()
    }

    /// Nothing is recorded any more, and what was is let go of. A second time changes nothing.
    pub fn close(&self) {
        if self.open().is_ok() {
            self.stream.close();
        }
    }

    fn open(&self) -> Result<(), NotAnswered> {
        if self.stream.is_closed() { Err(NotAnswered::Closed) } else { Ok(()) }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // Readers would not learn of changes any more, and an index must stop crediting it.
        self.close();
    }
}

/// An answer as it is sent.
pub(crate) fn to_json(answer: &WorkerKvQueryResponse) -> String {
    // Only maps with keys that are no text could fail, and there are none.
    serde_json::to_string(answer).unwrap_or_default()
}
