//! A stream that another plane records.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kvplane_core::PlaneId;
use kvplane_stream::MirroredState;
use parking_lot::MutexGuard;

use super::{Inner, Outcome, Stream, view};

/// Transitions that are written into the index while the stream's lock is held.
const LOAD_STEP: usize = 64;
/// Blocks whose marks are: a transition has several blocks.
const MARKS_STEP: usize = 512;

impl Stream {
    /// Whether another plane records it.
    pub fn is_mirrored(&self) -> bool {
        self.mirrored
    }

    /// Whether another plane records it, and all that it had when it was asked is here.
    pub fn is_current(&self) -> bool {
        self.inner.lock().recorder.is_current()
    }

    /// Whether another plane records it, and it can be asked here as it could be there: all of it is here,
    /// and the first proof that its engine is there.
    pub fn is_caught_up(&self) -> bool {
        self.inner.lock().recorder.is_caught_up()
    }

    /// The planes that it came through: the one that heard the engine first, this one last.
    pub fn via(&self) -> Arc<[PlaneId]> {
        self.via.lock().clone()
    }

    pub(crate) fn set_via(&self, via: Arc<[PlaneId]>) {
        *self.via.lock() = via;
    }

    /// Takes over a whole state. The index follows step by step; until it has, answers do not credit the
    /// stream.
    pub(crate) fn load(&self, state: MirroredState) -> Outcome {
        let now = self.clock.now();
        let (state, transitions) = state.split();
        let mut inner = self.inner.lock();
        if inner.closed {
            return Outcome::default();
        }
        inner.recorder.load(now, state);
        let Inner { recorder, index, .. } = &mut *inner;
        if let Some(index) = index {
            index.begin_load(view(recorder), recorder.ledger().resumption());
        }
        let marks = recorder.ledger().all_marks();
        let outcome = Outcome {
            asks: Vec::new(),
            happenings: inner.recorder.take_happenings(),
            retired: inner.recorder.ledger_mut().take_retired(),
        };
        MutexGuard::unlock_fair(inner);
        for step in transitions.chunks(LOAD_STEP) {
            let mut inner = self.inner.lock();
            if let Some(index) = &mut inner.index {
                index.load(step);
            }
            MutexGuard::unlock_fair(inner);
        }
        for step in marks.chunks(MARKS_STEP) {
            let mut inner = self.inner.lock();
            if let Some(index) = &mut inner.index {
                index.set_sides(step);
            }
            MutexGuard::unlock_fair(inner);
        }
        let mut inner = self.inner.lock();
        if let Some(index) = &mut inner.index {
            index.end_load();
        }
        drop(inner);
        self.unannounced.store(true, Ordering::Release);
        outcome
    }
}
