//! What the plane answers: gRPC and HTTP servers over the streams that `ingest` keeps.
//!
//! Servers take listeners that somebody else bound, so that a taken port is known before anything starts.
//! They never see an engine's bytes.

mod encoding;
mod engine_ids;
mod fleet;
mod gateway;
mod grpc;
mod held;
mod hints;
mod http;
mod listeners;
mod ops;
mod parity;
mod parts;
mod picker;
mod plans;
mod publishers;
mod questions;
mod readiness;
mod routing;
mod select;
mod service;
mod smg;
mod span;
mod value;
mod watch;

/// What fuzz targets call.
#[cfg(any(test, feature = "checks"))]
pub mod checks {
    /// Reads a body of `/v1/query`. It must not panic, and what it takes is JSON.
    pub fn query_json(body: &[u8]) {
        crate::http::check_query(body);
    }
}

pub use fleet::{
    AnnounceConfig, DuplicatesName, EngineConfig, EngineConfigError, EnginePlan, Fleet, FleetError,
    Registration, Reloaded, RepublishConfig, WorkerId,
};
pub use gateway::{GatewayEndpoint, GatewaySetup};
pub use hints::{AcceptReports, HintsOptions};
pub use kvplane_metrics::Detail as MetricsDetail;
pub use picker::PickerSetup;
pub use service::{Options, Service};
pub use span::Span;

#[cfg(test)]
mod tests;
