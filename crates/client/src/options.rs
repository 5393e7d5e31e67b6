//! How a client behaves, and what it follows.

use std::fmt;
use std::time::Duration;

use kvplane_core::{EngineId, StreamId};
use kvplane_proto::Bearer;

use crate::replica::ReplicaOptions;

/// How a client behaves.
#[derive(Clone)]
pub struct Options {
    /// What replicas keep.
    pub replica: ReplicaOptions,
    /// The first wait after a subscription ended.
    pub shortest_wait: Duration,
    /// The longest wait; each one in a row is twice the one before. A subscription that lasted longer than
    /// this counts as sound: the next wait is the shortest again.
    pub longest_wait: Duration,
    /// How long the plane may take to accept a connection, and to answer a question.
    pub answer_within: Duration,
    /// How often the plane is asked whether there are other streams to follow than are followed.
    pub discover_every: Duration,
    /// The longest time without proof that an engine is there, from the engine to here: beyond it its streams
    /// are [`Continuity::Recovering`](kvplane_core::Continuity::Recovering). The plane is asked several times
    /// within it.
    pub max_silence: Duration,
    /// Changes kept for a reader of [`crate::Following::changes`] that does not keep up.
    pub changes_kept: usize,
    /// The largest message taken. Chunks of a snapshot stay below 1 MiB; a batch is as large as the engine
    /// made it.
    pub message_bytes: usize,
    /// The token that the plane wants.
    pub bearer: Bearer,
    /// Certificates (PEM) to trust instead of the public ones, for `https`.
    pub ca: Option<Vec<u8>>,
    /// A certificate to show, and its private key (PEM), for `https`.
    pub certificate: Option<(Vec<u8>, Vec<u8>)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            replica: ReplicaOptions::default(),
            shortest_wait: Duration::from_millis(100),
            longest_wait: Duration::from_secs(5),
            answer_within: Duration::from_secs(5),
            discover_every: Duration::from_secs(30),
            max_silence: Duration::from_secs(2),
            changes_kept: 1024,
            message_bytes: 256 << 20,
            bearer: Bearer::default(),
            ca: None,
            certificate: None,
        }
    }
}

impl fmt::Debug for Options {
    /// Without keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("replica", &self.replica).finish_non_exhaustive()
    }
}

/// Which streams are followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// Every stream of every engine, also of engines that the plane learns of later.
    All,
    /// Every stream of these engines.
    Engines(Vec<EngineId>),
    /// One rank of one engine.
    Stream(EngineId, u32),
}

impl Selection {
    pub(crate) fn includes(&self, stream: &StreamId) -> bool {
        match self {
            Self::All => true,
            Self::Engines(engines) => engines.contains(&stream.engine),
            Self::Stream(engine, rank) => stream.engine == *engine && stream.rank == *rank,
        }
    }
}
