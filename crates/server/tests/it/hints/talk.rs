//! What gateways and subscribers say, in few words.

use kvplane_ingest::PlaneOptions;
use kvplane_proto::inferencecache as proto;
use kvplane_proto::inferencecache::inference_cache_client::InferenceCacheClient;
use kvplane_server::{HintsOptions, Options};
use tonic::transport::Channel;

use crate::rig::Rig;

pub const TENANT: &str = "tenant";
pub const MODEL: &str = "model";
pub const SCHEME: &str = "vllm";

/// A plane without engines, and a client of its hints.
pub struct Hints {
    pub rig: Rig,
    pub client: InferenceCacheClient<Channel>,
}

impl Hints {
    pub async fn serve() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut HintsOptions)) -> Self {
        let mut options = Options::default();
        change(&mut options.hints);
        let rig = Rig::serving(Vec::new(), PlaneOptions::default(), options).await;
        Self::of(rig).await
    }

    /// A client of what is served.
    pub async fn of(rig: Rig) -> Self {
        let client = InferenceCacheClient::connect(format!("http://{}", rig.grpc)).await.unwrap();
        Self { rig, client }
    }

    /// Sends messages on one stream, and waits for the acknowledgement.
    pub async fn report(&mut self, updates: Vec<proto::CacheStateUpdate>) {
        let ack = self.client.report_cache_state(tokio_stream::iter(updates)).await.unwrap().into_inner();
        assert_eq!(ack, proto::Ack { accepted: true, reason_code: String::new() });
    }

    /// A replica holds a chain.
    pub async fn hold(&mut self, replica: &str, hashes: &[u64]) {
        self.report(vec![update(replica, entries(hashes))]).await;
    }

    pub async fn publish(&mut self, event: proto::CacheEvent) {
        let ack = self.client.publish_event(event).await.unwrap().into_inner();
        assert!(ack.accepted, "{ack:?}");
    }

    pub async fn look_up(&mut self, request: proto::LookupRouteRequest) -> proto::LookupRouteResponse {
        self.client.lookup_route(request).await.unwrap().into_inner()
    }

    /// The reason code, and who is named.
    pub async fn route(&mut self, request: proto::LookupRouteRequest) -> (String, Vec<String>) {
        let response = self.look_up(request).await;
        (response.reason_code, response.replica_scores.into_iter().map(|score| score.replica_id).collect())
    }

    /// A line of `/metrics` that begins like this: its value.
    pub async fn metric(&self, line: &str) -> f64 {
        let page = self.metrics().await;
        let found = page.lines().find_map(|known| known.strip_prefix(line)?.trim().parse().ok());
        found.unwrap_or_else(|| panic!("no {line} in\n{page}"))
    }

    pub async fn metrics(&self) -> String {
        crate::rig::text(self.rig.http, "GET", "/metrics", String::new()).await.1
    }
}

pub fn bytes(hash: u64) -> bytes::Bytes {
    hash.to_be_bytes().to_vec().into()
}

/// One entry a block, as the stock subscriber sends them: blocks of 16 tokens, cumulative counts.
pub fn entries(hashes: &[u64]) -> Vec<proto::PrefixEntry> {
    let entry = |(at, hash): (usize, &u64)| proto::PrefixEntry {
        prefix_hash: bytes(*hash),
        token_count: (at as i32 + 1) * 16,
        ..Default::default()
    };
    hashes.iter().enumerate().map(entry).collect()
}

pub fn update(replica: &str, prefixes: Vec<proto::PrefixEntry>) -> proto::CacheStateUpdate {
    proto::CacheStateUpdate {
        replica_id: replica.to_owned(),
        model_id: MODEL.to_owned(),
        tenant_id: TENANT.to_owned(),
        hash_scheme: SCHEME.to_owned(),
        prefixes,
        ..Default::default()
    }
}

pub fn event(kind: proto::cache_event::Type, replica: &str, hash: Option<u64>) -> proto::CacheEvent {
    proto::CacheEvent {
        r#type: kind.into(),
        replica_id: replica.to_owned(),
        model_id: MODEL.to_owned(),
        tenant_id: TENANT.to_owned(),
        prefix_hash: hash.map(bytes).unwrap_or_default(),
        ..Default::default()
    }
}

/// A lookup that names no prompt yet.
pub fn ask() -> proto::LookupRouteRequest {
    proto::LookupRouteRequest {
        model_id: MODEL.to_owned(),
        tenant_id: TENANT.to_owned(),
        hash_scheme: SCHEME.to_owned(),
        ..Default::default()
    }
}

/// A lookup of a chain of blocks of 16 tokens.
pub fn chain(hashes: &[u64]) -> proto::LookupRouteRequest {
    proto::LookupRouteRequest {
        block_hashes: hashes.iter().copied().map(bytes).collect(),
        block_token_counts: vec![16; hashes.len()],
        ..ask()
    }
}

/// A lookup of one hash.
pub fn exact(hash: u64, tokens: i32) -> proto::LookupRouteRequest {
    proto::LookupRouteRequest { prefix_hash: bytes(hash), prefix_token_count: tokens, ..ask() }
}

pub fn now_us() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros() as i64
}
