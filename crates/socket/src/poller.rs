//! A thread that serves many subscriptions.
//!
//! It sleeps in epoll until a connection has news, edge-triggered: so a connection that was not read to its
//! end stays in the queue `hot` and gets another turn, after the others had theirs. Deadlines (pauses between
//! attempts, handshakes, heartbeats, ticks of handlers) are in [`Timers`]: a subscription that waits costs
//! nothing until its own has come.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use mio::{Events, Poll, Registry, Token, Waker};
use parking_lot::Mutex;

use crate::connection::READ_BYTES;
use crate::handler::Alarm;
use crate::pulse::Pulse;
use crate::resolve::Resolver;
use crate::subscriber::Subscriber;
use crate::timers::Timers;
use crate::tokens::Tokens;

/// The token of calls from other threads.
pub(crate) const WAKE: Token = Token(0);

/// Events taken from the kernel at once; more come at the next look.
const EVENTS: usize = 1024;

/// The longest sleep: longer rounds than a few of these mean that the thread is stuck.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Where many publishers are away, a thread dials about one in this time, and a pause is at most
/// [`LONGEST_PAUSE`].
const DIAL_EVERY: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What other threads may ask of a poller.
pub(crate) struct PollerQueue {
    waker: Waker,
    commands: Mutex<Commands>,
    /// Subscriptions given to this poller and not ended.
    load: AtomicUsize,
    pulse: Pulse,
    thread: OnceLock<ThreadId>,
}

#[derive(Default)]
struct Commands {
    added: Vec<Subscriber>,
    removed: Vec<u64>,
    /// Subscriptions whose deadline may be earlier than it was.
    rung: Vec<u64>,
    resolved: Vec<(u64, io::Result<Vec<SocketAddr>>)>,
    stopped: bool,
}

impl PollerQueue {
    pub(crate) fn new(poll: &Poll) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            waker: Waker::new(poll.registry(), WAKE)?,
            commands: Mutex::default(),
            load: AtomicUsize::new(0),
            pulse: Pulse::default(),
            thread: OnceLock::new(),
        }))
    }

    /// How many subscriptions the poller has.
    pub(crate) fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }

    /// How long the thread's round has lasted: it sleeps for a second at most.
    pub(crate) fn round(&self) -> Duration {
        self.pulse.age()
    }

    /// Gives a subscription to the poller; false when it has stopped.
    pub(crate) fn add(&self, subscriber: Subscriber) -> bool {
        let added = self.command(|commands| commands.added.push(subscriber));
        if added {
            self.load.fetch_add(1, Ordering::Relaxed);
        }
        added
    }

    /// Ends a subscription.
    pub(crate) fn remove(&self, id: u64) {
        self.command(|commands| commands.removed.push(id));
    }

    /// Asks the poller to look at a subscription's deadline again.
    pub(crate) fn ring(&self, id: u64) {
        // The thread itself looks at what others ask for before it sleeps.
        if self.thread.get() == Some(&thread::current().id()) {
            self.commands.lock().rung.push(id);
        } else {
            self.command(|commands| commands.rung.push(id));
        }
    }

    /// Asks the poller to end.
    pub(crate) fn stop(&self) {
        self.command(|commands| commands.stopped = true);
    }

    fn resolved(&self, id: u64, answer: io::Result<Vec<SocketAddr>>) {
        self.command(|commands| commands.resolved.push((id, answer)));
    }

    fn command(&self, command: impl FnOnce(&mut Commands)) -> bool {
        {
            let mut commands = self.commands.lock();
            if commands.stopped {
                return false;
            }
            command(&mut commands);
        }
        wake(&self.waker);
        true
    }
}

/// Ends a thread's sleep, or its next one.
pub(crate) fn wake(waker: &Waker) {
    if let Err(error) = waker.wake() {
        tracing::error!(%error, "cannot wake a socket thread");
    }
}

/// What a subscription may use of its thread.
pub(crate) struct Desk<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) scratch: &'a mut [u8],
    /// Connections that need a turn: subscription and token.
    pub(crate) hot: &'a mut VecDeque<(u64, usize)>,
    pub(crate) now: Instant,
    /// How long pauses between attempts may become because many publishers are away.
    pub(crate) crowded: Duration,
    /// When the thread began: what its connections do together is counted from here.
    pub(crate) began: Instant,
    tokens: &'a mut Tokens,
    last_connection: &'a mut u64,
    queue: &'a Arc<PollerQueue>,
    resolver: &'a Resolver,
}

impl Desk<'_> {
    /// A token for a subscription's socket.
    pub(crate) fn token(&mut self, owner: u64) -> usize {
        self.tokens.take(owner)
    }

    /// A token's socket is closed.
    pub(crate) fn release(&mut self, token: usize) {
        self.tokens.release(token);
    }

    /// An id for a connection.
    pub(crate) fn connection(&mut self) -> u64 {
        *self.last_connection += 1;
        *self.last_connection
    }

    /// What rings for a subscription.
    pub(crate) fn alarm(&self, id: u64) -> Alarm {
        Alarm { id, queue: self.queue.clone() }
    }

    /// Looks a name up for a subscription.
    pub(crate) fn resolve(&self, id: u64, host: String, port: u16) {
        let queue = self.queue.clone();
        self.resolver.resolve(host, port, Box::new(move |answer| queue.resolved(id, answer)));
    }
}

/// The thread's own side.
pub(crate) struct Poller {
    queue: Arc<PollerQueue>,
    poll: Poll,
    resolver: Resolver,
    timers: Timers,
    /// In boxes: a map that has room for more must not take much more memory.
    subscribers: HashMap<u64, Box<Subscriber>>,
    /// How many of them dial a publisher that is not there.
    absent: u32,
    tokens: Tokens,
    /// Ids of connections are not used again either.
    last_connection: u64,
    began: Instant,
    hot: VecDeque<(u64, usize)>,
    scratch: Vec<u8>,
}

impl Poller {
    pub(crate) fn new(queue: Arc<PollerQueue>, poll: Poll, resolver: Resolver, tick: Duration) -> Self {
        let began = kvplane_runtime::now();
        Self {
            queue,
            poll,
            resolver,
            timers: Timers::new(began, tick),
            subscribers: HashMap::new(),
            absent: 0,
            tokens: Tokens::default(),
            last_connection: 0,
            began,
            hot: VecDeque::new(),
            scratch: vec![0; READ_BYTES],
        }
    }

    /// Serves until stopped.
    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS);
        let _ = self.queue.thread.set(thread::current().id());
        // When epoll last had nothing more to say: what it says later happened later.
        let mut quiet_at = kvplane_runtime::now();
        while self.obey() {
            self.queue.pulse.beat();
            let timeout = if self.hot.is_empty() {
                self.timers.rest(kvplane_runtime::now()).map_or(LONGEST_SLEEP, |rest| rest.min(LONGEST_SLEEP))
            } else {
                Duration::ZERO
            };
            if let Err(error) = self.poll.poll(&mut events, Some(timeout))
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "poll failed");
            }
            let now = kvplane_runtime::now();
            let mut count = 0;
            for event in &events {
                count += 1;
                let hung_up = event.is_read_closed() || event.is_write_closed() || event.is_error();
                self.note(event.token(), hung_up, quiet_at);
            }
            if count < EVENTS {
                quiet_at = now;
            }
            self.turns();
            self.tick(now);
        }
    }

    /// Ticks the handlers whose moment has come.
    fn tick(&mut self, now: Instant) {
        while let Some((slot, waiting)) = self.timers.come(now) {
            for id in waiting {
                let waits =
                    |subscriber: &mut Box<Subscriber>| subscriber.slot.take_if(|waits| *waits == slot);
                if self.subscribers.get_mut(&id).and_then(waits).is_some() {
                    self.call(id, Subscriber::tick);
                }
            }
        }
    }

    /// Does what others asked for; false to stop.
    fn obey(&mut self) -> bool {
        let Commands { added, removed, rung, resolved, stopped } = {
            let mut commands = self.queue.commands.lock();
            let stopped = commands.stopped;
            std::mem::replace(&mut *commands, Commands { stopped, ..Commands::default() })
        };
        if stopped {
            return false;
        }
        for subscriber in added {
            let id = subscriber.id;
            self.subscribers.insert(id, Box::new(subscriber));
            let started = self.call(id, Subscriber::start);
            if let Some(Err(error)) = started {
                tracing::error!(%error, "cannot watch a socket; the subscription ends");
                self.remove(id);
            }
        }
        for id in removed {
            self.remove(id);
        }
        for (id, answer) in resolved {
            self.call(id, |subscriber, desk| subscriber.resolved(answer, desk));
        }
        for id in rung {
            self.call(id, |_, _| ());
        }
        true
    }

    fn remove(&mut self, id: u64) {
        if let Some(subscriber) = self.subscribers.remove(&id) {
            self.absent -= u32::from(subscriber.is_absent());
            self.tokens.release_all(id);
            self.queue.load.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn note(&mut self, token: Token, hung_up: bool, arrived_after: Instant) {
        let Some(owner) = self.tokens.owner(token.0) else { return };
        if let Some(subscriber) = self.subscribers.get_mut(&owner)
            && subscriber.note(token.0, hung_up, arrived_after)
        {
            self.hot.push_back((owner, token.0));
        }
    }

    /// Gives a turn to each connection that waits for one.
    fn turns(&mut self) {
        for _ in 0..self.hot.len() {
            let Some((id, token)) = self.hot.pop_front() else { return };
            if self.call(id, |subscriber, desk| subscriber.turn(token, desk)) == Some(true) {
                self.hot.push_back((id, token));
            }
        }
    }

    /// Calls a subscriber, and looks when it is due next. One whose handler panics is dropped: the other
    /// streams of this thread are not to blame.
    fn call<T>(&mut self, id: u64, call: impl FnOnce(&mut Subscriber, &mut Desk<'_>) -> T) -> Option<T> {
        let subscriber = self.subscribers.get_mut(&id)?;
        let now = kvplane_runtime::now();
        let was_absent = subscriber.is_absent();
        let mut desk = Desk {
            registry: self.poll.registry(),
            scratch: &mut self.scratch,
            hot: &mut self.hot,
            now,
            crowded: (DIAL_EVERY * self.absent).min(LONGEST_PAUSE),
            began: self.began,
            tokens: &mut self.tokens,
            last_connection: &mut self.last_connection,
            queue: &self.queue,
            resolver: &self.resolver,
        };
        let result = catch_unwind(AssertUnwindSafe(|| {
            let value = call(subscriber, &mut desk);
            (value, subscriber.due(now))
        }));
        self.absent = self.absent + u32::from(subscriber.is_absent()) - u32::from(was_absent);
        if let Ok((value, due)) = result {
            if let Some(due) = due {
                self.timers.set(id, &mut subscriber.slot, due, now);
            }
            return Some(value);
        }
        tracing::error!("a subscription's handler panicked; the subscription ends");
        self.remove(id);
        None
    }
}
