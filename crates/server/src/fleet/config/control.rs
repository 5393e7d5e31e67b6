//! How operations reach an engine.

use kvplane_ingest::{ControlSpec, read_token};
use kvplane_ops::Service;
use kvplane_transport::grpc::GrpcSpec;

use super::{EngineConfig, EngineConfigError};

impl EngineConfig {
    /// How the engine is asked to do something, besides over HTTP. Reads certificates, and whether there is a
    /// key.
    pub(super) fn control(&self) -> Result<ControlSpec, EngineConfigError> {
        let wrong = |message: String| Err(EngineConfigError::Value { key: "api_key_file", message });
        if let Some(path) = &self.api_key_file {
            if self.http.is_none() {
                return wrong("is for the engine's HTTP server: give http too".to_owned());
            }
            if let Err(error) = read_token(path) {
                return Err(EngineConfigError::file("api_key_file", &error));
            }
        }
        let server = self.grpc.clone().map(|url| ("grpc", url)).or_else(|| self.subscribed_to());
        let grpc = match server {
            Some((key, url)) => {
                let ca = self.certificates(key, &url)?;
                let services = Service::of(self.kind).iter().map(|service| service.name()).collect();
                Some(GrpcSpec { url, ca, services })
            }
            None => None,
        };
        let fronted = self.front.is_some() && self.grpc.is_some();
        Ok(ControlSpec { grpc, api_key_file: self.api_key_file.clone(), fronted })
    }
}
