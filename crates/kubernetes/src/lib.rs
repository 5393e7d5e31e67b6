//! Engines of a Kubernetes cluster: objects of its API in, the engines that are wanted out.
//!
//! ```text
//!  API server ──watch──> watch/ ──Pod──> Cluster ──Wanted──> the fleet
//!                          │    (or the     │ which pods are engines, where each rank publishes,
//!                          │   endpoints    │ and the rule that decided each key
//!  engine <──/v1/models────┘   of slices)   └──> Board: what explain, status and metrics show
//! ```
//!
//! Everything but `watch` is free of IO: objects and time are passed in. An error of the API server is no input, so
//! nothing is removed because of one. What was deleted while nobody watched is found when a list has ended.

mod board;
mod cluster;
mod group;
mod names;
mod pod;
mod settings;
mod shape;
mod wanted;
#[cfg(feature = "watch")]
pub mod watch;

pub use board::{Board, Known, PodReport, SourceReport, SourceState, SourceStats};
pub use cluster::{Cluster, LINGER_MS, MAX_PODS, Question};
pub use group::Verdict;
pub use pod::{Container, Launch, Pod};
pub use settings::{ModelRule, Settings};
pub use wanted::{Decided, PodRef, RankAt, Remark, Wanted, Where};
