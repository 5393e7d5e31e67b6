//! Asking engines for what they published before.
//!
//! ```text
//! request   ["", from u64 BE]                                    from a fresh DEALER
//! reply     ["", seq u64 BE, payload] ...                        vLLM up to 0.25
//!           ["", topic, seq u64 BE, payload] ...                 vLLM from 0.26
//! end       the same with an empty payload, usually under sequence ff x 8
//! ```
//!
//! A fresh socket per request, because an answer that comes after its deadline would otherwise be taken for
//! the answer to the next one. All of them run on one thread of their own.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use zmq::{Context, DONTWAIT, POLLIN, Socket};

use crate::frames::{MAX_FRAMES, Multipart};
use crate::options::{Endpoint, MAX_MESSAGE_BYTES, ReplayRequest};
use crate::pulse::Pulse;
use crate::subscriber::dial;
use crate::wake::{Sleeper, Waker};
use crate::{SocketError, wake};

/// Replies taken from one request before the others get their turn.
const REPLIES_PER_TURN: usize = 512;

/// Replies that libzmq may hold for us. An engine's ROUTER drops what does not fit, and the answer then has
/// holes: so more than any engine keeps (vLLM: 10 000 batches).
const RECEIVE_HWM: i32 = 100_000;

/// The thread looks around at least this often, so that no lost call can keep it asleep.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// How a replay ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayEnd {
    /// The engine sent its end marker.
    Complete,
    /// The whole took too long.
    Deadline,
    /// Nothing came for too long: no engine there, or one that does not answer.
    Idle,
    /// An answer that cannot be understood. The word says why: `frame_count`, `delimiter`,
    /// `sequence_length`, or `endpoint` when the address was refused before anything was asked.
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
        self.queue.waker.wake();
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
    stopped: bool,
}

/// A request that is not on the wire yet.
struct Job {
    request: ReplayRequest,
    handler: Box<dyn ReplayHandler>,
    cancelled: Arc<AtomicBool>,
}

/// A request on the wire.
struct Running {
    job: Job,
    socket: Socket,
    deadline: Instant,
    idle_at: Instant,
    bytes: usize,
}

impl ReplayQueue {
    pub(crate) fn new(waker: Waker) -> Arc<Self> {
        Arc::new(Self { waker, asked: Mutex::default(), pulse: Pulse::default() })
    }

    /// How long the thread's round has lasted: it sleeps for [`LONGEST_SLEEP`] at most.
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
        self.waker.wake();
        Ok(ReplayHandle { cancelled, queue: self.clone() })
    }

    /// Asks the replay thread to end.
    pub(crate) fn stop(&self) {
        self.asked.lock().stopped = true;
        self.waker.wake();
    }

    /// Lets go of the socket that wakes the replay thread, once it has ended.
    pub(crate) fn close(&self) {
        self.waker.close();
    }
}

/// The thread's own side.
pub(crate) struct Replayer {
    queue: Arc<ReplayQueue>,
    sleeper: wake::Sleeper,
    context: Context,
    concurrent: usize,
    waiting: VecDeque<Job>,
    running: Vec<Running>,
}

impl Replayer {
    pub(crate) fn new(
        queue: Arc<ReplayQueue>,
        sleeper: Sleeper,
        context: Context,
        concurrent: usize,
    ) -> Self {
        let concurrent = concurrent.max(1);
        Self { queue, sleeper, context, concurrent, waiting: VecDeque::new(), running: Vec::new() }
    }

    /// Serves until stopped; then every replay is told that it is cancelled.
    pub(crate) fn run(mut self) {
        while self.obey() {
            self.queue.pulse.beat();
            self.open_waiting();
            let readable = self.sleep();
            self.serve(&readable);
        }
        let running = self.running.drain(..).map(|running| running.job);
        for job in running.chain(self.waiting.drain(..)) {
            job.finish(ReplayEnd::Cancelled);
        }
    }

    fn obey(&mut self) -> bool {
        let (jobs, stopped) = {
            let mut asked = self.queue.asked.lock();
            (std::mem::take(&mut asked.jobs), asked.stopped)
        };
        self.waiting.extend(jobs);
        !stopped
    }

    fn open_waiting(&mut self) {
        while self.running.len() < self.concurrent
            && let Some(job) = self.waiting.pop_front()
        {
            match open(&self.context, &job.request) {
                Ok(socket) => self.running.push(Running::new(job, socket)),
                Err(error) => {
                    tracing::warn!(%error, "replay not possible");
                    job.finish(ReplayEnd::Malformed("endpoint"));
                }
            }
        }
    }

    /// Waits for replies, limits or requests; tells which sockets are readable.
    fn sleep(&self) -> Vec<bool> {
        let now = Instant::now();
        let expiries = self.running.iter().map(|running| running.expiry().saturating_duration_since(now));
        let timeout = expiries.min().unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP);
        let millis = i64::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(i64::MAX);
        let mut items = Vec::with_capacity(1 + self.running.len());
        items.push(self.sleeper.socket().as_poll_item(POLLIN));
        items.extend(self.running.iter().map(|running| running.socket.as_poll_item(POLLIN)));
        if let Err(cause) = zmq::poll(&mut items, millis)
            && cause != zmq::Error::EINTR
        {
            tracing::error!(%cause, "poll failed");
        }
        self.sleeper.clear();
        items[1..].iter().map(zmq::PollItem::is_readable).collect()
    }

    fn serve(&mut self, readable: &[bool]) {
        let mut index = 0;
        let mut readable = readable.iter();
        while index < self.running.len() {
            let ready = readable.next().copied().unwrap_or(false);
            let running = &mut self.running[index];
            // Not swap_remove: `readable` goes by order.
            match catch_unwind(AssertUnwindSafe(|| running.turn(ready))) {
                Ok(Some(end)) => self.running.remove(index).finish(end),
                Ok(None) => index += 1,
                Err(_) => {
                    tracing::error!("a replay's handler panicked; the replay ends");
                    self.running.remove(index);
                }
            }
        }
    }
}

impl Job {
    /// A handler that panics ends nothing but its own replay: the others share this thread.
    fn finish(self, end: ReplayEnd) {
        if catch_unwind(AssertUnwindSafe(|| self.handler.finished(end))).is_err() {
            tracing::error!("a replay's handler panicked at its end");
        }
    }
}

impl Running {
    fn new(job: Job, socket: Socket) -> Self {
        let now = Instant::now();
        let deadline = now + job.request.deadline;
        let idle_at = now + job.request.idle_timeout;
        Self { job, socket, deadline, idle_at, bytes: 0 }
    }

    fn expiry(&self) -> Instant {
        self.deadline.min(self.idle_at)
    }

    fn finish(self, end: ReplayEnd) {
        // The socket goes first: a handler may ask again at once.
        drop(self.socket);
        self.job.finish(end);
    }

    fn is_cancelled(&self) -> bool {
        self.job.cancelled.load(Ordering::Acquire)
    }

    /// Reads what is there, within bounds; the end if this was it.
    fn turn(&mut self, ready: bool) -> Option<ReplayEnd> {
        if self.is_cancelled() {
            return Some(ReplayEnd::Cancelled);
        }
        if ready && let Some(end) = self.read() {
            return Some(end);
        }
        let now = Instant::now();
        if now >= self.deadline {
            Some(ReplayEnd::Deadline)
        } else if now >= self.idle_at {
            Some(ReplayEnd::Idle)
        } else {
            None
        }
    }

    fn read(&mut self) -> Option<ReplayEnd> {
        for _ in 0..REPLIES_PER_TURN {
            match Multipart::receive(&self.socket) {
                Ok(Some(reply)) => {
                    if let Some(end) = self.reply(reply) {
                        return Some(end);
                    }
                }
                Ok(None) => break,
                Err(cause) => {
                    tracing::warn!(endpoint = self.job.request.endpoint, %cause, "replay receive failed");
                    return Some(ReplayEnd::Idle);
                }
            }
        }
        self.idle_at = Instant::now() + self.job.request.idle_timeout;
        None
    }

    fn reply(&mut self, mut reply: Multipart) -> Option<ReplayEnd> {
        let (sequence, payload) = match parse(&mut reply) {
            Ok(Some(batch)) => batch,
            Ok(None) => return Some(ReplayEnd::Complete),
            Err(reason) => return Some(ReplayEnd::Malformed(reason)),
        };
        self.bytes = self.bytes.saturating_add(payload.len());
        if self.bytes > self.job.request.max_bytes {
            return Some(ReplayEnd::TooLarge);
        }
        if self.is_cancelled() {
            return Some(ReplayEnd::Cancelled);
        }
        self.job.handler.batch(sequence, payload);
        None
    }
}

/// Reads a reply from its tail, where both framings agree; `None` is the end marker.
fn parse(reply: &mut Multipart) -> Result<Option<(u64, Bytes)>, &'static str> {
    const END_SEQUENCE: u64 = u64::MAX;
    let count = reply.count();
    if !(3..=MAX_FRAMES).contains(&count) {
        return Err("frame_count");
    }
    if !reply.frame(0).is_empty() {
        return Err("delimiter");
    }
    let sequence = reply.sequence(count - 2).ok_or("sequence_length")?;
    let payload = reply.take(count - 1);
    Ok(if payload.is_empty() || sequence == END_SEQUENCE { None } else { Some((sequence, payload)) })
}

fn open(context: &Context, request: &ReplayRequest) -> Result<Socket, SocketError> {
    let socket = context.socket(zmq::DEALER).map_err(SocketError::doing("open a DEALER socket"))?;
    let configure = || {
        socket.set_linger(0)?;
        // Also reaches addresses of the older protocol.
        socket.set_ipv6(true)?;
        socket.set_rcvhwm(RECEIVE_HWM)?;
        socket.set_maxmsgsize(MAX_MESSAGE_BYTES)?;
        socket.set_reconnect_ivl(RECONNECT_MILLIS)
    };
    configure().map_err(SocketError::doing("configure a DEALER socket"))?;
    dial(&socket, &Endpoint::Connect(request.endpoint.clone()))?;
    let from = request.from.to_be_bytes();
    // Queued until the connection is there: this never waits.
    socket
        .send_multipart([&b""[..], &from], DONTWAIT)
        .map_err(SocketError::doing("send a replay request"))?;
    Ok(socket)
}

/// An engine that is just coming back should be asked within the request's few seconds.
const RECONNECT_MILLIS: i32 = Duration::from_millis(100).as_millis() as i32;
