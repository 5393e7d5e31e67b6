//! Many planes as one, without IO: what is on the bus between them, and what is believed of it.
//!
//! The bus is never the record. It carries what owners of engines publish, in a total order, and may lose,
//! repeat, delay, reorder or forget anything of it. [`Follower`] keeps copies that are exact or say how they
//! are not; [`own`] says who is to own what. Files, sockets and clocks are elsewhere.

pub mod follow;
pub mod frame;
pub mod memory;
pub mod own;

pub use follow::{Applied, Ask, Claimed, Counters, Fetched, Follower, Replica, Standing};
pub use frame::{Claim, Declare, Frame, Item, Kind, NoFrame, Position, Why};
pub use own::{Candidate, Duty, Fence, Fenced, Owned, candidates, duty, next_generation, shard};
