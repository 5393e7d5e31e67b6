//! Inference requests, as both faces of the decision see them: the endpoint picker and the gateway.
//!
//! | module | what it has |
//! |---|---|
//! | `body` | a request's body, as far as it decides where the request goes |
//! | `edit` | changes of a body by inserting bytes |
//! | `usage` | the usage that an answer reports, read while it passes |
//! | `pool` | endpoints that requests may be sent to |
//! | `plane` | the interface to what decides and keeps the books |
//!
//! No IO, no clock. No text of a request leaves this crate but to the tokenizer.

mod body;
mod edit;
mod plane;
mod pool;
mod usage;

/// What fuzz targets call.
#[cfg(any(test, feature = "checks"))]
pub mod checks {
    pub use crate::usage::checks::usage_of_pieces;
}

pub use body::{Api, Asked, Prompt, Unreadable, read};
pub use edit::Edit;
pub use kvplane_route::Role;
pub use plane::{Ask, Chosen, Found, NoTokens, PickError, Plane, Report, Tokens};
pub use pool::{Allowed, Endpoint, Pool};
pub use usage::{Format, Rename, Scanner, Usage, Withhold, rename_model};
