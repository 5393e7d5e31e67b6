//! Any history of a server of relayed events, however its calls end and whatever it restarts into, against a
//! naive model.
//!
//! Whenever the recorder has caught up: it never says `exact`, it holds nothing that the server does not
//! hold, and it holds all of it unless it says that something is missing.

#![allow(clippy::unwrap_used, unreachable_pub, reason = "tests")]

mod server;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use kvplane_core::{Continuity, Reason, Trust};
use kvplane_stream::{Ask, Ended, JournalOptions, Now, Recorder, RelayOptions};
use kvplane_wire::smg::outline;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use server::{Server, Style};

#[derive(Debug, Clone)]
enum Op {
    Store(i64, i64),
    Evict(usize),
    Clear,
    Publish,
    /// A batch that nobody ever sees.
    Lose,
    /// What is on its way arrives.
    Arrive(usize),
    /// The next message on its way is lost, doubled, or cannot be read.
    Drop,
    Double,
    Damage,
    /// The call ends; what is on its way is lost.
    End(Ended),
    Subscribe,
    Wait(u64),
    /// The server ends and comes back, and has published so much before anybody subscribes.
    Restart(u8),
}

struct World {
    server: Server,
    recorder: Recorder,
    now: Now,
    /// What the present call has still to bring.
    call: Option<VecDeque<Bytes>>,
    wants_another: bool,
}

impl World {
    fn new(style: Style, window: usize) -> Self {
        let now = Now { mono: Duration::from_secs(1), unix_ms: 1_700_000_000_000 };
        let keep = JournalOptions { relayed: true, ..JournalOptions::default() };
        Self {
            server: Server::new(style, window),
            recorder: Recorder::of_relay(RelayOptions::default(), keep, 0, now),
            now,
            call: None,
            wants_another: false,
        }
    }

    fn collect(&mut self) {
        self.wants_another |= self.recorder.take_asks().contains(&Ask::Resubscribe);
        let _ = self.recorder.take_happenings();
        if std::mem::take(&mut self.wants_another) {
            self.subscribe();
        }
    }

    fn subscribe(&mut self) {
        let start = self.recorder.relay_start();
        match self.server.subscribe(start) {
            Ok(messages) => {
                self.call = Some(messages);
                self.recorder.relay_subscribed(self.now, start);
            }
            Err(how) => {
                self.call = None;
                self.recorder.relay_ended(self.now, how);
            }
        }
        self.collect();
    }

    fn hear(&mut self, message: &Bytes) {
        self.recorder.relayed(self.now, &outline(message).unwrap(), message.clone());
        self.collect();
    }

    fn arrive(&mut self, most: usize) {
        for _ in 0..most {
            let Some(message) = self.call.as_mut().and_then(VecDeque::pop_front) else { return };
            self.hear(&message);
        }
    }

    fn publish(&mut self) {
        let message = self.server.publish();
        if let Some(call) = &mut self.call {
            call.push_back(message);
        }
    }

    fn end(&mut self, how: Ended) {
        if self.call.take().is_some() {
            self.recorder.relay_ended(self.now, how);
            self.collect();
        }
    }

    fn wait(&mut self, ms: u64) {
        self.now.mono += Duration::from_millis(ms);
        self.now.unix_ms += ms;
        self.recorder.tick(self.now);
        self.collect();
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Store(conversation, depth) => self.server.store(conversation, depth),
            Op::Evict(pick) => self.server.evict(pick),
            Op::Clear => self.server.clear(),
            Op::Publish => self.publish(),
            Op::Lose => self.server.lose(),
            Op::Arrive(most) => self.arrive(most),
            Op::Drop => drop(self.call.as_mut().and_then(VecDeque::pop_front)),
            Op::Double => {
                if let Some(message) = self.call.as_mut().and_then(|call| call.front().cloned()) {
                    self.arrive(1);
                    self.hear(&message);
                }
            }
            Op::Damage => {
                if let Some(message) = self.call.as_mut().and_then(VecDeque::pop_front) {
                    // Whole as far as its outline goes, and an invalid event behind it.
                    let damaged = [&message[..], &[0x1a, 3, 0x12, 1, 0x0a]].concat();
                    self.hear(&damaged.into());
                }
            }
            Op::End(how) => self.end(how),
            Op::Subscribe => {
                if self.call.is_none() {
                    self.subscribe();
                }
            }
            Op::Wait(ms) => self.wait(ms),
            Op::Restart(batches) => {
                self.end(Ended::Unreachable);
                self.server.restart();
                for n in 0..batches {
                    self.server.store(i64::from(n % 3), i64::from(n % 5) + 1);
                    self.server.publish();
                }
            }
        }
        self.check();
    }

    /// Lets everything come to rest with a well-behaved server.
    fn rest(&mut self) {
        for _ in 0..3 {
            for _ in 0..3 {
                if self.call.is_none() {
                    self.subscribe();
                }
                self.arrive(usize::MAX);
                self.wait(2_500);
            }
            self.publish();
        }
        self.arrive(usize::MAX);
        self.check();
        assert_eq!(self.recorder.continuity(), Continuity::Live);
        assert_eq!(self.recorder.last_sequence(), Some(self.server.next - 1));
    }

    fn held(&self) -> BTreeMap<i64, u32> {
        let residencies = self.recorder.ledger().state().residencies();
        residencies.map(|(_, hash, copies)| (hash as i64, copies)).collect()
    }

    fn check(&self) {
        let trust = self.recorder.ledger().trust();
        assert!(trust.level() >= Trust::Unverified, "a relay is never exact");
        let caught_up = self.recorder.continuity() == Continuity::Live
            && self.recorder.last_sequence() == self.server.next.checked_sub(1)
            && self.server.nothing_pending();
        if !caught_up {
            return;
        }
        let ours = self.held();
        let reported = trust.active().iter().any(|because| because.reason != Reason::Relay);
        if reported {
            let phantom = ours.keys().find(|hash| !self.server.held.contains_key(hash));
            let unsound = trust.has(Reason::MalformedRemoval) || trust.has(Reason::UnknownEvent);
            assert!(phantom.is_none() || unsound, "{phantom:?} is a phantom: {trust:?}");
        } else {
            assert_eq!(ours, self.server.held, "nothing is said to be missing");
        }
    }
}

fn ended() -> impl Strategy<Value = Ended> {
    prop::sample::select(vec![
        Ended::Ok,
        Ended::DataLoss,
        Ended::FailedPrecondition,
        Ended::Unreachable,
        Ended::Other,
        Ended::Unimplemented,
    ])
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..3i64, 1..8i64).prop_map(|(conversation, depth)| Op::Store(conversation, depth)),
        5 => (0..64usize).prop_map(Op::Evict),
        1 => Just(Op::Clear),
        8 => Just(Op::Publish),
        1 => Just(Op::Lose),
        12 => (1..6usize).prop_map(Op::Arrive),
        1 => Just(Op::Drop),
        1 => Just(Op::Double),
        1 => Just(Op::Damage),
        1 => ended().prop_map(Op::End),
        4 => Just(Op::Subscribe),
        3 => prop::sample::select(vec![50u64, 400, 2_100, 11_000]).prop_map(Op::Wait),
        1 => (0..20u8).prop_map(Op::Restart),
    ]
}

fn style() -> impl Strategy<Value = Style> {
    prop::sample::select(vec![Style::Keeps, Style::Snapshots, Style::LiveOnly, Style::Ignores])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: crate::cases(3_000),
        max_shrink_iters: 20_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("relay"))),
        ..ProptestConfig::default() })]

    #[test]
    fn any_history(ops in prop::collection::vec(op(), 0..120), style in style(), window in 1..40usize) {
        let mut world = World::new(style, window);
        for op in ops {
            world.run(&op);
        }
        world.rest();
    }
}

/// A server with some history that was followed to its end.
fn followed(style: Style) -> World {
    let mut world = World::new(style, 100);
    world.subscribe();
    for depth in 1..7 {
        world.server.store(0, depth);
        world.publish();
        world.arrive(9);
    }
    world.wait(2_500);
    world.server.store(1, 3);
    world.publish();
    world.arrive(9);
    assert_eq!(world.recorder.continuity(), Continuity::Live);
    world
}

#[test]
fn the_same_server_after_a_reconnect_resets_nothing() {
    for style in [Style::Keeps, Style::Snapshots] {
        let mut world = followed(style);
        let epoch = world.recorder.ledger().epoch();
        world.end(Ended::Unreachable);
        world.server.store(2, 4);
        world.publish();
        world.subscribe();
        assert_eq!(world.recorder.continuity(), Continuity::Recovering);
        world.arrive(9);
        assert_eq!(world.recorder.ledger().epoch(), epoch);
        assert_eq!(world.held(), world.server.held);
        let counters = world.recorder.counters();
        assert_eq!((counters.restarts, counters.unproven), (0, 0));
    }
}

#[test]
fn a_restart_that_overtook_the_number_is_seen_and_equal_hashes_prove_nothing() {
    let mut world = followed(Style::Keeps);
    world.run(&Op::Restart(19));
    world.subscribe();
    world.arrive(99);
    assert_eq!(world.recorder.counters().restarts, 1);
    assert_eq!(world.held(), world.server.held);
}

#[test]
fn a_server_without_history_proves_nothing() {
    let mut world = followed(Style::LiveOnly);
    assert_eq!(world.recorder.ledger().trust().active().len(), 1, "heard from its first batch on");
    world.end(Ended::Unreachable);
    world.subscribe();
    assert!(world.recorder.ledger().trust().has(Reason::Unproven));
    assert_eq!((world.recorder.counters().unproven, world.held().len()), (1, 0));
}

#[test]
fn silence_where_the_last_batch_should_come_proves_nothing() {
    let mut world = followed(Style::Ignores);
    world.end(Ended::Unreachable);
    world.subscribe();
    world.wait(1_900);
    assert_eq!(world.recorder.counters().unproven, 0, "it has some time");
    world.wait(200);
    assert_eq!((world.recorder.counters().unproven, world.held().len()), (1, 0));
}

#[test]
fn a_gap_is_asked_for_once_and_fails_closed() {
    let mut world = followed(Style::Keeps);
    // Lost on the way: the server has it.
    world.server.store(2, 2);
    world.publish();
    world.run(&Op::Drop);
    world.publish();
    world.arrive(9);
    let counters = world.recorder.counters();
    assert_eq!((counters.gaps, counters.gaps_unfilled, counters.unproven), (1, 0, 0));
    assert_eq!(world.held(), world.server.held);
    // Lost for good.
    world.server.lose();
    world.publish();
    world.arrive(9);
    let counters = world.recorder.counters();
    assert_eq!((counters.gaps, counters.gaps_unfilled, counters.unproven), (2, 1, 0));
    assert!(world.recorder.ledger().trust().has(Reason::Gap));
    assert_eq!(world.held().len(), 0);
}

#[test]
fn half_a_snapshot_is_not_credited_and_then_forgotten() {
    let mut world = followed(Style::Snapshots);
    world.end(Ended::DataLoss);
    world.subscribe();
    world.arrive(1);
    assert_eq!(world.recorder.continuity(), Continuity::Recovering);
    assert!(!world.held().is_empty());
    world.end(Ended::Unreachable);
    assert!(world.held().is_empty());
    world.subscribe();
    world.arrive(99);
    assert_eq!((world.recorder.continuity(), world.held()), (Continuity::Live, world.server.held.clone()));
}

#[test]
fn statuses_mean_what_they_say() {
    let mut world = followed(Style::Keeps);
    world.end(Ended::Other);
    assert!(!world.held().is_empty(), "what was known may still be true");
    world.recorder.relay_ended(world.now, Ended::Unimplemented);
    assert!(world.recorder.ledger().trust().has(Reason::EventsDisabled));
    world.wait(10_000);
    assert_eq!(world.recorder.continuity(), Continuity::Down);
    world.subscribe();
    world.arrive(9);
    assert_eq!(world.recorder.continuity(), Continuity::Live);
    assert_eq!(world.recorder.counters().unproven, 0, "the same life came back");
    assert!(!world.recorder.ledger().trust().has(Reason::EventsDisabled));
    world.end(Ended::FailedPrecondition);
    assert!(world.held().is_empty());
}

#[test]
fn of_several_ranks_none_can_be_proven_and_none_disturbs_the_others() {
    let mut world = followed(Style::Keeps);
    world.recorder.relay_accompanied(world.now);
    assert_eq!(world.recorder.relay_start(), 0);
    // A gap cannot be asked for.
    world.server.lose();
    world.publish();
    world.arrive(9);
    assert_eq!(world.recorder.counters().gaps_unfilled, 1);
    assert!(world.call.is_some() && world.recorder.counters().replays == 0);
    world.end(Ended::Unreachable);
    world.subscribe();
    assert_eq!(world.recorder.counters().unproven, 1);
}

#[test]
fn a_silence_is_not_live_and_what_arrives_in_it_counts() {
    let mut world = followed(Style::Keeps);
    world.recorder.silent(world.now);
    assert_eq!(world.recorder.continuity(), Continuity::Recovering);
    world.server.store(2, 2);
    world.publish();
    world.arrive(9);
    assert_eq!(
        (world.recorder.continuity(), world.held()),
        (Continuity::Recovering, world.server.held.clone())
    );
    world.wait(10_000);
    assert_eq!(world.recorder.continuity(), Continuity::Down);
    world.recorder.proven(world.now);
    assert_eq!((world.recorder.continuity(), world.held()), (Continuity::Live, world.server.held.clone()));
    let counters = world.recorder.counters();
    assert_eq!((counters.silences, counters.disconnects, counters.unproven), (1, 0, 0));
}
