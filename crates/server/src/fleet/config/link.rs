//! Another kvplane, as people describe it.

use kvplane_ingest::LinkSpec;
use kvplane_proto::Bearer;

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
            ("api_key_file", self.api_key_file.is_some()),
            ("front", self.front.is_some()),
            ("front_open", self.front_open),
            ("events_open", self.events_open),
            ("republish", self.republish.is_some()),
        ];
        if let Some((key, _)) = foreign.into_iter().find(|(_, given)| *given) {
            return wrong(key, "is not for another kvplane: its engines are as they are there");
        }
        let ca = self.certificates("grpc", url)?;
        if self.grpc_ca.is_some() && ca.is_none() {
            return wrong("grpc_ca", "is for an https address");
        }
        let (url, engine) = (url.clone(), self.upstream.clone());
        let link = LinkSpec {
            url,
            ca,
            token_file: self.token_file.clone(),
            bearer: Bearer::default(),
            engine,
            max_silence: self.max_silence.map(|max| max.0),
        };
        if let Err(error) = link.token() {
            return Err(EngineConfigError::file("token_file", &error));
        }
        if link.endpoint().is_err() {
            return wrong("grpc", "is not a URL like http://host:port or https://host:port");
        }
        Ok(link)
    }
}
