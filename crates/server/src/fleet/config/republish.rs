//! Where an engine's events are published again, as people describe it.

use kvplane_republish::Announce;
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
    /// Announces every copy of a block, with its place and group. Without, the first copy in a tier is
    /// announced as stored and the last one as removed, which is what listeners need that do not count.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub copies: bool,
    /// What a new subscriber is sent before the rest.
    #[serde(default, skip_serializing_if = "is_batch")]
    pub announce: AnnounceConfig,
    /// Anyone who can reach the addresses can read them: `ZeroMQ` has no authentication here. Needed beyond loopback.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub open: bool,
}

/// What a new subscriber is sent before the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnnounceConfig {
    /// The newest batch once more: a listener that asks for what it misses asks at once.
    #[default]
    Batch,
    /// A clear and the whole state, for listeners that cannot ask.
    State,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_batch(announce: &AnnounceConfig) -> bool {
    *announce == AnnounceConfig::Batch
}

impl From<AnnounceConfig> for Announce {
    fn from(config: AnnounceConfig) -> Self {
        match config {
            AnnounceConfig::Batch => Self::Batch,
            AnnounceConfig::State => Self::State,
        }
    }
}
