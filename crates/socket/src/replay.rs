//! Asking engines for what they published before.
//!
//! ```text
//! request   ["", from u64 BE]                                    from a fresh DEALER
//! reply     ["", seq u64 BE, payload] ...                        vLLM up to 0.25
//!           ["", topic, seq u64 BE, payload] ...                 vLLM from 0.26
//! end       the same with an empty payload under sequence ff x 8
//! ```
//!
//! The frames are read by [`kvplane_wire::replay::parse_reply`].
//!
//! A fresh connection per request, because an answer that comes after its deadline would otherwise be taken
//! for the answer to the next one. All of them run on one thread of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{io, net::SocketAddr};

use bytes::Bytes;
use mio::{Poll, Waker};
use parking_lot::Mutex;

use crate::SocketError;
use crate::options::ReplayRequest;
use crate::poller::{WAKE, wake};
use crate::pulse::Pulse;

mod running;
mod thread;

pub(crate) use thread::Replayer;

/// How a replay ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayEnd {
    /// The engine sent its end marker.
    Complete,
    /// The whole took too long.
    Deadline,
    /// Nothing came for too long: no engine there, or one that does not answer.
    Idle,
    /// An answer that cannot be understood. The word says why: `frame_count`, `delimiter`, `sequence_length`,
    /// `half_end`, or `endpoint` when the address was rejected before anything was asked.
    Malformed(&'static str),
    /// More bytes than were allowed.
    TooLarge,
    /// Cancelled by its handle or by a shutdown.
    Cancelled,
}

/// What the asker hears, all on the replay thread. A handler must not block: other replays wait for it.
pub trait ReplayHandler: Send {
    /// One batch, in the order in which the engine sent them.
    fn batch(&mut self, sequence: u64, payload: Bytes);

    /// The end, exactly once.
    fn finished(self: Box<Self>, end: ReplayEnd);
}

/// A replay under way. Dropping it changes nothing.
pub struct ReplayHandle {
    cancelled: Arc<AtomicBool>,
    queue: Arc<ReplayQueue>,
}

impl ReplayHandle {
    /// Ends the replay early; the handler hears [`ReplayEnd::Cancelled`] unless it already ended.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        wake(&self.queue.waker);
    }
}

impl std::fmt::Debug for ReplayHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplayHandle").finish_non_exhaustive()
    }
}

/// What other threads may ask of the replay thread.
pub(crate) struct ReplayQueue {
    waker: Waker,
    asked: Mutex<Asked>,
    pulse: Pulse,
}

#[derive(Default)]
struct Asked {
    jobs: Vec<Job>,
    resolved: Vec<(usize, io::Result<Vec<SocketAddr>>)>,
    stopped: bool,
}

/// A request that is not on the wire yet.
struct Job {
    request: ReplayRequest,
    handler: Box<dyn ReplayHandler>,
    cancelled: Arc<AtomicBool>,
}

impl ReplayQueue {
    pub(crate) fn new(poll: &Poll) -> io::Result<Arc<Self>> {
        let waker = Waker::new(poll.registry(), WAKE)?;
        Ok(Arc::new(Self { waker, asked: Mutex::default(), pulse: Pulse::default() }))
    }

    /// How long the thread's round has lasted: it sleeps for a second at most.
    pub(crate) fn round(&self) -> Duration {
        self.pulse.age()
    }

    pub(crate) fn ask(
        self: &Arc<Self>,
        request: ReplayRequest,
        handler: Box<dyn ReplayHandler>,
    ) -> Result<ReplayHandle, SocketError> {
        let cancelled = Arc::new(AtomicBool::new(false));
        {
            let mut asked = self.asked.lock();
            if asked.stopped {
                return Err(SocketError::Stopped);
            }
            asked.jobs.push(Job { request, handler, cancelled: cancelled.clone() });
        }
        wake(&self.waker);
        Ok(ReplayHandle { cancelled, queue: self.clone() })
    }

    /// Asks the replay thread to end.
    pub(crate) fn stop(&self) {
        self.asked.lock().stopped = true;
        wake(&self.waker);
    }

    fn resolved(&self, token: usize, answer: io::Result<Vec<SocketAddr>>) {
        self.asked.lock().resolved.push((token, answer));
        wake(&self.waker);
    }
}
