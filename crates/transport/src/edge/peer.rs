//! Who counts as one peer.

use std::net::{IpAddr, Ipv6Addr};

/// One peer: an IPv4 address, or the /64 of an IPv6 address, which is what one host is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerKey(IpAddr);

impl PeerKey {
    /// The peer at an address.
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(six) => Self(IpAddr::V6(Ipv6Addr::from_bits(six.to_bits() & (u128::MAX << 64)))),
            four @ IpAddr::V4(_) => Self(four),
        }
    }
}
