//! Names of annotations, labels and ports that say something about an engine.

/// Ours: `kvplane.io/kind` and so on.
pub(crate) const PREFIX: &str = "kvplane.io/";
pub(crate) const KIND: &str = "kvplane.io/kind";
pub(crate) const MODEL: &str = "kvplane.io/model";
pub(crate) const EVENTS: &str = "kvplane.io/events";
pub(crate) const REPLAY: &str = "kvplane.io/replay";
pub(crate) const HTTP: &str = "kvplane.io/http";
pub(crate) const RANKS: &str = "kvplane.io/ranks";
pub(crate) const TOPIC: &str = "kvplane.io/topic";
pub(crate) const IGNORE: &str = "kvplane.io/ignore";
/// All of ours.
pub(crate) const OURS: [&str; 8] = [KIND, MODEL, EVENTS, REPLAY, HTTP, RANKS, TOPIC, IGNORE];

/// Container ports by name.
pub(crate) const EVENTS_PORT: &str = "kv-events";
pub(crate) const REPLAY_PORT: &str = "kv-replay";
pub(crate) const HTTP_PORT: &str = "http";

/// `LeaderWorkerSet`.
pub(crate) const LWS_NAME: &str = "leaderworkerset.sigs.k8s.io/name";
pub(crate) const LWS_GROUP: &str = "leaderworkerset.sigs.k8s.io/group-index";
pub(crate) const LWS_WORKER: &str = "leaderworkerset.sigs.k8s.io/worker-index";

/// SMG: ports of the pod's servers, one of each rank.
pub(crate) const SMG_PORTS: &str = "smg.ai/worker-ports";

/// llm-d.
pub(crate) const LLMD_ENGINE: &str = "llm-d.ai/engine-type";
pub(crate) const LLMD_MODEL: &str = "llm-d.ai/model";
pub(crate) const LLMD_ROLE: &str = "llm-d.ai/role";

/// Ports of a pool's that a pod listens at: llm-d's name, and its former one.
#[cfg(feature = "watch")]
pub(crate) const ACTIVE_PORTS: [&str; 2] =
    ["llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"];

/// Dynamo.
pub(crate) const DYNAMO_TYPE: &str = "nvidia.com/dynamo-component-type";
pub(crate) const DYNAMO_SUBTYPE: &str = "nvidia.com/dynamo-sub-component-type";
pub(crate) const DYNAMO_MODEL: &str = "nvidia.com/dynamo-base-model";

/// Labels and annotations that are kept of a pod, besides ours and those that the settings name.
pub(crate) const OTHERS: [&str; 10] = [
    LWS_NAME,
    LWS_GROUP,
    LWS_WORKER,
    SMG_PORTS,
    LLMD_ENGINE,
    LLMD_MODEL,
    LLMD_ROLE,
    DYNAMO_TYPE,
    DYNAMO_SUBTYPE,
    DYNAMO_MODEL,
];
