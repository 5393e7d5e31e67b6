//! Another kvplane, as people describe it.

use kvplane_ingest::LinkSpec;

use super::{EngineConfig, EngineConfigError};

impl EngineConfig {
    /// The way to another plane. What its engines are is said there.
    pub(super) fn link(&self) -> Result<LinkSpec, EngineConfigError> {
        let wrong = |key, message: &str| Err(EngineConfigError::Value { key, message: message.to_owned() });
        let Some(url) = &self.grpc else { return wrong("grpc", "is missing: where the other kvplane is") };
        let foreign = [
            ("model", !self.model.is_empty()),
            ("events", self.events.is_some()),
            ("replay", self.replay.is_some()),
            ("topic", !self.topic.is_empty()),
            ("ranks", self.ranks.is_some()),
            ("discover", self.discover.is_some()),
            ("block_size", self.block_size.is_some()),
            ("tenant", self.tenant.is_some()),
            ("worker_id", self.worker_id.is_some()),
            ("http", self.http.is_some()),
            ("grpc_ca", self.grpc_ca.is_some()),
            ("front", self.front.is_some()),
            ("republish", self.republish.is_some()),
        ];
        if let Some((key, _)) = foreign.into_iter().find(|(_, given)| *given) {
            return wrong(key, "is not for another kvplane: its engines are as they are there");
        }
        let link = LinkSpec { url: url.clone(), engine: self.upstream.clone() };
        if !url.starts_with("http://") || link.endpoint().is_err() {
            return wrong("grpc", "is not a URL like http://host:port");
        }
        Ok(link)
    }
}
