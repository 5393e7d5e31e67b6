//! Endpoints that requests may be sent to.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use kvplane_route::Role;

/// Labels that say more of an endpoint.
const ROLE: &str = "llm-d.ai/role";
const ENGINE: &str = "kvplane.io/engine";
const RANK: &str = "kvplane.io/rank";

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its name, where it was given one.
    pub name: String,
    /// The engine behind it; absent: the one of its name, or whose `http` is its address.
    pub engine: Option<String>,
    /// The rank behind it; absent: all ranks of the engine.
    pub rank: Option<u32>,
    /// What it does with prompts; absent: nothing, as it only encodes.
    pub role: Option<Role>,
    /// It encodes images for others.
    pub encodes: bool,
    /// It takes requests now.
    pub ready: bool,
}

impl Endpoint {
    /// One that does everything, and is ready.
    pub fn at(address: SocketAddr) -> Self {
        Self {
            address,
            name: String::new(),
            engine: None,
            rank: None,
            role: Some(Role::Both),
            encodes: false,
            ready: true,
        }
    }

    /// Takes what labels say of it: llm-d's of roles, and kvplane's of engines and ranks.
    pub fn read_labels(&mut self, label: impl Fn(&str) -> Option<String>) -> Result<(), String> {
        if let Some(role) = label(ROLE) {
            self.set_role(&role).map_err(|reason| format!("label {ROLE}: {reason}"))?;
        }
        if let Some(rank) = label(RANK) {
            let rank = rank.parse().map_err(|_| format!("label {RANK}: {rank:?} is not a rank"))?;
            self.rank = Some(rank);
        }
        self.engine = label(ENGINE).or_else(|| self.engine.take());
        Ok(())
    }

    /// Takes a role by llm-d's name.
    pub fn set_role(&mut self, name: &str) -> Result<(), String> {
        (self.role, self.encodes) = match name {
            "both" | "prefill-decode" => (Some(Role::Both), false),
            "encode-prefill-decode" | "all" => (Some(Role::Both), true),
            "prefill" => (Some(Role::Prefill), false),
            "encode-prefill" => (Some(Role::Prefill), true),
            "decode" => (Some(Role::Decode), false),
            "encode-decode" => (Some(Role::Decode), true),
            "encode" => (None, true),
            _ => {
                return Err(format!(
                    "{name:?} is not prefill, decode, encode, both, or some of them with hyphens"
                ));
            }
        };
        Ok(())
    }

    /// Whether a gateway may send it requests.
    pub fn takes_requests(&self) -> bool {
        self.ready && matches!(self.role, Some(Role::Both | Role::Decode))
    }

    /// Whether it may be picked for a part of a request.
    pub fn serves(&self, wanted: Role) -> bool {
        match wanted {
            Role::Prefill => self.ready && self.role.is_some_and(|role| role.serves(Role::Prefill)),
            Role::Both | Role::Decode => self.takes_requests(),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

/// All of them, at one moment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Pool {
    endpoints: Vec<Endpoint>,
    by_address: HashMap<SocketAddr, usize>,
}

/// Endpoints of a pool that may be picked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed {
    /// Every one.
    All,
    /// Their places.
    Some(Vec<usize>),
}

impl Pool {
    /// A pool. Of two endpoints with one address the first counts.
    pub fn new(endpoints: Vec<Endpoint>) -> Self {
        let mut by_address = HashMap::with_capacity(endpoints.len());
        let mut distinct: Vec<Endpoint> = Vec::with_capacity(endpoints.len());
        for endpoint in endpoints {
            by_address.entry(endpoint.address).or_insert_with(|| {
                distinct.push(endpoint);
                distinct.len() - 1
            });
        }
        Self { endpoints: distinct, by_address }
    }

    /// Every endpoint.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// The endpoint at an address.
    pub fn at(&self, address: &str) -> Option<&Endpoint> {
        let address: SocketAddr = address.parse().ok()?;
        self.by_address.get(&address).map(|at| &self.endpoints[*at])
    }

    /// What a subset allows: addresses with a port, or all ports of an address.
    pub fn subset(&self, subset: &[String]) -> Allowed {
        let mut places = Vec::with_capacity(subset.len());
        for wanted in subset {
            if let Ok(address) = wanted.parse::<SocketAddr>() {
                places.extend(self.by_address.get(&address));
            } else if let Ok(ip) = wanted.trim_matches(['[', ']']).parse::<IpAddr>() {
                let here = self.endpoints.iter().enumerate().filter(|(_, one)| one.address.ip() == ip);
                places.extend(here.map(|(at, _)| at));
            }
        }
        places.sort_unstable();
        places.dedup();
        Allowed::Some(places)
    }
}

impl Allowed {
    /// Whether the endpoint at a place is among them.
    pub fn has(&self, place: usize) -> bool {
        match self {
            Self::All => true,
            Self::Some(places) => places.binary_search(&place).is_ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(addresses: &[&str]) -> Pool {
        Pool::new(addresses.iter().map(|address| Endpoint::at(address.parse().unwrap())).collect())
    }

    #[test]
    fn subsets_name_ports_or_whole_addresses() {
        let pool = pool(&["10.0.0.1:80", "10.0.0.1:81", "[::1]:80", "10.0.0.1:80"]);
        assert_eq!(pool.endpoints().len(), 3);
        let subset = |names: &[&str]| pool.subset(&names.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(subset(&["10.0.0.1:81"]), Allowed::Some(vec![1]));
        assert_eq!(subset(&["10.0.0.1", "10.0.0.1:80"]), Allowed::Some(vec![0, 1]));
        assert_eq!(subset(&["[::1]:80", "::1", "[::1]"]), Allowed::Some(vec![2]));
        assert_eq!(subset(&["10.0.0.2:80", "nonsense", ""]), Allowed::Some(vec![]));
        assert_eq!(pool.at("[::1]:80").unwrap().to_string(), "[::1]:80");
        assert!(pool.at("nonsense").is_none());
    }

    #[test]
    fn roles_by_llm_ds_names() {
        let serves = |name: &str| {
            let mut endpoint = Endpoint::at("10.0.0.1:80".parse().unwrap());
            endpoint.set_role(name).unwrap();
            let ready = (endpoint.takes_requests(), endpoint.serves(Role::Prefill), endpoint.encodes);
            endpoint.ready = false;
            assert!(!endpoint.takes_requests() && !endpoint.serves(Role::Prefill), "{name}");
            ready
        };
        for (name, expected) in [
            ("both", (true, true, false)),
            ("prefill", (false, true, false)),
            ("decode", (true, false, false)),
            ("encode", (false, false, true)),
            ("encode-prefill", (false, true, true)),
            ("prefill-decode", (true, true, false)),
            ("encode-prefill-decode", (true, true, true)),
        ] {
            assert_eq!(serves(name), expected, "{name}");
        }
        assert!(Endpoint::at("10.0.0.1:80".parse().unwrap()).set_role("cook").is_err());
    }
}
