//! Networks whose callers may use the routes of an indexer without a key: its clients cannot send one.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use super::role::Role;

/// More are a mistake, and every request without a key compares them all.
const NETWORKS_MAX: usize = 256;

/// Addresses that share their first bits: `10.0.0.0/8`, `fd00::/8`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

/// Why a set of networks cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// Not a network.
    #[error("{0:?} is not a network: write 10.0.0.0/8, fd00::/8, or one address")]
    Unreadable(String),
    /// An address within the network, which is likelier a typo.
    #[error("{given}: has bits beyond its prefix; write {meant}")]
    Imprecise {
        /// As written.
        given: String,
        /// The network that this address is in.
        meant: Network,
    },
    /// One network would have two roles.
    #[error("{0} is listed twice")]
    Twice(Network),
    /// Everybody.
    #[error("{0} matches every address: list your clients' networks, or start with --insecure")]
    Everybody(Network),
    /// Too many.
    #[error("more than {NETWORKS_MAX} networks")]
    TooMany,
}

/// The networks that are open, each with what its callers may do on the routes of an indexer. The default is
/// none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Networks(Vec<Open>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Open {
    network: Network,
    role: Role,
    /// The network itself: what its callers are called in logs.
    name: Arc<str>,
}

// === impl Network ===

impl Network {
    /// Whether an address is one of these.
    pub fn contains(self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                address.to_bits() & mask == network.to_bits()
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                address.to_bits() & mask == network.to_bits()
            }
            _ => false,
        }
    }

    /// The network of an address that has bits beyond the prefix.
    fn around(address: IpAddr, prefix: u8) -> Self {
        let address = match address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
                IpAddr::V4((address.to_bits() & mask).into())
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
                IpAddr::V6((address.to_bits() & mask).into())
            }
        };
        Self { address, prefix }
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let unreadable = || NetworkError::Unreadable(text.chars().take(64).collect());
        let (address, prefix) = text.split_once('/').map_or((text, None), |(a, p)| (a, Some(p)));
        let address: IpAddr = address.parse().map_err(|_| unreadable())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => bits,
            Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits.parse().ok().filter(|prefix| *prefix <= bits).ok_or_else(unreadable)?
            }
            Some(_) => return Err(unreadable()),
        };
        let meant = Self::around(address, prefix);
        if meant.address != address {
            return Err(NetworkError::Imprecise { given: text.to_owned(), meant });
        }
        // Callers are compared in their plain form, so that a mapped network would never match.
        if address.to_canonical() != address {
            return Err(unreadable());
        }
        Ok(meant)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

// === impl Networks ===

impl Networks {
    /// Checks that networks do not overlap. Only with `insecure` may one of them be everybody.
    pub fn new(
        given: impl IntoIterator<Item = (Network, Role)>,
        insecure: bool,
    ) -> Result<Self, NetworkError> {
        let mut open: Vec<Open> = Vec::new();
        for (network, role) in given {
            if network.prefix == 0 && !insecure {
                return Err(NetworkError::Everybody(network));
            }
            if open.iter().any(|other| other.network == network) {
                return Err(NetworkError::Twice(network));
            }
            if open.len() == NETWORKS_MAX {
                return Err(NetworkError::TooMany);
            }
            open.push(Open { network, role, name: network.to_string().into() });
        }
        // The narrowest network that an address is in decides.
        open.sort_by_key(|open| std::cmp::Reverse(open.network.prefix));
        Ok(Self(open))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The narrowest network that an address is in: its name and its callers' role.
    pub(super) fn of(&self, address: IpAddr) -> Option<(Arc<str>, Role)> {
        let found = self.0.iter().find(|open| open.network.contains(address))?;
        Some((found.name.clone(), found.role))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_in_their_network_alone() {
        for (text, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("10.1.2.3", "10.1.2.3", "10.1.2.4"),
            ("192.168.4.0/22", "192.168.7.255", "192.168.8.0"),
            ("fd00::/8", "fd12::1", "fe00::1"),
            ("::1", "::1", "::2"),
            ("0.0.0.0/0", "255.255.255.255", "::1"),
            ("::/0", "ffff::", "10.0.0.1"),
        ] {
            assert!(network(text).contains(inside.parse().unwrap()), "{text} {inside}");
            assert!(!network(text).contains(outside.parse().unwrap()), "{text} {outside}");
        }
        // A caller of a listener on all addresses.
        assert!(network("10.0.0.0/8").contains("::ffff:10.0.0.1".parse().unwrap()));
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for wrong in [
            "",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "10.0.0.0/-1",
            "10.0.0/8",
            "::/129",
            "host",
            "::ffff:10.0.0.0/104",
        ] {
            assert!(matches!(wrong.parse::<Network>(), Err(NetworkError::Unreadable(_))), "{wrong}");
        }
        let error = "10.1.2.3/8".parse::<Network>().unwrap_err();
        assert!(error.to_string().ends_with("write 10.0.0.0/8"), "{error}");
    }

    #[test]
    fn the_narrowest_network_decides() {
        let given = [("10.0.0.0/8", Role::Read), ("10.1.0.0/16", Role::Admin)];
        let networks = Networks::new(given.map(|(text, role)| (network(text), role)), false).unwrap();
        let role = |address: &str| networks.of(address.parse().unwrap()).map(|(_, role)| role);
        assert_eq!(role("10.1.0.1"), Some(Role::Admin));
        assert_eq!(role("10.2.0.1"), Some(Role::Read));
        assert_eq!(role("11.0.0.1"), None);
    }

    #[test]
    fn everybody_and_twice_are_mistakes() {
        let all = |insecure| Networks::new([(network("::/0"), Role::Read)], insecure);
        assert!(matches!(all(false), Err(NetworkError::Everybody(_))));
        assert!(all(true).is_ok());
        let twice = [(network("10.0.0.0/8"), Role::Read), (network("10.0.0.0/8"), Role::Admin)];
        assert!(matches!(Networks::new(twice, true), Err(NetworkError::Twice(_))));
        let many = (0..=NETWORKS_MAX as u32)
            .map(|at| (network(&format!("{}", std::net::Ipv4Addr::from_bits(at))), Role::Read));
        assert_eq!(Networks::new(many, true), Err(NetworkError::TooMany));
    }
}
