//! Engines, planes and a bus.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use kvplane_bus::memory::MemoryBus;
use kvplane_bus::{
    Applied, Ask, Claim, Declare, Fetched, Follower, Frame, Item, Kind, Owned, Position, Replica, Standing,
    Why, next_generation,
};
use kvplane_core::{EngineId, StreamId};

/// Time stands still: nobody is silent. Silence has tests of its own.
pub const NOW: Duration = Duration::from_secs(1);
pub const DOWN_AFTER: Duration = Duration::from_secs(10);
pub const PLANES: usize = 3;
pub const STREAMS: usize = 2;

/// What a state is told by: its engine's life, and all that happened in it, in order.
fn after(low: u64, op: u64) -> u64 {
    (low ^ op.wrapping_mul(0x9e37_79b9_7f4a_7c15)).rotate_left(23).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// An engine, as it is.
#[derive(Debug, Default)]
pub struct Engine {
    life: u64,
    ops: Vec<u64>,
    /// The digest after each of a life's batches, for all lives.
    truth: BTreeMap<u64, Vec<u64>>,
}

impl Engine {
    fn begin(&mut self) {
        self.life += 1;
        self.ops.clear();
        self.truth.insert(self.life, vec![self.life]);
    }

    fn step(&mut self, op: u64) {
        let states = self.truth.get_mut(&self.life).unwrap();
        states.push(after(*states.last().unwrap(), op));
        self.ops.push(op);
    }
}

/// A copy of a stream: its position, and how far in which of the engine's lives it is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Copy {
    pub at: Option<Position>,
    pub life: u64,
    pub batches: u64,
}

/// An entry is a batch, or something that kvplane itself did.
fn entry(at: Position, op: Option<u64>) -> Bytes {
    let words = [at.epoch, at.sequence, at.low, at.high, u64::from(op.is_some()), op.unwrap_or(0)];
    words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>().into()
}

fn words(entry: &Bytes) -> Vec<u64> {
    entry.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

impl Replica for Copy {
    fn position(&self) -> Option<Position> {
        self.at
    }

    fn apply(&mut self, entry: &Bytes) -> Applied {
        let Some(at) = &mut self.at else { return Applied::Gap };
        let announced = words(entry);
        // Epochs rise.
        if (announced[0], announced[1]) <= (at.epoch, at.sequence) {
            return Applied::Before;
        }
        if announced[0] != at.epoch || announced[1] > at.sequence + 1 {
            return Applied::Gap;
        }
        let low = if announced[4] == 1 { after(at.low, announced[5]) } else { at.low };
        if (low, 0) != (announced[2], announced[3]) {
            return Applied::Misfit;
        }
        (at.sequence, at.low) = (announced[1], low);
        self.batches += announced[4];
        Applied::Next
    }

    fn says_live(&self) -> bool {
        true
    }
}

/// A stream that a plane records.
#[derive(Debug)]
pub struct Owner {
    generation: u64,
    copy: Copy,
    /// Where it began to own it, and what came since.
    base: Position,
    log: Vec<Bytes>,
}

impl Owner {
    fn add(&mut self, op: Option<u64>) -> Bytes {
        let mut at = self.copy.at.unwrap();
        at.sequence += 1;
        at.low = op.map_or(at.low, |op| after(at.low, op));
        let entry = entry(at, op);
        self.copy.at = Some(at);
        self.copy.batches += u64::from(op.is_some());
        self.log.push(entry.clone());
        entry
    }

    /// A new epoch, of an engine's life.
    fn begin(&mut self, epoch: u64, life: u64) {
        let at = Position { epoch, sequence: epoch << 20, low: life, high: 0 };
        (self.base, self.log) = (at, Vec::new());
        self.copy = Copy { at: Some(at), life, batches: 0 };
    }

    /// What somebody is given who is at a position.
    fn fetched(&self, resume: Option<Position>) -> Fetched<Copy> {
        let mut positions = vec![self.base];
        positions.extend(self.log.iter().map(words).map(|announced| Position {
            epoch: announced[0],
            sequence: announced[1],
            low: announced[2],
            high: announced[3],
        }));
        match positions.iter().position(|at| Some(*at) == resume) {
            Some(at) => Fetched::Entries(self.log[at..].to_vec()),
            None => Fetched::State(self.copy.clone()),
        }
    }
}

#[derive(Debug)]
pub struct Plane {
    name: String,
    run: u64,
    pub follower: Follower<Copy>,
    at: (u64, u64),
    pub owners: BTreeMap<StreamId, Owner>,
    /// Claims that were published and not read yet.
    pending: BTreeMap<StreamId, u64>,
    claimed: Vec<(StreamId, u64)>,
    outbox: Vec<Item>,
    declared: BTreeSet<usize>,
    number: u64,
    claims: u64,
    asks: Vec<Ask>,
    /// A frame that is delayed.
    held: Option<Bytes>,
    /// Something was lost to it, and it has read nothing since that could say so.
    blind: bool,
    /// The bus lost what it had read: until a head says so, it cannot know.
    misled: bool,
}

impl Plane {
    fn new(at: usize, run: u64) -> Self {
        Self {
            name: format!("plane-{at}"),
            run,
            follower: Follower::new(DOWN_AFTER),
            at: (0, 0),
            owners: BTreeMap::new(),
            pending: BTreeMap::new(),
            claimed: Vec::new(),
            outbox: Vec::new(),
            declared: BTreeSet::new(),
            number: 0,
            claims: 0,
            asks: Vec::new(),
            held: None,
            blind: false,
            misled: false,
        }
    }
}

/// What happens to a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Fine,
    Lost,
    Doubled,
    /// Behind the next one.
    Delayed,
    Damaged,
}

#[derive(Debug)]
pub struct World {
    pub bus: MemoryBus,
    pub engines: Vec<Engine>,
    pub planes: Vec<Plane>,
    clock: u64,
}

pub fn stream(at: usize) -> StreamId {
    StreamId::new(EngineId::new(&format!("e{at}")), 0)
}

impl World {
    pub fn new() -> Self {
        let mut engines: Vec<Engine> = (0..STREAMS).map(|_| Engine::default()).collect();
        engines.iter_mut().for_each(Engine::begin);
        let planes = (0..PLANES).map(|at| Plane::new(at, at as u64 + 1)).collect();
        Self { bus: MemoryBus::default(), engines, planes, clock: 100 }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub fn step(&mut self, engine: usize, op: u64) {
        self.engines[engine].step(op);
        self.each_owner(engine, |owner| Some(owner.add(Some(op))));
    }

    pub fn restart(&mut self, engine: usize) {
        self.engines[engine].begin();
        let (epoch, life) = (self.tick(), self.engines[engine].life);
        self.each_owner(engine, |owner| {
            // Every ear mints an epoch of its own.
            owner.begin(epoch * 1_000 + owner.generation % 1_000, life);
            None
        });
    }

    fn each_owner(&mut self, engine: usize, mut input: impl FnMut(&mut Owner) -> Option<Bytes>) {
        for plane in &mut self.planes {
            let Some(owner) = plane.owners.get_mut(&stream(engine)) else { continue };
            let generation = owner.generation;
            if let Some(entry) = input(owner) {
                plane.outbox.push(Item { stream: engine as u32, generation, kind: Some(Kind::Entry(entry)) });
            }
        }
    }

    /// The plane itself has something to say of a stream.
    pub fn remark(&mut self, plane: usize, engine: usize) {
        let plane = &mut self.planes[plane];
        if let Some(owner) = plane.owners.get_mut(&stream(engine)) {
            let (generation, entry) = (owner.generation, owner.add(None));
            plane.outbox.push(Item { stream: engine as u32, generation, kind: Some(Kind::Entry(entry)) });
        }
    }

    pub fn claim(&mut self, plane: usize, engine: usize, fate: Fate) {
        let (now, id) = (self.tick(), stream(engine));
        let me = &mut self.planes[plane];
        if me.owners.contains_key(&id) || me.pending.contains_key(&id) {
            return;
        }
        let seen = self.bus.record(&id).map(|record| record.generation);
        let known = me.follower.owner(&id).map_or(0, |(generation, _, _)| generation);
        let generation = next_generation(now, known.max(seen.unwrap_or(0)));
        let owned = Owned { plane: kvplane_core::PlaneId::reported(&me.name), run: me.run, generation };
        if !self.bus.claim(&id, seen, owned) {
            return;
        }
        me.pending.insert(id.clone(), generation);
        me.claimed.push((id.clone(), generation));
        let base = me.follower.replica(&id).and_then(Copy::position);
        let claim =
            Claim { base, why: Why::Takeover.into(), engine_sequence: None, engine_digest: Bytes::new() };
        self.declare(plane, engine);
        let kind = Some(Kind::Claim(claim));
        self.planes[plane].outbox.push(Item { stream: engine as u32, generation, kind });
        self.flush(plane, fate, false);
    }

    fn declare(&mut self, plane: usize, engine: usize) {
        let plane = &mut self.planes[plane];
        let (engine_id, rank) = (format!("e{engine}"), 0);
        let declare = Declare { engine: engine_id, rank, ..Declare::default() };
        plane.declared.insert(engine);
        let kind = Some(Kind::Declare(declare));
        plane.outbox.push(Item { stream: engine as u32, generation: 0, kind });
    }

    /// Publishes what there is, and heads behind it.
    pub fn flush(&mut self, plane: usize, fate: Fate, heads: bool) {
        let created = self.bus.end().0;
        if heads {
            for engine in 0..STREAMS {
                if self.planes[plane].owners.contains_key(&stream(engine)) {
                    self.declare(plane, engine);
                }
            }
        }
        let me = &mut self.planes[plane];
        if heads {
            for engine in 0..STREAMS {
                let Some(owner) = me.owners.get(&stream(engine)) else { continue };
                let kind = Some(Kind::Head(owner.copy.at.unwrap()));
                me.outbox.push(Item { stream: engine as u32, generation: owner.generation, kind });
            }
        }
        let items = std::mem::take(&mut me.outbox);
        me.number += 1;
        me.claims += items.iter().filter(|item| matches!(item.kind, Some(Kind::Claim(_)))).count() as u64;
        let frame = Frame {
            plane: me.name.clone(),
            run: me.run,
            number: me.number,
            items,
            stream_created: created,
            claims: me.claims,
        };
        let bytes = frame.write();
        let earlier = me.held.take();
        match fate {
            Fate::Fine => drop(self.bus.publish(bytes)),
            Fate::Lost => {}
            Fate::Doubled => {
                self.bus.publish(bytes.clone());
                self.bus.publish(bytes);
            }
            Fate::Delayed => me.held = Some(bytes),
            Fate::Damaged => drop(self.bus.publish(bytes.slice(..bytes.len() / 2))),
        }
        if let Some(earlier) = earlier {
            self.bus.publish(earlier);
        }
    }

    /// Reads so many messages; those in `lost`, a mask, are lost to this reader alone.
    pub fn read(&mut self, plane: usize, count: usize, lost: u8) {
        for at in 0..count {
            let me = &mut self.planes[plane];
            let Some((place, bytes)) = self.bus.after(me.at) else { return };
            me.at = place;
            if lost & (1 << (at % 8)) != 0 && at < 8 {
                me.blind = true;
                continue;
            }
            me.blind = false;
            me.follower.message(NOW, place, bytes);
            self.obey(plane);
        }
    }

    /// What follows from what was read.
    fn obey(&mut self, plane: usize) {
        let claimed = self.planes[plane].follower.take_claimed();
        for claim in claimed {
            let epoch = self.tick();
            let me = &mut self.planes[plane];
            let mine = claim.plane == me.name && claim.run == me.run;
            if !mine {
                me.owners.remove(&claim.stream);
                me.pending.remove(&claim.stream);
                continue;
            }
            if me.pending.remove(&claim.stream) != Some(claim.generation) {
                continue;
            }
            let engine = (0..STREAMS).find(|at| stream(*at) == claim.stream).unwrap();
            let truth = &self.engines[engine];
            let copy = me.follower.replica(&claim.stream).cloned().unwrap_or_default();
            let mut owner =
                Owner { generation: claim.generation, copy, base: Position::default(), log: Vec::new() };
            match claim.base {
                // The engine's ring proves that it is the life that the copy is of.
                Some(base) if owner.copy.life == truth.life => {
                    assert_eq!(owner.copy.at, Some(base));
                    owner.base = base;
                }
                _ => owner.begin(epoch * 1_000 + claim.generation % 1_000, truth.life),
            }
            let missing = truth.ops[owner.copy.batches as usize..].to_vec();
            for op in missing {
                let kind = Some(Kind::Entry(owner.add(Some(op))));
                me.outbox.push(Item { stream: engine as u32, generation: owner.generation, kind });
            }
            me.owners.insert(claim.stream, owner);
        }
        // It may have learned otherwise that somebody else owns a stream.
        let me = &mut self.planes[plane];
        let follower = &me.follower;
        let is_fenced = |stream: &StreamId, own: u64| {
            follower.owner(stream).is_some_and(|(generation, _, _)| generation > own)
        };
        me.owners.retain(|stream, owner| !is_fenced(stream, owner.generation));
        me.pending.retain(|stream, generation| !is_fenced(stream, *generation));
        let asks = me.follower.take_asks();
        me.asks.extend(asks);
    }

    /// Every question is answered by who owns the stream, as far as somebody does.
    fn answer_well(&mut self, plane: usize) {
        for ask in std::mem::take(&mut self.planes[plane].asks) {
            let by = match &ask {
                Ask::Fetch { stream, .. } => {
                    let generation = self.bus.record(stream).map(|record| record.generation);
                    let owns =
                        |other: &Plane| other.owners.get(stream).map(|owner| owner.generation) == generation;
                    self.planes.iter().position(|other| generation.is_some() && owns(other))
                }
                Ask::Owned { .. } => Some(plane),
            };
            let others = std::mem::replace(&mut self.planes[plane].asks, vec![ask]);
            self.answer(plane, by.unwrap_or(plane));
            self.planes[plane].asks.extend(others);
        }
    }

    /// Somebody answers what a plane asked, as well as he can.
    pub fn answer(&mut self, plane: usize, by: usize) {
        for ask in std::mem::take(&mut self.planes[plane].asks) {
            match ask {
                Ask::Fetch { id, stream, resume, .. } => {
                    let other = &self.planes[by];
                    let (fetched, of) = match (other.owners.get(&stream), other.follower.replica(&stream)) {
                        (Some(owner), _) => {
                            (owner.fetched(resume), Some((other.name.clone(), other.run, other.number)))
                        }
                        (None, Some(copy)) if copy.at.is_some() => {
                            let of = other.follower.read_of(&stream);
                            let of = of.map(|(plane, run, number)| (plane.to_owned(), run, number));
                            (Fetched::State(copy.clone()), of)
                        }
                        _ => (Fetched::Nothing, None),
                    };
                    let of = of.as_ref().map(|(plane, run, number)| (plane.as_str(), *run, *number));
                    self.planes[plane].follower.fetched(id, &stream, of, fetched);
                }
                Ask::Owned { plane: of, run } => {
                    let other = self.planes.iter().find(|other| other.name == of && other.run == run);
                    // Of one that is gone the records tell, as far as they are there.
                    let (claims, owned) = match other {
                        Some(other) => (other.claims, other.claimed.clone()),
                        None => (u64::MAX, Vec::new()),
                    };
                    self.planes[plane].follower.owned(&of, run, claims, &owned);
                }
            }
            self.obey(plane);
        }
    }

    /// The process ends, and another one begins in its place.
    pub fn die(&mut self, plane: usize) {
        let run = self.tick();
        self.planes[plane] = Plane::new(plane, run);
    }

    pub fn rebirth(&mut self) {
        self.bus.rebirth();
        self.mislead();
    }

    pub fn lose_last(&mut self, count: usize) {
        self.bus.lose_last(count);
        self.mislead();
    }

    fn mislead(&mut self) {
        self.planes.iter_mut().for_each(|plane| plane.misled = true);
    }

    /// Whoever says live has what the engine had; and one place is one state, wherever nothing is lost that
    /// nobody knows of.
    pub fn check(&self) {
        let mut places: BTreeMap<(usize, u64, u64), (u64, &str)> = BTreeMap::new();
        for plane in &self.planes {
            for engine in 0..STREAMS {
                let id = stream(engine);
                if plane.follower.standing(&id, NOW) != Standing::Live {
                    continue;
                }
                let copy = plane.follower.replica(&id).unwrap();
                let at = copy.at.unwrap();
                let truth = self.engines[engine].truth[&copy.life][copy.batches as usize];
                assert_eq!(at.low, truth, "{} says live of {id} and is wrong", plane.name);
                if plane.blind || plane.misled {
                    continue;
                }
                let place = (engine, at.epoch, at.sequence);
                let (state, other) = *places.entry(place).or_insert((at.low, &plane.name));
                assert_eq!(state, at.low, "{other} and {} differ at one place of {id}", plane.name);
            }
        }
    }

    /// Who stands where, for people.
    fn summary(&self) -> String {
        let mut text = String::new();
        for engine in 0..STREAMS {
            let (id, truth) = (stream(engine), &self.engines[engine]);
            let record = self.bus.record(&id);
            text += &format!("\n{id}: life {}, {} batches, {record:?}", truth.life, truth.ops.len());
            for plane in &self.planes {
                let standing = plane.follower.standing(&id, NOW);
                let (copy, owner) = (plane.follower.replica(&id), plane.follower.owner(&id));
                let owns = plane.owners.get(&id).map(|owner| (owner.generation, &owner.copy));
                text += &format!(
                    "\n  {} run {}: {standing:?} {copy:?} of {owner:?}; owns {owns:?}, pending {:?}, asks {:?}, {:?}",
                    plane.name,
                    plane.run,
                    plane.pending.get(&id),
                    plane.asks,
                    plane.follower.counters()
                );
            }
        }
        text
    }

    /// Nothing goes wrong any more: everybody comes to have everything.
    pub fn heal(&mut self) {
        for round in 0.. {
            assert!(round < 12, "not all are live:{}", self.summary());
            for engine in 0..STREAMS {
                let id = stream(engine);
                let owns = |plane: &Plane| plane.owners.contains_key(&id) || plane.pending.contains_key(&id);
                let knows = |plane: &&Plane| {
                    let own = plane.owners.get(&id).map(|owner| owner.generation);
                    own.is_some() && own == self.bus.record(&id).map(|record| record.generation)
                };
                let is_owned = self.planes.iter().any(|plane| knows(&plane));
                if round % 4 == 0 && !is_owned && round > 0 {
                    let claimant = (0..PLANES).find(|at| !owns(&self.planes[*at])).unwrap_or(0);
                    self.planes[claimant].pending.remove(&id);
                    self.planes[claimant].owners.remove(&id);
                    self.claim(claimant, engine, Fate::Fine);
                }
            }
            for plane in 0..PLANES {
                self.flush(plane, Fate::Fine, true);
            }
            for plane in 0..PLANES {
                self.read(plane, usize::MAX, 0);
            }
            for plane in 0..PLANES {
                self.answer_well(plane);
            }
            self.check();
            if std::env::var_os("TRACE").is_some() {
                eprintln!("round {round}:{}", self.summary());
            }
            let is_whole = |plane: &Plane, engine: usize| {
                let id = stream(engine);
                let truth = &self.engines[engine];
                plane.follower.standing(&id, NOW) == Standing::Live
                    && plane
                        .follower
                        .replica(&id)
                        .is_some_and(|copy| (copy.life, copy.batches) == (truth.life, truth.ops.len() as u64))
            };
            if self.planes.iter().all(|plane| (0..STREAMS).all(|engine| is_whole(plane, engine))) {
                return;
            }
        }
    }
}
