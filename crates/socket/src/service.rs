//! The service: threads, contexts and the handle that callers hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use zmq::Context;

use crate::poller::{Poller, PollerQueue};
use crate::replay::{ReplayHandle, ReplayHandler, ReplayQueue, Replayer};
use crate::subscriber::{Subscriber, SubscriberHandler, SubscriptionHandle};
use crate::{Options, ReplayRequest, SocketError, Subscription, wake};

/// Subscriptions per libzmq context. Each takes three sockets (SUB and both ends of its monitor) of the
/// 1023 that a context can hold; the rest is for replay requests.
const SUBSCRIPTIONS_PER_CONTEXT: usize = 250;

/// Subscriptions and replay requests over `ZeroMQ`. Cheap to clone; the threads end with
/// [`Sockets::shutdown`] or with the last clone.
#[derive(Clone)]
pub struct Sockets(Arc<Inner>);

struct Inner {
    contexts: Mutex<Vec<ContextSlot>>,
    pollers: Vec<Arc<PollerQueue>>,
    replays: Arc<ReplayQueue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    next_id: AtomicU64,
}

struct ContextSlot {
    context: Context,
    used: Arc<AtomicUsize>,
}

/// A subscription's place in a context; given back on drop.
pub(crate) struct ContextLease {
    context: Context,
    used: Arc<AtomicUsize>,
}

impl Sockets {
    /// Starts the threads.
    pub fn start(options: &Options) -> Result<Self, SocketError> {
        let context = Context::new();
        let pairs = (0..options.poller_threads.max(1)).map(|_| wake::pair(&context));
        let (wakers, sleepers): (Vec<_>, Vec<_>) = pairs.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        let (replay_waker, replay_sleeper) = wake::pair(&context)?;
        let service = Self(Arc::new(Inner {
            contexts: Mutex::new(vec![ContextSlot { context: context.clone(), used: Arc::default() }]),
            pollers: wakers.into_iter().map(PollerQueue::new).collect(),
            replays: ReplayQueue::new(replay_waker),
            threads: Mutex::default(),
            next_id: AtomicU64::new(0),
        }));
        // The service is whole before the first thread runs: if one cannot start, its drop ends the others.
        let inner = &service.0;
        for (index, (queue, sleeper)) in inner.pollers.iter().zip(sleepers).enumerate() {
            let poller = Poller::new(queue.clone(), sleeper, options.tick);
            inner.spawn(format!("kvp-sub-{index}"), move || poller.run())?;
        }
        let replayer =
            Replayer::new(inner.replays.clone(), replay_sleeper, context, options.concurrent_replays);
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
        let lease = self.0.lease()?;
        let subscriber = Subscriber::open(id, subscription, handler, cancelled.clone(), lease)?;
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

    /// How long the longest round of a thread has lasted so far. A thread sleeps for a second at most: one that takes much longer
    /// is stuck, and with it all that it serves.
    pub fn longest_round(&self) -> Duration {
        let pollers = self.0.pollers.iter().map(|queue| queue.round());
        pollers.chain([self.0.replays.round()]).max().unwrap_or_default()
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

    /// A place in the first context that has one; a new context when all are full.
    fn lease(&self) -> Result<ContextLease, SocketError> {
        let mut contexts = self.contexts.lock();
        if contexts.is_empty() {
            return Err(SocketError::Stopped);
        }
        let free =
            contexts.iter().position(|slot| slot.used.load(Ordering::Acquire) < SUBSCRIPTIONS_PER_CONTEXT);
        let index = free.unwrap_or_else(|| {
            contexts.push(ContextSlot { context: Context::new(), used: Arc::default() });
            contexts.len() - 1
        });
        let slot = &contexts[index];
        slot.used.fetch_add(1, Ordering::AcqRel);
        Ok(ContextLease { context: slot.context.clone(), used: slot.used.clone() })
    }

    fn shutdown(&self) {
        for poller in &self.pollers {
            poller.stop();
        }
        self.replays.stop();
        let threads = std::mem::take(&mut *self.threads.lock());
        for handle in threads {
            // A handler may drop the last handle, on one of these very threads.
            if handle.thread().id() != thread::current().id() && handle.join().is_err() {
                tracing::error!("a socket thread panicked");
            }
        }
        for poller in &self.pollers {
            poller.close();
        }
        self.replays.close();
        // Dropping the last clone of a context waits for libzmq's own threads.
        let contexts = std::mem::take(&mut *self.contexts.lock());
        drop(contexts);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl ContextLease {
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }
}

impl Drop for ContextLease {
    fn drop(&mut self) {
        self.used.fetch_sub(1, Ordering::AcqRel);
    }
}
