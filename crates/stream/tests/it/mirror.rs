//! Any history of a ledger, mirrored to another plane over a link that is cut, doubled and damaged: at every
//! entry the copy is what the ledger was there, with its numbers, its trust and its transitions; anyone who
//! follows the copy misses nothing.

#![allow(clippy::unwrap_used, unreachable_pub, reason = "tests")]

use std::collections::BTreeMap;
use std::time::Duration;

use crate::copy::{forgets, mirror_chunks, mirror_entry, take};
use crate::followers::Replica;
use kvplane_core::{Continuity, Cursor, EngineKind, Reason, StateDigest, TrustState};
use kvplane_stream::{
    Change, Entry, EpochCause, Interpreter, JournalOptions, Ledger, Loss, MirrorEntry, MirrorSnapshot,
    Misfit, Now, Recorder, Semantics, Snapshot, Transition,
};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{Decoder, OwnedEvent, OwnedExtraKey, OwnedHash, OwnedRemoved, OwnedStored};
use proptest::prelude::*;

const BLOCK: u32 = 4;

#[derive(Debug, Clone)]
enum Op {
    /// The engine announces something.
    Batch(Vec<Event>),
    /// Batches are lost.
    Gap,
    /// Another life.
    Restart,
    HeardFromStart,
    KnownFrom,
    Degrade(Reason),
    Resolve(Reason),
    Stand(Continuity),
    /// This many messages arrive.
    Deliver(usize),
    /// The subscription ends, and begins again with the cursor.
    Cut,
    /// A message is lost, or not what it was.
    Damage(Damage),
    Wait(u64),
}

#[derive(Debug, Clone)]
enum Event {
    /// Blocks `from..to` of a conversation; their ancestors may be unknown.
    Store {
        conversation: u8,
        from: u8,
        to: u8,
        medium: &'static str,
        group: u32,
    },
    /// Hashes without tokens.
    Placeholder {
        conversation: u8,
        at: u8,
        medium: &'static str,
    },
    /// The last block of a prompt, not full.
    Partial {
        conversation: u8,
        at: u8,
    },
    Remove {
        conversation: u8,
        at: u8,
        medium: &'static str,
        group: u32,
    },
    Clear,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Damage {
    Lost,
    Copies,
}

fn hash(conversation: u8, at: u8) -> u64 {
    (u64::from(conversation) + 1) << 32 | u64::from(at)
}

fn tokens(conversation: u8, at: u8, count: u32) -> impl Iterator<Item = u32> {
    (0..count).map(move |i| u32::from(conversation) * 1000 + u32::from(at) * BLOCK + i)
}

impl Event {
    fn owned(&self) -> OwnedEvent {
        let named = |medium: &str| Some(medium.to_owned());
        match *self {
            Self::Store { conversation, from, to, medium, group } => OwnedEvent::Stored(OwnedStored {
                block_hashes: (from..=to).map(|at| OwnedHash::Unsigned(hash(conversation, at))).collect(),
                parent: from.checked_sub(1).map(|at| OwnedHash::Unsigned(hash(conversation, at))),
                token_ids: (from..=to).flat_map(|at| tokens(conversation, at, BLOCK)).collect(),
                block_size: BLOCK,
                medium: named(medium),
                group: Some(group),
                spec_kind: named(if group == 0 { "full_attention" } else { "sliding_window" }),
                // The second conversation is salted; what follows its first block inherits that.
                extra_keys: (conversation == 1 && from == 0).then(|| {
                    let salt = Some(vec![OwnedExtraKey::Text("salt".into())]);
                    std::iter::once(salt).chain((from..to).map(|_| None)).collect()
                }),
                ..OwnedStored::default()
            }),
            Self::Placeholder { conversation, at, medium } => OwnedEvent::Stored(OwnedStored {
                block_hashes: vec![OwnedHash::Unsigned(hash(conversation, at))],
                medium: named(medium),
                group: Some(0),
                spec_kind: named("full_attention"),
                ..OwnedStored::default()
            }),
            Self::Partial { conversation, at } => OwnedEvent::Stored(OwnedStored {
                block_hashes: vec![OwnedHash::Unsigned(hash(conversation, at) | 1 << 20)],
                parent: at.checked_sub(1).map(|at| OwnedHash::Unsigned(hash(conversation, at))),
                token_ids: tokens(conversation, at, BLOCK - 1).collect(),
                block_size: BLOCK - 1,
                medium: named("GPU"),
                group: Some(0),
                spec_kind: named("full_attention"),
                ..OwnedStored::default()
            }),
            Self::Remove { conversation, at, medium, group } => OwnedEvent::Removed(OwnedRemoved {
                block_hashes: vec![OwnedHash::Unsigned(hash(conversation, at))],
                medium: named(medium),
                group: Some(group),
                ..OwnedRemoved::default()
            }),
            Self::Clear => OwnedEvent::Cleared,
        }
    }
}

/// What the ledger was after an entry.
#[derive(Debug, Clone, PartialEq)]
struct Moment {
    digest: StateDigest,
    trust: TrustState,
    known_from: Option<u64>,
    last_event_id: u64,
}

/// Where the subscription is.
enum Phase {
    Begin,
    Tail(Cursor),
}

struct World {
    interpreter: Interpreter,
    ledger: Ledger,
    next_sequence: u64,
    /// As the entries say.
    trust: TrustState,
    moments: BTreeMap<(u64, u64), Moment>,
    transitions: BTreeMap<(u64, u64), Vec<Transition>>,
    mirror: Recorder,
    semantics: Semantics,
    phase: Phase,
    damage: Option<Damage>,
    now: Now,
    /// Somebody who follows the copy.
    replica: Replica,
    /// What was done to messages, and not found out yet.
    hurt: Option<Damage>,
    /// The copy began with a snapshot that does not have everything that is known of blocks that nobody
    /// holds. Then it may see that blocks become visible in another order.
    forgot: bool,
}

impl World {
    fn new(kind: EngineKind, window: usize, offload_chunk: Option<u32>) -> Self {
        let now = Now { mono: Duration::from_secs(1), unix_ms: 1_700_000_000_000 };
        let semantics = Semantics::of(kind);
        let keep =
            JournalOptions { max_batches: window, semantics, offload_chunk, ..JournalOptions::default() };
        let (interpreter, mut ledger) = Interpreter::with_ledger(keep.clone(), 0, now);
        ledger.keep_fresh();
        let mut mirror = Recorder::of_mirror(Duration::from_secs(10), keep, 0, now);
        mirror.ledger_mut().keep_fresh();
        let mut world = Self {
            trust: ledger.trust().clone(),
            interpreter,
            ledger,
            next_sequence: 0,
            moments: BTreeMap::new(),
            transitions: BTreeMap::new(),
            mirror,
            semantics,
            phase: Phase::Begin,
            damage: None,
            now,
            replica: Replica::default(),
            hurt: None,
            forgot: false,
        };
        world.connect();
        world
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Batch(events) => {
                let events: Vec<OwnedEvent> = events.iter().map(Event::owned).collect();
                let payload = encode_batch(Profile::Vllm0_32, 1.0, Some(0), &events);
                let mut decoder = Decoder::default();
                self.interpreter.apply(
                    &mut self.ledger,
                    self.next_sequence,
                    &decoder.decode(&payload).unwrap(),
                    self.now,
                );
                self.next_sequence += 1;
            }
            Op::Gap => self.interpreter.drop_residency(&mut self.ledger, Reason::Gap, self.now),
            Op::Restart => {
                self.next_sequence = 0;
                self.interpreter.begin_epoch(&mut self.ledger, EpochCause::DifferentBatch, self.now);
            }
            Op::HeardFromStart => self.interpreter.heard_from_start(&mut self.ledger),
            Op::KnownFrom => self.ledger.lack_history_before(self.next_sequence, self.now),
            Op::Degrade(reason) => self.ledger.degrade_source(*reason, self.now),
            Op::Resolve(reason) => self.ledger.resolve_source(*reason),
            Op::Stand(continuity) => self.ledger.note_continuity(*continuity),
            Op::Deliver(count) => self.deliver(*count),
            Op::Cut => {
                self.hurt = None;
                self.mirror.lost(self.now);
                assert_ne!(self.mirror.continuity(), Continuity::Live);
                self.connect();
            }
            Op::Damage(damage) => self.damage = Some(*damage),
            Op::Wait(ms) => {
                self.now.mono += Duration::from_millis(*ms);
                self.now.unix_ms += ms;
                self.mirror.tick(self.now);
            }
        }
        self.record();
        self.replica.follow(&mut self.mirror);
    }

    /// Remembers what the ledger was at each of its new entries.
    fn record(&mut self) {
        for entry in self.ledger.take_fresh() {
            self.trust = entry.trust.clone().unwrap_or_else(|| self.trust.clone());
            let moment = Moment {
                digest: entry.digest,
                trust: self.trust.clone(),
                known_from: entry.known_from,
                last_event_id: entry.next_event_id() - 1,
            };
            let key = (entry.epoch.as_u64(), entry.sequence);
            self.moments.insert(key, moment);
            self.transitions.insert(key, entry.transitions.clone());
        }
    }

    fn connect(&mut self) {
        self.phase = self.mirror.resume().map_or(Phase::Begin, Phase::Tail);
        self.mirror.reached(self.now, self.ledger.cursor());
    }

    /// As a plane's follower does: what follows the cursor, or a reset and a snapshot.
    fn deliver(&mut self, count: usize) {
        let read = match self.phase {
            Phase::Begin => Err(Loss::Expired),
            Phase::Tail(cursor) => self.ledger.read_after(cursor, count),
        };
        let Ok(entries) = read else {
            self.snapshot();
            return;
        };
        for entry in entries {
            let Phase::Tail(cursor) = &mut self.phase else { return };
            cursor.sequence = entry.sequence;
            let mut sent = mirror_entry(&entry);
            if let Some(done) = self.damage.take() {
                self.hurt = Some(done);
                match done {
                    Damage::Lost => continue,
                    Damage::Copies => damage(&mut sent),
                }
            }
            if let Err(misfit) = self.mirror.mirrored(self.now, sent) {
                let forgotten = self.forgot && misfit == Misfit::EventIds;
                assert!(self.hurt.take().is_some() || forgotten, "{misfit}");
                assert_eq!(self.mirror.resume(), None, "what does not fit is void");
                assert_eq!(self.mirror.ledger().state().entries(), 0);
                self.mirror.lost(self.now);
                self.connect();
                return;
            }
            // A wrong number of copies is no harm where a later event of the batch overrides it.
            assert_ne!(self.hurt.take(), Some(Damage::Lost), "what is missing is found out at once");
            self.check(&entry);
        }
    }

    fn snapshot(&mut self) {
        self.hurt = None;
        let snapshot = take(&mut self.ledger);
        self.forgot = forgets(&self.ledger, &snapshot);
        let cursor = snapshot.cursor;
        if Some(cursor.epoch) != self.mirror.resume().map(|ours| ours.epoch) {
            self.mirror.void(self.now, None);
        }
        let mut mirrored = MirrorSnapshot::new(cursor, JournalOptions::default().state, self.semantics);
        let chunks = mirror_chunks(&snapshot);
        let last = chunks.len() - 1;
        for (at, chunk) in chunks.into_iter().enumerate() {
            assert_eq!(mirrored.chunk(cursor, chunk), Ok(at == last));
        }
        let (mirrored, transitions) = mirrored.finish().unwrap().split();
        assert_eq!(transitions, snapshot.as_transitions());
        self.mirror.load(self.now, mirrored);
        self.phase = Phase::Tail(cursor);
        assert_eq!(self.mirror.ledger().cursor(), cursor);
        assert_eq!(self.mirror.ledger().state().digest(), snapshot.digest);
        assert_eq!(self.mirror.ledger().block_size(), self.ledger.block_size());
    }

    fn check(&mut self, entry: &Entry) {
        let ledger = self.mirror.ledger();
        let key = (entry.epoch.as_u64(), entry.sequence);
        let moment = &self.moments[&key];
        assert_eq!(ledger.cursor(), Cursor { epoch: entry.epoch, sequence: entry.sequence });
        assert_eq!(ledger.state().digest(), moment.digest);
        assert_eq!(ledger.last_event_id(), moment.last_event_id);
        assert_eq!(ledger.known_from(), moment.known_from);
        assert_eq!(ledger.trust(), &moment.trust);
        let ours = self.mirror.ledger_mut().take_fresh().pop().unwrap();
        if !self.forgot {
            assert_eq!(in_order(&ours.transitions), in_order(&self.transitions[&key]));
        }
        assert_eq!(ours.trust, entry.trust);
        assert_eq!(ours.continuity, entry.continuity);
    }

    /// Lets everything arrive.
    fn rest(&mut self) {
        self.damage = None;
        self.record();
        self.run(&Op::Cut);
        for _ in 0..3 {
            self.run(&Op::Deliver(usize::MAX));
        }
        let (ours, theirs) = (self.mirror.ledger(), &self.ledger);
        assert_eq!(ours.cursor(), theirs.cursor());
        assert_eq!(ours.trust(), theirs.trust());
        assert_eq!(ours.known_from(), theirs.known_from());
        assert_eq!(ours.engine_sequence(), theirs.engine_sequence());
        assert_eq!(ours.state().digest(), theirs.state().digest());
        assert_eq!(ours.last_event_id(), theirs.last_event_id());
        let continuity = take(&mut self.ledger).continuity;
        assert_eq!(self.mirror.continuity(), continuity);
        let (ours, theirs) = (take(self.mirror.ledger_mut()), take(&mut self.ledger));
        assert_eq!(visible(&ours), visible(&theirs));
        assert_eq!(ours.continuity, continuity);
    }
}

/// In which order a removal names blocks means nothing.
fn in_order(transitions: &[Transition]) -> Vec<Transition> {
    let mut ordered = transitions.to_vec();
    for transition in &mut ordered {
        if let Transition::Removed { hashes, .. } = transition {
            hashes.sort_unstable();
        }
    }
    ordered
}

/// What consumers that know no groups see, whatever order it is in.
fn visible(snapshot: &Snapshot) -> BTreeMap<u64, u64> {
    let mut seen = BTreeMap::new();
    for transition in snapshot.as_transitions() {
        match transition {
            Transition::Stored { blocks, .. } => {
                seen.extend(blocks.into_iter().map(|block| (block.hash, block.content)));
            }
            Transition::Removed { hashes, .. } => seen.retain(|hash, _| !hashes.contains(hash)),
            Transition::Cleared => seen.clear(),
        }
    }
    seen
}

/// One copy more than there is.
fn damage(sent: &mut MirrorEntry) {
    for change in &mut sent.changes {
        if let Change::Stored(stored) = change
            && let Some(block) = stored.blocks.first_mut()
        {
            block.copies += 1;
        }
    }
}

fn medium() -> impl Strategy<Value = &'static str> {
    prop_oneof![3 => Just("GPU"), 1 => Just("CPU")]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (0..3u8, 0..6u8, 0..4u8, medium(), 0..2u32).prop_map(|(conversation, from, more, medium, group)| {
            Event::Store { conversation, from, to: from + more, medium, group }
        }),
        1 => (0..3u8, 0..8u8, medium())
            .prop_map(|(conversation, at, medium)| Event::Placeholder { conversation, at, medium }),
        1 => (0..3u8, 0..8u8).prop_map(|(conversation, at)| Event::Partial { conversation, at }),
        8 => (0..3u8, 0..9u8, medium(), 0..2u32)
            .prop_map(|(conversation, at, medium, group)| Event::Remove { conversation, at, medium, group }),
        1 => Just(Event::Clear),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let reason =
        || prop_oneof![Just(Reason::Relay), Just(Reason::EventsDisabled), Just(Reason::UnknownEvent)];
    let continuity =
        prop_oneof![Just(Continuity::Live), Just(Continuity::Recovering), Just(Continuity::Down)];
    prop_oneof![
        12 => prop::collection::vec(event(), 1..4).prop_map(Op::Batch),
        1 => Just(Op::Gap),
        1 => Just(Op::Restart),
        1 => Just(Op::HeardFromStart),
        1 => Just(Op::KnownFrom),
        1 => reason().prop_map(Op::Degrade),
        1 => reason().prop_map(Op::Resolve),
        1 => continuity.prop_map(Op::Stand),
        8 => (1..6usize).prop_map(Op::Deliver),
        2 => Just(Op::Cut),
        1 => prop_oneof![Just(Damage::Lost), Just(Damage::Copies)].prop_map(Op::Damage),
        1 => prop_oneof![Just(50u64), Just(11_000)].prop_map(Op::Wait),
    ]
}

fn kind() -> impl Strategy<Value = EngineKind> {
    prop_oneof![2 => Just(EngineKind::Vllm), 1 => Just(EngineKind::Sglang), 1 => Just(EngineKind::Trtllm)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: crate::cases(1_000), max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn a_copy_is_what_was_copied(
        ops in prop::collection::vec(op(), 0..100), kind in kind(), window in 1..30usize,
        chunk in prop::option::of(1..4u32),
    ) {
        let mut world = World::new(kind, window, chunk.map(|blocks| blocks * BLOCK));
        for op in ops {
            world.run(&op);
        }
        world.rest();
    }
}

#[test]
fn a_snapshot_whose_numbers_leave_no_room_is_refused() {
    let now = Now { mono: Duration::ZERO, unix_ms: 1_700_000_000_000 };
    let (_, mut ledger) = Interpreter::with_ledger(JournalOptions::default(), 0, now);
    let snapshot = take(&mut ledger);
    let load = |cursor: Cursor, last_event_id: u64| {
        let limits = JournalOptions::default().state;
        let mut mirrored = MirrorSnapshot::new(cursor, limits, Semantics::default());
        let mut chunk = mirror_chunks(&snapshot).pop().unwrap();
        chunk.end.as_mut().unwrap().last_event_id = last_event_id;
        mirrored.chunk(cursor, chunk)
    };
    let cursor = snapshot.cursor;
    assert_eq!(load(cursor, snapshot.last_event_id), Ok(true));
    for number in [u64::MAX, u64::MAX - 1, 1 << 63] {
        let late = Cursor { sequence: number, ..cursor };
        let far = Cursor { epoch: kvplane_core::Epoch::from_raw(number), ..cursor };
        for refused in [load(late, 0), load(far, 0), load(cursor, number)] {
            assert!(matches!(refused, Err(Misfit::Malformed(_))), "{number}: {refused:?}");
        }
    }
}

/// What another plane calls live is credited here once the first proof has arrived, and no sooner: until then
/// the copy is complete and not ready to be asked.
#[test]
fn a_copy_is_caught_up_once_what_is_live_there_is_live_here() {
    let mut world = World::new(EngineKind::Vllm, 4, None);
    world.mirror.bound_silence(Duration::from_secs(2));
    world.run(&Op::Stand(Continuity::Recovering));
    world.run(&Op::Deliver(usize::MAX));
    assert!(world.mirror.is_caught_up(), "nothing is live there: there is nothing to wait for");
    world.run(&Op::Stand(Continuity::Live));
    world.run(&Op::Deliver(usize::MAX));
    assert!(world.mirror.is_current() && !world.mirror.is_caught_up());
    world.mirror.prove(world.now, world.now.mono);
    assert!(world.mirror.is_caught_up());
    world.run(&Op::Wait(2_100));
    assert!(world.mirror.is_current() && !world.mirror.is_caught_up(), "the proof is too old");
}
