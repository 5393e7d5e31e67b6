//! A recorder in the engine's own process: whoever publishes an engine's events hands them over here too, and whoever missed
//! some asks here.
//!
//! [`Recorder`] is a stream that is fed by calls; [`RecoveryServer`] answers for one over HTTP, from a thread of its own. What a
//! batch means and what is answered is decided in `stream`.

mod recorder;
mod serve;

pub use recorder::{NotAnswered, Recorder, Settings};
pub use serve::{ListenError, RecoveryServer};
