//! The way to one server, shared by everything that is reported to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kvplane_core::Backoff;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tonic::Streaming;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tracing::{info, warn};

use super::connection::{Connection, ServerAddress};

/// How soon a server that is away is dialled again, at first and later: one that restarts is back within a
/// second.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// A server that is there says within this time how it is.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// A connection or a stream that lasts as long is a good one.
const GOOD: Duration = Duration::from_secs(1);

/// The way to one server: connected, or trying to be. Ends when it is dropped.
#[derive(Debug)]
pub struct Link {
    address: ServerAddress,
    now: watch::Receiver<Option<Connection>>,
    connects: Arc<AtomicU64>,
    _task: AbortOnDropHandle<()>,
}

impl Link {
    /// Begins to connect.
    pub fn open(address: ServerAddress) -> Arc<Self> {
        let (tell, now) = watch::channel(None);
        let connects = Arc::new(AtomicU64::new(0));
        let task = kvplane_runtime::spawn("report link", keep(address.clone(), tell, connects.clone()));
        Arc::new(Self { address, now, connects, _task: AbortOnDropHandle::new(task) })
    }

    /// Where the server is.
    pub fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// Whether there is a connection now.
    pub fn is_up(&self) -> bool {
        self.now.borrow().is_some()
    }

    /// Connections that came up so far.
    pub fn connects(&self) -> u64 {
        self.connects.load(Ordering::Relaxed)
    }

    /// The connection, now and later.
    pub(super) fn watch(&self) -> watch::Receiver<Option<Connection>> {
        self.now.clone()
    }
}

/// Connects, says so, waits for the end, and begins again.
async fn keep(address: ServerAddress, tell: watch::Sender<Option<Connection>>, connects: Arc<AtomicU64>) {
    let mut backoff = Backoff::new(SHORTEST_WAIT, LONGEST_WAIT);
    let mut said_away = false;
    loop {
        match address.connect().await {
            Ok(connection) => {
                connects.fetch_add(1, Ordering::Relaxed);
                info!(server = address.url(), "connected to the report server");
                said_away = false;
                let since = tokio::time::Instant::now();
                tell.send_replace(Some(connection.clone()));
                tokio::select! {
                    () = connection.broken.cancelled() => {}
                    () = health_ends(&connection) => {}
                }
                // Calls that are under way over it end now.
                connection.broken.cancel();
                tell.send_replace(None);
                warn!(server = address.url(), "report server lost; resending everything when it is back");
                if since.elapsed() >= GOOD {
                    backoff.reset();
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut said_away, true) {
                    warn!(server = address.url(), %error, "cannot connect to the report server; retrying");
                }
            }
        }
        tokio::time::sleep(backoff.wait()).await;
    }
}

/// Returns when the server says no more how it is: behind a proxy the connection stays when the server does
/// not. A proxy also ends streams on which nothing is said, so a stream that ends is asked for once more, and
/// the server is gone only if there is none. One that is back before it is asked is not found out here: what
/// it lacks comes with the refresh. Without a health service this never ends.
async fn health_ends(connection: &Connection) {
    let Some(mut states) = watch_health(connection).await else { return std::future::pending().await };
    let mut backoff = Backoff::new(SHORTEST_WAIT, LONGEST_WAIT);
    loop {
        let since = tokio::time::Instant::now();
        while let Ok(Some(_)) = states.message().await {}
        if since.elapsed() >= GOOD {
            backoff.reset();
        } else {
            tokio::time::sleep(backoff.wait()).await;
        }
        let Ok(Some(again)) = tokio::time::timeout(ANSWERS_WITHIN, watch_health(connection)).await else {
            return;
        };
        states = again;
    }
}

/// How the server is from now on, if it says so at least once.
async fn watch_health(connection: &Connection) -> Option<Streaming<HealthCheckResponse>> {
    let mut client = HealthClient::new(connection.channel());
    let answer = client.watch(HealthCheckRequest { service: String::new() }).await.ok()?;
    let mut states = answer.into_inner();
    states.message().await.ok()??;
    Some(states)
}
