//! One subscription: where its connections come from, and what they say.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use kvplane_core::Backoff;
use kvplane_wire::replay::parse_live;

use crate::SocketError;
use crate::address::Address;
use crate::connection::{Closed, Connection, Heard, Turn};
use crate::dial::{Dialer, Todo};
use crate::handler::Ear;
use crate::heart::{Heart, Pace};
use crate::listen::Listener;
use crate::options::{Endpoint, Subscription};
use crate::places::{Places, Room};
use crate::poller::Desk;
use crate::reason::word_of;
use crate::refusals::Refusals;
use crate::stream::Stream;
use crate::zmtp::frame::Multipart;
use crate::zmtp::session::Session;

/// A peer that has connected gets this long for its handshake.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections accepted in one turn.
const ACCEPTED_PER_TURN: usize = 64;

/// Memory for unfinished messages of all connections of one listener. The connection that reads when it is
/// exceeded is closed, unless it holds next to nothing.
const LISTENER_BYTES: usize = 256 << 20;
const NEXT_TO_NOTHING: usize = 256 << 10;

/// Where connections come from.
enum Source {
    Dial(Dialer),
    Listen { listener: Listener, again: bool },
}

/// One connection, and what is known of it.
struct Peer {
    id: u64,
    connection: Connection,
    /// Since when the handshake is complete, and the heartbeats since then.
    established: Option<(Instant, Heart)>,
    /// What is being read arrived after this.
    arrived_after: Instant,
}

impl Peer {
    /// When a PING is due, or something takes too long.
    fn due(&self) -> Option<Instant> {
        match &self.established {
            Some((_, heart)) => heart.due(self.connection.heard_at),
            None => Some(self.connection.greeted_at + HANDSHAKE_TIMEOUT),
        }
    }
}

/// A subscription as its poller thread holds it.
pub(crate) struct Subscriber {
    pub(crate) id: u64,
    subscription: Subscription,
    /// The token of the listener, or of the connection that is dialled.
    token: usize,
    source: Option<Source>,
    listening: Option<Listener>,
    address: Option<Address>,
    last_endpoint: String,
    /// By token. In boxes: nearly always there is one, and a map has room for more.
    peers: HashMap<usize, Box<Peer>>,
    ear: Ear,
    /// Memory of all connections.
    memory: usize,
    /// Peers that broke the protocol.
    broken: u64,
    /// The same, of all subscriptions.
    refusals: Refusals,
    /// The slot of its thread's clock that it waits for.
    pub(crate) slot: Option<u64>,
}

impl Subscriber {
    /// Binds, or checks the address; errors are known when it returns.
    pub(crate) fn open(
        id: u64,
        subscription: Subscription,
        ear: Ear,
        refusals: Refusals,
    ) -> Result<Self, SocketError> {
        let (listening, address) = match &subscription.endpoint {
            Endpoint::Bind(endpoint) => {
                let listener = Listener::bind(endpoint).map_err(SocketError::endpoint("bind", endpoint))?;
                (Some(listener), None)
            }
            Endpoint::Connect(endpoint) => {
                let address =
                    Address::to_connect(endpoint).map_err(SocketError::endpoint("connect", endpoint))?;
                (None, Some(address))
            }
        };
        let configured = subscription.endpoint.address();
        let last_endpoint = listening.as_ref().map_or(configured, Listener::address).to_owned();
        Ok(Self {
            id,
            subscription,
            token: 0,
            source: None,
            listening,
            address,
            last_endpoint,
            peers: HashMap::new(),
            ear,
            memory: 0,
            broken: 0,
            refusals,
            slot: None,
        })
    }

    /// The address in use.
    pub(crate) fn last_endpoint(&self) -> String {
        self.last_endpoint.clone()
    }

    /// Begins, on the poller's thread.
    pub(crate) fn start(&mut self, desk: &mut Desk<'_>) -> io::Result<()> {
        self.token = desk.token(self.id);
        if let Some(handler) = self.ear.open() {
            handler.begun(desk.alarm(self.id));
        }
        if let Some(mut listener) = self.listening.take() {
            listener.register(desk.registry, self.token)?;
            self.source = Some(Source::Listen { listener, again: false });
        } else if let Some(address) = self.address.take() {
            let backoff = Backoff::new(self.subscription.reconnect_min, self.subscription.reconnect_max);
            self.source = Some(Source::Dial(Dialer::new(address, self.token, backoff, desk.now)));
            self.dial(desk);
        }
        Ok(())
    }

    /// Something happened on a token; true when it needs a turn that it does not wait for already.
    pub(crate) fn note(&mut self, token: usize, hung_up: bool, arrived_after: Instant) -> bool {
        let Some(peer) = self.peers.get_mut(&token) else { return token == self.token };
        if hung_up {
            peer.connection.note_hung_up();
        }
        if peer.connection.queued {
            return false;
        }
        peer.arrived_after = arrived_after;
        peer.connection.queued = true;
        true
    }

    /// Reads what is there on a token, within bounds, and tells the handler; true when there is more.
    pub(crate) fn turn(&mut self, token: usize, desk: &mut Desk<'_>) -> bool {
        if self.ear.is_cancelled() {
            return false;
        }
        if self.peers.contains_key(&token) {
            return self.read(token, desk);
        }
        match &self.source {
            Some(Source::Listen { .. }) if token == self.token => self.accept(desk),
            Some(Source::Dial(_)) if token == self.token => {
                self.dial(desk);
                false
            }
            _ => false,
        }
    }

    /// The answer to a name that was looked up.
    pub(crate) fn resolved(&mut self, answer: io::Result<Vec<SocketAddr>>, desk: &mut Desk<'_>) {
        if let Some(Source::Dial(dialer)) = &mut self.source {
            dialer.share_with_others(desk.crowded);
            let todo = dialer.resolved(answer, desk.registry, desk.now);
            self.follow(todo, desk);
        }
    }

    /// When the next tick is due. A listener's connections are looked at by every tick.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        let Some(Source::Dial(dialer)) = &self.source else { return Some(now) };
        let peers = self.peers.values().filter_map(|peer| peer.due());
        peers.chain(dialer.due()).chain(self.ear.next_tick(now)).min()
    }

    /// Whether it dials a publisher that is not there.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(&self.source, Some(Source::Dial(dialer)) if dialer.is_absent())
    }

    /// Time passes.
    pub(crate) fn tick(&mut self, desk: &mut Desk<'_>) {
        let Some(handler) = self.ear.open() else { return };
        if handler.next_tick(desk.now).is_some_and(|due| due <= desk.now) {
            handler.tick(desk.now);
        }
        match &mut self.source {
            Some(Source::Dial(dialer)) if dialer.due().is_some_and(|due| due <= desk.now) => self.dial(desk),
            Some(Source::Listen { again, .. }) if *again => {
                *again = false;
                desk.hot.push_back((self.id, self.token));
            }
            _ => {}
        }
        self.beat(desk);
    }

    /// Sends PINGs that are due, and ends connections on which nothing comes.
    fn beat(&mut self, desk: &mut Desk<'_>) {
        let mut over = Vec::new();
        for (&token, peer) in &mut self.peers {
            // What is not read yet may be a sign of life.
            let is_read = !peer.connection.queued;
            let Some((_, heart)) = &mut peer.established else {
                let waited = desk.now.saturating_duration_since(peer.connection.greeted_at);
                if is_read && waited >= HANDSHAKE_TIMEOUT {
                    over.push((token, Closed::HandshakeTimeout));
                }
                continue;
            };
            let silence = heart.silence(peer.connection.heard_at, desk.now).filter(|_| is_read);
            if let Some(silence) = silence {
                over.push((token, Closed::Silent(silence)));
            } else if heart.beat(peer.connection.session(), desk.now) && !peer.connection.flush() && is_read {
                peer.connection.queued = true;
                desk.hot.push_back((self.id, token));
            }
        }
        for (token, closed) in over {
            self.close(token, &closed, desk);
        }
    }

    fn dial(&mut self, desk: &mut Desk<'_>) {
        if let Some(Source::Dial(dialer)) = &mut self.source {
            dialer.share_with_others(desk.crowded);
            let todo = dialer.advance(desk.registry, desk.now);
            self.follow(todo, desk);
        }
    }

    fn follow(&mut self, todo: Todo, desk: &mut Desk<'_>) {
        match todo {
            Todo::Nothing => {}
            Todo::Resolve { host, port } => desk.resolve(self.id, host, port),
            Todo::Connected => {
                let Some(Source::Dial(dialer)) = &mut self.source else { return };
                if let Some(stream) = dialer.take() {
                    // Its first bytes may have come together with the news that it is connected.
                    self.welcome(stream, self.token, desk);
                }
            }
        }
    }

    /// Accepts what waits; true when there may be more.
    fn accept(&mut self, desk: &mut Desk<'_>) -> bool {
        for _ in 0..ACCEPTED_PER_TURN {
            let Some(Source::Listen { listener, again }) = &mut self.source else { return false };
            let mut stream = match listener.accept() {
                Ok(Some(stream)) => stream,
                Ok(None) => return false,
                Err(error) => {
                    tracing::warn!(address = self.last_endpoint, %error, "cannot accept a connection");
                    // No edge will tell when it is possible again.
                    *again = true;
                    return false;
                }
            };
            if !self.make_room(stream.host(), desk) {
                continue;
            }
            let token = desk.token(self.id);
            match stream.register(desk.registry, token) {
                Ok(()) => self.welcome(stream, token, desk),
                Err(error) => {
                    desk.release(token);
                    tracing::warn!(address = self.last_endpoint, %error, "cannot watch a connection");
                }
            }
        }
        true
    }

    /// Finds a place for one more connection, or counts why there is none.
    fn make_room(&mut self, host: Option<IpAddr>, desk: &mut Desk<'_>) -> bool {
        let places = Places {
            connections: self.subscription.max_connections,
            per_host: self.subscription.max_connections_per_host,
        };
        let peers =
            self.peers.iter().map(|(&token, peer)| (token, &peer.connection, peer.established.is_some()));
        match places.room(host, &peers) {
            Room::Free => {}
            Room::Instead(token) => self.close(token, &Closed::HandshakeTimeout, desk),
            Room::None(refusal) => {
                self.count_broken(&Closed::Refused(refusal));
                return false;
            }
        }
        true
    }

    fn welcome(&mut self, stream: Stream, token: usize, desk: &mut Desk<'_>) {
        let limit = self.subscription.message_limit();
        let session = Session::subscriber(self.subscription.topics.clone(), limit);
        let mut connection = Connection::new(stream, session, desk.now);
        connection.flush();
        connection.queued = true;
        desk.hot.push_back((self.id, token));
        self.memory += connection.memory();
        let peer = Peer { id: desk.connection(), connection, established: None, arrived_after: desk.now };
        self.peers.insert(token, Box::new(peer));
    }

    fn read(&mut self, token: usize, desk: &mut Desk<'_>) -> bool {
        let Some(peer) = self.peers.get_mut(&token) else { return false };
        let (id, before) = (peer.id, peer.connection.memory());
        let (ear, established) = (&mut self.ear, &mut peer.established);
        let (greeted_at, began, now) = (peer.connection.greeted_at, desk.began, desk.now);
        let pace = Pace {
            interval: self.subscription.heartbeat_interval,
            timeout: self.subscription.heartbeat_timeout,
        };
        let mut messages = 0_usize;
        let mut hear = |heard: Heard<'_>| {
            let Some(handler) = ear.about(id) else { return ControlFlow::Break(()) };
            match heard {
                Heard::Established { .. } => {
                    *established = Some((now, Heart::new(pace, began, now)));
                    handler.connected();
                    handler.proven(id, greeted_at);
                }
                Heard::Message(message) => {
                    messages += 1;
                    deliver(handler, message);
                }
                Heard::Pong(context) => {
                    let proof = established.as_mut().and_then(|(_, heart)| heart.pong(&context));
                    if let Some(at) = proof {
                        handler.proven(id, at);
                    }
                }
                // Only publishers hear of these.
                Heard::Ping { .. } | Heard::Subscribe(_) | Heard::Cancel(_) => {}
            }
            ControlFlow::Continue(())
        };
        let turn = peer.connection.turn(desk.scratch, &mut hear);
        if let Some((_, heart)) = &mut peer.established {
            if peer.connection.heard_at >= now {
                heart.heard();
            }
            if messages > 0
                && heart.frames_prove()
                && let Some(handler) = self.ear.about(id)
            {
                handler.proven(id, peer.arrived_after);
            }
        }
        let after = peer.connection.memory();
        self.memory = (self.memory + after).saturating_sub(before);
        if messages > 0
            && let Some(handler) = self.ear.open()
        {
            handler.drained();
        }
        let crowded = self.memory > LISTENER_BYTES && self.peers.len() > 1 && after > NEXT_TO_NOTHING;
        match turn {
            Turn::Closed(closed) => self.close(token, &closed, desk),
            _ if crowded => self.close(token, &Closed::Memory, desk),
            Turn::More => return true,
            Turn::Drained => {
                if let Some(peer) = self.peers.get_mut(&token) {
                    peer.connection.queued = false;
                }
            }
            Turn::Stopped => {}
        }
        false
    }

    fn close(&mut self, token: usize, closed: &Closed, desk: &mut Desk<'_>) {
        let Some(peer) = self.peers.remove(&token).map(|peer| *peer) else { return };
        self.memory = self.memory.saturating_sub(peer.connection.memory());
        let established = peer.established.map(|(since, _)| since);
        // The socket goes first: it must not be readable any more.
        drop(peer.connection);
        if established.is_some()
            && let Some(handler) = self.ear.about(peer.id)
        {
            handler.disconnected();
        }
        let reason = word_of(closed);
        if let Some(reason) = reason
            && let Some(handler) = self.ear.about(peer.id)
        {
            handler.protocol_error(reason);
        }
        if let Some(Source::Dial(dialer)) = &mut self.source {
            let at_fault = reason.is_some();
            dialer.share_with_others(desk.crowded);
            dialer.lost(desk.now, established, at_fault, &closed.to_string());
        } else {
            desk.release(token);
        }
        if reason.is_some() {
            self.count_broken(closed);
        } else {
            tracing::debug!(address = self.last_endpoint, %closed, "connection closed");
        }
    }

    /// Says so at the 1st, 2nd, 4th, ... time: anybody can make us say it.
    fn count_broken(&mut self, why: &Closed) {
        if let Some(reason) = word_of(why) {
            self.refusals.count(reason);
        }
        self.broken += 1;
        if self.broken.is_power_of_two() {
            tracing::warn!(address = self.last_endpoint, reason = %why, count = self.broken, "connection dropped");
        }
    }
}

fn deliver(handler: &mut dyn crate::SubscriberHandler, message: &mut Multipart) {
    const PAYLOAD: usize = 2;
    let sequence = message.frames().map_or(Err("frame_count"), |frames| {
        parse_live(frames).map(|live| live.sequence).map_err(crate::reason::of_frames)
    });
    match sequence {
        Ok(sequence) => {
            let payload = message.take(PAYLOAD);
            handler.message(message.frame(0), sequence, payload);
        }
        Err(reason) => handler.malformed(reason),
    }
}
