//! Where an engine's events are published again, as people describe it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where an engine's events are published again; rank r is at port + r.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RepublishConfig {
    /// PUB address to bind, `tcp://host:port`. Rank r is at port + r.
    pub events: String,
    /// ROUTER address to bind, `tcp://host:port`. Rank r is at port + r.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<String>,
    /// Topic of every message.
    #[serde(default)]
    pub topic: String,
    /// Whoever reaches the addresses may read: `ZeroMQ` asks nobody. Needed beyond loopback.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub open: bool,
}
