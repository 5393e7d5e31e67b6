//! The endpoint picker of Gateway API gateways: Envoy asks over external processing where a request should go.
//!
//! ```text
//! Envoy ──ext_proc──> service ──messages──> exchange ──Decide──> decide ──tokens, pick──> Plane
//!                        │  <──messages────────┘  │                                        ^
//!                        └────────────────────────┴── first byte, end, usage ──────────────┘
//! ```
//!
//! An [`Exchange`] is the state of one HTTP request, without IO. What a decision is made of (the index,
//! bookings, receipts) is behind [`Plane`](kvplane_inference::Plane): `/v1/pick` and this crate ask the same
//! one. Bodies pass through unread but for one scan of the request and the usage of the response; no text
//! leaves this crate but to Envoy and to the tokenizer.

mod decide;
mod endpoints;
mod envoy_config;
mod exchange;
mod health;
mod llmd;
mod message;
mod names;
mod options;
mod pace;
mod refusal;
mod rewrite;
mod rules;
mod service;
mod stats;
mod watch;
mod yaml;

/// What fuzz targets call.
#[cfg(any(test, feature = "checks"))]
pub mod checks {
    /// Reads a file of endpoints and a router's configuration. It must not panic.
    pub fn yaml(text: &str) {
        let _ = crate::endpoints::read(text);
        let _ = crate::llmd::read(text);
    }
}

pub use endpoints::{EndpointsError, read as read_endpoints};
pub use envoy_config::{Bootstrap, bootstrap};
pub use llmd::{LlmdConfig, LlmdError, read as read_llmd_config};
pub use options::Options;
pub use pace::{Paced, PacedInfo};
pub use refusal::Refusal;
pub use rewrite::{Rewrite, Rewrites, Target};
pub use rules::Rules;
pub use service::Picker;
pub use stats::{Outcome, Stats};
pub use watch::follow_file;
