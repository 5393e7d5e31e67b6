//! Asking, with every limit that an answer must keep to.

use std::time::Duration;

use http::{StatusCode, Uri};
use kvplane_core::EngineKind;
use kvplane_transport::{HttpClient, NoAnswer};
use serde_json::Value;

use super::place::{Found, place};
use super::spec::DiscoverySpec;
use super::{Description, Refusal, bad, counted, grpc, sglang, vllm};

/// `SGLang` says everything about itself in one answer: some hundred kilobytes. What is larger is not one.
const MAX_ANSWER: usize = 4 << 20;
/// `SGLang` asks its schedulers before it answers.
const DEADLINE: Duration = Duration::from_secs(5);

/// What an answer of some kind of engine means.
type Parse = fn(&Value) -> Result<Description, Refusal>;

/// Asks one engine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Asker {
    kind: EngineKind,
    spec: DiscoverySpec,
    client: HttpClient,
}

impl Asker {
    /// Asks an engine of this kind.
    pub fn new(kind: EngineKind, spec: DiscoverySpec, client: HttpClient) -> Self {
        Self { kind, spec, client }
    }

    /// Whom it asks, and what the operator configured.
    pub fn spec(&self) -> &DiscoverySpec {
        &self.spec
    }

    /// The engine's host, as the operator wrote it. It stands for the wildcards in what the engine says.
    pub(super) fn host(&self) -> String {
        let grpc = self.spec.grpc.as_ref().map(|grpc| &grpc.url);
        let url = self.spec.http.as_ref().or(grpc).and_then(|url| url.parse::<Uri>().ok());
        url.as_ref().and_then(Uri::host).unwrap_or("127.0.0.1").to_owned()
    }

    /// Asks once where the engine's ranks are.
    pub async fn ask(&self) -> Result<Found, Refusal> {
        let overrides = &self.spec.overrides;
        let (description, complaint) = match (self.describe().await, &self.spec.usual) {
            (Err(Refusal::NoSources(reason)), Some(usual)) => {
                let replay = usual.replay.as_deref();
                let publishers = counted(&usual.events, replay, "", overrides.ranks.unwrap_or(1))?;
                let complaint = format!("{reason}: the default ports are used, {}", usual.events);
                (Description { publishers, ..Description::default() }, Some(complaint))
            }
            (answer, _) => (answer?, None),
        };
        let mut found = place(overrides, &self.host(), &description);
        found.complaints.extend(complaint);
        Ok(found)
    }

    /// Asks over HTTP if the engine has that server, and over gRPC for what is still missing.
    pub(super) async fn describe(&self) -> Result<Description, Refusal> {
        let mut answer = match &self.spec.http {
            Some(base) => self.ask_http(base).await,
            None => Err(Refusal::NoSources("there is nobody to ask")),
        };
        let Some(server) = &self.spec.grpc else { return answer };
        if matches!(&answer, Ok(description) if description.block_size.is_some()) {
            return answer;
        }
        let besides = grpc::ask(self.kind, server).await;
        match (&mut answer, besides) {
            (Ok(description), Ok(besides)) => {
                description.block_size = besides.block_size;
                answer
            }
            (Err(_), besides @ Ok(_)) => besides,
            (Err(_), besides @ Err(_)) if self.spec.http.is_none() => besides,
            (_, Err(_)) => answer,
        }
    }

    async fn ask_http(&self, base: &str) -> Result<Description, Refusal> {
        let (paths, parse): (&[&str], Parse) = match self.kind {
            EngineKind::Vllm => (&[vllm::PATH], vllm::parse),
            EngineKind::Sglang => (&sglang::PATHS, sglang::parse),
            EngineKind::Tokenspeed => (&sglang::TOKENSPEED_PATHS, sglang::parse_tokenspeed),
            _ => return Err(Refusal::NoSources("engines of this kind cannot be asked")),
        };
        for path in paths {
            let (status, body) = match self.client.get(base, path, MAX_ANSWER, DEADLINE).await {
                Ok(answer) => answer,
                Err(error @ (NoAnswer::Body | NoAnswer::TooLarge)) => return bad(format!("{path}: {error}")),
                Err(error) => return Err(Refusal::Silent(format!("{path}: {error}"))),
            };
            match status {
                StatusCode::OK => {}
                StatusCode::NOT_FOUND => continue,
                status => return bad(format!("{path} answers {}", status.as_u16())),
            }
            let Ok(answer) = serde_json::from_slice(&body) else { return bad(format!("{path} is not JSON")) };
            return parse(&answer);
        }
        Err(Refusal::NoSources("the engine has no page that tells (404): an older one, or of another kind"))
    }
}
