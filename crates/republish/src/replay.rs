//! One replay, answered piece by piece between two turns of publishing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

use bytes::Bytes;
use kvplane_core::Cursor;
use kvplane_ingest::Stream;
use kvplane_socket::{ReplayRequestIn, ReplyFraming, RouterSocket};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tracing::warn;

use super::{BURST, encode};

/// Whole states that are taken and encoded at a time, of all engines: each is as large as the state itself.
const BUILDS: usize = 2;
const FRAMING: ReplyFraming = ReplyFraming::WithTopic;

/// Where whole states are taken and encoded.
pub(super) struct Building {
    runtime: Handle,
    places: Arc<Semaphore>,
}

impl Building {
    pub(super) fn new(runtime: Handle) -> Self {
        Self { runtime, places: Arc::new(Semaphore::new(BUILDS)) }
    }

    /// Takes a stream's state and encodes it.
    fn start(&self, stream: &Arc<Stream>, start: u64) -> Receiver<State> {
        let (done, state) = sync_channel(1);
        let (stream, places) = (stream.clone(), self.places.clone());
        kvplane_runtime::spawn_on(&self.runtime, "republisher replay", async move {
            let Ok(_place) = places.acquire().await else { return };
            let snapshot = stream.snapshot().await;
            let rank = stream.id().rank;
            let encoded = tokio::task::spawn_blocking(move || {
                let cursor = snapshot.cursor;
                let room = cursor.sequence.checked_sub(start).map_or(u64::MAX, |below| below + 1);
                let batches = encode::snapshot(rank, &snapshot, room);
                // The last batch that a listener gets must be one that it would be replayed: by that it knows
                // us again. Done here: it waits for a batch that is being applied.
                stream.go_beyond(cursor);
                State { first: cursor.sequence + 1 - batches.len() as u64, batches: batches.into(), cursor }
            });
            if let Ok(state) = encoded.await {
                // Nobody waits any more if the engine was removed.
                let _ = done.send(state);
            }
        });
        state
    }
}

/// A stream's state as batches.
struct State {
    batches: VecDeque<Bytes>,
    /// The number of the first of them.
    first: u64,
    cursor: Cursor,
}

enum Phase {
    Building(Receiver<State>),
    State(State),
    Tail(Cursor),
}

/// A replay that is being answered.
pub(super) struct Replay {
    request: ReplayRequestIn,
    phase: Phase,
}

/// How far a replay is.
pub(super) enum Step {
    /// Its state is not there yet.
    Waits,
    GoesOn,
    Ended,
}

impl Replay {
    pub(super) fn begin(stream: &Arc<Stream>, request: ReplayRequestIn, building: &Building) -> Self {
        let within = request.start.checked_sub(1).and_then(|before| stream.cursor_at(before).ok());
        // Below the window, of another epoch, or from the beginning: everything.
        let phase =
            within.map_or_else(|| Phase::Building(building.start(stream, request.start)), Phase::Tail);
        Self { request, phase }
    }

    /// Sends at most a burst of it.
    pub(super) fn step(&mut self, stream: &Stream, router: &RouterSocket, topic: &[u8]) -> Step {
        let send = |sequence: u64, payload: &[u8]| {
            router.reply_batch(&self.request.identity, FRAMING, topic, sequence, payload).is_ok()
        };
        match &mut self.phase {
            Phase::Building(state) => match state.try_recv() {
                Ok(state) => self.phase = Phase::State(state),
                Err(TryRecvError::Empty) => return Step::Waits,
                Err(TryRecvError::Disconnected) => {
                    warn!(stream = %stream.id(), "replay: the state could not be encoded");
                    return Step::Ended;
                }
            },
            Phase::State(state) => {
                for payload in state.batches.drain(..state.batches.len().min(BURST)) {
                    if !send(state.first, &payload) {
                        return Step::Ended;
                    }
                    state.first += 1;
                }
                if state.batches.is_empty() {
                    self.phase = Phase::Tail(state.cursor);
                }
            }
            // The tail up to now; what comes later is published.
            Phase::Tail(cursor) => {
                // Of another epoch, or too slow: without the end marker the listener asks again.
                let Ok(entries) = stream.read_after(*cursor, BURST) else { return Step::Ended };
                for entry in &entries {
                    if !send(entry.sequence, &encode::entry(stream.id().rank, entry)) {
                        return Step::Ended;
                    }
                    cursor.sequence = entry.sequence;
                }
                if entries.is_empty() {
                    if let Err(error) = router.reply_end(&self.request.identity, FRAMING) {
                        warn!(stream = %stream.id(), %error, "replay cannot be ended");
                    }
                    return Step::Ended;
                }
            }
        }
        Step::GoesOn
    }
}

#[cfg(test)]
mod tests;
