//! Sockets that others connect to, and whether they ask who connects.

use schemars::JsonSchema;
use serde::Serialize;

use crate::auth::is_loopback;
use crate::fleet::EngineConfig;

/// A socket that others connect to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Listener {
    /// What it is for: the key that configures it, and the engine.
    pub name: String,
    /// Where it listens.
    pub address: String,
    /// Only this machine reaches it.
    pub loopback: bool,
    /// Whether callers have to show a key.
    pub keys: bool,
    /// Somebody said by a key of its own that it may be open.
    pub opened: bool,
}

impl Listener {
    /// A socket at `host:port`, or at an address with its transport in front.
    pub fn new(name: impl Into<String>, address: impl Into<String>, keys: bool, opened: bool) -> Self {
        let address = address.into();
        let loopback = if address.contains("://") {
            is_loopback(&address)
        } else {
            is_loopback(&format!("tcp://{address}"))
        };
        Self { name: name.into(), address, loopback, keys, opened }
    }
}

impl EngineConfig {
    /// Where kvplane listens for the engine's events, if the engine connects.
    pub(crate) fn bound_events(&self) -> Option<&str> {
        self.events.as_deref().and_then(|events| events.strip_prefix("bind:"))
    }

    /// What listens for this engine, in a plane with or without keys.
    pub fn listeners(&self, has_keys: bool) -> Vec<Listener> {
        let named = |key: &str| format!("{key} of engine {:?}", self.id);
        let mut all = Vec::new();
        if let Some(front) = self.front {
            let keys = has_keys && !self.front_open;
            all.push(Listener::new(named("front"), front.to_string(), keys, self.front_open));
        }
        // ZeroMQ asks nobody.
        if let Some(republish) = &self.republish {
            for address in std::iter::once(&republish.events).chain(&republish.replay) {
                all.push(Listener::new(named("republish"), address, false, republish.open));
            }
        }
        if let Some(address) = self.bound_events() {
            all.push(Listener::new(named("events"), address, false, self.events_open));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_an_engine_opens_and_to_whom() {
        let config: EngineConfig = serde_json::from_value(json!({
            "id": "e", "kind": "vllm", "events": "bind:tcp://0.0.0.0:5557", "front": "0.0.0.0:50051",
            "republish": {"events": "tcp://127.0.0.1:6000", "replay": "ipc:///run/replay"},
        }))
        .unwrap();
        let open = |has_keys| -> Vec<String> {
            let all = config.listeners(has_keys).into_iter();
            all.filter(|at| !at.loopback && !at.keys).map(|at| at.name).collect()
        };
        assert_eq!(open(true), ["events of engine \"e\""]);
        assert!(config.listeners(true).iter().all(|at| !at.opened));
        let opened = EngineConfig { events_open: true, ..config.clone() };
        assert!(opened.listeners(true).iter().any(|at| at.opened && at.name.starts_with("events")));
        assert_eq!(open(false), ["front of engine \"e\"", "events of engine \"e\""]);
    }
}
