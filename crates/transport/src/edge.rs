//! Bounds of a listener: how many connections there may be, from whom, and how long each may take.
//!
//! ```text
//!  accept ──> Connections::admit (in total, per peer) ──> Guarded<TcpStream> (handshake, head, idle and write timeouts)
//!                                                              │
//!                                        Pulse::enter, one per request: a connection without one is idle
//! ```
//!
//! A peer is an address, or the /64 of an IPv6 address. A peer with all of its places taken loses its oldest
//! idle connection to a new one: silent connections never keep a working client out.

mod accept;
mod connections;
mod guarded;
mod metered;
mod peer;
mod pulse;
mod shares;

pub use accept::{Accepting, Repeats};
pub use connections::{Admitted, Closed, Connections};
pub use guarded::Guarded;
pub use metered::Metered;
pub use peer::PeerKey;
pub use pulse::{InFlight, Limits, Pulse, Speaks};
pub use shares::{Full, Share, Shares};

#[cfg(test)]
mod tests;
