//! Follows a kvplane and keeps an exact local replica of its streams: for gateways and schedulers written in
//! Rust.
//!
//! ```no_run
//! use kvplane_client::{Change, Client, Options, Selection};
//! use futures::StreamExt as _;
//!
//! # async fn example() -> Result<(), kvplane_client::ClientError> {
//! let client = Client::connect("http://127.0.0.1:50090", Options::default()).await?;
//! let following = client.follow(Selection::All);
//! let mut changes = following.changes();
//! following.ready().await;
//! for stream in following.replicas() {
//!     let Some(replica) = following.replica(&stream) else { continue };
//!     println!("{stream}: {} blocks, {}, {}", replica.blocks().total(), replica.trust().level, replica.digest());
//!     // A consistent look at several things: the replica does not move meanwhile.
//!     let roots = replica.read(|replica| {
//!         replica.iter().filter(|block| block.parent() == kvplane_client::Parent::Root).count()
//!     });
//!     println!("  of which {roots} begin a prompt");
//! }
//! while let Some(change) = changes.next().await {
//!     match change {
//!         Change::Batch { stream, cursor, .. } => println!("{stream} is at {}", cursor.sequence),
//!         Change::Lagged { missed } => println!("{missed} changes passed by; the replicas have them"),
//!         other => println!("{other:?}"),
//!     }
//! }
//! following.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! - [`Replica`] is one stream's state. It does no IO: messages go in, and each is checked against the digest
//!   that the plane sends along. What does not follow, does not belong or does not match is an error, never a
//!   guess.
//! - [`Client`] and [`Following`] feed replicas from a plane: they come back after a lost connection, a loss
//!   or a restart of the plane, go on where they stood if that is possible, and begin anew if not.
//! - [`ReplicaView`] reads a replica while it is being fed. It says what the state is worth, and whether it
//!   is still being followed.

mod client;
mod error;
mod following;
mod freshness;
mod options;
mod replica;
mod task;
mod worth;

pub use client::{Calls, Client, Operations, Routes, endpoint};
pub use error::{ClientError, ReplicaError};
pub use following::{Change, Changes, Connection, Counters, Following, ReplicaView};
pub use options::{Options, Selection};
pub use replica::{Applied, Block, BlockCounts, Parent, Place, Replica, ReplicaOptions};
pub use worth::{TrustReason, TrustReport};

/// The token that a plane wants.
pub use kvplane_proto::Bearer;

pub use kvplane_core::{Continuity, Cursor, EngineId, Epoch, StateDigest, StreamId, Tier, Trust};
/// The messages that a replica is fed with.
pub use kvplane_proto::kvplane::v1 as proto;
