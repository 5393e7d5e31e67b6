//! The sockets that others connect to, and whether they ask who connects.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use kvplane_access::{Access, Listener};
use tokio::net::TcpListener;

use crate::fleet::{EngineConfig, Fleet};

/// The servers' own listeners, and those of the fleet's engines.
#[derive(Debug)]
pub(crate) struct Doors {
    access: Arc<Access>,
    fleet: Fleet,
    /// Where the servers listen, once they do: the key that configures it, and the address.
    open: OnceLock<Vec<(&'static str, SocketAddr)>>,
}

impl Doors {
    pub(crate) fn new(access: Arc<Access>, fleet: Fleet) -> Self {
        Self { access, fleet, open: OnceLock::new() }
    }

    /// Notes where the servers listen.
    pub(crate) fn note(&self, doors: &[(&'static str, &TcpListener)]) {
        let known = doors.iter().filter_map(|(name, door)| Some((*name, door.local_addr().ok()?)));
        // Servers run once.
        let _ = self.open.set(known.collect());
    }

    /// Every socket that others connect to.
    pub(crate) fn listeners(&self) -> Vec<Listener> {
        let keys = self.access.has_keys();
        let open = self.access.has_open_networks();
        let doors = self.open.get().into_iter().flatten();
        let mut all: Vec<Listener> = doors
            .map(|(name, address)| {
                // Networks are open on purpose, and asked for no key.
                let opened = open && *name == "listen.http";
                Listener::new(*name, address.to_string(), keys && !opened, opened)
            })
            .collect();
        all.extend(self.fleet.listeners(keys));
        all
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
