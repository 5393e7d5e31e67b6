//! A thread that serves many subscriptions.
//!
//! It sleeps on the sockets' descriptors rather than on the sockets: one system call for all of them,
//! where polling sockets costs two each. Such a descriptor only says that something changed, so a socket
//! that was not read to its end is `hot` and gets its next turn without being asked; and at every tick all
//! sockets get one, so that no lost wake-up can last.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use zmq::{POLLIN, PollItem};

use crate::pulse::Pulse;
use crate::subscriber::{Received, Subscriber};
use crate::wake::{Sleeper, Waker};

/// What other threads may ask of a poller.
pub(crate) struct PollerQueue {
    waker: Waker,
    commands: Mutex<Commands>,
    /// Subscriptions given to this poller and not ended.
    load: AtomicUsize,
    pulse: Pulse,
}

#[derive(Default)]
struct Commands {
    added: Vec<Subscriber>,
    removed: Vec<u64>,
    stopped: bool,
}

impl PollerQueue {
    pub(crate) fn new(waker: Waker) -> Arc<Self> {
        Arc::new(Self {
            waker,
            commands: Mutex::default(),
            load: AtomicUsize::new(0),
            pulse: Pulse::default(),
        })
    }

    /// How many subscriptions the poller has.
    pub(crate) fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }

    /// How long the thread's round has lasted: it sleeps for a tick at most.
    pub(crate) fn round(&self) -> Duration {
        self.pulse.age()
    }

    /// Gives a subscription to the poller; false when it has stopped.
    pub(crate) fn add(&self, subscriber: Subscriber) -> bool {
        {
            let mut commands = self.commands.lock();
            if commands.stopped {
                return false;
            }
            commands.added.push(subscriber);
        }
        self.load.fetch_add(1, Ordering::Relaxed);
        self.waker.wake();
        true
    }

    /// Ends a subscription.
    pub(crate) fn remove(&self, id: u64) {
        {
            let mut commands = self.commands.lock();
            if commands.stopped {
                return;
            }
            commands.removed.push(id);
        }
        self.waker.wake();
    }

    /// Asks the poller to end.
    pub(crate) fn stop(&self) {
        self.commands.lock().stopped = true;
        self.waker.wake();
    }

    /// Lets go of the socket that wakes the poller, once it has ended.
    pub(crate) fn close(&self) {
        self.waker.close();
    }
}

/// The thread's own side.
pub(crate) struct Poller {
    queue: Arc<PollerQueue>,
    sleeper: Sleeper,
    tick: Duration,
    subscribers: Vec<Subscriber>,
    /// Sockets came or went since the descriptors were collected.
    changed: bool,
    /// Who goes first in the next turn; moves on so that nobody is always last.
    first: usize,
    scratch: Vec<Received>,
}

impl Poller {
    pub(crate) fn new(queue: Arc<PollerQueue>, sleeper: Sleeper, tick: Duration) -> Self {
        Self { queue, sleeper, tick, subscribers: Vec::new(), changed: true, first: 0, scratch: Vec::new() }
    }

    /// Serves until stopped.
    pub(crate) fn run(mut self) {
        let mut next_tick = Instant::now() + self.tick;
        // Built again only when the set of sockets changes: that is rare, and turns are not.
        let mut items = Vec::new();
        while self.obey() {
            self.queue.pulse.beat();
            if std::mem::take(&mut self.changed) {
                items = self.poll_items();
            }
            let ready = self.sleep_until(next_tick, &mut items);
            let now = Instant::now();
            let tick_due = now >= next_tick;
            self.turns(&ready, tick_due);
            if tick_due {
                let mut redialled = false;
                self.each(|subscriber, _| redialled |= subscriber.tick(now));
                self.changed |= redialled;
                next_tick = now + self.tick;
            }
        }
    }

    /// Does what others asked for; false to stop.
    fn obey(&mut self) -> bool {
        let (added, removed, stopped) = {
            let mut commands = self.queue.commands.lock();
            (std::mem::take(&mut commands.added), std::mem::take(&mut commands.removed), commands.stopped)
        };
        self.changed |= !added.is_empty() || !removed.is_empty();
        self.subscribers.extend(added);
        if !removed.is_empty() {
            let before = self.subscribers.len();
            self.subscribers.retain(|subscriber| !removed.contains(&subscriber.id));
            self.queue.load.fetch_sub(before - self.subscribers.len(), Ordering::Relaxed);
        }
        !stopped
    }

    /// The wake socket's descriptor, then two of each subscriber.
    fn poll_items(&self) -> Vec<PollItem<'static>> {
        let wake = self.sleeper.descriptor();
        let own = self.subscribers.iter().flat_map(Subscriber::descriptors);
        std::iter::once(wake).chain(own).map(|descriptor| PollItem::from_fd(descriptor, POLLIN)).collect()
    }

    /// Waits for something to do; tells which subscribers may have something to read.
    fn sleep_until(&self, next_tick: Instant, items: &mut [PollItem<'_>]) -> Vec<bool> {
        let timeout = if self.subscribers.iter().any(|subscriber| subscriber.hot) {
            Duration::ZERO
        } else {
            next_tick.saturating_duration_since(Instant::now())
        };
        // Rounded up: a sleep that ends just before the tick would only be slept again.
        let millis = i64::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(i64::MAX);
        if let Err(cause) = zmq::poll(items, millis)
            && cause != zmq::Error::EINTR
        {
            tracing::error!(%cause, "poll failed");
        }
        self.sleeper.clear();
        let readable = |pair: &[PollItem<'_>]| pair.iter().any(PollItem::is_readable);
        items[1..].chunks(2).map(readable).collect()
    }

    /// Gives a turn to everyone who may have something to read.
    fn turns(&mut self, ready: &[bool], everyone: bool) {
        let count = self.subscribers.len();
        let start = self.first;
        self.first = if count == 0 { 0 } else { (start + 1) % count };
        self.each_from(start, |subscriber, scratch, index| {
            if everyone || subscriber.hot || ready.get(index).copied().unwrap_or(true) {
                subscriber.turn(scratch);
            }
        });
    }

    fn each(&mut self, mut call: impl FnMut(&mut Subscriber, &mut Vec<Received>)) {
        self.each_from(0, |subscriber, scratch, _| call(subscriber, scratch));
    }

    /// Calls for every subscriber, from `start` around. One whose handler panics is dropped: the other
    /// streams of this thread are not to blame.
    fn each_from(&mut self, start: usize, mut call: impl FnMut(&mut Subscriber, &mut Vec<Received>, usize)) {
        let count = self.subscribers.len();
        let mut broken = Vec::new();
        for index in (0..count).map(|offset| (start + offset) % count) {
            let subscriber = &mut self.subscribers[index];
            let scratch = &mut self.scratch;
            if catch_unwind(AssertUnwindSafe(|| call(subscriber, scratch, index))).is_err() {
                tracing::error!("a subscription's handler panicked; the subscription ends");
                scratch.clear();
                broken.push(subscriber.id);
            }
        }
        if !broken.is_empty() {
            self.changed = true;
            self.subscribers.retain(|subscriber| !broken.contains(&subscriber.id));
            self.queue.load.fetch_sub(broken.len(), Ordering::Relaxed);
        }
    }
}
