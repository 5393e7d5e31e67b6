//! How an engine's events come: one variant for each kind of source, each with a type of its own.
//!
//! Every kind owns its specification, its ranks included, so that a rank without a source cannot be
//! described. To add a kind, write a file in `source/` with its type and an implementation of [`SourceKind`],
//! and name it here twice: as a module, and in the list of [`Source`]. `tests/it/conformance` is what every
//! kind has to pass.

pub(crate) mod discovery;
mod drain;
mod grpc_source;
pub(crate) mod kvplane_source;
pub(crate) mod published;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kvplane_core::EngineId;
use kvplane_discovery::AddressError;
use kvplane_stream::{JournalOptions, Now, Options, Recorder};

use crate::check::AddError;
use crate::plane::Plane;
use crate::sources::Sources;
use crate::spec::{EngineSpec, PlaneOptions};
use crate::stream::Stream;

pub use discovery::Discovered;
pub use drain::Drained;
pub use grpc_source::Relayed;
pub use kvplane_source::{LinkSpec, LinkState, LinkStatus, Mirrored, owned_keys};
pub use published::{Published, PublishedRank};

/// The enum of all kinds, and the one place that tells them apart.
macro_rules! sources {
    ($($(#[$doc:meta])* $variant:ident($kind:ty),)*) => {
        /// How an engine's events come.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Source {
            $($(#[$doc])* $variant($kind),)*
        }

        impl Source {
            fn kind(&self) -> &dyn SourceKind {
                match self {
                    $(Self::$variant(source) => source,)*
                }
            }

            fn kind_mut(&mut self) -> &mut dyn SourceKind {
                match self {
                    $(Self::$variant(source) => source,)*
                }
            }
        }
    };
}

sources! {
    /// Every rank publishes on a socket, at configured addresses.
    Published(Published),
    /// Every rank publishes on a socket, at addresses that the engine is asked for.
    Discovered(Discovered),
    /// One buffer for all ranks, emptied by reading it (TensorRT-LLM's `POST /kv_cache_events`).
    Drained(Drained),
    /// One subscription for all ranks, to a server that keeps batches (SMG's `SubscribeKvEvents`).
    Relayed(Relayed),
    /// Another plane. It has no ranks itself: each of its engines is an engine here.
    Linked(LinkSpec),
    /// An engine of another plane.
    Mirrored(Mirrored),
}

/// What each kind of source defines.
pub(crate) trait SourceKind {
    /// Its ranks, in the order of their numbers.
    fn ranks(&self) -> Vec<RankSpec>;

    /// Checks its addresses, without touching a socket.
    fn check(&self) -> Result<(), AddressError> {
        Ok(())
    }

    /// The server that its events are read from, where it is one server for all ranks.
    fn server(&self) -> Option<&str> {
        None
    }

    /// Its ranks, where one source brings the events of all of them and names new ones.
    fn shared_ranks(&mut self) -> Option<&mut SharedRanks> {
        None
    }

    /// Adds a rank that its events name. False if ranks of this kind are not added like this.
    fn add_rank(&mut self, rank: u32) -> bool {
        self.shared_ranks().map(|ranks| ranks.add(rank)).is_some()
    }

    /// Removes a rank.
    fn remove_rank(&mut self, rank: u32) {
        if let Some(ranks) = self.shared_ranks() {
            ranks.remove(rank);
        }
    }

    /// The longest time without proof of life, where the operator configured none for the engine.
    fn max_silence(&self, configured: Duration) -> Duration {
        configured
    }

    /// How one of its streams is followed, where it can be gone on with after a restart: only what an engine
    /// publishes on a socket can.
    fn follow(&self, _options: &PlaneOptions, _rank: u32) -> Option<Options> {
        None
    }

    /// The state machine of one of its streams.
    fn recorder(&self, options: &PlaneOptions, keep: JournalOptions, rank: u32, now: Now) -> Recorder;

    /// Starts to follow one of its streams. An engine that is not there yet is no error; a taken port is.
    fn open(&self, opening: Opening<'_>) -> Result<(), AddError>;
}

/// What opening a stream needs.
pub(crate) struct Opening<'a> {
    pub(crate) plane: &'a Plane,
    pub(crate) sources: &'a mut Sources,
    pub(crate) spec: &'a EngineSpec,
    pub(crate) stream: &'a Arc<Stream>,
}

impl Source {
    /// Its ranks, in the order of their numbers, which may have holes.
    pub fn ranks(&self) -> Vec<RankSpec> {
        self.kind().ranks()
    }

    /// The server that its events are read from, where it is one server for all ranks.
    pub fn server(&self) -> Option<&str> {
        self.kind().server()
    }

    /// Which engine of another plane it is, if it is one.
    pub fn mirrored(&self) -> Option<&Mirrored> {
        match self {
            Self::Mirrored(source) => Some(source),
            _ => None,
        }
    }

    /// Whether it is an engine of the plane behind this link.
    pub fn comes_over(&self, link: &EngineId) -> bool {
        self.mirrored().is_some_and(|source| source.link == *link)
    }

    pub(crate) fn check(&self) -> Result<(), AddressError> {
        self.kind().check()
    }

    pub(crate) fn add_rank(&mut self, rank: u32) -> bool {
        self.kind_mut().add_rank(rank)
    }

    pub(crate) fn remove_rank(&mut self, rank: u32) {
        self.kind_mut().remove_rank(rank);
    }

    pub(crate) fn max_silence(&self, configured: Duration) -> Duration {
        self.kind().max_silence(configured)
    }

    pub(crate) fn follow(&self, options: &PlaneOptions, rank: u32) -> Option<Options> {
        self.kind().follow(options, rank)
    }

    pub(crate) fn recorder(
        &self,
        options: &PlaneOptions,
        keep: JournalOptions,
        rank: u32,
        now: Now,
    ) -> Recorder {
        self.kind().recorder(options, keep, rank, now)
    }

    pub(crate) fn open(&self, opening: Opening<'_>) -> Result<(), AddError> {
        self.kind().open(opening)
    }
}

/// One rank of an engine and where its events come from, as status shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankSpec {
    /// Its number, as in the engine's batches.
    pub rank: u32,
    /// Where its events come from.
    pub events: Events,
    /// Its replay socket.
    pub replay: Option<String>,
}

/// Where a rank's events come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Events {
    /// The engine binds.
    Connect(String),
    /// Engines connect to us; a message's topic names its owner.
    Bind(String),
    /// The engine's one source, at this address, brings the events of all its ranks.
    Shared(String),
    /// Unknown yet: the engine is asked.
    Awaited,
}

impl Events {
    /// The address without the direction; empty while it is unknown.
    pub fn address(&self) -> &str {
        match self {
            Self::Connect(address) | Self::Bind(address) | Self::Shared(address) => address,
            Self::Awaited => "",
        }
    }
}

/// As it is written in a configuration.
impl fmt::Display for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(address) | Self::Shared(address) => f.write_str(address),
            Self::Bind(address) => write!(f, "bind:{address}"),
            Self::Awaited => Ok(()),
        }
    }
}

/// Numbers of ranks whose events one source brings. They come as it hears of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SharedRanks(std::collections::BTreeSet<u32>);

impl SharedRanks {
    /// Ranks 0 to `count` - 1.
    pub fn first(count: u32) -> Self {
        (0..count).collect()
    }

    /// Adds a rank. False if it is there already.
    pub(crate) fn add(&mut self, rank: u32) -> bool {
        self.0.insert(rank)
    }

    /// Forgets a rank.
    pub(crate) fn remove(&mut self, rank: u32) {
        self.0.remove(&rank);
    }

    /// The numbers, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// As status shows them, at the address of their source.
    pub(crate) fn at(&self, address: &str) -> Vec<RankSpec> {
        let rank = |rank| RankSpec { rank, events: Events::Shared(address.to_owned()), replay: None };
        self.iter().map(rank).collect()
    }
}

impl FromIterator<u32> for SharedRanks {
    fn from_iter<I: IntoIterator<Item = u32>>(ranks: I) -> Self {
        Self(ranks.into_iter().collect())
    }
}
