//! A stream that the engine's own process feeds, by calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvplane_core::{Continuity, StateDigest, StreamId, Trouble, TrustState};
use kvplane_stream::{HandedOptions, Happening, JournalOptions, NotTaken, Now, Recorder};
use kvplane_wire::OwnedEvent;

use super::Stream;
use crate::clock::Clock;

/// When the latest life of any such stream began, in unix milliseconds.
static LAST_LIFE: AtomicU64 = AtomicU64::new(0);

/// What became of a batch that was handed over.
#[derive(Debug)]
pub struct HandedOver {
    /// Its number.
    pub number: u64,
    /// What is worth a log line.
    pub happenings: Vec<Happening>,
}

/// Why a batch was not recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotHandedOver {
    /// It was not taken, and nothing has changed.
    #[error(transparent)]
    NotTaken(#[from] NotTaken),
    /// The stream is closed.
    #[error("the stream is closed")]
    Closed,
    /// A defect ended the stream: nothing is recorded any more.
    #[error("a defect of kvplane ended the stream")]
    Defect,
}

impl Stream {
    /// A stream that the engine's own process feeds. Each has a life of its own, also of those that follow
    /// one another in the same millisecond.
    pub fn handed_over(id: StreamId, follow: HandedOptions, keep: JournalOptions) -> Self {
        let clock = Clock::start();
        let mut now = clock.now();
        let earlier = LAST_LIFE.fetch_max(now.unix_ms, Ordering::Relaxed);
        if earlier >= now.unix_ms {
            now.unix_ms = LAST_LIFE.fetch_add(1, Ordering::Relaxed) + 1;
        }
        let recorder = Recorder::of_hand_over(follow, keep, id.rank, now);
        Self::new(id, clock, Arc::default(), recorder, None)
    }

    /// A message as the engine publishes it, under its number or the next there is.
    pub fn hand_frame(&self, number: Option<u64>, payload: &[u8]) -> Result<HandedOver, NotHandedOver> {
        self.hand(|recorder, now| recorder.hand_frame(now, number, payload))
    }

    /// Events under one number, or the next there is.
    pub fn hand_events(
        &self,
        number: Option<u64>,
        events: &[OwnedEvent],
    ) -> Result<HandedOver, NotHandedOver> {
        self.hand(|recorder, now| recorder.hand_events(now, number, events))
    }

    fn hand(
        &self,
        input: impl FnOnce(&mut Recorder, Now) -> Result<u64, NotTaken>,
    ) -> Result<HandedOver, NotHandedOver> {
        let mut taken = None;
        let outcome = self.feed(|recorder, now| taken = Some(input(recorder, now)));
        self.announce();
        match taken {
            Some(Ok(number)) => Ok(HandedOver { number, happenings: outcome.happenings }),
            Some(Err(not_taken)) => Err(not_taken.into()),
            None if self.inner.lock().troubles.now() == Some(Trouble::Defect) => Err(NotHandedOver::Defect),
            None => Err(NotHandedOver::Closed),
        }
    }

    /// Nothing is recorded any more, and what was is let go of.
    pub fn close(&self) {
        drop(self.remove());
        // Its end had a number of its own, which no later stream may have.
        LAST_LIFE.fetch_max(self.cursor().epoch.as_u64(), Ordering::Relaxed);
        self.announce();
    }

    /// Whether it was closed, or removed from the plane.
    pub fn is_closed(&self) -> bool {
        self.inner.lock().closed
    }

    /// What answers are worth, and where the stream stands.
    pub fn worth(&self) -> (TrustState, Continuity) {
        let inner = self.inner.lock();
        (inner.recorder.ledger().trust().clone(), inner.recorder.continuity())
    }

    /// Digest of the resident state.
    pub fn digest(&self) -> StateDigest {
        self.inner.lock().recorder.ledger().state().digest()
    }
}

#[cfg(test)]
mod tests {
    use kvplane_core::EngineId;

    use super::*;

    #[test]
    fn epochs_rise_over_closings_also_within_a_millisecond() {
        let mut last = None;
        for _ in 0..50 {
            let id = StreamId::new(EngineId::new("e"), 0);
            let stream = Stream::handed_over(id, HandedOptions::default(), JournalOptions::default());
            let epoch = stream.cursor().epoch;
            assert!(Some(epoch) > last, "{epoch} after {last:?}");
            stream.close();
            last = Some(stream.cursor().epoch);
        }
    }
}
