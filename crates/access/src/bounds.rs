//! Bounds of every edge: what callers may take, and what happens at each bound. docs/reference/limits.md shows
//! the same table.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kvplane_transport::edge::{Connections, Full, Limits, PeerKey, Share, Shares};
use parking_lot::Mutex;

use crate::limits::descriptor_limit;
use crate::listen::{Peer, Tls};

/// TLS handshakes.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(5);

/// What callers may take. The defaults are those of the security guide; tests use smaller ones.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Connections of one listener ...
    pub connections: usize,
    /// ... and of one peer to it.
    pub connections_per_peer: usize,
    /// Connections of one front ...
    pub front_connections: usize,
    /// ... and of one peer to it.
    pub front_connections_per_peer: usize,
    /// A TLS handshake.
    pub handshake: Duration,
    /// A request's head, or HTTP/2's preface.
    pub head: Duration,
    /// An HTTP/1 connection without a request.
    pub idle_http: Duration,
    /// An HTTP/2 connection without a call.
    pub idle_grpc: Duration,
    /// Written bytes that the peer does not take.
    pub write: Duration,
    /// A response over HTTP/2 that waits for its peer, of which it takes no data.
    pub unread: Duration,
    /// How often an HTTP/2 peer is pinged.
    pub ping_every: Duration,
    /// How long it may take to answer ...
    pub ping_timeout: Duration,
    /// ... at a front, whose clients may be behind slower links.
    pub front_ping_timeout: Duration,
    /// Calls on one HTTP/2 connection.
    pub streams_per_connection: u32,
    /// Calls under way on the gRPC listener ...
    pub calls: usize,
    /// ... and of one peer.
    pub calls_per_peer: usize,
    /// Health watches, which need no key ...
    pub watches: usize,
    /// ... and of one peer.
    pub watches_per_peer: usize,
    /// Bytes of requests that are being received or decoded, in total ...
    pub request_bytes: usize,
    /// ... and of one peer.
    pub request_bytes_per_peer: usize,
    /// The body of an HTTP request, or one gRPC message, from its first byte on.
    pub request_time: Duration,
    /// What one gRPC message may take in memory once it is decoded.
    pub decoded_bytes: usize,
    /// Streams at the picker; one peer may have all but an eighth.
    pub picker_streams: usize,
    /// Dumps and recoveries that are being made or sent, in total ...
    pub dumps: usize,
    /// ... and of one peer.
    pub dumps_per_peer: usize,
    /// How long a dump waits for its place.
    pub dump_wait: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: 4096,
            connections_per_peer: 2048,
            front_connections: 1024,
            front_connections_per_peer: 512,
            handshake: HANDSHAKE,
            head: Duration::from_secs(10),
            idle_http: Duration::from_mins(1),
            idle_grpc: Duration::from_mins(5),
            write: Duration::from_secs(30),
            unread: Duration::from_mins(1),
            ping_every: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(10),
            front_ping_timeout: Duration::from_secs(20),
            streams_per_connection: 1024,
            calls: 8192,
            calls_per_peer: 4096,
            watches: 256,
            watches_per_peer: 32,
            request_bytes: 256 << 20,
            request_bytes_per_peer: 128 << 20,
            request_time: Duration::from_secs(30),
            decoded_bytes: 64 << 20,
            picker_streams: 32_768,
            dumps: 4,
            dumps_per_peer: 2,
            dump_wait: Duration::from_secs(10),
        }
    }
}

/// One row of the table of bounds.
#[derive(Debug, Clone)]
pub struct Bound {
    /// Its name, which a test exercises.
    pub name: &'static str,
    /// Where it holds.
    pub edge: &'static str,
    /// How much.
    pub limit: String,
    /// What happens at it.
    pub then: &'static str,
    /// Where that is counted.
    pub metric: &'static str,
}

impl Bounds {
    /// Every bound, as docs/reference/limits.md lists them.
    pub fn table(&self) -> Vec<Bound> {
        let mut rows = Vec::new();
        let mut row = |name, edge, limit: String, then, metric| {
            rows.push(Bound { name, edge, limit, then, metric });
        };
        let (of, seconds) = (
            |total: usize, peer: usize| format!("{total}, {peer} per peer"),
            |time: Duration| format!("{} s", time.as_secs_f64()),
        );
        let mib = |bytes: usize| format!("{} MiB", bytes >> 20);
        let closed = "`kvplane_connections_closed_total`";
        let refused = "`kvplane_requests_refused_total`";
        let sockets = "`kvplane_event_sockets_refused_total`";
        row(
            "connections",
            "HTTP and gRPC listeners, each",
            format!(
                "{}, and at most a quarter of the descriptors",
                of(self.connections, self.connections_per_peer)
            ),
            "the oldest idle connection of the peer (of the peer with the most) is closed; without one the new connection is",
            closed,
        );
        row(
            "front connections",
            "each front",
            of(self.front_connections, self.front_connections_per_peer),
            "as above",
            closed,
        );
        row(
            "TLS handshake",
            "HTTP and gRPC listeners",
            seconds(self.handshake),
            "closed",
            "`kvplane_tls_handshakes_failed_total`",
        );
        row(
            "HTTP/2",
            "HTTP listener, gateway",
            "none: HTTP/1.1 alone".to_owned(),
            "closed with GOAWAY `HTTP_1_1_REQUIRED`",
            closed,
        );
        row("request head", "HTTP listener, gateway", seconds(self.head), "closed", closed);
        row("HTTP/2 preface", "gRPC listener, fronts, picker", seconds(self.head), "closed", closed);
        row("idle", "HTTP listener, gateway", seconds(self.idle_http), "closed", closed);
        row("idle HTTP/2", "gRPC listener, fronts, picker", seconds(self.idle_grpc), "closed", closed);
        row(
            "unread response",
            "all listeners",
            seconds(self.write),
            "closed when the peer takes nothing for so long",
            closed,
        );
        row(
            "unread stream",
            "gRPC listener, fronts, picker",
            seconds(self.unread),
            "closed when a response waits and the peer takes no data for so long, though it answers pings",
            closed,
        );
        row(
            "dead peer",
            "gRPC listener, fronts, picker",
            format!(
                "a ping every {}, answered within {} (fronts: {})",
                seconds(self.ping_every),
                seconds(self.ping_timeout),
                seconds(self.front_ping_timeout)
            ),
            "closed",
            "",
        );
        row(
            "streams per connection",
            "gRPC listener",
            self.streams_per_connection.to_string(),
            "the client waits, as HTTP/2 says",
            "",
        );
        row(
            "calls",
            "gRPC listener; each front",
            of(self.calls, self.calls_per_peer),
            "`RESOURCE_EXHAUSTED`",
            "`kvplane_requests_refused_total`, `kvplane_front_refused_calls_total`",
        );
        row(
            "health watches",
            "gRPC listener",
            of(self.watches, self.watches_per_peer),
            "`RESOURCE_EXHAUSTED`",
            refused,
        );
        row(
            "request bytes",
            "HTTP and gRPC listeners together",
            format!("{}, {} per peer", mib(self.request_bytes), mib(self.request_bytes_per_peer)),
            "429 with `Retry-After`, `RESOURCE_EXHAUSTED`",
            refused,
        );
        row(
            "request time",
            "body of an HTTP request, one gRPC message",
            seconds(self.request_time),
            "429, `DEADLINE_EXCEEDED`",
            refused,
        );
        row(
            "message size",
            "gRPC methods",
            "`Query` 12 bytes per token of `query.max_tokens`, at least 4 MiB; `QueryStream` twice that, at least 16 MiB; hints 4 MiB; other methods of kvplane 1 MiB; the rest 64 KiB".to_owned(),
            "`RESOURCE_EXHAUSTED`, before it is received",
            refused,
        );
        row(
            "decoded size",
            "gRPC methods",
            mib(self.decoded_bytes),
            "`RESOURCE_EXHAUSTED` with the field's name, before it is decoded",
            refused,
        );
        row(
            "dumps",
            "`/dump` and `/kv_recover`",
            of(self.dumps, self.dumps_per_peer),
            "waits up to 10 s, then 429 with `Retry-After`",
            refused,
        );
        row(
            "gateway",
            "its clients",
            "`gateway.max_connections` and requests (16384), `gateway.max_bodies` (512 MiB); of each, one peer has all but an eighth".to_owned(),
            "an idle connection makes room, else the new one is closed; 429 with `Retry-After`",
            "`kvplane_connections_closed_total`, `kvplane_gateway_refused_total`",
        );
        row(
            "gateway bodies",
            "each request",
            "`gateway.max_body` (64 MiB), `gateway.body_timeout` (60 s)".to_owned(),
            "413; 408",
            "`kvplane_gateway_refused_total`",
        );
        row(
            "picker streams",
            "picker",
            of(self.picker_streams, all_but_an_eighth(self.picker_streams)),
            "`RESOURCE_EXHAUSTED`",
            refused,
        );
        row(
            "picker messages",
            "picker",
            format!(
                "`picker.max_body` (64 MiB) each, besides bodies 1 MiB; unfinished ones `picker.max_bodies` (512 MiB) in all, of which one peer has all but an eighth, each for {}",
                seconds(self.request_time)
            ),
            "`OUT_OF_RANGE`, `INTERNAL`; `RESOURCE_EXHAUSTED`, `DEADLINE_EXCEEDED`",
            refused,
        );
        row(
            "shared bookings",
            "`ShareBookings`",
            "64 planes, 32 per peer; 32768 of their bookings, 16384 of one; 4096 updates and 4 MiB wait for one".to_owned(),
            "`RESOURCE_EXHAUSTED`; the booking is not counted; who does not read begins anew",
            "`kvplane_route_shared_updates_dropped_total`",
        );
        row(
            "event sockets",
            "each `bind:` address",
            "1024 connections, 512 per peer; 5 s for a handshake; 64 MiB for a message, 256 MiB for all that are unfinished".to_owned(),
            "the oldest connection without a handshake makes room, else the new one is closed; so is the one that exceeds the memory. Logged",
            sockets,
        );
        row(
            "republished sockets",
            "each socket of `republish`",
            "1024 connections, 512 per peer; 10 s for a handshake; 1024 topics and 64 MiB of unsent messages per listener, 256 MiB per replay".to_owned(),
            "as above; what a listener does not take is dropped for it, and it asks for what it misses",
            sockets,
        );
        row(
            "copied calls",
            "all fronts together",
            "32 MiB, of one call 8 MiB of request and 1 MiB of response".to_owned(),
            "the call goes on, and proves nothing about the engine's cache",
            "`kvplane_front_evidence_rejected_total`",
        );
        row(
            "evidence",
            "each stream behind a front",
            "65536 blocks that calls proved; contents of 1048576 stored blocks, 32 MiB".to_owned(),
            "the oldest proven block is released; no more blocks are proven until the stream starts anew",
            "",
        );
        rows
    }
}

/// Dumps that may wait for a place.
const DUMPS_WAITING: usize = 256;

impl Bounds {
    /// Connections of the HTTP listener.
    fn http(&self) -> Arc<Connections> {
        Connections::new(
            Self::fitting(self.connections),
            self.connections_per_peer,
            self.limits(self.idle_http),
        )
    }

    /// Connections of the gRPC listener.
    fn grpc(&self) -> Arc<Connections> {
        Connections::new(
            Self::fitting(self.connections),
            self.connections_per_peer,
            self.limits(self.idle_grpc),
        )
    }

    /// Connections of the gateway: its clients may all be behind one balancer, which has all places but an eighth.
    pub fn gateway(&self, connections: usize) -> Arc<Connections> {
        let connections = Self::fitting(connections);
        Connections::new(connections, all_but_an_eighth(connections), self.limits(self.idle_http))
    }

    /// Connections of the picker.
    pub fn picker(&self) -> Arc<Connections> {
        self.grpc()
    }

    /// Connections of a front.
    pub fn front(&self) -> Arc<Connections> {
        let total = Self::fitting(self.front_connections);
        Connections::new(total, self.front_connections_per_peer, self.limits(self.idle_grpc))
    }

    /// A quarter of the descriptors is as much as one listener may use.
    fn fitting(connections: usize) -> usize {
        let descriptors = descriptor_limit().and_then(|limit| usize::try_from(limit).ok());
        descriptors.map_or(connections, |limit| connections.min((limit / 4).max(16)))
    }

    fn limits(&self, idle: Duration) -> Limits {
        Limits { handshake: self.handshake, head: self.head, idle, write: self.write, unread: self.unread }
    }
}

/// What one peer may have where all callers may be behind one balancer: it never has everything.
pub fn all_but_an_eighth(of: usize) -> usize {
    of - of / 8
}

/// Why a request was refused at a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Too many calls are under way.
    TooManyCalls,
    /// Too many calls of one peer are under way.
    TooManyCallsOfPeer,
    /// Too many health watches are open.
    TooManyWatches,
    /// Too many bytes of requests are being received.
    RequestBytes,
    /// Too many bytes of one peer's requests are being received.
    RequestBytesOfPeer,
    /// The request took too long to arrive.
    RequestTimeout,
    /// A message is larger than its method takes.
    MessageTooLarge,
    /// A message would take too much memory once decoded.
    MessageTooMany,
    /// A message does not parse.
    MessageMalformed,
    /// Too many dumps are being made or sent.
    TooManyDumps,
}

impl Refused {
    const ALL: [(Self, &str); 10] = [
        (Self::TooManyCalls, "too_many_calls"),
        (Self::TooManyCallsOfPeer, "too_many_calls_of_peer"),
        (Self::TooManyWatches, "too_many_watches"),
        (Self::RequestBytes, "request_bytes"),
        (Self::RequestBytesOfPeer, "request_bytes_of_peer"),
        (Self::RequestTimeout, "request_timeout"),
        (Self::MessageTooLarge, "message_too_large"),
        (Self::MessageTooMany, "message_decoded_too_large"),
        (Self::MessageMalformed, "message_malformed"),
        (Self::TooManyDumps, "too_many_dumps"),
    ];

    /// What a share of request bytes could not be had for.
    pub fn bytes(full: Full) -> Self {
        match full {
            Full::Total => Self::RequestBytes,
            Full::Peer => Self::RequestBytesOfPeer,
        }
    }
}

/// The bounds of a plane, and what is taken of them.
#[derive(Debug)]
pub struct Edge {
    /// The bounds themselves.
    pub bounds: Bounds,
    /// Connections of the HTTP listener.
    pub http: Arc<Connections>,
    /// Connections of the gRPC listener.
    pub grpc: Arc<Connections>,
    /// Calls under way on the gRPC listener.
    pub calls: Arc<Shares>,
    /// Health watches.
    pub watches: Arc<Shares>,
    /// Bytes of requests that are being received or decoded.
    pub request_bytes: Arc<Shares>,
    dumps: Arc<Shares>,
    others: Mutex<Vec<OtherListener>>,
    refused: [AtomicU64; Refused::ALL.len()],
}

/// A listener besides those for pages and for gRPC, with connections of its own.
#[derive(Debug, Clone)]
pub struct OtherListener {
    /// Its name in metrics.
    pub name: &'static str,
    /// Its connections.
    pub connections: Arc<Connections>,
    /// TLS there.
    pub tls: Option<Arc<Tls>>,
}

impl Edge {
    /// Nothing is taken yet.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            http: bounds.http(),
            grpc: bounds.grpc(),
            calls: Shares::new(bounds.calls, bounds.calls_per_peer),
            watches: Shares::new(bounds.watches, bounds.watches_per_peer),
            request_bytes: Shares::new(bounds.request_bytes, bounds.request_bytes_per_peer),
            dumps: Shares::with_queue(bounds.dumps, bounds.dumps_per_peer, DUMPS_WAITING),
            others: Mutex::default(),
            refused: Default::default(),
            bounds,
        }
    }

    /// Another listener is there; what it counts is counted with the rest.
    pub fn note(&self, listener: OtherListener) {
        self.others.lock().push(listener);
    }

    /// Listeners besides those for pages and for gRPC.
    pub fn others(&self) -> Vec<OtherListener> {
        self.others.lock().clone()
    }

    /// Counts a refusal.
    pub fn count(&self, refused: Refused) {
        self.refused[refused as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Each reason, and how often.
    pub fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Refused::ALL
            .iter()
            .map(|(reason, name)| (*name, self.refused[*reason as usize].load(Ordering::Relaxed)))
    }

    /// A place for an answer that is as large as a stream's state. `None`: counted, and to be tried again.
    pub async fn dump(&self, peer: Option<&Peer>) -> Option<Share> {
        let place = self.dumps.take_within(key(peer), 1, self.bounds.dump_wait).await;
        place.inspect_err(|_| self.count(Refused::TooManyDumps)).ok()
    }
}

/// Who shares limits with a caller. Callers without an address are one.
pub fn key(peer: Option<&Peer>) -> PeerKey {
    peer.map_or_else(|| PeerKey::of(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), Peer::key)
}
