//! `ZeroMQ` on its own threads: the only room that speaks it.
//!
//! [`Sockets`] is the reading side: it subscribes to engines' event publishers and asks their replay
//! sockets. It has its own ZMTP on non-blocking sockets. A fixed handful of threads serves any number of
//! streams:
//!
//! ```text
//! kvp-sub-0, kvp-sub-1    each serves half of the subscriptions with epoll, and calls the handlers
//! kvp-replay              every replay request in flight: a slow engine never holds up a receive loop
//! kvp-resolve             up to four, only while names are looked up
//! ```
//!
//! [`PubSocket`] and [`RouterSocket`] are the publishing side, used by the simulator and the republisher; they are libzmq's.
//! They belong to whichever thread owns them and share a [`PublishContext`].
//!
//! This room knows frames, sequences and connections. It never looks into a payload, keeps no state of a
//! stream and decides nothing about gaps or restarts.
//!
//! **Memory.** Nothing is queued: a message is handed over as soon as it is complete, and what is not read stays in the
//! kernel and in the publisher. A connection holds at most one unfinished message of up to
//! [`Subscription::max_message_bytes`] (while its buffer grows, up to one and a half times that), and as much of it as has
//! arrived; an idle connection holds less than 2 KiB. Each thread has a read buffer of 64 KiB. The connections of one
//! bound socket are at most 1,024 and hold 256 MiB together.

mod address;
mod connection;
mod dial;
mod error;
mod handler;
mod heart;
mod listen;
mod options;
mod poller;
mod publish;
mod pulse;
mod reason;
mod released;
mod replay;
mod resolve;
mod router;
mod service;
mod stream;
mod subscriber;
mod zmtp;

pub use error::{EndpointCause, SocketError};
pub use handler::{SubscriberHandler, SubscriptionHandle};
pub use options::{Endpoint, Options, ReplayRequest, Subscription};
pub use publish::{PubOptions, PubSocket, PublishContext};
pub use released::ReleasedPorts;
pub use replay::{ReplayEnd, ReplayHandle, ReplayHandler};
pub use router::{ReplayRequestIn, ReplyFraming, RouterSocket};
pub use service::Sockets;
#[cfg(any(test, feature = "checks"))]
pub use zmtp::checks;
