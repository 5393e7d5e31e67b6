//! What was observed, before anybody judges it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kvplane_core::EngineKind;
use kvplane_discovery::{EngineWord, Refusal};
use kvplane_ingest::Events;
use serde_json::Value;

use crate::Heard;

/// Who is at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// Nobody listens: the connection is refused.
    Refused,
    /// No way to it; in words.
    Unreachable(String),
    /// A `ZeroMQ` socket.
    Zmtp {
        /// Its type, as it names it: `PUB`, `ROUTER`, …
        socket: String,
    },
    /// A `ZeroMQ` socket that wants a security mechanism.
    Secured(String),
    /// A server of HTTP.
    Http,
    /// Something else.
    Other,
    /// It takes the connection, and says nothing.
    Mute,
    /// Nobody knows: this process may not open another connection.
    NoDescriptors,
}

impl Peer {
    /// Whether it is a `ZeroMQ` socket of one of these types.
    pub fn is(&self, types: &[&str]) -> bool {
        matches!(self, Self::Zmtp { socket } if types.contains(&socket.as_str()))
    }

    /// Whether nobody can be spoken to.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Refused | Self::Unreachable(_) | Self::Mute)
    }

    /// As part of a sentence: "… answers".
    pub fn words(&self) -> String {
        match self {
            Self::Refused => "connection refused: nothing listens there".to_owned(),
            Self::Unreachable(why) => format!("no connection ({why})"),
            Self::Zmtp { socket } => format!("a ZeroMQ socket of type {socket} answers"),
            Self::Secured(mechanism) => {
                format!("a ZeroMQ socket answers that wants the security mechanism {mechanism}")
            }
            Self::Http => "an HTTP server answers".to_owned(),
            Self::Other => "something answers that does not speak ZeroMQ".to_owned(),
            Self::Mute => "the connection is accepted, but nothing is sent".to_owned(),
            Self::NoDescriptors => "the doctor may not open another connection".to_owned(),
        }
    }
}

/// How a replay ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingEnd {
    /// With its end marker.
    Complete,
    /// Nothing came, or it broke off.
    Silent,
    /// What came is no replay; the word says why.
    Nonsense(&'static str),
    /// There was more than was read.
    Cut,
}

/// What the replay socket answered.
#[derive(Debug, Clone, PartialEq)]
pub struct RingSeen {
    /// What is in the ring.
    pub heard: Heard,
    /// How it ended.
    pub end: RingEnd,
}

/// What was seen of one rank.
#[derive(Debug, Clone, PartialEq)]
pub struct RankSeen {
    /// Its number.
    pub rank: u32,
    /// Where its events come from.
    pub events: Events,
    /// Its replay socket.
    pub replay: Option<String>,
    /// Who is at the event address; absent where nobody was looked for.
    pub events_peer: Option<Peer>,
    /// Who is at the replay address.
    pub replay_peer: Option<Peer>,
    /// What was heard live, under the topic that is wanted.
    pub live: Heard,
    /// Topics of other messages on the same socket, and how many there were.
    pub other_topics: BTreeMap<String, u64>,
    /// We listened at its address ourselves, for a moment or as a plane would: whether a publisher connected.
    /// Absent where we could not, or did not need to.
    pub called: Option<bool>,
    /// What is in the replay ring; absent where nobody was asked.
    pub ring: Option<RingSeen>,
    /// How long it was listened to.
    pub listened: Duration,
}

impl RankSeen {
    /// A rank of which nothing was seen yet.
    pub fn new(rank: u32, events: Events, replay: Option<String>) -> Self {
        Self {
            rank,
            events,
            replay,
            events_peer: None,
            replay_peer: None,
            live: Heard::default(),
            other_topics: BTreeMap::new(),
            called: None,
            ring: None,
            listened: Duration::ZERO,
        }
    }

    /// Who is at its addresses, as far as somebody looked.
    pub fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.events_peer.iter().chain(&self.replay_peer)
    }

    /// Whether a publisher is there, as far as is known.
    pub fn is_there(&self) -> bool {
        self.live.batches > 0 || self.events_peer.as_ref().is_some_and(|peer| peer.is(&["PUB", "XPUB"]))
    }
}

/// What an engine says of itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Said {
    /// Where it publishes; absent where it was not asked.
    pub sources: Option<Result<EngineWord, Refusal>>,
    /// Its HTTP server could not be asked anything; in words.
    pub unreachable: Option<String>,
    /// Its release.
    pub version: Option<String>,
    /// The models that it serves.
    pub models: Option<Vec<String>>,
    /// Tokens per block.
    pub block_size: Option<u32>,
    /// Whether it reuses prefixes.
    pub prefix_caching: Option<bool>,
}

/// How an engine's events come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Ranks publish, at addresses that are configured.
    Published,
    /// Ranks publish, at addresses that the engine is asked for.
    Discovered,
    /// A buffer is emptied by reading it.
    Drained,
    /// A server is subscribed to, or another plane is followed.
    Called,
}

/// What was seen of one engine.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineSeen {
    /// Its name.
    pub id: String,
    /// Its software, as configured.
    pub kind: EngineKind,
    /// Its model, as configured; empty where it is not.
    pub model: String,
    /// The topic that is wanted.
    pub topic: String,
    /// Tokens per block, as configured.
    pub block_size: Option<u32>,
    /// How its events come.
    pub way: Way,
    /// Its HTTP server.
    pub http: Option<String>,
    /// What it says of itself.
    pub said: Said,
    /// Its ranks.
    pub ranks: Vec<RankSeen>,
    /// Who is at the address of a server that is called or drained.
    pub server: Option<(String, Peer)>,
    /// Ranks that a running plane hears.
    pub heard_by_plane: BTreeSet<u32>,
}

impl EngineSeen {
    /// The rank that `engine/rank` is of this engine.
    pub fn rank_of(&self, stream: &str) -> Option<u32> {
        stream.strip_prefix(&self.id)?.strip_prefix('/')?.parse().ok()
    }

    /// Whether a plane hears it at addresses that all lead nowhere from here, or to somebody else: the plane
    /// is on another machine, or in another network, and only seems to be here.
    pub fn is_elsewhere(&self) -> bool {
        let reached = |rank: &RankSeen| match (&rank.events, &rank.events_peer) {
            // Nobody knows.
            (_, Some(Peer::NoDescriptors)) => true,
            (Events::Connect(_), _) => rank.is_there(),
            // The plane listens there.
            (Events::Bind(_), Some(peer)) => peer.is(&["SUB", "XSUB"]),
            _ => self.server.as_ref().is_none_or(|(_, peer)| !peer.is_absent() || *peer == Peer::Mute),
        };
        let mut heard = self.ranks.iter().filter(|rank| self.heard_by_plane.contains(&rank.rank)).peekable();
        heard.peek().is_some() && !heard.any(reached)
    }

    /// What a finding about a rank is about.
    pub fn stream(&self, rank: u32) -> String {
        format!("{}/{rank}", self.id)
    }

    /// What the engine says of its publishers, where it does.
    pub fn word(&self) -> Option<&EngineWord> {
        self.said.sources.as_ref().and_then(|sources| sources.as_ref().ok())
    }
}

/// A plane's replay window, per stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Batches.
    pub max_batches: usize,
    /// Bytes.
    pub max_bytes: usize,
}

/// A socket beyond loopback that asks nobody who they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenSocket {
    /// The key that configures it.
    pub key: String,
    /// Where it listens.
    pub address: String,
    /// Somebody said by a key of its own that it may be open.
    pub on_purpose: bool,
}

/// What is configured beside the engines, and what the system allows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetUp {
    /// Sockets beyond loopback that ask nobody who they are.
    pub open: Vec<OpenSocket>,
    /// Ranks of all engines.
    pub streams: usize,
    /// Descriptors that this process may have open; a plane's own limit may be another.
    pub descriptors: Option<u64>,
}

/// What a running plane says of itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlaneSeen {
    /// Its address.
    pub address: String,
    /// `/v1/status`.
    pub status: Value,
    /// `/v1/status` again, and how much later; absent where there was no need.
    pub later: Option<(Value, Duration)>,
    /// When that was looked at, in milliseconds since 1970; 0 where it is not known.
    pub looked_at_ms: u64,
    /// `/v1/engines`.
    pub engines: Value,
    /// `/v1/discover`; null of a plane that has none.
    pub discovered: Value,
    /// It answered somebody beyond loopback who showed no key.
    pub answers_strangers: bool,
}

impl PlaneSeen {
    /// A plane that is looked at now, and of which nothing was seen yet.
    pub fn looked_at_now(address: String) -> Self {
        Self { address, looked_at_ms: (crate::observe::now() * 1000.0) as u64, ..Self::default() }
    }
}
