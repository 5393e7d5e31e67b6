//! Which engine to ask, and what the operator configured about it.

use kvplane_transport::grpc::GrpcSpec;

/// An engine that is asked where its ranks publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoverySpec {
    /// Its HTTP server: `http://host:port`.
    pub http: Option<String>,
    /// Its gRPC server, with the service that engines of its kind have.
    pub grpc: Option<GrpcSpec>,
    /// What the operator configured.
    pub overrides: Overrides,
    /// Where it publishes if it cannot tell.
    pub usual: Option<Usual>,
}

/// Where an engine publishes that has no page which tells: an older one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usual {
    /// Rank 0's events; rank r is at port + r.
    pub events: String,
    /// Rank 0's replay socket.
    pub replay: Option<String>,
}

/// What the operator configured about an engine that is asked. It wins over the engine's answer, key by key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Overrides {
    /// Where rank 0 publishes; rank r is at port + r.
    pub events: Option<String>,
    /// Rank 0's replay socket; rank r is at port + r.
    pub replay: Option<String>,
    /// Topic prefix.
    pub topic: Option<String>,
    /// The number of ranks.
    pub ranks: Option<u32>,
}
