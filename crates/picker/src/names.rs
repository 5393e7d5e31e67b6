//! Headers and metadata of the endpoint picker protocol, and of llm-d's router.

/// Where the request is to go: a header, and a key of [`LB`].
pub(crate) const DESTINATION: &str = "x-gateway-destination-endpoint";
/// What each endpoint was worth: a key of [`LB`].
pub(crate) const SCORES: &str = "x-gateway-destination-endpoint-scores";
/// Who answered: a key of [`LB`] in the response's phase.
pub(crate) const SERVED: &str = "x-gateway-destination-endpoint-served";
/// Which endpoints may be picked: a key of [`SUBSET_HINT`].
pub(crate) const SUBSET: &str = "x-gateway-destination-endpoint-subset";
/// The namespace of metadata that load balancers read.
pub(crate) const LB: &str = "envoy.lb";
/// The namespace of the subset.
pub(crate) const SUBSET_HINT: &str = "envoy.lb.subset_hint";

/// Attributes that Envoy fills in the response's phase.
pub(crate) const UPSTREAM_ADDRESS: &str = "upstream.address";
pub(crate) const UPSTREAM_ATTEMPTS: &str = "upstream.request_attempt_count";

/// Where llm-d's decode sidecar sends the prefill.
pub(crate) const PREFILLER: &str = "x-prefiller-host-port";
/// Where llm-d's sidecar sends images to be encoded: a list.
pub(crate) const ENCODERS: &str = "x-encoder-hosts-ports";
/// Who holds more of the prompt than the one that computes it.
pub(crate) const KV_SOURCE: &str = "x-kv-cache-source-host-port";
/// The rank of an engine that serves all its ranks at one port.
pub(crate) const RANK: &str = "x-data-parallel-rank";

/// Asks for the name of the receipt, and carries it back.
pub(crate) const RECEIPT: &str = "x-kvplane-receipt";
/// The length of a body, which changes with it.
pub(crate) const CONTENT_LENGTH: &str = "content-length";
/// Why a request was not sent on.
pub(crate) const DROPPED: &str = "x-llm-d-request-dropped-reason";
/// Whose conversation it is.
pub(crate) const SESSION: &str = "x-session-id";

/// The objective of a request: its present and its former name.
pub(crate) const OBJECTIVE: [&str; 2] = ["x-llm-d-inference-objective", "x-gateway-inference-objective"];

/// The model to ask for in the place of the client's: its present and its former name.
pub(crate) const REWRITE: [&str; 2] = ["x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite"];

/// Never passed on as a client sent them: they are a picker's to set, or a gateway's to read.
pub(crate) fn is_stripped(name: &str) -> bool {
    const PREFIXES: [&str; 3] = ["x-llm-d-", "x-gateway-", "x-slo-"];
    const NAMES: [&str; 6] = [PREFILLER, ENCODERS, KV_SOURCE, "x-data-parallel-host-port", RANK, RECEIPT];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || NAMES.contains(&name)
}
