//! The thread that serves all replays.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use mio::{Events, Poll};

use super::running::Running;
use super::{Asked, Job, ReplayEnd, ReplayQueue};
use crate::connection::READ_BYTES;
use crate::dial::Todo;
use crate::resolve::Resolver;

/// The thread looks around at least this often, so that no lost call can keep it asleep.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// The thread's own side.
pub(crate) struct Replayer {
    queue: Arc<ReplayQueue>,
    poll: Poll,
    resolver: Resolver,
    concurrent: usize,
    waiting: VecDeque<Job>,
    running: HashMap<usize, Running>,
    last_token: usize,
    hot: VecDeque<usize>,
    scratch: Vec<u8>,
}

impl Replayer {
    pub(crate) fn new(queue: Arc<ReplayQueue>, poll: Poll, resolver: Resolver, concurrent: usize) -> Self {
        Self {
            queue,
            poll,
            resolver,
            concurrent: concurrent.max(1),
            waiting: VecDeque::new(),
            running: HashMap::new(),
            last_token: 0,
            hot: VecDeque::new(),
            scratch: vec![0; READ_BYTES],
        }
    }

    /// Serves until stopped; then every replay ends as cancelled.
    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(256);
        while self.obey() {
            self.queue.pulse.beat();
            self.open_waiting();
            if let Err(error) = self.poll.poll(&mut events, Some(self.timeout()))
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "poll failed");
            }
            for event in &events {
                let token = event.token().0;
                let hung_up = event.is_read_closed() || event.is_write_closed() || event.is_error();
                if self.running.get_mut(&token).is_some_and(|running| running.note(hung_up)) {
                    self.hot.push_back(token);
                }
            }
            for _ in 0..self.hot.len() {
                if let Some(token) = self.hot.pop_front() {
                    self.step(token, true);
                }
            }
            let tokens: Vec<usize> = self.running.keys().copied().collect();
            for token in tokens {
                self.step(token, false);
            }
        }
        let running = self.running.drain().map(|(_, running)| running.into_job());
        for job in running.chain(self.waiting.drain(..)) {
            job.finish(ReplayEnd::Cancelled);
        }
    }

    fn obey(&mut self) -> bool {
        let Asked { jobs, resolved, stopped } = {
            let mut asked = self.queue.asked.lock();
            let stopped = asked.stopped;
            std::mem::replace(&mut *asked, Asked { stopped, ..Asked::default() })
        };
        self.waiting.extend(jobs);
        for (token, answer) in resolved {
            if let Some(running) = self.running.get_mut(&token) {
                let todo = running.resolved(answer, self.poll.registry());
                self.follow(token, todo);
            }
        }
        !stopped
    }

    fn open_waiting(&mut self) {
        while self.running.len() < self.concurrent
            && let Some(job) = self.waiting.pop_front()
        {
            self.last_token += 1;
            let token = self.last_token;
            match Running::address(&job) {
                Ok(address) => {
                    self.running.insert(token, Running::open(job, address, token));
                    self.step(token, false);
                }
                Err(error) => {
                    tracing::warn!(%error, "replay not possible");
                    job.finish(ReplayEnd::Malformed("endpoint"));
                }
            }
        }
    }

    fn timeout(&self) -> Duration {
        if !self.hot.is_empty() {
            return Duration::ZERO;
        }
        let now = kvplane_runtime::now();
        let due = self.running.values().map(|running| running.due().saturating_duration_since(now));
        due.min().unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP)
    }

    /// Lets one replay read (when it is its turn) or look at the clock. A handler that panics ends its own
    /// replay only.
    fn step(&mut self, token: usize, is_turn: bool) {
        let Some(running) = self.running.get_mut(&token) else { return };
        let registry = self.poll.registry();
        let scratch = &mut self.scratch;
        let call = || if is_turn { running.turn(registry, scratch) } else { running.look(registry) };
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(Ok(todo)) => self.follow(token, todo),
            Ok(Err(end)) => {
                if let Some(running) = self.running.remove(&token) {
                    // The connection goes first: a handler may ask again at once.
                    running.into_job().finish(end);
                }
            }
            Err(_) => {
                tracing::error!("a replay's handler panicked; the replay ends");
                self.running.remove(&token);
            }
        }
    }

    fn follow(&mut self, token: usize, todo: Todo) {
        match todo {
            Todo::Nothing => {}
            // It has bytes, or may have.
            Todo::Connected => self.hot.push_back(token),
            Todo::Resolve { host, port } => {
                let queue = self.queue.clone();
                self.resolver.resolve(host, port, Box::new(move |answer| queue.resolved(token, answer)));
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
