//! An engine that pods were found to be.

use kvplane_core::EngineKind;
use schemars::JsonSchema;
use serde::Serialize;

/// An engine, and why it is described so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its name: `namespace/pod`, or the group's.
    pub id: String,
    /// The pods that it is made of, the leader first.
    pub pods: Vec<PodRef>,
    /// Its software.
    pub kind: EngineKind,
    /// The model that it serves.
    pub model: String,
    /// Topic prefix, where somebody said one.
    pub topic: Option<String>,
    /// Its HTTP server.
    pub http: Option<String>,
    /// Where its ranks publish.
    pub at: Where,
    /// When its containers started, Unix milliseconds: a hint.
    pub started_ms: Option<u64>,
    /// What was decided, key by key.
    pub decided: Vec<Decided>,
    /// What is wrong, and how to fix it.
    pub remarks: Vec<Remark>,
}

/// Where an engine's ranks publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Where {
    /// At known addresses.
    Known(Vec<RankAt>),
    /// The engine is asked for what is absent here.
    Asked {
        /// Rank 0's events.
        events: Option<String>,
        /// Rank 0's replay socket.
        replay: Option<String>,
        /// How many ranks.
        ranks: Option<u32>,
        /// Events of an engine that cannot tell.
        usual_events: String,
        /// Its replay socket.
        usual_replay: Option<String>,
    },
}

/// One rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankAt {
    /// Its number.
    pub rank: u32,
    /// Where it publishes.
    pub events: String,
    /// Its replay socket.
    pub replay: Option<String>,
}

/// A pod by its identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PodRef {
    /// `namespace/name`.
    pub pod: String,
    /// Which of that name.
    pub uid: String,
}

/// One key, its value, and the rule that decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Decided {
    /// As in `[[engine]]`.
    pub key: &'static str,
    /// What it is.
    pub value: String,
    /// Where that was said.
    pub rule: String,
}

/// Something that is wrong with a pod, or will be missed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Remark {
    /// A stable word.
    pub code: &'static str,
    /// What is wrong, then what to do.
    pub text: String,
}

impl Wanted {
    /// Whether both are one engine that is described alike: no socket needs to be opened anew. Ranks at known addresses
    /// may differ, because each has a socket of its own.
    pub fn is_same(&self, other: &Self) -> bool {
        let key = |one: &Self| {
            let at = match &one.at {
                Where::Known(_) => None,
                asked @ Where::Asked { .. } => Some(asked.clone()),
            };
            let leader = one.pods.first().map(|pod| pod.uid.clone());
            (one.id.clone(), leader, one.kind, one.model.clone(), one.topic.clone(), one.http.clone(), at)
        };
        key(self) == key(other)
    }
}
