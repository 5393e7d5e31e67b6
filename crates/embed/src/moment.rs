//! What a recorder held at one moment.

use kvplane_core::{Continuity, StreamId, Trust, TrustState};
use kvplane_stream::{Numbering, Snapshot, Worker, withheld};
use kvplane_wire::dynamo::WorkerKvQueryResponse;

use crate::recorder::to_json;

/// What a state may be worth and still be given out to readers who cannot be told.
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
    /// The state as a router is told it, or why it is not.
    pub fn recover(&self) -> WorkerKvQueryResponse {
        let Snapshot { trust, standing, .. } = &self.snapshot;
        refusal(&self.stream, trust, *standing).unwrap_or_else(|| self.worker.dump(&self.snapshot, NUMBERING))
    }

    /// The same as JSON.
    pub fn recover_json(&self) -> String {
        to_json(&self.recover())
    }
}

/// What a reader is told instead of a state that is not worth giving out.
pub(crate) fn refusal(
    stream: &StreamId,
    trust: &TrustState,
    continuity: Continuity,
) -> Option<WorkerKvQueryResponse> {
    let reason = withheld(trust, continuity, &CREDIT)?;
    Some(WorkerKvQueryResponse::Error(format!("stream {stream}: {reason}")))
}
