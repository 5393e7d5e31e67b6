//! A publishing socket as its thread holds it: where its connections come from, and the connections.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use kvplane_core::Backoff;

use super::hub::Hub;
use super::peer::Peer;
use super::thread::Desk;
use crate::address::Address;
use crate::connection::Closed;
use crate::dial::{Dialer, Todo};
use crate::listen::Listener;
use crate::options::Endpoint;
use crate::places::{Places, Room};
use crate::reason::word_of;
use crate::stream::Stream;
use crate::{EndpointCause, SocketError};

/// What strangers may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// A peer that has connected gets this long for its handshake.
    pub(super) handshake: Duration,
    /// Connections of one socket.
    pub(super) places: Places,
}

impl Default for Patience {
    fn default() -> Self {
        Self { handshake: Duration::from_secs(10), places: Places::default() }
    }
}

/// Turns in which a socket that is closed may write to one peer.
const FINISHING_SHARES: usize = 64;

/// Connections accepted in one turn.
const ACCEPTED_PER_TURN: usize = 64;

/// Pauses before a lost connection is dialled again; a subscriber that restarts is to be found soon.
const RECONNECT_MIN: Duration = Duration::from_millis(100);
const RECONNECT_MAX: Duration = Duration::from_secs(1);

/// Where connections come from.
pub(super) enum Source {
    Listen { listener: Listener, again: bool },
    Address(Address),
    Dial(Dialer),
}

impl Source {
    /// Binds, or checks the address.
    pub(super) fn open(endpoint: &Endpoint) -> Result<Self, SocketError> {
        let failed = SocketError::endpoint::<EndpointCause>;
        match endpoint {
            Endpoint::Bind(address) => {
                let listener = Listener::bind(address).map_err(failed("bind", address))?;
                Ok(Self::Listen { listener, again: false })
            }
            Endpoint::Connect(address) => {
                Ok(Self::Address(Address::to_connect(address).map_err(failed("connect", address))?))
            }
        }
    }

    /// The address in use, with the port that the system chose.
    pub(super) fn address<'a>(&'a self, endpoint: &'a Endpoint) -> &'a str {
        match self {
            Self::Listen { listener, .. } => listener.address(),
            Self::Address(_) | Self::Dial(_) => endpoint.address(),
        }
    }
}

/// A socket.
pub(super) struct Outlet {
    pub(super) hub: Arc<Hub>,
    address: String,
    patience: Patience,
    source: Source,
    /// The token of the listener, or of the connection that is dialled.
    token: usize,
    peers: HashMap<usize, Peer>,
}

impl Outlet {
    pub(super) fn new(hub: Arc<Hub>, source: Source, address: String, patience: Patience) -> Self {
        Self { hub, address, patience, source, token: 0, peers: HashMap::new() }
    }

    /// Whether it dials: it needs to look at the clock more often.
    pub(super) fn dials(&self) -> bool {
        !matches!(self.source, Source::Listen { .. })
    }

    /// Begins, on the thread.
    pub(super) fn start(&mut self, desk: &mut Desk<'_>) -> io::Result<()> {
        self.token = desk.token(self.hub.id);
        match &mut self.source {
            Source::Listen { listener, .. } => listener.register(desk.registry, self.token)?,
            Source::Address(address) => {
                let backoff = Backoff::new(RECONNECT_MIN, RECONNECT_MAX);
                let dialer = Dialer::new(address.clone(), self.token, backoff, desk.now);
                self.source = Source::Dial(dialer);
                self.dial(desk);
            }
            Source::Dial(_) => {}
        }
        Ok(())
    }

    /// Something happened on a token; true when it needs a turn that it does not wait for already.
    pub(super) fn note(&mut self, token: usize, readable: bool, writable: bool, hung_up: bool) -> bool {
        let Some(peer) = self.peers.get_mut(&token) else { return token == self.token };
        if hung_up {
            peer.connection.note_hung_up();
        }
        peer.readable |= readable || hung_up;
        peer.blocked &= !writable;
        !std::mem::replace(&mut peer.connection.queued, true)
    }

    /// The owner has something for these peers, or wants to hear more of them.
    pub(super) fn serve(&mut self, tokens: &mut Vec<usize>, desk: &mut Desk<'_>) {
        self.hub.take_pending(tokens);
        for token in tokens.drain(..) {
            if let Some(peer) = self.peers.get_mut(&token)
                && !std::mem::replace(&mut peer.connection.queued, true)
            {
                desk.hot.push_back((self.hub.id, token));
            }
        }
    }

    /// Reads and writes what can be, within bounds; true when there is more.
    pub(super) fn turn(&mut self, token: usize, desk: &mut Desk<'_>) -> bool {
        let Some(peer) = self.peers.get_mut(&token) else {
            return match &self.source {
                _ if token != self.token => false,
                Source::Listen { .. } => self.accept(desk),
                Source::Address(_) | Source::Dial(_) => {
                    self.dial(desk);
                    false
                }
            };
        };
        match peer.turn(&self.hub, token, desk.scratch) {
            Ok(more) => {
                peer.connection.queued = more;
                more
            }
            Err(closed) => {
                self.close(token, &closed, desk);
                false
            }
        }
    }

    /// The answer to a name that was looked up.
    pub(super) fn resolved(&mut self, answer: io::Result<Vec<SocketAddr>>, desk: &mut Desk<'_>) {
        if let Source::Dial(dialer) = &mut self.source {
            let todo = dialer.resolved(answer, desk.registry, desk.now);
            self.follow(todo, desk);
        }
    }

    /// Time passes.
    pub(super) fn tick(&mut self, desk: &mut Desk<'_>) {
        match &mut self.source {
            Source::Dial(dialer) if dialer.due().is_some_and(|due| due <= desk.now) => self.dial(desk),
            Source::Listen { again, .. } if *again => {
                *again = false;
                desk.hot.push_back((self.hub.id, self.token));
            }
            _ => {}
        }
        let overdue = |(&token, peer): (&usize, &Peer)| {
            peer.overdue(desk.now, self.patience.handshake).map(|closed| (token, closed))
        };
        let over: Vec<_> = self.peers.iter().filter_map(overdue).collect();
        for (token, closed) in over {
            self.close(token, &closed, desk);
        }
    }

    /// Writes what the kernel takes at once, before the socket is closed.
    pub(super) fn finish(&mut self, scratch: &mut [u8]) {
        for peer in self.peers.values_mut() {
            // A turn's share each time: as much as may wait, and no peer can keep us.
            for _ in 0..FINISHING_SHARES {
                if !matches!(peer.write(&self.hub, scratch), Ok(true)) {
                    break;
                }
            }
        }
    }

    fn dial(&mut self, desk: &mut Desk<'_>) {
        if let Source::Dial(dialer) = &mut self.source {
            let todo = dialer.advance(desk.registry, desk.now);
            self.follow(todo, desk);
        }
    }

    fn follow(&mut self, todo: Todo, desk: &mut Desk<'_>) {
        match todo {
            Todo::Nothing => {}
            Todo::Resolve { host, port } => desk.resolve(self.hub.id, host, port),
            Todo::Connected => {
                let Source::Dial(dialer) = &mut self.source else { return };
                if let Some(stream) = dialer.take() {
                    self.welcome(stream, self.token, desk);
                }
            }
        }
    }

    /// Accepts what waits; true when there may be more.
    fn accept(&mut self, desk: &mut Desk<'_>) -> bool {
        for _ in 0..ACCEPTED_PER_TURN {
            let Source::Listen { listener, again } = &mut self.source else { return false };
            let mut stream = match listener.accept() {
                Ok(Some(stream)) => stream,
                Ok(None) => return false,
                Err(error) => {
                    tracing::warn!(address = self.address, %error, "cannot accept a connection");
                    // No edge will tell when it is possible again.
                    *again = true;
                    return false;
                }
            };
            if !self.make_room(stream.host(), desk) {
                continue;
            }
            let token = desk.token(self.hub.id);
            match stream.register(desk.registry, token) {
                Ok(()) => self.welcome(stream, token, desk),
                Err(error) => {
                    desk.release(token);
                    tracing::warn!(address = self.address, %error, "cannot watch a connection");
                }
            }
        }
        true
    }

    /// Finds a place for one more connection, or counts why there is none.
    fn make_room(&mut self, host: Option<IpAddr>, desk: &mut Desk<'_>) -> bool {
        let peers = self.peers.iter().map(|(&token, peer)| (token, &peer.connection, peer.line.is_some()));
        match self.patience.places.room(host, &peers) {
            Room::Free => {}
            Room::Instead(token) => self.close(token, &Closed::HandshakeTimeout, desk),
            Room::None(refusal) => {
                self.count_refused(&Closed::Refused(refusal));
                return false;
            }
        }
        true
    }

    fn welcome(&mut self, stream: Stream, token: usize, desk: &mut Desk<'_>) {
        let mut peer = Peer::new(stream, self.hub.socket, desk.now);
        // Its first bytes may have come together with the news that it is connected.
        peer.connection.queued = true;
        desk.hot.push_back((self.hub.id, token));
        self.peers.insert(token, peer);
    }

    fn close(&mut self, token: usize, closed: &Closed, desk: &mut Desk<'_>) {
        let Some(peer) = self.peers.remove(&token) else { return };
        if let Some((line, _)) = peer.line {
            self.hub.remove(line);
        }
        // Counted before the peer can know that it was closed.
        let at_fault = self.count_refused(closed);
        let established = peer.line.map(|(_, since)| since);
        drop(peer);
        if let Source::Dial(dialer) = &mut self.source {
            dialer.lost(desk.now, established, at_fault, &closed.to_string());
        } else {
            desk.release(token);
        }
    }

    /// Counts a connection that was closed for a fault of the peer's, and says so at the 1st, 2nd, 4th, ...
    /// time: anybody can make us say it. False when nobody was at fault.
    fn count_refused(&self, closed: &Closed) -> bool {
        let Some(reason) = word_of(closed) else {
            tracing::debug!(address = self.address, %closed, "connection closed");
            return false;
        };
        let count = self.hub.count_refused(reason);
        if count.is_power_of_two() {
            tracing::warn!(address = self.address, %closed, count, "connection refused");
        }
        true
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.hub.end();
    }
}
