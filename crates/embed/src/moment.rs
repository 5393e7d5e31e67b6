//! What a recorder held at one moment.

use kvplane_core::{Continuity, StreamId, Trust, TrustState};
use kvplane_stream::{Numbering, Snapshot, Worker, withheld};
use kvplane_wire::dynamo::WorkerKvQueryResponse;

use crate::recorder::to_json;

/// Trust levels at which a state is given to readers whose protocol cannot carry trust.
const CREDIT: [Trust; 3] = [Trust::Exact, Trust::Lower, Trust::Unverified];

/// Every number that a batch has is the one that it was handed over with.
pub(crate) const NUMBERING: Numbering = Numbering::Batches;

/// A recorder's state at one moment. It stays what it is when the recorder goes.
#[derive(Debug)]
pub struct Moment {
    /// Whose it is.
    pub stream: StreamId,
    /// The stream in answers.
    pub worker: Worker,
    /// The state, and what it is worth.
    pub snapshot: Snapshot,
}

impl Moment {
    /// The state as a router reads it, or why it is withheld.
    pub fn recover(&self) -> WorkerKvQueryResponse {
        let Snapshot { trust, continuity, .. } = &self.snapshot;
        refusal(&self.stream, trust, *continuity)
            .unwrap_or_else(|| self.worker.dump(&self.snapshot, NUMBERING))
    }

    /// The same as JSON.
    pub fn recover_json(&self) -> String {
        to_json(&self.recover())
    }
}

/// The refusal that replaces a state whose trust is too low.
pub(crate) fn refusal(
    stream: &StreamId,
    trust: &TrustState,
    continuity: Continuity,
) -> Option<WorkerKvQueryResponse> {
    let reason = withheld(trust, continuity, &CREDIT)?;
    Some(WorkerKvQueryResponse::Error(format!("stream {stream}: {reason}")))
}
