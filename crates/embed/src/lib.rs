//! A recorder in the engine's own process: the publisher of an engine's events hands them over here too, and
//! readers that missed some ask here.
//!
//! [`Recorder`] is a stream that is fed by calls; [`RecoveryServer`] answers for one over HTTP, from a thread
//! of its own. What a batch means and what is answered is decided in `stream`.
//!
//! Routers ask here, too: [`Index`] is who holds how much of a prompt among recorders of this process,
//! [`Client`] the same among the engines of a plane, from a copy that is kept here. What is looked up and
//! credited is decided in `ingest`.

mod changes;
mod client;
mod index;
mod moment;
mod picks;
mod recorder;
mod serve;

pub use changes::{Change, Changes, Happened, Stop};
pub use client::{Client, ClientSettings, Followed, engine_of};
pub use index::{DEFAULT_CREDIT, Index};
/// The token that a plane wants.
pub use kvplane_proto::Bearer;
/// The messages of decisions.
pub use kvplane_proto::kvplane::v1 as proto;
pub use moment::Moment;
pub use recorder::{NotAnswered, Recorder, Settings};
pub use serve::{ListenError, RecoveryServer};
