//! What a plane is made of, as configured.

use std::time::Duration;

use kvplane_core::{EngineId, EngineKind};
use kvplane_stream::{Duplicates, Limits, OnGap};

use crate::address::{AddressError, check_overlap, for_rank};

/// Where an engine's events come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Events {
    /// The engine binds; rank r is at port + r.
    Connect(String),
    /// Engines connect to us; the owner of a message is found by its topic.
    Bind(String),
}

impl Events {
    /// The configured address.
    pub fn address(&self) -> &str {
        match self {
            Self::Connect(address) | Self::Bind(address) => address,
        }
    }
}

/// One registered engine.
#[derive(Debug, Clone)]
pub struct EngineSpec {
    /// Its name.
    pub id: EngineId,
    /// Its software.
    pub kind: EngineKind,
    /// The model it serves.
    pub model: String,
    /// Where its events come from.
    pub events: Events,
    /// Its replay socket; rank r is at port + r.
    pub replay: Option<String>,
    /// Topic prefix.
    pub topic: String,
    /// Data-parallel ranks.
    pub ranks: u32,
    /// Expected block size.
    pub block_size: Option<u32>,
    /// The `worker_id` in Dynamo-shaped JSON.
    pub worker_id: u64,
    /// What a second store of a held hash means.
    pub duplicates: Duplicates,
    /// The engine's HTTP server: start-time hint and capacity.
    pub http: Option<String>,
}

impl EngineSpec {
    /// Whether every rank's addresses can be used. Touches nothing.
    pub fn check_addresses(&self) -> Result<(), AddressError> {
        if let Some(replay) = &self.replay {
            check_overlap(self.events.address(), replay, self.ranks)?;
        }
        let last = self.ranks.saturating_sub(1);
        let connects = matches!(self.events, Events::Connect(_));
        for rank in [0, last] {
            for_rank(self.events.address(), rank, connects)?;
            if let Some(replay) = &self.replay {
                for_rank(replay, rank, true)?;
            }
        }
        Ok(())
    }
}

/// Bounds and rules that all streams share.
#[derive(Debug, Clone)]
pub struct PlaneOptions {
    /// Batches in a stream's replay window.
    pub max_batches: usize,
    /// Bytes in a stream's replay window.
    pub max_bytes: usize,
    /// The live state's bounds, per stream.
    pub state: Limits,
    /// What an unfilled gap does.
    pub on_gap: OnGap,
    /// Disconnected for longer than this is `down`.
    pub down_after: Duration,
    /// How long one replay may be silent.
    pub replay_idle: Duration,
    /// How long one replay may take.
    pub replay_deadline: Duration,
}

impl Default for PlaneOptions {
    fn default() -> Self {
        Self {
            max_batches: 10_000,
            max_bytes: 64 << 20,
            state: Limits::default(),
            on_gap: OnGap::Drop,
            down_after: Duration::from_secs(10),
            replay_idle: Duration::from_secs(2),
            replay_deadline: Duration::from_secs(30),
        }
    }
}
