//! `ZeroMQ` on its own threads: the only room that speaks it.
//!
//! [`Sockets`] is the reading side: it subscribes to engines' event publishers and asks their replay sockets.
//! [`PubSocket`] and [`RouterSocket`] are the publishing side, used by the simulator and the republisher;
//! they share a [`PublishContext`]. Both speak ZMTP by themselves, on non-blocking sockets. A fixed handful
//! of threads serves any number of streams:
//!
//! ```text
//! kvp-sub-0, kvp-sub-1    each serves half of the subscriptions with epoll, and calls the handlers
//! kvp-replay              every replay request in flight: a slow engine never holds up a receive loop
//! kvp-pub                 one per context: every socket that publishes or answers replays
//! kvp-resolve             up to four, only while names are looked up
//! ```
//!
//! This room knows frames, sequences and connections. It never looks into a payload, keeps no state of a
//! stream and decides nothing about gaps or restarts.
//!
//! **Memory.** What is read is not queued: a message is handed over as soon as it is complete, and what is
//! not read stays in the kernel and in the publisher. A connection holds at most one unfinished message of up
//! to [`Subscription::max_message_bytes`] (while its buffer grows, up to one and a half times that), and as
//! much of it as has arrived; an idle connection holds less than 2 KiB. Each thread has a read buffer of 64
//! KiB. The connections of one bound socket are at most 1,024 and hold 256 MiB together. What is published
//! waits in a queue per subscriber, bounded in messages and bytes; subscribers share the bytes of a message.

mod address;
mod connection;
mod dial;
mod error;
mod handler;
mod heart;
mod listen;
mod options;
mod places;
mod poller;
mod publish;
mod pulse;
mod reason;
mod refusals;
mod released;
mod replay;
mod resolve;
mod service;
mod stream;
mod subscriber;
mod timers;
mod tokens;
mod zmtp;

pub use error::{EndpointCause, SocketError};
pub use handler::{Alarm, SubscriberHandler, SubscriptionHandle};
pub use options::{Endpoint, Options, ReplayRequest, Subscription};
pub use publish::{
    Delivery, PubOptions, PubSocket, PublishContext, PublishCounts, ReplayRequestIn, ReplyFraming,
    RouterSocket, SubscriberId,
};
pub use refusals::Refusals;
pub use released::ReleasedPorts;
pub use replay::{ReplayEnd, ReplayHandle, ReplayHandler};
pub use service::Sockets;
#[cfg(any(test, feature = "checks"))]
pub use zmtp::checks;
