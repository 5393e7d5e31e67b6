//! A state and what followed it, sent to one listener piece by piece between two turns of publishing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

use bytes::Bytes;
use kvplane_core::Cursor;
use kvplane_ingest::Stream;
use kvplane_socket::Delivery;
use kvplane_stream::{Entry, Protocol, Snapshot};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::presence::{Presence, state_events};
use crate::{BURST, encode};

/// Whole states that are taken and encoded at a time, of all engines: each is as large as the state itself.
pub(super) const BUILDS: usize = 2;

/// In which form events are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Every copy.
    Copies,
    /// The first copy and the last one.
    Presence,
}

/// What is published of a stream, and how far it is.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) stream: Arc<Stream>,
    pub(super) form: Form,
    /// The last entry that was published.
    pub(super) published: Cursor,
    /// Everything after this, and up to the last, has its wire form.
    pub(super) encoded_after: Cursor,
}

impl Source {
    /// An entry's wire form; `None` if it was not published in this form.
    fn payload(&self, entry: &Entry) -> Option<Bytes> {
        match self.form {
            Form::Copies => Some(encode::entry(self.stream.id().rank, entry)),
            Form::Presence => entry.encoding(Protocol::VllmPresence),
        }
    }

    /// Where a listener goes on that wants everything from a number on, if all of it can be sent.
    fn cursor_before(&self, start: u64) -> Option<Cursor> {
        let cursor = self.stream.cursor_at(start.checked_sub(1)?).ok()?;
        let known = self.encoded_after;
        let encoded = cursor.epoch == known.epoch && cursor.sequence >= known.sequence;
        (encoded || self.form == Form::Copies).then_some(cursor)
    }
}

/// A stream's state as batches.
pub(super) struct State {
    pub(super) batches: VecDeque<Bytes>,
    /// The number of the first of them.
    pub(super) first: u64,
    pub(super) cursor: Cursor,
}

impl State {
    /// A state for a listener whose next number is `start`.
    fn of(snapshot: &Snapshot, form: Form, rank: u32, start: u64) -> Self {
        let cursor = snapshot.cursor;
        let room = cursor.sequence.checked_sub(start).map_or(u64::MAX, |below| below + 1);
        let events = match form {
            Form::Copies => encode::copies(snapshot),
            Form::Presence => state_events(&snapshot.as_transitions()),
        };
        let batches = encode::batches(rank, events, room);
        State { first: cursor.sequence + 1 - batches.len() as u64, batches: batches.into(), cursor }
    }
}

/// What publishing by presence begins with.
pub(super) struct Loaded {
    pub(super) presence: Presence,
    pub(super) cursor: Cursor,
    /// The state, if it is to be published.
    pub(super) state: Option<State>,
}

/// Where whole states are taken and encoded.
pub(super) struct Building {
    runtime: Handle,
    pub(super) places: Arc<Semaphore>,
}

impl Building {
    pub(super) fn new(runtime: Handle) -> Self {
        Self { runtime, places: Arc::new(Semaphore::new(BUILDS)) }
    }

    /// Takes a stream's state and encodes it, for a listener whose next number is `start`.
    fn state(&self, source: &Source, start: u64) -> Receiver<State> {
        let (form, rank) = (source.form, source.stream.id().rank);
        self.build(&source.stream, move |snapshot| State::of(snapshot, form, rank, start))
    }

    /// Takes a stream's state to publish by presence from there, and encodes it if it is to be published.
    pub(super) fn load(&self, stream: &Arc<Stream>, published: Cursor, encodes: bool) -> Receiver<Loaded> {
        let rank = stream.id().rank;
        self.build(stream, move |snapshot| {
            let mut presence = Presence::default();
            presence.apply(&snapshot.as_transitions());
            let start = published.sequence.saturating_add(1);
            let state = encodes.then(|| State::of(snapshot, Form::Presence, rank, start));
            Loaded { presence, cursor: snapshot.cursor, state }
        })
    }

    fn build<T: Send + 'static>(
        &self,
        stream: &Arc<Stream>,
        make: impl FnOnce(&Snapshot) -> T + Send + 'static,
    ) -> Receiver<T> {
        let (done, made) = sync_channel(1);
        let (stream, places) = (stream.clone(), self.places.clone());
        kvplane_runtime::spawn_on(&self.runtime, "republisher state", async move {
            let Ok(_place) = places.acquire().await else { return };
            let snapshot = stream.snapshot().await;
            let made = tokio::task::spawn_blocking(move || {
                let made = make(&snapshot);
                // The last batch that a listener gets must be one that it would be replayed: by that it knows
                // us again. Done here: it waits for a batch that is being applied.
                stream.go_beyond(snapshot.cursor);
                made
            });
            if let Ok(made) = made.await {
                // Nobody waits any more if the engine was removed.
                let _ = done.send(made);
            }
        });
        made
    }
}

pub(super) enum Phase {
    Building(Receiver<State>),
    State(State),
    Tail(Cursor),
}

/// What one listener is being sent.
pub(super) struct Feed {
    pub(super) phase: Phase,
}

/// How far a feed is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Its state is not there yet, or the listener takes no more for now.
    Waits,
    GoesOn,
    /// The listener has all that was published.
    CaughtUp,
    /// It cannot be finished: the listener left, or the stream went on elsewhere.
    Broken,
}

impl Feed {
    /// All that a listener misses that wants everything from a number on.
    pub(super) fn from(source: &Source, start: u64, building: &Building) -> Self {
        // Below the window, of another epoch, or from the beginning: everything.
        let phase = source
            .cursor_before(start)
            .map_or_else(|| Phase::Building(building.state(source, start)), Phase::Tail);
        Self { phase }
    }

    /// Sends at most a burst.
    pub(super) fn step(&mut self, source: &Source, mut send: impl FnMut(u64, &[u8]) -> Delivery) -> Step {
        match &mut self.phase {
            Phase::Building(state) => match state.try_recv() {
                Ok(state) => self.phase = Phase::State(state),
                Err(TryRecvError::Empty) => return Step::Waits,
                Err(TryRecvError::Disconnected) => return Step::Broken,
            },
            Phase::State(state) => {
                for sent in 0..BURST {
                    let Some(payload) = state.batches.front() else { break };
                    match send(state.first, payload) {
                        Delivery::Queued => {}
                        Delivery::Full => return if sent > 0 { Step::GoesOn } else { Step::Waits },
                        Delivery::Gone => return Step::Broken,
                    }
                    state.batches.pop_front();
                    state.first += 1;
                }
                if state.batches.is_empty() {
                    self.phase = Phase::Tail(state.cursor);
                }
            }
            Phase::Tail(cursor) => return Self::send_tail(cursor, source, send),
        }
        Step::GoesOn
    }

    /// What followed, up to what was published; what comes later is published.
    fn send_tail(cursor: &mut Cursor, source: &Source, mut send: impl FnMut(u64, &[u8]) -> Delivery) -> Step {
        let published = source.published;
        if cursor.epoch != published.epoch {
            return Step::Broken;
        }
        if cursor.sequence >= published.sequence {
            // A state may be ahead of what was published, by a moment.
            return if *cursor == published { Step::CaughtUp } else { Step::Waits };
        }
        let Ok(entries) = source.stream.read_after(*cursor, BURST) else { return Step::Broken };
        for (sent, entry) in
            entries.iter().take_while(|entry| entry.sequence <= published.sequence).enumerate()
        {
            let Some(payload) = source.payload(entry) else { return Step::Broken };
            match send(entry.sequence, &payload) {
                Delivery::Queued => cursor.sequence = entry.sequence,
                Delivery::Full => return if sent > 0 { Step::GoesOn } else { Step::Waits },
                Delivery::Gone => return Step::Broken,
            }
        }
        Step::GoesOn
    }
}

#[cfg(test)]
mod tests;
