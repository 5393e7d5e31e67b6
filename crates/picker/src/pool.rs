//! The endpoints that requests may be sent to.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// What an endpoint does with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Role {
    /// Prefill and decode.
    #[default]
    Both,
    /// Prefill for others.
    Prefill,
    /// Decode what others prefilled.
    Decode,
}

impl Role {
    /// By llm-d's label, `llm-d.ai/role`.
    pub(crate) fn of_label(label: &str) -> Option<Self> {
        match label {
            "both" | "prefill-decode" | "encode-prefill-decode" => Some(Self::Both),
            "prefill" | "encode-prefill" => Some(Self::Prefill),
            "decode" => Some(Self::Decode),
            _ => None,
        }
    }

    /// Whether it takes requests from a gateway.
    pub fn takes_requests(self) -> bool {
        self != Self::Prefill
    }
}

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
    /// What it does.
    pub role: Role,
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
pub(crate) enum Allowed {
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
    pub(crate) fn subset(&self, subset: &[String]) -> Allowed {
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
    pub(crate) fn has(&self, place: usize) -> bool {
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
        let endpoint = |address: &&str| Endpoint {
            address: address.parse().unwrap(),
            name: String::new(),
            engine: None,
            rank: None,
            role: Role::Both,
        };
        Pool::new(addresses.iter().map(endpoint).collect())
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
}
