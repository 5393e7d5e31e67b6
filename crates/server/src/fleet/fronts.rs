//! The running fronts: each on a thread of its own, until its engine goes or the plane stops.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvplane_front::{Budget, Evidence, Front, FrontCounters};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info};

use crate::smg::{SmgService, own_calls};

/// How long the port of a front that was just stopped may still be taken, and how often it is tried again
/// meanwhile.
const FREED_WITHIN: Duration = Duration::from_secs(2);
const TRY_AGAIN: Duration = Duration::from_millis(5);

/// A front that runs.
#[derive(Debug)]
struct Running {
    address: SocketAddr,
    counters: Arc<FrontCounters>,
    stop: CancellationToken,
}

/// The fronts of a plane's engines.
#[derive(Debug, Default)]
pub(crate) struct Fronts {
    running: Mutex<HashMap<String, Running>>,
    released: Mutex<HashMap<SocketAddr, Instant>>,
    ends: TaskTracker,
    /// What all fronts may hold of calls that they listen to.
    heard: Arc<Budget>,
}

impl Fronts {
    /// What each front counts, by engine.
    pub(crate) fn counters(&self) -> Vec<(String, Arc<FrontCounters>)> {
        let running = self.running.lock();
        let mut counters: Vec<_> =
            running.iter().map(|(engine, front)| (engine.clone(), front.counters.clone())).collect();
        counters.sort_by(|(one, _), (other, _)| one.cmp(other));
        counters
    }

    /// Takes a port. Waits a moment for one that was just let go of.
    pub(super) async fn bind(&self, address: SocketAddr) -> io::Result<TcpListener> {
        loop {
            let error = match TcpListener::bind(address).await {
                Ok(listener) => return Ok(listener),
                Err(error) => error,
            };
            let since = self.released.lock().get(&address).copied();
            let closing = since.is_some_and(|since| since.elapsed() < FREED_WITHIN);
            if error.kind() != io::ErrorKind::AddrInUse || !closing {
                return Err(error);
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }

    /// Runs an engine's front.
    pub(super) fn start(&self, events: &SmgService, engine: &str, front: Front, listener: TcpListener) {
        let Ok(address) = listener.local_addr() else { return };
        info!(engine, %address, "front");
        let stop = events.stop().child_token();
        let (heard, counters) = (self.heard.clone(), front.counters());
        let evidence = Evidence::new(events.plane().clone(), engine, front.service(), heard, counters);
        let front = front.listening(evidence);
        let running = Running { address, counters: front.counters(), stop: stop.clone() };
        self.running.lock().insert(engine.to_owned(), running);
        let own = own_calls(front.service(), events.of_engine(engine), front.upstream().as_ref());
        let run = async move |listener| front.run(listener, stop, own).await;
        self.ends.spawn(on_thread(listener, run));
    }

    /// Ends an engine's front: it accepts nothing more, and calls that are under way may finish.
    pub(super) fn stop(&self, engine: &str) {
        let Some(front) = self.running.lock().remove(engine) else { return };
        let mut released = self.released.lock();
        released.retain(|_, since| since.elapsed() < FREED_WITHIN);
        released.insert(front.address, kvplane_runtime::now());
        front.stop.cancel();
    }

    /// Waits until every front has ended. They end when the plane stops.
    pub(crate) async fn ended(&self) {
        self.ends.close();
        self.ends.wait().await;
    }
}

/// Runs a front on a thread of its own. A call passes through two connections; with both on one thread, no
/// message has to wake another.
fn on_thread<R>(listener: TcpListener, run: R) -> impl Future<Output = ()>
where
    R: AsyncFnOnce(TcpListener) + Send + 'static,
{
    let run = move || -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = listener.into_std()?;
        runtime.block_on(async {
            run(TcpListener::from_std(listener)?).await;
            Ok(())
        })
    };
    let (ended, end) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name("kvp-front".to_owned()).spawn(move || {
        if let Err(error) = run() {
            error!(%error, "cannot start a front");
        }
        let _ = ended.send(());
    });
    async move {
        match thread {
            Ok(_) => drop(end.await),
            Err(error) => error!(%error, "cannot start a front"),
        }
    }
}
