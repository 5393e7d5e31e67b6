//! The service: its threads and the handle that callers hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mio::Poll;
use parking_lot::Mutex;

use crate::handler::{Ear, SubscriberHandler, SubscriptionHandle};
use crate::poller::{Poller, PollerQueue};
use crate::refusals::Refusals;
use crate::replay::{ReplayHandle, ReplayHandler, ReplayQueue, Replayer};
use crate::resolve::Resolver;
use crate::subscriber::Subscriber;
use crate::{Options, ReplayRequest, SocketError, Subscription};

/// Subscriptions and replay requests over `ZeroMQ`. Cheap to clone; the threads end with
/// [`Sockets::shutdown`] or with the last clone.
#[derive(Clone)]
pub struct Sockets(Arc<Inner>);

struct Inner {
    pollers: Vec<Arc<PollerQueue>>,
    replays: Arc<ReplayQueue>,
    resolver: Resolver,
    threads: Mutex<Vec<JoinHandle<()>>>,
    next_id: AtomicU64,
    refusals: Refusals,
}

impl Sockets {
    /// Starts the threads.
    pub fn start(options: &Options) -> Result<Self, SocketError> {
        let mut pollers = Vec::new();
        let mut polls = Vec::new();
        for _ in 0..options.poller_threads.max(1) {
            let poll = Poll::new()?;
            pollers.push(PollerQueue::new(&poll)?);
            polls.push(poll);
        }
        let replay_poll = Poll::new()?;
        let service = Self(Arc::new(Inner {
            pollers,
            replays: ReplayQueue::new(&replay_poll)?,
            resolver: Resolver::default(),
            threads: Mutex::default(),
            next_id: AtomicU64::new(0),
            refusals: Refusals::default(),
        }));
        // The service is whole before the first thread runs: if one cannot start, its drop ends the others.
        let inner = &service.0;
        for (index, (queue, poll)) in inner.pollers.iter().zip(polls).enumerate() {
            let poller = Poller::new(queue.clone(), poll, inner.resolver.clone(), options.tick);
            inner.spawn(format!("kvp-sub-{index}"), move || poller.run())?;
        }
        let (queue, resolver) = (inner.replays.clone(), inner.resolver.clone());
        let replayer = Replayer::new(queue, replay_poll, resolver, options.concurrent_replays);
        inner.spawn("kvp-replay".to_owned(), move || replayer.run())?;
        Ok(service)
    }

    /// Listens to a publisher until the handle is dropped. A bind that fails is an error here; an engine
    /// that cannot be reached is not: it is dialled until it is there.
    pub fn subscribe(
        &self,
        subscription: Subscription,
        handler: Box<dyn SubscriberHandler>,
    ) -> Result<SubscriptionHandle, SocketError> {
        let id = self.0.next_id.fetch_add(1, Ordering::Relaxed);
        let cancelled = Arc::new(AtomicBool::new(false));
        let subscriber = Subscriber::open(
            id,
            subscription,
            Ear::new(handler, cancelled.clone()),
            self.0.refusals.clone(),
        )?;
        let last_endpoint = subscriber.last_endpoint();
        let queue =
            self.0.pollers.iter().min_by_key(|queue| queue.load()).ok_or(SocketError::Stopped)?.clone();
        if !queue.add(subscriber) {
            return Err(SocketError::Stopped);
        }
        Ok(SubscriptionHandle { id, cancelled, queue, last_endpoint })
    }

    /// Asks a replay socket. Returns at once; the handler hears the answer on the replay thread and then
    /// exactly one `finished`. After a shutdown this is an error and the handler hears nothing.
    pub fn replay(
        &self,
        request: ReplayRequest,
        handler: Box<dyn ReplayHandler>,
    ) -> Result<ReplayHandle, SocketError> {
        self.0.replays.ask(request, handler)
    }

    /// How long the longest round of a thread has lasted so far. A thread sleeps for a second at most: one
    /// that takes much longer is stuck, and with it all that it serves.
    pub fn longest_round(&self) -> Duration {
        let pollers = self.0.pollers.iter().map(|queue| queue.round());
        pollers.chain([self.0.replays.round()]).max().unwrap_or_default()
    }

    /// Publishers whose connections were refused, or closed for a fault of theirs.
    pub fn refusals(&self) -> &Refusals {
        &self.0.refusals
    }

    /// Ends every subscription and replay and joins all threads. May be called more than once.
    pub fn shutdown(&self) {
        self.0.shutdown();
    }
}

impl std::fmt::Debug for Sockets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sockets").finish_non_exhaustive()
    }
}

impl Inner {
    fn spawn(&self, name: String, run: impl FnOnce() + Send + 'static) -> Result<(), SocketError> {
        let thread = thread::Builder::new().name(name).spawn(run)?;
        self.threads.lock().push(thread);
        Ok(())
    }

    fn shutdown(&self) {
        for poller in &self.pollers {
            poller.stop();
        }
        self.replays.stop();
        self.resolver.stop();
        let threads = std::mem::take(&mut *self.threads.lock());
        for handle in threads {
            // A handler may drop the last handle, on one of these very threads.
            if handle.thread().id() != thread::current().id() && handle.join().is_err() {
                tracing::error!("a socket thread panicked");
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shutdown();
    }
}
