//! The connections of one listener: who has how many, and which one goes when there are too many.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{Limits, PeerKey, Pulse, Speaks};

/// Why a connection was refused or closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// The listener has as many as it takes, and none of them is idle.
    TooMany,
    /// The peer has as many as one may have, and none of them is idle.
    TooManyOfPeer,
    /// It was idle, and its place was needed.
    Displaced,
    /// The TLS handshake took too long.
    HandshakeTimeout,
    /// A request's head took too long.
    HeadTimeout,
    /// HTTP/2's preface took too long.
    PrefaceTimeout,
    /// Nothing was asked for too long.
    IdleTimeout,
    /// The peer took nothing of what was written.
    WriteTimeout,
    /// The peer took no data of a response that waits for it, though it answers pings.
    UnreadTimeout,
    /// The peer began HTTP/2 where only HTTP/1 is spoken.
    Http2,
}

impl Closed {
    /// Every reason.
    pub const ALL: [Self; 10] = [
        Self::TooMany,
        Self::TooManyOfPeer,
        Self::Displaced,
        Self::HandshakeTimeout,
        Self::HeadTimeout,
        Self::PrefaceTimeout,
        Self::IdleTimeout,
        Self::WriteTimeout,
        Self::UnreadTimeout,
        Self::Http2,
    ];

    /// The name used in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TooMany => "too_many",
            Self::TooManyOfPeer => "too_many_of_peer",
            Self::Displaced => "displaced",
            Self::HandshakeTimeout => "handshake_timeout",
            Self::HeadTimeout => "head_timeout",
            Self::PrefaceTimeout => "preface_timeout",
            Self::IdleTimeout => "idle_timeout",
            Self::WriteTimeout => "write_timeout",
            Self::UnreadTimeout => "unread_timeout",
            Self::Http2 => "http2",
        }
    }
}

/// The connections of one listener.
#[derive(Debug)]
pub struct Connections {
    total: usize,
    per_peer: usize,
    limits: Limits,
    open: Mutex<Open>,
    closed: [AtomicU64; Closed::ALL.len()],
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    /// Oldest first.
    all: BTreeMap<u64, (PeerKey, Arc<Pulse>)>,
    by_peer: HashMap<PeerKey, usize>,
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub struct Admitted {
    connections: Arc<Connections>,
    number: u64,
    pulse: Arc<Pulse>,
}

impl Connections {
    /// At most `total` connections, of which one peer may have `per_peer`.
    pub fn new(total: usize, per_peer: usize, limits: Limits) -> Arc<Self> {
        Arc::new(Self { total, per_peer, limits, open: Mutex::default(), closed: Default::default() })
    }

    /// A place for a new connection. `None`: it is refused, and counted.
    pub fn admit(self: &Arc<Self>, address: SocketAddr, speaks: Speaks) -> Option<Admitted> {
        let peer = PeerKey::of(address.ip());
        let mut open = self.open.lock();
        let displaced = if open.by_peer.get(&peer).copied().unwrap_or(0) >= self.per_peer {
            Some(open.displace(peer).ok_or(Closed::TooManyOfPeer))
        } else if open.all.len() >= self.total {
            let most = open.by_peer.iter().max_by_key(|(_, count)| **count).map(|(peer, _)| *peer);
            Some(most.and_then(|most| open.displace(most)).ok_or(Closed::TooMany))
        } else {
            None
        };
        match displaced {
            None => {}
            Some(Ok(idle)) => {
                idle.close();
                self.count(Closed::Displaced);
            }
            Some(Err(reason)) => {
                self.count(reason);
                return None;
            }
        }
        let pulse = Arc::new(Pulse::new(self.limits, speaks));
        let number = open.next;
        open.next += 1;
        open.all.insert(number, (peer, pulse.clone()));
        *open.by_peer.entry(peer).or_default() += 1;
        Some(Admitted { connections: self.clone(), number, pulse })
    }

    /// How many there are.
    pub fn open(&self) -> usize {
        self.open.lock().all.len()
    }

    /// How often each reason applied.
    pub fn closed(&self) -> impl Iterator<Item = (Closed, u64)> {
        Closed::ALL.into_iter().map(|reason| (reason, self.closed[reason as usize].load(Ordering::Relaxed)))
    }

    /// Counts a connection that is closed for a reason.
    pub fn count(&self, reason: Closed) {
        self.closed[reason as usize].fetch_add(1, Ordering::Relaxed);
    }
}

impl Open {
    /// Takes the place of a peer's oldest idle connection. Of one that was not listened to yet it is not
    /// known whether it is: its request may be here, unread. Such a connection goes only where there is no
    /// other.
    fn displace(&mut self, peer: PeerKey) -> Option<Arc<Pulse>> {
        let mut unknown = None;
        for (number, (_, pulse)) in self.all.iter().filter(|(_, (of, pulse))| *of == peer && pulse.is_idle())
        {
            if pulse.was_silent() {
                let number = *number;
                return self.remove(number);
            }
            unknown = unknown.or(Some(*number));
        }
        self.remove(unknown?)
    }

    fn remove(&mut self, number: u64) -> Option<Arc<Pulse>> {
        let (peer, pulse) = self.all.remove(&number)?;
        if let Some(count) = self.by_peer.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                self.by_peer.remove(&peer);
            }
        }
        Some(pulse)
    }
}

impl Admitted {
    /// How the connection is doing.
    pub fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }

    pub(super) fn count(&self, reason: Closed) {
        self.connections.count(reason);
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        // Gone already if it was displaced.
        let _ = self.connections.open.lock().remove(self.number);
    }
}
