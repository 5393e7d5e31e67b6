//! What a caller may choose, with the defaults that suit inference engines.

use std::time::Duration;

/// Sizes of the service.
#[derive(Debug, Clone)]
pub struct Options {
    /// Threads that poll subscriptions. Two keep up with any fleet that fits one process, and leave room in
    /// the budget of eight threads at 300 streams.
    pub poller_threads: usize,
    /// How often [`SubscriberHandler::tick`](crate::SubscriberHandler::tick) is called.
    pub tick: Duration,
    /// Replay requests open at the same time; more wait their turn. Each takes a descriptor.
    pub concurrent_replays: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { poller_threads: 2, tick: Duration::from_millis(100), concurrent_replays: 200 }
    }
}

/// An address, and which side waits for the other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// The other side listens there.
    Connect(String),
    /// We listen there. Port 0 lets the system choose.
    Bind(String),
}

impl Endpoint {
    /// The address without the direction.
    pub fn address(&self) -> &str {
        match self {
            Self::Connect(address) | Self::Bind(address) => address,
        }
    }
}

/// One stream of published batches to listen to.
#[derive(Debug, Clone)]
pub struct Subscription {
    /// Where the publisher is.
    pub endpoint: Endpoint,
    /// Topic prefixes to receive. An empty prefix receives everything; no prefix at all receives nothing.
    pub topics: Vec<Vec<u8>>,
    /// A message with more bytes in all its frames ends the connection instead of being allocated; the stream
    /// is dialled again.
    pub max_message_bytes: i64,
    /// Connections of a bound socket. One more takes the place of the oldest that has not completed its
    /// handshake; when all have, it is closed.
    pub max_connections: usize,
    /// Connections of a bound socket from one host, likewise: nobody takes all places.
    pub max_connections_per_host: usize,
    /// First pause before a lost connection is dialled again; doubles up to `reconnect_max`.
    pub reconnect_min: Duration,
    /// Longest pause between two attempts.
    pub reconnect_max: Duration,
    /// How often the peer is asked for a sign of life: see
    /// [`SubscriberHandler::proven`](crate::SubscriberHandler::proven). Looked at every tick, so not more
    /// often than that; zero asks never.
    pub heartbeat_interval: Duration,
    /// A connection on which nothing arrived for this long is lost. Peers are asked to do likewise.
    pub heartbeat_timeout: Duration,
}

impl Subscription {
    /// A subscription to everything that `endpoint` publishes, with the usual options.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            topics: vec![Vec::new()],
            max_message_bytes: MAX_MESSAGE_BYTES,
            max_connections: MAX_CONNECTIONS,
            max_connections_per_host: MAX_CONNECTIONS_PER_HOST,
            reconnect_min: Duration::from_millis(100),
            reconnect_max: Duration::from_secs(5),
            heartbeat_interval: Duration::from_millis(500),
            heartbeat_timeout: Duration::from_secs(6),
        }
    }

    /// The limit as a size; without a sensible one, the usual.
    pub(crate) fn message_limit(&self) -> usize {
        let given = usize::try_from(self.max_message_bytes).ok();
        given.unwrap_or(MAX_MESSAGE_BYTES as usize)
    }

    /// Receives only topics that begin with one of `prefixes`.
    #[must_use]
    pub fn with_topics<T: Into<Vec<u8>>>(mut self, prefixes: impl IntoIterator<Item = T>) -> Self {
        self.topics = prefixes.into_iter().map(Into::into).collect();
        self
    }
}

/// One question to an engine's replay socket: everything from a sequence on.
#[derive(Debug, Clone)]
pub struct ReplayRequest {
    /// The engine's replay address; always connected to.
    pub endpoint: String,
    /// First sequence wanted, inclusive.
    pub from: u64,
    /// Longest silence, also before the first reply. Engines answer between two publishes, at most 100 ms
    /// apart when idle.
    pub idle_timeout: Duration,
    /// Longest duration in all, counted from when the request is sent.
    pub deadline: Duration,
    /// Payload bytes after which the answer is cut off.
    pub max_bytes: usize,
}

impl ReplayRequest {
    /// A request with the usual limits.
    pub fn new(endpoint: impl Into<String>, from: u64) -> Self {
        Self {
            endpoint: endpoint.into(),
            from,
            idle_timeout: Duration::from_secs(2),
            deadline: Duration::from_secs(10),
            max_bytes: 256 << 20,
        }
    }
}

/// Above any batch that an engine would send, below what would hurt: 64 MiB.
pub(crate) const MAX_MESSAGE_BYTES: i64 = 64 << 20;

/// Connections of a socket that listens ...
pub(crate) const MAX_CONNECTIONS: usize = 1024;
/// ... and from one host.
pub(crate) const MAX_CONNECTIONS_PER_HOST: usize = 512;
