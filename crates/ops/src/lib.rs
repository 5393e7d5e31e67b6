//! Operations on engines: flush, profile, info, loads, health.
//!
//! ```text
//!  Verb ──> support: who has it, over what ──> request ──> HTTP, gRPC ──> forms: what the answer means ──> Answer
//!                                      └───────── asker: in turn, again, one deadline ─────────┘
//!  FanOut: many backends at once, each asked once
//! ```
//!
//! [`support()`] is the one table of who supports what; `docs/reference/operations.md` shows it. The room
//! knows nothing of streams, ranks or trust: whether an engine did what it says is proven elsewhere. An
//! answer is never better than what was heard: a yes that proves nothing says so ([`Meaning::Accepted`]), and
//! a question whose answer is missing is *open*.

mod answer;
mod asker;
mod backend;
mod fan_out;
mod forms;
mod group;
mod request;
mod support;
mod verb;

pub use answer::{Answer, Covers, Meaning};
pub use asker::{Limits, ask, dry_run};
pub use backend::{Backend, GrpcServer, NoVersion, Service, Transport, Version};
pub use fan_out::{Asked, FanOut, Remainder};
pub use kvplane_transport::{Sent, normal_address};
pub use support::{Call, Reads, Speaker, Support, Takes, Way, support};
pub use verb::{Flush, Profile, ProfileId, ProfileIds, Verb, VerbName};
