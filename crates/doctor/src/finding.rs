//! What was found, and the codes that say so.

use std::fmt;

use serde::Serialize;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know; nothing has to be done.
    Info,
    /// It works, and will not always.
    Warning,
    /// Something is not heard, or not right.
    Error,
}

impl Severity {
    /// In one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// Something that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it is called, for ever.
    pub code: Code,
    /// How much it matters.
    pub severity: Severity,
    /// What it is about: `engine/rank`, `engine`, a key of the configuration, or a plane's address.
    pub subject: String,
    /// What was seen.
    pub seen: String,
    /// Why it matters.
    pub why: &'static str,
    /// What to do.
    pub todo: String,
}

impl Finding {
    /// A finding. Why it matters is said by its code.
    pub fn new(
        code: Code,
        severity: Severity,
        subject: impl Into<String>,
        seen: impl Into<String>,
        todo: impl Into<String>,
    ) -> Self {
        Self {
            code,
            severity,
            subject: subject.into(),
            seen: seen.into(),
            why: code.why(),
            todo: todo.into(),
        }
    }
}

/// Declares the codes once: the variant, the word, and why such a finding matters.
macro_rules! codes {
    ($($variant:ident $word:literal $why:literal)*) => {
        /// A code. It keeps its meaning from release to release.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code {
            $(#[doc = $why] $variant,)*
        }

        impl Code {
            /// Every code.
            pub const ALL: &[Code] = &[$(Code::$variant,)*];

            /// The word.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// Why such a finding matters.
            pub fn why(self) -> &'static str {
                match self { $(Self::$variant => $why,)* }
            }
        }
    };
}

codes! {
    EndpointUnreachable "endpoint_unreachable" "no events arrive from this engine, so no prompt is ever found on it"
    Silent "silent" "an engine that publishes nothing looks like one with an empty cache"
    TopicMismatch "topic_mismatch" "messages under another topic are dropped: the engine looks empty while it works"
    PublisherConnects "publisher_connects" "two sides that both connect never meet: no event arrives, and neither side reports an error"
    WrongSocket "wrong_socket" "sockets of incompatible types reject each other, and no event arrives"
    RankMissing "rank_missing" "each rank has its own cache; every prompt is a miss on a rank that is not connected"
    SourcesUntold "sources_untold" "an engine that does not report its event address cannot be followed without `events`"
    ReplayAbsent "replay_absent" "without replay a lost frame costs all that is known of the stream, a late start knows nothing of what is cached, and a restart cannot be proven"
    ReplayTooShort "replay_too_short" "a gap that is older than the replay ring cannot be repaired: what is known of the stream is dropped"
    ReplayOnNextRanksPort "replay_on_next_ranks_port" "rank r publishes at port + r: a replay port among them belongs to another rank, and one of the two is never reached"
    BlockSizeContradiction "block_size_contradiction" "prompts are cut into blocks of the wrong size, and no block of them is ever found"
    EventsDisabled "events_disabled" "the engine does not publish what it caches"
    PrefixCachingOff "prefix_caching_off" "an engine that does not reuse prefixes has nothing to announce, and nothing to route for"
    ClockSkew "clock_skew" "lags and ages computed from the engine's timestamps are off by as much; order and trust do not depend on them"
    HashWidthMix "hash_width_mix" "consumers that compare hashes as they are sent find no match between the two forms"
    UnsupportedLayout "unsupported_layout" "unreadable events are skipped, and answers about this stream are not exact"
    StolenDrain "stolen_drain" "reading TensorRT-LLM's buffer empties it: two readers each get a part of the events, and neither knows the cache"
    EngineVersionBroken "engine_version_broken" "this release is known to publish wrong cache events, or none"
    WindowBelowRate "window_below_rate" "a consumer that is away longer than the window receives a full snapshot instead of the missed events"
    OpenListenerWithoutRoles "open_listener_without_roles" "anyone who reaches the address can read cached prompts or forge events"
    DescriptorLimit "descriptor_limit" "without free file descriptors kvplane can neither follow another engine nor answer another client"
    ConfigInvalid "config_invalid" "kvplane does not start with this configuration"
    ModelUnknown "model_unknown" "queries name the model: under another name nothing is ever found on this engine"
    SharedAddress "shared_address" "one cache is counted for two engines: prompts go to one engine for blocks that only the other holds"
    AddressInUse "address_in_use" "only one process can listen there, so the doctor could not see who connects"
    PlaneUnreachable "plane_unreachable" "kvplane did not answer"
    PlaneUnauthorised "plane_unauthorised" "kvplane rejected the request"
    HistoryMissing "history_missing" "blocks cached before the stream was followed without a gap stay invisible until they are stored again, and the most used prompts are stored again last"
    TokenizerContradicted "tokenizer_contradicted" "text prompts get other token ids here than on the engine, so its cached blocks would not be found; such queries are rejected"
    PredictionDrift "prediction_drift" "an exact prediction that no event explains is a defect of kvplane or of the engine: other answers about the engine may be wrong too"
    DiscoveryForbidden "discovery_forbidden" "kvplane has no permission to read the cluster: added and removed engines go unnoticed"
    DiscoveryUnreachable "discovery_unreachable" "the cluster is not watched: added and removed engines go unnoticed"
    DiscoveryEmpty "discovery_empty" "no engine is found, so no prompt is ever found on one"
    PodNotFollowed "pod_not_followed" "a pod that matches is not followed: no prompt is ever found on it"
    PodAnnotation "pod_annotation" "what the pod says of its engine is not used; another rule decided"
    PortUndeclared "port_undeclared" "policies and meshes that name ports do not let this one through"
    NetworkPolicySuspected "network_policy_suspected" "no events arrive from this engine, so no prompt is ever found on it"
    JournalOff "journal_off" "the next start begins without what streams remember: consumers are reset, and blocks older than the engines' rings are missing"
    StreamNotExact "stream_not_exact" "answers about this stream are less than exact, and say so"
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// Headings of the reference are "### `code`".
    #[test]
    fn every_code_has_its_heading_and_every_heading_its_code() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/doctor.md");
        let page = std::fs::read_to_string(page).unwrap();
        let headings: BTreeSet<&str> =
            page.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`')).collect();
        let codes: BTreeSet<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(headings, codes);
    }

    #[test]
    fn what_matters_more_is_greater() {
        assert!(Severity::Error > Severity::Warning && Severity::Warning > Severity::Info);
    }
}
