//! The rules of a plane, and the gate of each listener.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::header::{AUTHORIZATION, HOST, ORIGIN, REFERER};
use http::{HeaderMap, HeaderValue};
use kvplane_transport::{host_and_port, is_nobodys_name};
use parking_lot::RwLock;

use super::keys::{Caller, Keys, KeysError, Proof};
use super::network::Networks;
use super::refusals::{Refusals, Refused};
use super::role::{Needs, Role, Roles};
use crate::listen::Peer;

/// Who may ask this plane. The default is: callers on this machine.
#[derive(Debug, Default)]
pub struct Access {
    keys: RwLock<Arc<Keys>>,
    /// Whose callers need no key on the routes of an indexer.
    networks: RwLock<Arc<Networks>>,
    /// Listeners may be open to everybody.
    insecure: bool,
    refusals: Refusals,
}

/// A listener that would be open to everybody who reaches it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {address} is beyond loopback, and {danger}: {remedy}, or start with --insecure")]
pub struct Exposed {
    what: String,
    address: String,
    danger: &'static str,
    remedy: &'static str,
}

/// A kind of listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// Pages, over HTTP/1.
    Http,
    /// gRPC.
    Grpc,
    /// A front of an engine.
    Front,
}

impl Port {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Http, Self::Grpc, Self::Front];

    /// Its name in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
            Self::Front => "front",
        }
    }
}

/// What stands before a listener.
#[derive(Debug, Clone)]
pub struct Gate {
    access: Arc<Access>,
    port: Port,
    /// What is behind it is open to networks.
    to_networks: bool,
}

// === impl Access ===

impl Access {
    /// With keys it is asked everywhere who calls. `insecure` lets listeners be open to everybody where
    /// nobody is asked.
    pub fn new(keys: Keys, insecure: bool) -> Self {
        Self { keys: RwLock::new(Arc::new(keys)), insecure, ..Self::default() }
    }

    /// Opens the routes of an indexer to networks, from the next request on; to no others. Returns whether
    /// anything changed.
    pub fn open_to(&self, networks: Networks) -> bool {
        let mut current = self.networks.write();
        let changed = **current != networks;
        *current = Arc::new(networks);
        changed
    }

    /// Whether any network may use the routes of an indexer without a key.
    pub fn has_open_networks(&self) -> bool {
        !self.networks.read().is_empty()
    }

    /// Replaces the keys, from the next request on. Calls that are under way go on. Returns whether anything
    /// changed.
    pub fn replace(&self, keys: Keys) -> Result<bool, KeysError> {
        if keys.is_empty() && self.has_keys() {
            return Err(KeysError::Gone);
        }
        let mut current = self.keys.write();
        let changed = **current != keys;
        *current = Arc::new(keys);
        Ok(changed)
    }

    /// Whether it is asked who calls.
    pub fn has_keys(&self) -> bool {
        !self.keys.read().is_empty()
    }

    /// Whether listeners may be open to everybody.
    pub fn is_insecure(&self) -> bool {
        self.insecure
    }

    /// Whether a server of ours may listen there. Pages may where networks are named: nobody else is served.
    pub fn check_listener(&self, what: &str, port: Port, address: SocketAddr) -> Result<(), Exposed> {
        let named = port == Port::Http && self.has_open_networks();
        if self.insecure || self.has_keys() || named || address.ip().to_canonical().is_loopback() {
            return Ok(());
        }
        Err(Exposed {
            what: what.to_owned(),
            address: address.to_string(),
            danger: "anyone who reaches it could read cached prompts",
            remedy: "give callers roles in [auth]",
        })
    }

    /// Whether a socket may be bound there that asks nobody who they are, as those of `ZeroMQ` do.
    pub fn check_open_socket(&self, what: &str, address: &str, opened: bool) -> Result<(), Exposed> {
        if self.insecure || opened || is_loopback(address) {
            return Ok(());
        }
        Err(Exposed {
            what: what.to_owned(),
            address: address.to_owned(),
            danger: "anyone who reaches it can read cached prompts, because ZeroMQ has no authentication",
            remedy: "say open = true where the network is trusted",
        })
    }

    /// Whether a socket may be bound there whose writers are not asked who they are.
    pub fn check_writable_socket(&self, what: &str, address: &str, opened: bool) -> Result<(), Exposed> {
        if self.insecure || opened || is_loopback(address) {
            return Ok(());
        }
        Err(Exposed {
            what: what.to_owned(),
            address: address.to_owned(),
            danger: "anyone who reaches it can publish events, because ZeroMQ has no authentication here",
            remedy: "set events_open = true where the network is trusted",
        })
    }

    /// What stands before a listener of this kind.
    pub fn gate(self: &Arc<Self>, port: Port) -> Gate {
        Gate { access: self.clone(), port, to_networks: false }
    }

    /// Each listener, each reason for refusals, and how often.
    pub fn refused(&self) -> Vec<(&'static str, &'static str, u64)> {
        self.refusals.counted()
    }

    fn recognise(&self, gate: &Gate, headers: &HeaderMap, peer: Option<&Peer>) -> Result<Caller, Refused> {
        let keys = self.keys.read().clone();
        let address = peer.map(|peer| peer.address);
        if keys.is_empty() {
            return self.by_address(gate, headers, address);
        }
        // A token decides alone: a caller that sends one wants to be that identity.
        let (found, proof) = match bearer(headers)? {
            Some(token) => (keys.by_token(token).ok_or(Refused::UnknownToken)?, Proof::Token),
            None => match peer.and_then(|peer| peer.certificate.as_ref()) {
                Some(identity) => {
                    let found = keys.by_certificate(identity).ok_or(Refused::UnknownCertificate)?;
                    (found, Proof::Certificate)
                }
                None => return self.by_network(gate, headers, address).unwrap_or(Err(Refused::NoKey)),
            },
        };
        let (name, role) = found;
        Ok(Caller { name, roles: role.into(), proof, peer: address })
    }

    /// It is the connection's other end that counts: a listener on all addresses has callers from everywhere.
    fn by_address(
        &self,
        gate: &Gate,
        headers: &HeaderMap,
        peer: Option<SocketAddr>,
    ) -> Result<Caller, Refused> {
        let here = peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback());
        if here && is_foreign_page(headers) {
            return Err(Refused::ForeignPage);
        }
        // Pages cannot speak gRPC, and its clients call a server by any name.
        if here && gate.port == Port::Http && has_foreign_host(headers) {
            return Err(Refused::ForeignHost);
        }
        if here {
            let roles = Roles::from(Role::Admin);
            return Ok(Caller { name: "loopback".into(), roles, proof: Proof::Loopback, peer });
        }
        if let Some(found) = self.by_network(gate, headers, peer) {
            return found;
        }
        if self.insecure {
            return Ok(Caller::anyone(peer));
        }
        Err(Refused::NotLoopback)
    }

    /// A caller in a network that this is open to. A browser is none: a page of any site could ask through
    /// it, and the clients that this is for are no browsers.
    fn by_network(
        &self,
        gate: &Gate,
        headers: &HeaderMap,
        peer: Option<SocketAddr>,
    ) -> Option<Result<Caller, Refused>> {
        let address = peer.filter(|_| gate.to_networks)?;
        let (name, role) = self.networks.read().of(address.ip())?;
        if is_of_a_browser(headers) {
            return Some(Err(Refused::ForeignPage));
        }
        Some(Ok(Caller { name, roles: role.into(), proof: Proof::Network, peer }))
    }
}

// === impl Gate ===

impl Gate {
    /// Who calls, if that is somebody who may. `None` is somebody whom nobody needs to know, because nothing
    /// is needed.
    pub fn admit(
        &self,
        needs: Needs,
        headers: &HeaderMap,
        peer: Option<&Peer>,
    ) -> Result<Option<Caller>, Refused> {
        let recognised = self.access.recognise(self, headers, peer);
        let (refused, caller) = match (recognised, needs) {
            (Ok(caller), _) if caller.roles.meet(needs) => return Ok(Some(caller)),
            (Err(_), Needs::Nothing) => return Ok(None),
            (Err(refused), _) => (refused, None),
            (Ok(caller), Needs::Role(_)) if caller.proof == Proof::Nothing => {
                (Refused::NotLoopback, Some(caller))
            }
            (Ok(caller), Needs::Role(role)) => (Refused::WrongRole(role), Some(caller)),
            // Every recognised caller has a role.
            (Ok(caller), Needs::Nothing | Needs::AnyRole) => return Ok(Some(caller)),
        };
        let name = caller.as_ref().map(|caller| &*caller.name);
        self.access.refusals.count(self.port, refused, peer.map(|peer| peer.address), name);
        Err(refused)
    }

    /// The same gate, before something that is open to networks or not.
    pub(super) fn open_to_networks(&self, to_networks: bool) -> Self {
        Self { to_networks, ..self.clone() }
    }

    /// Takes tokens of ours off a request that goes elsewhere. Other tokens are for the receiver.
    pub fn strip_own_token(&self, headers: &mut HeaderMap) {
        let keys = self.access.keys.read().clone();
        let is_ours = |value: &HeaderValue| token(value).is_some_and(|token| keys.by_token(token).is_some());
        if keys.is_empty() || !headers.get_all(AUTHORIZATION).iter().any(is_ours) {
            return;
        }
        let others: Vec<HeaderValue> =
            headers.get_all(AUTHORIZATION).iter().filter(|value| !is_ours(value)).cloned().collect();
        headers.remove(AUTHORIZATION);
        for other in others {
            headers.append(AUTHORIZATION, other);
        }
    }

    /// Whether it is asked who calls.
    pub fn has_keys(&self) -> bool {
        self.access.has_keys()
    }
}

/// The bearer token of a request, if it has one.
fn bearer(headers: &HeaderMap) -> Result<Option<&[u8]>, Refused> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = given.next() else { return Ok(None) };
    if given.next().is_some() {
        return Err(Refused::NotBearer);
    }
    token(value).map(Some).ok_or(Refused::NotBearer)
}

/// The token of an `authorization` that has one.
fn token(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, token) = value.as_bytes().split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// Whether a browser sends this for a page that is not of this machine. Such a page can post where its reader
/// can, and its reader is on this machine.
fn is_foreign_page(headers: &HeaderMap) -> bool {
    !headers.get_all(ORIGIN).iter().all(|origin| origin.to_str().is_ok_and(is_local_origin))
}

/// Whether a browser sends this, for any page.
fn is_of_a_browser(headers: &HeaderMap) -> bool {
    headers.contains_key(ORIGIN) || headers.contains_key(REFERER) || headers.contains_key("sec-fetch-site")
}

/// Whether an `Origin` is a page that this machine serves: `http://` or `https://`, a loopback host, at most
/// a port.
fn is_local_origin(origin: &str) -> bool {
    let lower = origin.to_ascii_lowercase();
    let Some(rest) = lower.strip_prefix("http://").or_else(|| lower.strip_prefix("https://")) else {
        return false;
    };
    host_and_port(rest).is_some_and(|(host, _)| is_loopback_host(host))
}

/// Whether this is asked of a name that is not this machine's: a page of the name's owner may be behind it,
/// and sends no foreign `Origin`.
fn has_foreign_host(headers: &HeaderMap) -> bool {
    !headers.get_all(HOST).iter().all(|host| host.to_str().is_ok_and(is_nobodys_name))
}

/// Whether only this machine reaches `tcp://host:port` or `ipc://path`.
pub fn is_loopback(address: &str) -> bool {
    let Some(rest) = address.strip_prefix("tcp://") else {
        // A path on this machine.
        return address.starts_with("ipc://");
    };
    rest.rsplit_once(':').is_some_and(|(host, _)| is_loopback_host(host))
}

fn is_loopback_host(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let number = bare.parse::<IpAddr>();
    number.map_or(host == "localhost", |number| number.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_of_this_machine_are_exact() {
        for local in [
            "http://localhost",
            "http://localhost:8090",
            "https://LOCALHOST",
            "http://127.0.0.1:3000",
            "http://127.9.9.9",
            "http://[::1]",
            "http://[::1]:8090",
        ] {
            assert!(is_local_origin(local), "{local}");
        }
        for foreign in [
            "localhost",
            "127.0.0.1",
            "moz-extension://localhost",
            "chrome-extension://localhost",
            "file://localhost",
            "null",
            "",
            "http://",
            "http://localhost.evil",
            "http://evil.localhost",
            "http://[::1].evil",
            "http://[::1]evil",
            "http://[::1",
            "http://::1]",
            "http://localhost:port",
            "http://localhost:",
            "http://localhost:99999",
            "http://user@localhost",
            "http://localhost/path",
            "http://localhost evil",
            "http://10.0.0.1",
            "http://127.0.0.1.evil",
        ] {
            assert!(!is_local_origin(foreign), "{foreign}");
        }
    }
}
