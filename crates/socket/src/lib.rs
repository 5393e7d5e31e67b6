//! `ZeroMQ` on its own threads: the only room that touches libzmq.
//!
//! [`Sockets`] is the reading side: it subscribes to engines' event publishers and asks their replay
//! sockets. A fixed handful of threads serves any number of streams:
//!
//! ```text
//! kvp-sub-0, kvp-sub-1    each polls half of the SUB sockets and their monitors, and calls the handlers
//! kvp-replay              every replay request in flight: a slow engine never holds up a receive loop
//! ZMQbg/*                 two of libzmq's own per context; a context serves 250 subscriptions
//! ```
//!
//! [`PubSocket`] and [`RouterSocket`] are the publishing side, used by the simulator and the republisher;
//! they belong to whichever thread owns them and share a [`PublishContext`].
//!
//! This room knows frames, sequences and connections. It never looks into a payload, keeps no state of a
//! stream and decides nothing about gaps or restarts.

mod error;
mod frames;
mod monitor;
mod options;
mod poller;
mod publish;
mod pulse;
mod released;
mod replay;
mod router;
mod service;
mod subscriber;
mod wake;

pub use error::SocketError;
pub use options::{Endpoint, Options, ReplayRequest, Subscription};
pub use publish::{PubOptions, PubSocket, PublishContext};
pub use released::ReleasedPorts;
pub use replay::{ReplayEnd, ReplayHandle, ReplayHandler};
pub use router::{ReplayRequestIn, ReplyFraming, RouterSocket};
pub use service::Sockets;
pub use subscriber::{SubscriberHandler, SubscriptionHandle};
