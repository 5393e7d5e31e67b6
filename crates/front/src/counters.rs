//! What a front counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use kvplane_transport::edge::{self, Closed, Connections, Full, Share};

use super::evidence::Rejected;

/// Counters of one front. Reading them costs nothing to speak of; they are not a consistent cut.
#[derive(Debug, Default)]
pub struct FrontCounters {
    pub(super) forwarded: AtomicU64,
    pub(super) own: AtomicU64,
    pub(super) in_flight: AtomicU64,
    pub(super) unavailable: AtomicU64,
    refused: [AtomicU64; 2],
    pub(super) connects: AtomicU64,
    pub(super) connect_failures: AtomicU64,
    pub(super) evidence_accepted: AtomicU64,
    pub(super) evidence_blocks: AtomicU64,
    pub(super) evidence_rejected: [AtomicU64; Rejected::ALL.len()],
    /// The clients' connections, once the front runs.
    pub(super) connections: OnceLock<Arc<Connections>>,
}

impl FrontCounters {
    /// Calls that were passed to the engine, or would have been if it were there.
    pub fn forwarded(&self) -> u64 {
        self.forwarded.load(Ordering::Relaxed)
    }

    /// Calls that were answered here.
    pub fn own(&self) -> u64 {
        self.own.load(Ordering::Relaxed)
    }

    /// Calls of both kinds that have not ended.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Calls to the engine that were answered with `UNAVAILABLE` by the front, at their start or in their
    /// middle.
    pub fn unavailable(&self) -> u64 {
        self.unavailable.load(Ordering::Relaxed)
    }

    /// Calls that were refused because too many are under way: in total, and of one peer.
    pub fn refused(&self) -> [(&'static str, u64); 2] {
        let [total, peer] = &self.refused;
        [("too_many_calls", total), ("too_many_calls_of_peer", peer)]
            .map(|(reason, count)| (reason, count.load(Ordering::Relaxed)))
    }

    pub(super) fn refuse(&self, full: Full) {
        add(&self.refused[usize::from(full == Full::Peer)]);
    }

    /// Connections to the engine that were opened.
    pub fn connects(&self) -> u64 {
        self.connects.load(Ordering::Relaxed)
    }

    /// Dials to the engine that failed.
    pub fn connect_failures(&self) -> u64 {
        self.connect_failures.load(Ordering::Relaxed)
    }

    /// Reports of the engine about requests that proved cached blocks of a stream whose past is not known.
    pub fn evidence_accepted(&self) -> u64 {
        self.evidence_accepted.load(Ordering::Relaxed)
    }

    /// Blocks that were held because of them.
    pub fn evidence_blocks(&self) -> u64 {
        self.evidence_blocks.load(Ordering::Relaxed)
    }

    /// Reports that were not used, by reason.
    pub fn evidence_rejected(&self) -> impl Iterator<Item = (Rejected, u64)> + '_ {
        Rejected::ALL
            .into_iter()
            .zip(self.evidence_rejected.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Connections of clients that were closed at once because there were too many.
    pub fn connections_refused(&self) -> u64 {
        let refused = |reason| matches!(reason, Closed::TooMany | Closed::TooManyOfPeer);
        self.connections_closed()
            .into_iter()
            .filter(|(reason, _)| refused(*reason))
            .map(|(_, count)| count)
            .sum()
    }

    /// Connections of clients.
    pub fn open_connections(&self) -> usize {
        self.connections.get().map_or(0, |connections| connections.open())
    }

    /// Connections of clients that were refused or closed, by the reason's name.
    pub fn closed(&self) -> Vec<(&'static str, u64)> {
        self.connections_closed().into_iter().map(|(reason, count)| (reason.as_str(), count)).collect()
    }

    /// Connections of clients that were refused or closed, by reason.
    pub fn connections_closed(&self) -> Vec<(Closed, u64)> {
        self.connections.get().map(|connections| connections.closed().collect()).unwrap_or_default()
    }
}

pub(super) fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// One call in flight, for as long as it lives.
#[derive(Debug)]
pub(super) struct InFlight {
    counters: Arc<FrontCounters>,
    places: Places,
}

/// What a call takes of its peer's share and of its connection.
type Places = (Option<Share>, Option<edge::InFlight>);

impl InFlight {
    pub(super) fn new(counters: Arc<FrontCounters>, places: Places) -> Self {
        add(&counters.in_flight);
        Self { counters, places }
    }

    /// A piece of the response was handed over.
    pub(super) fn given(&mut self) {
        if let Some(busy) = &mut self.places.1 {
            busy.given();
        }
    }

    /// The next piece is asked for.
    pub(super) fn taken(&mut self) {
        if let Some(busy) = &mut self.places.1 {
            busy.taken();
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.counters.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
