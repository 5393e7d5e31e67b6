//! What a picker goes by: endpoints, priorities, and models that stand for others.
//!
//! # Where they come from
//!
//! A [`Picker`](crate::Picker) reads [`Rules`] from a `tokio::sync::watch` and knows nothing of where they
//! come from. What does (the configuration, a file, a cluster) makes a whole new `Rules` when anything
//! changes, and sends it:
//!
//! ```text
//! let (rules, followed) = tokio::sync::watch::channel(Arc::new(Rules::default()));     // not synced: the picker is not ready
//! let mut endpoint = Endpoint::at("10.0.0.1:8000".parse()?);                           // one per pod and port: InferencePool.targetPorts
//! endpoint.name = "vllm-0".into();
//! endpoint.rank = Some(0);                                                             // where every rank has a port of its own
//! endpoint.ready = false;                                                              // kept, and not picked
//! endpoint.read_labels(|name| labels.get(name).cloned())?;                             // llm-d.ai/role, kvplane.io/engine, kvplane.io/rank
//! rules.send_replace(Arc::new(Rules {
//!     pool: Arc::new(Pool::new(vec![endpoint])),
//!     objectives: HashMap::from([("batch".into(), -1)]),                               // InferenceObjective: name and priority
//!     rewrites: Rewrites::new(vec![rewrite]),                                          // InferenceModelRewrite: the oldest object first
//!     synced: true,                                                                    // from now on it is ready
//! }));
//! ```
//!
//! A request is decided by the `Rules` of one moment. When the sender is dropped the last ones stay. Sending
//! costs a rebuild of who is behind which endpoint at the next pick: changes that come together are sent
//! together. An unchanged pool is sent as the same `Arc`.

use std::collections::HashMap;
use std::sync::Arc;

use kvplane_inference::{Endpoint, Pool};

use crate::rewrite::Rewrites;

/// What a picker goes by, at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rules {
    /// The endpoints.
    pub pool: Arc<Pool>,
    /// Priorities by the names of objectives. Those that the options name are used where these are silent.
    pub objectives: HashMap<String, i32>,
    /// Which model is asked for in the place of another. Those of the options are used where these are silent.
    pub rewrites: Rewrites,
    /// All of this was read at least once. Until then the picker is not ready.
    pub synced: bool,
}

impl Rules {
    /// Endpoints, and nothing else.
    pub fn of(endpoints: Vec<Endpoint>) -> Arc<Self> {
        Arc::new(Self { pool: Arc::new(Pool::new(endpoints)), synced: true, ..Self::default() })
    }
}
