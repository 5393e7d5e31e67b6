//! The trace laboratory: every routing policy over the same requests, against simulated engines in virtual time.
//!
//! ```text
//! trace or population ──> arrivals ──> router (kvplane-route) ──> engine: queue, chunked prefill, decode, LRU cache
//!                            ^                                        │
//!                            └── next turn of a session <── finished ─┘
//! ```
//!
//! Everything follows from a seed. What engines take for what is in [`Speed`]; what a run assumes is printed
//! with its table.

mod cache;
mod engine;
mod population;
mod random;
mod run;
mod summary;
mod trace;

pub use engine::Speed;
pub use population::Population;
pub use run::{Contender, Fault, Fleet, run};
pub use summary::{Row, Summary, table};
pub use trace::{Request, Start, TraceError, Workload, read_mooncake};
