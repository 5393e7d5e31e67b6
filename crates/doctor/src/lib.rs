//! What is wrong with a set-up, in stable codes.
//!
//! ```text
//!  observe/ ──EngineSeen, PlaneSeen──> rules/ ──> Finding {code, severity, subject, seen, why, todo}
//!  sockets, HTTP; changes nothing      pure functions
//! ```
//!
//! [`examine`] looks at engines as they are configured; [`judge_set_up`] and [`judge_plane`] judge what
//! others looked at.
//!
//! It never changes what it looks at: no request of it flushes, drains or registers anything. It follows
//! nothing and keeps no state of a stream: what it hears is summed up ([`Heard`]) and dropped. Tokens end
//! there.

mod finding;
mod heard;
mod observe;
mod place;
mod rules;
mod seen;

pub use finding::{Code, Finding, Severity};
pub use heard::{Heard, Mark, Width};
pub use observe::{Examination, examine, greet};
pub use place::{hide_userinfo, place_of, without_userinfo};
pub use rules::{judge_engine, judge_plane, judge_set_up};
pub use seen::{
    EngineSeen, OpenSocket, Peer, PlaneSeen, RankSeen, RingEnd, RingSeen, Said, SetUp, Way, Window,
};
