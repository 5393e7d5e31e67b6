//! The engines behind the gateway: which endpoint serves which model, and how each of them is.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use http::HeaderValue;
use kvplane_inference::{Endpoint, Pool};
use parking_lot::{Mutex, RwLock};
use serde_json::Value;

use crate::health::{Health, HealthOptions, Standing};
use crate::upstream::Connections;

/// One address of an engine.
#[derive(Clone)]
pub struct Upstream {
    /// Where it is, and what it does.
    pub endpoint: Endpoint,
    /// The model that it serves.
    pub model: String,
    /// What it is called in `Host`.
    pub host: HeaderValue,
    /// What the engine asks its callers for. To be marked as sensitive.
    pub authorization: Option<HeaderValue>,
    /// The engine's software: `vllm`, `sglang` or `other`.
    pub kind: &'static str,
    /// Where `SGLang`'s engines that decode meet this one, if it prefills.
    pub bootstrap_port: u16,
}

/// Where `SGLang` listens for engines that decode, unless configured otherwise.
pub const BOOTSTRAP_PORT: u16 = 8998;

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream")
            .field("endpoint", &self.endpoint)
            .field("model", &self.model)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// Whether an engine computes from ids that it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TakesIds {
    /// Not tried.
    Unknown,
    Yes,
    No,
}

/// What is known of an endpoint. Stays while its address does.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) connections: Connections,
    health: Mutex<Health>,
    /// What it says that it serves.
    learned: RwLock<Arc<Vec<Card>>>,
    pub(crate) in_flight: AtomicUsize,
    takes_ids: AtomicU8,
}

/// A model as an engine describes it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Card {
    pub(crate) id: String,
    /// The model, of an adapter.
    pub(crate) parent: Option<String>,
    pub(crate) json: Value,
}

/// An endpoint and its state.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) upstream: Upstream,
    pub(crate) state: Arc<State>,
}

/// A model or an adapter that can be asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Served {
    /// The model, by which blocks are known.
    pub(crate) base: String,
    /// The adapter, where it is one.
    pub(crate) adapter: Option<String>,
    /// Who serves it.
    pub(crate) places: Vec<usize>,
}

/// All of it, at one moment. Members are in the order of the pool.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    pub(crate) pool: Arc<Pool>,
    pub(crate) members: Vec<Member>,
    models: HashMap<String, Served>,
}

impl State {
    fn new(address: SocketAddr) -> Self {
        Self {
            connections: Connections::new(address),
            health: Mutex::default(),
            learned: RwLock::default(),
            in_flight: AtomicUsize::new(0),
            takes_ids: AtomicU8::new(0),
        }
    }

    pub(crate) fn standing(&self, now: Duration) -> Standing {
        self.health.lock().standing(now)
    }

    pub(crate) fn with_health<T>(&self, change: impl FnOnce(&mut Health) -> T) -> T {
        change(&mut self.health.lock())
    }

    pub(crate) fn probed(&self, options: &HealthOptions, well: bool, now: Duration) {
        self.health.lock().probed(options, well, now);
    }

    pub(crate) fn takes_ids(&self) -> TakesIds {
        match self.takes_ids.load(Ordering::Relaxed) {
            1 => TakesIds::Yes,
            2 => TakesIds::No,
            _ => TakesIds::Unknown,
        }
    }

    pub(crate) fn set_takes_ids(&self, takes: TakesIds) {
        self.takes_ids.store(takes as u8, Ordering::Relaxed);
    }

    /// What it serves now. `true`: that is something new.
    pub(crate) fn learn(&self, cards: Vec<Card>) -> bool {
        let mut learned = self.learned.write();
        let changed = **learned != cards;
        if changed {
            *learned = Arc::new(cards);
        }
        changed
    }

    pub(crate) fn learned(&self) -> Arc<Vec<Card>> {
        self.learned.read().clone()
    }
}

impl Fleet {
    /// The endpoints with what was known of those among them that were there before.
    pub(crate) fn new(upstreams: Vec<Upstream>, before: &Self) -> Self {
        let pool = Pool::new(upstreams.iter().map(|one| one.endpoint.clone()).collect());
        // The same pool stays: what was looked up for it is still right.
        let pool = if *before.pool == pool { before.pool.clone() } else { Arc::new(pool) };
        let mut by_address: HashMap<SocketAddr, Upstream> = HashMap::with_capacity(upstreams.len());
        for upstream in upstreams {
            by_address.entry(upstream.endpoint.address).or_insert(upstream);
        }
        let known: HashMap<SocketAddr, &Member> =
            before.members.iter().map(|member| (member.upstream.endpoint.address, member)).collect();
        let members: Vec<Member> = pool
            .endpoints()
            .iter()
            .filter_map(|endpoint| by_address.remove(&endpoint.address))
            .map(|upstream| {
                let address = upstream.endpoint.address;
                // Another engine at the same address is another one.
                let same = known.get(&address).filter(|member| {
                    member.upstream.model == upstream.model
                        && member.upstream.endpoint.engine == upstream.endpoint.engine
                });
                let state = same.map_or_else(|| Arc::new(State::new(address)), |member| member.state.clone());
                Member { upstream, state }
            })
            .collect();
        let models = models(&members);
        Self { pool, members, models }
    }

    /// The same endpoints, with what they have said since.
    pub(crate) fn refreshed(&self) -> Self {
        Self { pool: self.pool.clone(), members: self.members.clone(), models: models(&self.members) }
    }

    /// Who serves a model or an adapter.
    pub(crate) fn find(&self, model: &str) -> Option<&Served> {
        self.models.get(model)
    }

    /// The only model that there is.
    pub(crate) fn only(&self) -> Option<&Served> {
        let mut bases = self.models.iter().filter(|(name, served)| **name == served.base);
        let (_, served) = bases.next()?;
        bases.next().is_none().then_some(served)
    }

    /// Every model and adapter, by name: as an engine describes it, where one does.
    pub(crate) fn cards(&self) -> Vec<(String, Value)> {
        let mut cards: HashMap<&str, Value> = HashMap::new();
        for member in &self.members {
            for card in member.state.learned().iter() {
                if let Some((name, _)) = self.models.get_key_value(&card.id) {
                    cards.entry(name).or_insert_with(|| card.json.clone());
                }
            }
        }
        let made = |name: &str| serde_json::json!({"id": name, "object": "model", "created": 0, "owned_by": "kvplane"});
        let mut all: Vec<(String, Value)> = self
            .models
            .keys()
            .map(|name| (name.clone(), cards.remove(name.as_str()).unwrap_or_else(|| made(name))))
            .collect();
        all.sort_by(|left, right| left.0.cmp(&right.0));
        all
    }
}

/// Models and adapters by name. A name that is configured for one engine counts before one that another says.
fn models(members: &[Member]) -> HashMap<String, Served> {
    let mut models: HashMap<String, Served> = HashMap::new();
    let add = |models: &mut HashMap<String, Served>, name: &str, base: &str, place: usize| {
        let served = models.entry(name.to_owned()).or_insert_with(|| Served {
            base: base.to_owned(),
            adapter: (name != base).then(|| name.to_owned()),
            places: Vec::new(),
        });
        if served.base == base && !served.places.contains(&place) {
            served.places.push(place);
        }
    };
    for (place, member) in members.iter().enumerate() {
        let base = member.upstream.model.as_str();
        add(&mut models, base, base, place);
    }
    for (place, member) in members.iter().enumerate() {
        let base = member.upstream.model.as_str();
        for card in member.state.learned().iter() {
            // Another name of the model itself has the model's blocks.
            if card.parent.is_some() {
                add(&mut models, &card.id, base, place);
            } else if card.id != base {
                let served = models
                    .entry(card.id.clone())
                    .or_insert_with(|| Served { base: base.to_owned(), ..Served::default() });
                if served.base == base && !served.places.contains(&place) {
                    served.places.push(place);
                }
            }
        }
    }
    models
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstream(port: u16, model: &str) -> Upstream {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let endpoint = Endpoint { engine: Some(format!("e{port}")), ..Endpoint::at(address) };
        let host = HeaderValue::from_static("h");
        let (model, authorization) = (model.to_owned(), None);
        Upstream { endpoint, model, host, authorization, kind: "vllm", bootstrap_port: BOOTSTRAP_PORT }
    }

    fn card(id: &str, parent: Option<&str>) -> Card {
        Card { id: id.to_owned(), parent: parent.map(str::to_owned), json: Value::from(id) }
    }

    #[test]
    fn adapters_are_learned_and_served_where_they_are() {
        let fleet = Fleet::new(vec![upstream(1, "m"), upstream(2, "m"), upstream(3, "n")], &Fleet::default());
        assert_eq!(fleet.find("m").unwrap().places, [0, 1]);
        assert!(fleet.find("lora").is_none() && fleet.only().is_none());
        assert!(fleet.members[1].state.learn(vec![
            card("m", None),
            card("lora", Some("m")),
            card("alias", None)
        ]));
        assert!(!fleet.members[1].state.learn(vec![
            card("m", None),
            card("lora", Some("m")),
            card("alias", None)
        ]));
        let fleet = fleet.refreshed();
        let lora = fleet.find("lora").unwrap();
        assert_eq!(
            (lora.base.as_str(), lora.adapter.as_deref(), &lora.places[..]),
            ("m", Some("lora"), &[1][..])
        );
        let alias = fleet.find("alias").unwrap();
        assert_eq!((alias.base.as_str(), &alias.adapter, &alias.places[..]), ("m", &None, &[1][..]));
        let names: Vec<String> = fleet.cards().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["alias", "lora", "m", "n"]);
    }

    #[test]
    fn an_endpoint_that_stays_keeps_its_state() {
        let before = Fleet::new(vec![upstream(1, "m"), upstream(2, "m")], &Fleet::default());
        before.members[1].state.set_takes_ids(TakesIds::Yes);
        let after = Fleet::new(vec![upstream(2, "m"), upstream(3, "m")], &before);
        assert_eq!(after.members[0].state.takes_ids(), TakesIds::Yes);
        assert_eq!(after.members[1].state.takes_ids(), TakesIds::Unknown);
        let same = Fleet::new(vec![upstream(2, "m"), upstream(3, "m")], &after);
        assert!(Arc::ptr_eq(&same.pool, &after.pool));
        // Two at one address are one.
        assert_eq!(Fleet::new(vec![upstream(2, "m"), upstream(2, "n")], &after).members.len(), 1);
    }
}
