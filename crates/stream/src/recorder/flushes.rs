//! Flushes of the engine's cache that somebody asks for, and waits for on the stream.

use super::{Happening, Recorder};
use crate::clock::Now;
use crate::flush::{FlushError, FlushId, FlushOutcome};
use crate::memory::Step;

impl Recorder {
    /// The engine is about to be asked for a flush: what the stream shows from now on may be of it. Every
    /// flush that is begun is to be ended, by [`Self::flush_refused`] or [`Self::end_flush`].
    pub fn begin_flush(&mut self) -> Result<FlushId, FlushError> {
        if self.is_mirror() {
            return Err(FlushError::Mirrored);
        }
        let id = self.interpreter.begin_flush();
        self.note_alone(|| Step::BeginFlush);
        Ok(id)
    }

    /// The engine accepted it, or may have: until the stream shows the flush, nothing of it is credited.
    pub fn flush_accepted(&mut self, id: FlushId, now: Now) {
        self.flush(
            now,
            |recorder| recorder.interpreter.flush_accepted(&mut recorder.ledger, id, now),
            Step::FlushAccepted(id),
        );
    }

    /// Nobody waits any longer for the stream to show it: unless it has, what it held is dropped.
    pub fn flush_expired(&mut self, id: FlushId, now: Now) {
        self.flush(
            now,
            |recorder| recorder.interpreter.flush_expired(&mut recorder.ledger, id, now),
            Step::FlushExpired(id),
        );
    }

    /// How it ended, once it has.
    pub fn flush_outcome(&self, id: FlushId) -> Option<&FlushOutcome> {
        self.interpreter.flush_outcome(id)
    }

    /// The engine refused, or was never asked: nothing was flushed, and nobody watches any more.
    pub fn flush_refused(&mut self, id: FlushId, now: Now) {
        self.flush(
            now,
            |recorder| recorder.interpreter.flush_refused(&mut recorder.ledger, id),
            Step::FlushRefused(id),
        );
    }

    /// Nobody watches the flush any more. Unless the stream has shown it, it expires.
    pub fn end_flush(&mut self, id: FlushId, now: Now) {
        self.flush(
            now,
            |recorder| recorder.interpreter.end_flush(&mut recorder.ledger, id, now),
            Step::EndFlush(id),
        );
    }

    fn flush(&mut self, now: Now, input: impl FnOnce(&mut Self), step: Step) {
        let unproven = self.ledger.counters().flushes_unproven;
        input(self);
        self.note(now, || step);
        if self.ledger.counters().flushes_unproven > unproven {
            self.happenings.push(Happening::UnprovenFlush);
        }
        self.settle(now);
    }
}
