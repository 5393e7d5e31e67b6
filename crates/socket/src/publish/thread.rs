//! The thread that serves all publishing sockets of a context.
//!
//! It sleeps in epoll until a connection has news or an owner calls, edge-triggered: a connection that was
//! not served to its end stays in the queue `hot` and gets another turn, after the others had theirs. An
//! owner calls once for all that it sends until the thread looks, and wakes it only if it sleeps.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use mio::{Events, Poll, Registry, Waker};
use parking_lot::Mutex;

use super::outlet::Outlet;
use crate::SocketError;
use crate::connection::READ_BYTES;
use crate::poller::{WAKE, wake};
use crate::resolve::Resolver;
use crate::tokens::Tokens;

/// Events taken from the kernel at once; more come at the next look.
const EVENTS: usize = 1024;

/// How often deadlines are looked at: those of handshakes and silent peers, and pauses between attempts to
/// connect.
const TICK: Duration = Duration::from_secs(1);
const DIAL_TICK: Duration = Duration::from_millis(100);

/// What owners of sockets may ask of the thread.
pub(super) struct Calls {
    waker: Waker,
    last_id: AtomicU64,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    added: Vec<Outlet>,
    /// Sockets to close, and whom to tell.
    removed: Vec<(u64, SyncSender<()>)>,
    /// Sockets that have something to send.
    served: Vec<u64>,
    resolved: Vec<(u64, io::Result<Vec<SocketAddr>>)>,
    /// The thread sleeps, or is about to.
    asleep: bool,
    stopped: bool,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        let idle = self.added.is_empty() && self.removed.is_empty() && self.served.is_empty();
        idle && self.resolved.is_empty() && !self.stopped
    }
}

impl Calls {
    pub(super) fn new(poll: &Poll) -> io::Result<Arc<Self>> {
        let waker = Waker::new(poll.registry(), WAKE)?;
        Ok(Arc::new(Self { waker, last_id: AtomicU64::new(0), waiting: Mutex::default() }))
    }

    /// An id for a socket.
    pub(super) fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Gives a socket to the thread.
    pub(super) fn add(&self, outlet: Outlet) -> Result<(), SocketError> {
        if self.call(|waiting| waiting.added.push(outlet)) { Ok(()) } else { Err(SocketError::Stopped) }
    }

    /// A socket has something to send.
    pub(super) fn serve(&self, id: u64) {
        self.call(|waiting| waiting.served.push(id));
    }

    /// Closes a socket; it is closed when this returns.
    pub(super) fn remove(&self, id: u64) {
        let (done, wait) = sync_channel(1);
        if self.call(|waiting| waiting.removed.push((id, done))) {
            // A thread that ended has closed it as well.
            let _ = wait.recv();
        }
    }

    /// Asks the thread to end.
    pub(super) fn stop(&self) {
        self.call(|waiting| waiting.stopped = true);
    }

    fn resolved(&self, id: u64, answer: io::Result<Vec<SocketAddr>>) {
        self.call(|waiting| waiting.resolved.push((id, answer)));
    }

    fn call(&self, call: impl FnOnce(&mut Waiting)) -> bool {
        let asleep = {
            let mut waiting = self.waiting.lock();
            if waiting.stopped {
                return false;
            }
            call(&mut waiting);
            std::mem::take(&mut waiting.asleep)
        };
        if asleep {
            wake(&self.waker);
        }
        true
    }
}

/// What a socket may use of its thread.
pub(super) struct Desk<'a> {
    pub(super) registry: &'a Registry,
    pub(super) scratch: &'a mut [u8],
    /// Connections that need a turn: socket and token.
    pub(super) hot: &'a mut VecDeque<(u64, usize)>,
    pub(super) now: Instant,
    tokens: &'a mut Tokens,
    calls: &'a Arc<Calls>,
    resolver: &'a Resolver,
}

impl Desk<'_> {
    /// A token for a descriptor of a socket's.
    pub(super) fn token(&mut self, owner: u64) -> usize {
        self.tokens.take(owner)
    }

    /// A token's descriptor is closed.
    pub(super) fn release(&mut self, token: usize) {
        self.tokens.release(token);
    }

    /// Looks a name up for a socket.
    pub(super) fn resolve(&self, id: u64, host: String, port: u16) {
        let calls = self.calls.clone();
        self.resolver.resolve(host, port, Box::new(move |answer| calls.resolved(id, answer)));
    }
}

/// The thread's own side.
pub(super) struct Server {
    calls: Arc<Calls>,
    poll: Poll,
    resolver: Resolver,
    outlets: HashMap<u64, Outlet>,
    /// How many of them dial.
    dialling: usize,
    tokens: Tokens,
    hot: VecDeque<(u64, usize)>,
    /// Scratch for tokens of peers.
    pending: Vec<usize>,
    scratch: Vec<u8>,
}

impl Server {
    pub(super) fn new(calls: Arc<Calls>, poll: Poll) -> Self {
        Self {
            calls,
            poll,
            resolver: Resolver::default(),
            outlets: HashMap::new(),
            dialling: 0,
            tokens: Tokens::default(),
            hot: VecDeque::new(),
            pending: Vec::new(),
            scratch: vec![0; READ_BYTES],
        }
    }

    /// Serves until stopped.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS);
        let mut last_tick = kvplane_runtime::now();
        while self.obey() {
            let pause = if self.dialling > 0 { DIAL_TICK } else { TICK };
            let next_tick = last_tick + pause;
            let timeout = if self.may_sleep() {
                next_tick.saturating_duration_since(kvplane_runtime::now())
            } else {
                Duration::ZERO
            };
            if let Err(error) = self.poll.poll(&mut events, Some(timeout))
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "poll failed");
            }
            for event in &events {
                let Some(owner) = self.tokens.owner(event.token().0) else { continue };
                let hung_up = event.is_read_closed() || event.is_write_closed() || event.is_error();
                let (readable, writable) = (event.is_readable(), event.is_writable());
                if let Some(outlet) = self.outlets.get_mut(&owner)
                    && outlet.note(event.token().0, readable, writable, hung_up)
                {
                    self.hot.push_back((owner, event.token().0));
                }
            }
            self.turns();
            if kvplane_runtime::now() >= next_tick {
                last_tick = kvplane_runtime::now();
                let ids: Vec<u64> = self.outlets.keys().copied().collect();
                for id in ids {
                    self.with(id, Outlet::tick);
                }
            }
        }
    }

    /// Whether there is nothing to do before the next event. From then on owners wake us.
    fn may_sleep(&self) -> bool {
        if !self.hot.is_empty() {
            return false;
        }
        let mut waiting = self.calls.waiting.lock();
        waiting.asleep = waiting.is_empty();
        waiting.asleep
    }

    /// Does what owners asked for; false to stop.
    fn obey(&mut self) -> bool {
        let Waiting { added, removed, served, resolved, stopped, .. } = {
            let mut waiting = self.calls.waiting.lock();
            let stopped = waiting.stopped;
            std::mem::replace(&mut *waiting, Waiting { stopped, ..Waiting::default() })
        };
        for outlet in added {
            let id = outlet.hub.id;
            self.dialling += usize::from(outlet.dials());
            self.outlets.insert(id, outlet);
            if let Some(Err(error)) = self.with(id, Outlet::start) {
                tracing::error!(%error, "cannot watch a socket; it is closed");
                self.remove(id);
            }
        }
        let mut pending = std::mem::take(&mut self.pending);
        for id in served {
            self.with(id, |outlet, desk| outlet.serve(&mut pending, desk));
        }
        self.pending = pending;
        for (id, answer) in resolved {
            self.with(id, |outlet, desk| outlet.resolved(answer, desk));
        }
        for (id, done) in removed {
            self.remove(id);
            // Who dropped the socket waits for this.
            let _ = done.send(());
        }
        !stopped
    }

    fn remove(&mut self, id: u64) {
        if let Some(mut outlet) = self.outlets.remove(&id) {
            self.dialling -= usize::from(outlet.dials());
            outlet.finish(&mut self.scratch);
            self.tokens.release_all(id);
        }
    }

    /// Gives a turn to each connection that waits for one.
    fn turns(&mut self) {
        for _ in 0..self.hot.len() {
            let Some((id, token)) = self.hot.pop_front() else { return };
            if self.with(id, |outlet, desk| outlet.turn(token, desk)) == Some(true) {
                self.hot.push_back((id, token));
            }
        }
    }

    fn with<T>(&mut self, id: u64, call: impl FnOnce(&mut Outlet, &mut Desk<'_>) -> T) -> Option<T> {
        let outlet = self.outlets.get_mut(&id)?;
        let mut desk = Desk {
            registry: self.poll.registry(),
            scratch: &mut self.scratch,
            hot: &mut self.hot,
            now: kvplane_runtime::now(),
            tokens: &mut self.tokens,
            calls: &self.calls,
            resolver: &self.resolver,
        };
        Some(call(outlet, &mut desk))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.resolver.stop();
        // However the thread ends, nobody waits for it: sockets are closed, and calls fail.
        let waiting = std::mem::replace(
            &mut *self.calls.waiting.lock(),
            Waiting { stopped: true, ..Waiting::default() },
        );
        drop(waiting);
    }
}
