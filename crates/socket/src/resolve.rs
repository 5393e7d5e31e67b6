//! Names to addresses, away from the threads that poll: a lookup may take many seconds.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Lookups at the same time. A name server that does not answer holds one of them for as long as the system
/// waits.
const THREADS: usize = 4;

/// A thread without work ends after this.
const IDLE: Duration = Duration::from_secs(10);

type Answer = Box<dyn FnOnce(io::Result<Vec<SocketAddr>>) + Send>;

struct Job {
    host: String,
    port: u16,
    answer: Answer,
}

/// Resolves names on threads of its own, which are started when they are needed and never waited for. A
/// caller has one question open per connection, which bounds the queue.
#[derive(Clone, Default)]
pub(crate) struct Resolver(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    stopped: bool,
}

impl Resolver {
    /// Looks a name up; `answer` is called on another thread, with the addresses of IPv4 first.
    pub(crate) fn resolve(&self, host: String, port: u16, answer: Answer) {
        let mut state = self.0.state.lock();
        if state.stopped {
            return;
        }
        state.jobs.push_back(Job { host, port, answer });
        if state.idle >= state.jobs.len() || state.threads >= THREADS {
            drop(state);
            self.0.work.notify_one();
            return;
        }
        let inner = self.0.clone();
        match thread::Builder::new().name("kvp-resolve".to_owned()).spawn(move || inner.run()) {
            Ok(_) => state.threads += 1,
            Err(error) => {
                tracing::error!(%error, "cannot start a resolver thread");
                // With other threads alive the job waits for them; without, it fails now.
                let job = if state.threads == 0 { state.jobs.pop_back() } else { None };
                drop(state);
                if let Some(job) = job {
                    (job.answer)(Err(error));
                }
            }
        }
    }

    /// Ends the threads without waiting for lookups under way.
    pub(crate) fn stop(&self) {
        let mut state = self.0.state.lock();
        state.stopped = true;
        state.jobs.clear();
        drop(state);
        self.0.work.notify_all();
    }
}

impl Inner {
    fn run(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                let found = (job.host.as_str(), job.port).to_socket_addrs().map(|found| {
                    let mut found: Vec<_> = found.collect();
                    found.sort_by_key(SocketAddr::is_ipv6);
                    found
                });
                (job.answer)(found);
                state = self.state.lock();
                continue;
            }
            state.idle += 1;
            let late = !state.stopped && self.work.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if state.jobs.is_empty() && (late || state.stopped) {
                state.threads -= 1;
                return;
            }
        }
    }
}
