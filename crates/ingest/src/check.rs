//! What can be wrong with engines that are to be added. Everything here is found without touching a socket.

use std::sync::Arc;

use kvplane_core::EngineId;
use kvplane_discovery::AddressError;
use kvplane_socket::SocketError;

use crate::plane::Engine;
use crate::source::{Events, Source};
use crate::spec::EngineSpec;

/// Why engines cannot be added. When this is returned, nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// Two engines with one name.
    #[error("engine id {0:?} is used twice; give every engine an id of its own")]
    DuplicateId(EngineId),
    /// Two ranks with one number.
    #[error("engine {engine:?} has rank {rank} already; give each of its ranks a number of its own")]
    DuplicateRank {
        /// Whose.
        engine: EngineId,
        /// Which.
        rank: u32,
    },
    /// An engine that cannot be heard at all.
    #[error("engine {0:?} has no ranks; set `ranks` to 1 or more")]
    NoRanks(EngineId),
    /// An address that cannot be used.
    #[error("engine {engine:?}: {error}")]
    Address {
        /// Whose.
        engine: EngineId,
        /// What is wrong.
        error: AddressError,
    },
    /// A rank that the engine's kind of source cannot take.
    #[error("engine {engine:?}: its source cannot take rank {rank}; register the rank under another engine")]
    NoSource {
        /// Whose.
        engine: EngineId,
        /// Which.
        rank: u32,
    },
    /// Two streams that could not be distinguished.
    #[error(
        "engines {first:?} and {second:?} share {address} and topic {topic:?}: their messages cannot be distinguished; give each a `topic`, or an address, of its own"
    )]
    SharedTopic {
        /// One of them.
        first: EngineId,
        /// The other.
        second: EngineId,
        /// Where.
        address: String,
        /// Under which topic.
        topic: String,
    },
    /// There are as many as there may be.
    #[error("the limit of {0} engines is reached (members.max_engines)")]
    TooMany(usize),
    /// A rank of an engine that is not there.
    #[error(transparent)]
    Unknown(#[from] UnknownMember),
    /// A socket could not be opened.
    #[error("{address}: {error}")]
    Socket {
        /// Which.
        address: String,
        /// What is wrong.
        error: SocketError,
    },
    /// The socket threads could not be started.
    #[error("cannot start the socket threads: {0}")]
    Threads(SocketError),
}

impl AddError {
    /// Whether the specification is wrong, rather than the machine.
    pub fn is_mistake(&self) -> bool {
        !matches!(self, Self::Socket { .. } | Self::Threads(_))
    }
}

/// An engine, or a rank of one, that the plane does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownMember {
    /// No such engine.
    #[error("there is no engine {0:?}")]
    Engine(String),
    /// No such rank.
    #[error("engine {engine:?} has no rank {rank}")]
    Rank {
        /// Whose.
        engine: String,
        /// Which.
        rank: u32,
    },
}

/// Everything that can be wrong with the engines of a plane that is to be started.
pub fn check_engines(engines: &[EngineSpec], max_engines: usize) -> Result<(), AddError> {
    check(&[], engines, max_engines)
}

/// Everything that can be wrong with new engines beside the running ones. Touches nothing.
pub(crate) fn check(running: &[Arc<Engine>], new: &[EngineSpec], max_engines: usize) -> Result<(), AddError> {
    if running.len() + new.len() > max_engines {
        return Err(AddError::TooMany(max_engines));
    }
    let mut all: Vec<&EngineSpec> = running.iter().map(|engine| &engine.spec).collect();
    for spec in new {
        if all.iter().any(|other| other.id == spec.id) {
            return Err(AddError::DuplicateId(spec.id.clone()));
        }
        check_ranks(spec)?;
        check_topics(&all, spec)?;
        all.push(spec);
    }
    Ok(())
}

fn check_ranks(spec: &EngineSpec) -> Result<(), AddError> {
    let ranks = spec.source.ranks();
    if ranks.is_empty() && !matches!(spec.source, Source::Linked(_)) {
        return Err(AddError::NoRanks(spec.id.clone()));
    }
    for (at, rank) in ranks.iter().enumerate() {
        if ranks[..at].iter().any(|other| other.rank == rank.rank) {
            return Err(AddError::DuplicateRank { engine: spec.id.clone(), rank: rank.rank });
        }
    }
    spec.source.check().map_err(|error| AddError::Address { engine: spec.id.clone(), error })
}

/// Streams that share a bound socket are distinguished by topic alone.
fn check_topics(running: &[&EngineSpec], new: &EngineSpec) -> Result<(), AddError> {
    let mut bound = bound_addresses(new);
    while let Some(address) = bound.pop() {
        let shares =
            |other: &&EngineSpec| other.topic == new.topic && bound_addresses(other).contains(&address);
        let itself = bound.contains(&address).then_some(new);
        if let Some(other) = running.iter().copied().find(shares).or(itself) {
            return Err(AddError::SharedTopic {
                first: other.id.clone(),
                second: new.id.clone(),
                address,
                topic: new.topic.clone(),
            });
        }
    }
    Ok(())
}

fn bound_addresses(spec: &EngineSpec) -> Vec<String> {
    let bound = spec.source.ranks().into_iter().filter_map(|rank| match rank.events {
        Events::Bind(address) => Some(address),
        _ => None,
    });
    bound.collect()
}
