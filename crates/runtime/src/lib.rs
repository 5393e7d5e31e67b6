//! The clocks, and tasks that have a name and do not die unnoticed.
//!
//! Nothing else in the workspace reads `std::time` or spawns a bare task: `clippy.toml` forbids it.

mod clock;
mod task;

pub use clock::{now, unix_ms, unix_time};
pub use task::{spawn, spawn_on};
