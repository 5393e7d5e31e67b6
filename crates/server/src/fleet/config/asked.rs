//! Engines that are asked where they publish.

use kvplane_core::EngineKind;
use kvplane_discovery::{DiscoverySpec, FoundRank, Overrides};
use kvplane_ingest::{Discovered, Endpoint, Published};
use kvplane_transport::grpc::GrpcSpec;

use super::{EngineConfig, EngineConfigError};

impl EngineConfig {
    /// Whether the engine is asked where it publishes.
    pub(super) fn is_asked(&self) -> bool {
        let nothing_said = self.events.is_none() && self.can_tell() && self.can_be_reached();
        self.discover.unwrap_or(nothing_said)
    }

    /// Whether engines of this kind say where they publish.
    fn can_tell(&self) -> bool {
        matches!(self.kind, EngineKind::Vllm | EngineKind::Sglang | EngineKind::Tokenspeed)
    }

    fn can_be_reached(&self) -> bool {
        self.http.is_some() || self.grpc.is_some()
    }

    /// An engine that is asked, and where its ranks are as far as that is configured. Reads certificates.
    pub(super) fn asked(&self) -> Result<Discovered, EngineConfigError> {
        let wrong = |key, message: &str| Err(EngineConfigError::Value { key, message: message.to_owned() });
        if !self.can_be_reached() {
            return wrong("discover", "needs http or grpc, where the engine can be asked");
        }
        if !self.can_tell() {
            return wrong("discover", "only engines of kind vllm, sglang and tokenspeed can be asked");
        }
        if self.republish.is_some() && self.ranks.is_none() {
            return wrong(
                "ranks",
                "is needed to republish an engine that is asked: its ports are bound before",
            );
        }
        if let Some(replay) = &self.replay {
            Published::at_ports(&Endpoint::Connect(replay.clone()), None, self.rank_count())?;
        }
        let ranks = match &self.events {
            None => (0..self.rank_count()).map(FoundRank::unknown).collect(),
            Some(events) if events.starts_with("tcp://") || events.starts_with("ipc://") => {
                let events = Endpoint::Connect(events.clone());
                let known = Published::at_ports(&events, self.replay.as_deref(), self.rank_count())?;
                known.ranks.into_iter().map(FoundRank::from).collect()
            }
            Some(_) => return wrong("discover", "is for events at tcp://… or ipc://…, or for none"),
        };
        let overrides = Overrides {
            events: self.events.clone(),
            replay: self.replay.clone(),
            topic: (!self.topic.is_empty()).then(|| self.topic.clone()),
            ranks: self.ranks,
        };
        let grpc = match &self.grpc {
            Some(url) => {
                let ca = self.certificates("grpc", url)?;
                let services = self.kind.grpc_service().into_iter().collect();
                Some(GrpcSpec { url: url.clone(), ca, services })
            }
            None => None,
        };
        let spec = DiscoverySpec { http: self.http.clone(), grpc, overrides, usual: None };
        Ok(Discovered { spec, ranks })
    }
}
