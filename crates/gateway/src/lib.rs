//! The gateway: requests of `OpenAI`'s and Anthropic's APIs in, and out to the engine that holds most of the prompt.
//!
//! ```text
//! client ──> serve ──scan, limits──> turn ──tokens, pick──> Plane
//!              │                       │  <──place, rank, receipt──┘
//!              │                       └──> send ──spliced body──> engine
//!              └<──────────── relay <──answer, frame by frame──────┘
//!                               └──first byte, usage, end──> Plane
//! ```
//!
//! | module | what it has |
//! |---|---|
//! | `scan`, `call`, `splice` | a body: validated in one pass, read as far as it routes, changed by inserting bytes |
//! | `health`, `retry`, `limits` | what decides about endpoints, retries and callers: no IO, no clock |
//! | `fleet`, `probe`, `upstream` | endpoints, how they are, connections to them |
//! | `serve`, `turn`, `relay` | one request, its attempts, its answer |
//! | `ticket` | what ends with a request, by being dropped |
//! | `trace` | spans of requests, for a collector |
//!
//! What a decision is made of is behind [`Plane`](kvplane_inference::Plane), as for the endpoint picker. No
//! text, token or key is logged, counted or kept.

mod api;
mod call;
mod fleet;
mod gateway;
mod headers;
mod health;
mod limits;
mod options;
mod probe;
mod refusal;
mod relay;
mod retry;
mod scan;
mod serve;
mod splice;
mod stats;
mod ticket;
mod tokenize;
mod trace;
mod turn;
mod upstream;

pub use fleet::{BOOTSTRAP_PORT, Upstream};
pub use gateway::{EndpointRow, Gateway};
pub use health::HealthOptions;
pub use limits::Limits;
pub use options::{Forward, Options};
pub use stats::{Stats, TimesRead};
pub use trace::TraceOptions;
