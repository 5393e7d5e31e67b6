//! Places of a socket that listens: how many there are, and who gives one up.

use std::net::IpAddr;

use crate::connection::{Connection, Refusal};
use crate::options::{MAX_CONNECTIONS, MAX_CONNECTIONS_PER_HOST};

/// How many connections there may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places {
    /// In all.
    pub(crate) connections: usize,
    /// From one host.
    pub(crate) per_host: usize,
}

impl Default for Places {
    fn default() -> Self {
        Self { connections: MAX_CONNECTIONS, per_host: MAX_CONNECTIONS_PER_HOST }
    }
}

/// What one more connection needs.
pub(crate) enum Room {
    /// Nothing: there is a place.
    Free,
    /// The place of this one.
    Instead(usize),
    /// There is none.
    None(Refusal),
}

impl Places {
    /// Finds a place for one more connection from a host. It takes that of the oldest that has not completed
    /// its handshake; when all have, there is none. `peers` are the connections by token, and whether each
    /// has completed its handshake.
    pub(crate) fn room<'a, P>(self, host: Option<IpAddr>, peers: &P) -> Room
    where
        P: ExactSizeIterator<Item = (usize, &'a Connection, bool)> + Clone,
    {
        let oldest = |of: Option<IpAddr>, refusal| {
            let waiting = peers.clone().filter(|(_, peer, established)| {
                let is_of_host = of.is_none() || peer.host == of;
                !established && is_of_host
            });
            let oldest = waiting.min_by_key(|(_, peer, _)| peer.greeted_at);
            oldest.map_or(Room::None(refusal), |(token, ..)| Room::Instead(token))
        };
        let of_host = || peers.clone().filter(|(_, peer, _)| peer.host == host).count();
        if host.is_some() && of_host() >= self.per_host {
            oldest(host, Refusal::ConnectionsOfHost)
        } else if peers.len() >= self.connections {
            oldest(None, Refusal::Connections)
        } else {
            Room::Free
        }
    }
}
