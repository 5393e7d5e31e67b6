//! Where a prompt should go.
//!
//! ```text
//! candidates (exact tokens, trust, age, readiness) ──┐
//! bookings   (work that was sent and is not done) ───┤
//! flights    (prompts that are routed, not stored) ──┼──> guards ──> policy ──> order, why, booking
//! load       (what engines report of themselves) ────┤
//! rate       (learned seconds per token) ────────────┘
//! ```
//!
//! No IO and no clock: time is passed in as seconds since any origin, and chance comes from a seed, so that
//! every decision can be repeated. What is in flight is a prediction: it counts in the cost, and is never
//! part of `cached`.

mod booking;
mod candidate;
mod demand;
mod flight;
mod load;
mod outline;
mod policy;
mod rate;
mod rng;
mod router;
mod worker;

pub use booking::{Booking, BookingId};
pub use candidate::{Candidate, Role, Skip, Standing};
pub use load::{Load, LoadSource};
pub use outline::Outline;
pub use policy::{ParsePolicyError, Policy, Terms, Weights};
pub use router::{Ask, Choice, Decision, Options, RemoteBooking, Router, Skipped, Totals, Why};
pub use worker::Slot;
