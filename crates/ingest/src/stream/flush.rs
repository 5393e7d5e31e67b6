//! Watching a stream for the sign of a flush.

use std::sync::Arc;
use std::time::Duration;

use kvplane_stream::{FlushError, FlushId, FlushOutcome};
use tokio::runtime::Handle;

use super::Stream;
use crate::feeder::Feeder;

/// A flush of a stream's engine that somebody asks for.
///
/// It is begun before the engine is asked, because the stream may show the flush before the engine's answer
/// is read. It ends with [`Self::refused`] or [`Self::outcome`]. Should it just be dropped, nobody knows what
/// the engine did, and it is as if the time was over: what the stream is known to hold is dropped.
#[derive(Debug)]
pub struct FlushWatch {
    feeder: Feeder,
    id: FlushId,
}

impl Stream {
    /// Begins to watch for the sign of a flush that an engine is about to be asked for. Call it on a runtime.
    pub fn begin_flush(self: &Arc<Self>) -> Result<FlushWatch, FlushError> {
        let feeder = Feeder::new(self.clone(), Handle::current());
        let mut begun = Err(FlushError::Removed);
        feeder.tell(|recorder, _| begun = recorder.begin_flush());
        begun.map(|id| FlushWatch { feeder, id })
    }

    fn flush_outcome(&self, id: FlushId) -> Option<FlushOutcome> {
        self.inner.lock().recorder.flush_outcome(id).cloned()
    }
}

impl FlushWatch {
    /// The engine accepted the flush, or may have: from now on nothing of the stream is credited, until it
    /// shows the flush or the watch ends.
    pub fn accepted(&self) {
        self.feeder.tell(|recorder, now| recorder.flush_accepted(self.id, now));
    }

    /// The engine refused, or was never asked: nothing was flushed.
    pub fn refused(self) {
        self.feeder.tell(|recorder, now| recorder.flush_refused(self.id, now));
    }

    /// Waits until the stream shows the flush, but not longer than `timeout`. Asking for the outcome says
    /// that the engine accepted, or may have.
    pub async fn outcome(self, timeout: Duration) -> FlushOutcome {
        self.accepted();
        if let Ok(outcome) = tokio::time::timeout(timeout, self.shown()).await {
            return outcome;
        }
        self.feeder.tell(|recorder, now| recorder.flush_expired(self.id, now));
        self.feeder.stream().flush_outcome(self.id).unwrap_or(FlushOutcome::Lost)
    }

    async fn shown(&self) -> FlushOutcome {
        let stream = self.feeder.stream();
        loop {
            // Registered before the look, so that nothing that happens after the look is missed.
            let changed = stream.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if let Some(outcome) = stream.flush_outcome(self.id) {
                return outcome;
            }
            if stream.removed.run_until_cancelled(changed).await.is_none() {
                return stream.flush_outcome(self.id).unwrap_or(FlushOutcome::Lost);
            }
        }
    }
}

impl Drop for FlushWatch {
    fn drop(&mut self) {
        self.feeder.tell(|recorder, now| recorder.end_flush(self.id, now));
    }
}
