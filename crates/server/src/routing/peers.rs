//! Planes that share bookings with this one: those that follow it, and those that it follows.
//!
//! ```text
//! pick, first token, end ──> every peer that knows the engine        (by its name there)
//! a peer's update        ──> the books, and every other peer
//! ```
//!
//! A stream comes over one link at most, so the peers that know it are a tree, and what goes to all but the
//! sender comes to nobody twice. Bookings of a peer are gone when it is, and otherwise after as long as any
//! other. All of them are half of the books at most.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kvplane_core::{EngineId, StreamId};
use kvplane_ingest::Plane;
use kvplane_proto::kvplane::v1 as proto;
use kvplane_route::{Booking, BookingId, RemoteBooking};
use kvplane_transport::edge::PeerKey;
use rustc_hash::FxHashMap;
use tokio::sync::mpsc;

use super::books::Books;

/// Peers at a time.
const MAX_PEERS: usize = 64;
/// Bookings of one peer, and of all.
const MAX_PER_PEER: usize = 16_384;
const MAX_REMOTE: usize = 32_768;
/// Planes behind one address that share bookings: the others' places are not for it.
const MAX_PEERS_OF_HOST: usize = MAX_PEERS / 2;
/// Updates that wait for a peer, and the bytes of their prefixes. One that falls further behind begins anew.
const QUEUE: usize = 4_096;
const QUEUED_BYTES: usize = 4 << 20;
/// How often bookings that expired are looked for where there is no room, in seconds.
const SWEEP_EVERY: f64 = 1.0;
/// Prefixes of a prompt that are read: one of a million tokens has about 130.
const MAX_PREFIXES: usize = 512;

/// How a peer calls an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Way {
    /// It is followed over this link: its engines have its names behind the link's.
    Followed(EngineId),
    /// It follows this plane from here, and calls engines as they are called here.
    Follows(PeerKey),
}

/// An update that waits for its peer.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) update: proto::BookingUpdate,
    _bytes: QueuedBytes,
}

/// Bytes of one update among those that wait for a peer.
#[derive(Debug)]
struct QueuedBytes {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl QueuedBytes {
    /// `None` where there is no room.
    fn of(update: &proto::BookingUpdate, all: &Arc<AtomicUsize>) -> Option<Self> {
        let bytes = size_of::<proto::BookingUpdate>() + update.engine.len() + 8 * update.prefixes.len();
        let taken = Self { all: all.clone(), bytes };
        (all.fetch_add(bytes, Ordering::Relaxed) + bytes <= QUEUED_BYTES).then_some(taken)
    }
}

impl Drop for QueuedBytes {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// What was not taken, or not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// There were too many bookings of others.
    Full,
    /// The engine is not known here.
    UnknownEngine,
    /// The peer does not read what it is sent.
    Lagging,
}

impl Refusal {
    const ALL: [(Self, &str); 3] =
        [(Self::Full, "full"), (Self::UnknownEngine, "unknown_engine"), (Self::Lagging, "lagging")];
}

#[derive(Debug)]
struct Peer {
    number: u64,
    way: Way,
    out: mpsc::Sender<Queued>,
    /// Bytes that wait for it.
    queued: Arc<AtomicUsize>,
    /// Its bookings, by its own numbers.
    remote: FxHashMap<u64, BookingId>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Peers {
    all: Vec<Peer>,
    next: u64,
    refused: [u64; Refusal::ALL.len()],
    received: u64,
    sent: u64,
    /// When bookings that expired were last looked for.
    swept: f64,
}

/// What a peer that joined is sent.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) number: u64,
    /// Every booking that it is not known to have.
    pub(crate) now: Vec<proto::BookingUpdate>,
    /// What happens from here on. It ends where the peer is too slow.
    pub(crate) next: mpsc::Receiver<Queued>,
}

/// For `/metrics`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PeerRows {
    pub(crate) planes: [(&'static str, u64); 2],
    pub(crate) remote: u64,
    pub(crate) updates: [(&'static str, u64); 2],
    pub(crate) refused: [(&'static str, u64); Refusal::ALL.len()],
}

impl Peers {
    fn count(&mut self, refusal: Refusal) {
        self.refused[refusal as usize] += 1;
    }

    pub(super) fn rows(&self) -> PeerRows {
        let followed = self.all.iter().filter(|peer| matches!(peer.way, Way::Followed(_))).count();
        PeerRows {
            planes: [("followed", followed as u64), ("following", (self.all.len() - followed) as u64)],
            remote: self.remote() as u64,
            updates: [("received", self.received), ("sent", self.sent)],
            refused: Refusal::ALL.map(|(refusal, name)| (name, self.refused[refusal as usize])),
        }
    }

    fn remote(&self) -> usize {
        self.all.iter().map(|peer| peer.remote.len()).sum()
    }

    fn find(&mut self, number: u64) -> Option<&mut Peer> {
        self.all.iter_mut().find(|peer| peer.number == number)
    }
}

/// How a peer calls an engine of this plane, if it knows it.
fn name_there(way: &Way, plane: &Plane, engine: &EngineId) -> Option<String> {
    let Way::Followed(link) = way else { return Some(engine.to_string()) };
    let known = plane.engine(engine.as_str())?;
    let mirrored = known.spec.source.mirrored().filter(|mirrored| mirrored.link == *link)?;
    Some(mirrored.engine.clone())
}

/// What this plane calls an engine of a peer.
fn name_here(way: &Way, engine: &str) -> EngineId {
    match way {
        Way::Followed(link) => EngineId::new(&format!("{link}/{engine}")),
        Way::Follows(_) => EngineId::new(engine),
    }
}

impl Books {
    /// A peer is there. `None` when there are too many.
    pub(super) fn join(&mut self, plane: &Plane, way: Way, now: f64) -> Option<Joined> {
        let of_host = self.peers.all.iter().filter(|peer| matches!(way, Way::Follows(_)) && peer.way == way);
        if self.peers.all.len() >= MAX_PEERS || of_host.count() >= MAX_PEERS_OF_HOST {
            return None;
        }
        let (out, next) = mpsc::channel(QUEUE);
        self.peers.next += 1;
        let number = self.peers.next;
        let known = self.router.bookings().filter_map(|(id, booking)| {
            let stream = self.name(booking.worker)?;
            let engine = name_there(&way, plane, &stream.engine)?;
            Some(self.update(id, proto::BookingChange::Booked, (engine, stream.rank), now))
        });
        let mut known: Vec<proto::BookingUpdate> = known.collect();
        // The youngest last longest.
        known.sort_by_key(|update| update.age_ms);
        known.truncate(MAX_PER_PEER);
        self.peers.sent += known.len() as u64;
        let queued = Arc::default();
        self.peers.all.push(Peer { number, way, out, queued, remote: FxHashMap::default() });
        Some(Joined { number, now: known, next })
    }

    /// A peer is gone, and its bookings with it.
    pub(super) fn leave(&mut self, plane: &Plane, number: u64, now: f64) {
        let Some(at) = self.peers.all.iter().position(|peer| peer.number == number) else { return };
        let peer = self.peers.all.swap_remove(at);
        for booking in peer.remote.into_values() {
            self.changed(plane, booking, proto::BookingChange::Over, Some(number), now);
            self.router.abort(booking);
        }
    }

    /// Takes what a peer says. False where the peer is not one any more.
    pub(super) fn take(
        &mut self,
        plane: &Plane,
        number: u64,
        update: &proto::BookingUpdate,
        now: f64,
    ) -> bool {
        let change = update.change();
        self.peers.received += 1;
        let Some(peer) = self.peers.find(number) else { return false };
        match change {
            proto::BookingChange::Unspecified => {}
            proto::BookingChange::Booked => {
                let stream = StreamId::new(name_here(&peer.way, &update.engine), update.rank);
                // The same number again is the same booking, sent again.
                if let Some(old) = peer.remote.remove(&update.id) {
                    self.router.abort(old);
                }
                self.take_booking(plane, number, &stream, update, now);
            }
            proto::BookingChange::FirstToken => {
                let booking = peer.remote.get(&update.id).copied();
                if let Some(booking) = booking
                    && self.router.first_token(booking, now).is_some()
                {
                    self.changed(plane, booking, change, Some(number), now);
                }
            }
            proto::BookingChange::Over => {
                if let Some(booking) = peer.remote.remove(&update.id) {
                    self.changed(plane, booking, change, Some(number), now);
                    self.router.finish(booking);
                }
            }
        }
        true
    }

    fn take_booking(
        &mut self,
        plane: &Plane,
        number: u64,
        stream: &StreamId,
        update: &proto::BookingUpdate,
        now: f64,
    ) {
        let found = plane.engine(stream.engine.as_str());
        let Some(found) = found.as_ref().and_then(|engine| engine.stream(stream.rank)) else {
            self.peers.count(Refusal::UnknownEngine);
            return;
        };
        if !self.has_room(number, now) {
            self.peers.count(Refusal::Full);
            return;
        }
        let Some(slot) = self.meet(stream, found.cursor().epoch) else { return };
        let remote = RemoteBooking {
            prompt: update.prompt_tokens,
            uncached: update.uncached_tokens,
            output: update.output_tokens,
            age: update.age_ms as f64 / 1e3,
            started: update.started,
            prefixes: &update.prefixes[..update.prefixes.len().min(MAX_PREFIXES)],
        };
        let Some(booking) = self.router.book_remote(slot, &remote, now) else { return };
        if let Some(peer) = self.peers.find(number) {
            peer.remote.insert(update.id, booking);
        }
        self.changed(plane, booking, proto::BookingChange::Booked, Some(number), now);
    }

    /// Whether another booking of a peer is taken. Those that expired make room: they are looked for now and
    /// then, not for every booking that a peer tells of in vain.
    fn has_room(&mut self, number: u64, now: f64) -> bool {
        let fits = |peers: &mut Peers| {
            peers.remote() < MAX_REMOTE
                && peers.find(number).is_some_and(|peer| peer.remote.len() < MAX_PER_PEER)
        };
        if fits(&mut self.peers) {
            return true;
        }
        if now - self.peers.swept < SWEEP_EVERY {
            return false;
        }
        self.peers.swept = now;
        let router = &self.router;
        for peer in &mut self.peers.all {
            peer.remote.retain(|_, booking| router.booking(*booking).is_some());
        }
        fits(&mut self.peers)
    }

    /// Tells the peers what became of a booking; not the one that it was heard from. Before the booking is over.
    pub(super) fn changed(
        &mut self,
        plane: &Plane,
        booking: BookingId,
        change: proto::BookingChange,
        from: Option<u64>,
        now: f64,
    ) {
        let others = || self.peers.all.iter().filter(|peer| Some(peer.number) != from);
        if others().next().is_none() {
            return;
        }
        let Some(slot) = self.router.booking(booking).map(|booking| booking.worker) else { return };
        let Some(stream) = self.name(slot) else { return };
        let mut lagging = Vec::new();
        let mut sent = 0;
        for peer in others() {
            let Some(engine) = name_there(&peer.way, plane, &stream.engine) else { continue };
            let update = self.update(booking, change, (engine, stream.rank), now);
            let queued = QueuedBytes::of(&update, &peer.queued).map(|bytes| Queued { update, _bytes: bytes });
            if queued.is_some_and(|queued| peer.out.try_send(queued).is_ok()) {
                sent += 1;
            } else {
                lagging.push(peer.number);
            }
        }
        self.peers.sent += sent;
        // It begins anew with all that is booked then.
        for number in lagging {
            self.peers.count(Refusal::Lagging);
            self.leave(plane, number, now);
        }
    }

    fn update(
        &self,
        id: BookingId,
        change: proto::BookingChange,
        (engine, rank): (String, u32),
        now: f64,
    ) -> proto::BookingUpdate {
        let mut update = proto::BookingUpdate { id: id.0, ..Default::default() };
        update.set_change(change);
        if change == proto::BookingChange::Booked
            && let Some(&Booking { prompt, uncached, output, made, started, .. }) = self.router.booking(id)
        {
            update.engine = engine;
            update.rank = rank;
            (update.prompt_tokens, update.uncached_tokens, update.output_tokens) = (prompt, uncached, output);
            update.age_ms = ((now - made).max(0.0) * 1e3) as u64;
            update.started = started;
            update.prefixes = self.router.prefixes(id).to_vec();
        }
        update
    }
}
