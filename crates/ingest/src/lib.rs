//! Event sources, and the registry of streams that they feed.
//!
//! A [`Plane`] holds every engine's [`Stream`]s. A source (`ZeroMQ` from socket threads; HTTP drains, gRPC
//! subscriptions and links to other planes from tasks) drives a stream's recorder; servers read streams from
//! tasks. Between them is one short lock per stream and a wake-up.
//!
//! Each stream also feeds an index, in the [`Catalog`](kvplane_catalog::Catalog): there a whole model is
//! asked who holds a prompt, without a stream's lock.
//!
//! This room decides nothing about continuity: it carries what happened to the recorder, and the recorder's
//! questions to the outside.

mod check;
mod chronicle;
mod claims;
mod clock;
mod durable;
mod feeder;
mod hint;
mod metrics_page;
mod peers;
mod plane;
mod provenance;
mod questions;
mod ranks;
mod shared_source;
mod source;
mod sources;
mod spec;
mod stream;
mod token_file;
mod trouble;
mod zmq_source;

pub use check::{AddError, UnknownMember, check_engines};
pub use chronicle::{Chronicle, Mood, Remark, Said};
pub use durable::{Durable, DurableSpec, DurableStatus, Restored};
pub use kvplane_socket::Endpoint;
pub use kvplane_store::{Off, Options as DurableOptions, Sync as DurableSync};
pub use metrics_page::{Sample, samples};
pub use peers::{MAX_PEERS, PeerCounts, PeerOptions, Peers, TooManyPeers};
pub use plane::{Engine, Engines, Plane};
pub use provenance::{Finding, Provenance};
pub use ranks::{RankReader, follow_ranks};
pub use source::*;
pub use spec::{CacheSpec, ControlSpec, DEFAULT_ROUTING_GROUP, EngineSpec, Origin, PlaneOptions};
pub use stream::{FlushWatch, HandedOver, News, NotHandedOver, NotIndexed, Outcome, Stream, StreamStatus};
pub use token_file::{TokenFileError, read_token};
