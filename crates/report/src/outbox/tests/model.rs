//! Any history against a naive server: calls are lost on the way or on the way back, the server restarts,
//! forgets, has reports from an earlier process. When calls succeed again, it holds what the replica holds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kvplane_hints::CacheTier;
use proptest::prelude::*;

use super::super::*;
use super::{GRACE, gone_in, held_in};

const ADAPTERS: [&str; 3] = ["", "sql", "chat"];
const FINGERPRINTS: u64 = 5;
const REFRESH: Duration = Duration::from_mins(1);
/// What the server forgets after: an outbox promises to tell everything again within twice its refresh.
const TTL: Duration = Duration::from_secs(130);
const CONCURRENCY: usize = 3;
const MAX_BATCH: usize = 4;

type Key = (String, u64);

/// How a call ends.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Taken,
    /// The server took it, and answers with an error.
    Broken,
    /// It never arrived.
    Lost,
    /// There is no answer, and the server takes it this many milliseconds later.
    Late(u64),
}

#[derive(Debug, Clone)]
enum Step {
    Held(u64, usize, bool),
    Gone(u64, usize),
    Nothing,
    Advance(u64),
    Issue,
    End(usize, Fate),
    /// The connection breaks, and comes back: to a server that restarted, or to the same.
    Reconnect {
        restarted: bool,
    },
    Disconnect,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        3 => Just(Fate::Taken),
        1 => Just(Fate::Broken),
        1 => Just(Fate::Lost),
        1 => prop_oneof![Just(0), Just(100), Just(4_999)].prop_map(Fate::Late),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1..=FINGERPRINTS, 0..ADAPTERS.len(), any::<bool>()).prop_map(|(f, a, warm)| Step::Held(f, a, warm)),
        5 => (1..=FINGERPRINTS, 0..ADAPTERS.len()).prop_map(|(f, a)| Step::Gone(f, a)),
        1 => Just(Step::Nothing),
        6 => prop_oneof![Just(60), Just(150), Just(6_000)].prop_map(Step::Advance),
        8 => Just(Step::Issue),
        8 => (any::<usize>(), fate()).prop_map(|(at, fate)| Step::End(at, fate)),
        1 => any::<bool>().prop_map(|restarted| Step::Reconnect { restarted }),
        1 => Just(Step::Disconnect),
    ]
}

/// What the peer's server does.
#[derive(Debug, Default)]
struct Server {
    entries: BTreeMap<Key, (u32, CacheTier, Duration)>,
    /// What it is about to apply, also where nobody waits for that.
    late: Vec<(Duration, Saying)>,
}

impl Server {
    fn apply(&mut self, saying: &Saying, now: Duration) {
        match saying {
            Saying::Clear => self.entries.clear(),
            Saying::Adds(adds) => {
                for add in adds {
                    let key = (add.adapter.to_string(), add.fingerprint);
                    self.entries.insert(key, (add.tokens, add.tier, now));
                }
            }
            Saying::Eviction { fingerprint, adapter } => {
                self.entries.retain(|(held, hash), _| {
                    hash != fingerprint || !(adapter.is_empty() || **held == **adapter)
                });
            }
            Saying::Stats(_) => {}
        }
    }

    fn pass(&mut self, now: Duration) {
        self.late.sort_by_key(|(due, _)| *due);
        while self.late.first().is_some_and(|(due, _)| *due <= now) {
            let (due, saying) = self.late.remove(0);
            self.apply(&saying, due);
        }
        self.entries.retain(|_, (_, _, seen)| now.saturating_sub(*seen) < TTL);
    }
}

/// What is wanted of a prefix: since which note, and whether the server took it since.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    tier: CacheTier,
    since: u64,
    taken: bool,
}

#[derive(Debug)]
struct World {
    outbox: Outbox,
    server: Server,
    wanted: BTreeMap<Key, Wanted>,
    gone_since: BTreeMap<Key, u64>,
    in_flight: Vec<Call>,
    now: Duration,
    notes: u64,
    up: bool,
}

impl World {
    fn new() -> Self {
        let options = OutboxOptions {
            max_batch: MAX_BATCH,
            concurrency: CONCURRENCY,
            refresh: REFRESH,
            max_evictions: 8,
            ..OutboxOptions::default()
        };
        let mut server = Server::default();
        // Of an earlier life.
        server.entries.insert(("sql".to_owned(), 77), (1, CacheTier::T1, Duration::ZERO));
        server.entries.insert((String::new(), 1), (1, CacheTier::T2, Duration::ZERO));
        Self {
            outbox: Outbox::new(options, GRACE),
            server,
            wanted: BTreeMap::new(),
            gone_since: BTreeMap::new(),
            in_flight: Vec::new(),
            now: Duration::ZERO,
            notes: 0,
            up: false,
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Held(fingerprint, adapter, warm) => {
                let tier = if warm { CacheTier::T1 } else { CacheTier::T2 };
                self.notes += 1;
                let key = (ADAPTERS[adapter].to_owned(), fingerprint);
                let same = self.wanted.get(&key).is_some_and(|wanted| wanted.tier == tier);
                if !same {
                    // It may be as the server still knows it: then there is nothing to add.
                    let known = self.outbox.holdings.find(fingerprint, ADAPTERS[adapter]);
                    let taken =
                        known.is_some_and(|id| self.outbox.holdings.slot(id).reported == Reported::At(tier));
                    self.wanted.insert(key, Wanted { tier, since: self.notes, taken });
                }
                self.outbox.note(&[held_in(fingerprint, ADAPTERS[adapter], tier)], self.now);
            }
            Step::Gone(fingerprint, adapter) => {
                self.notes += 1;
                let key = (ADAPTERS[adapter].to_owned(), fingerprint);
                if self.wanted.remove(&key).is_some() {
                    self.gone_since.insert(key, self.notes);
                }
                self.outbox.note(&[gone_in(fingerprint, ADAPTERS[adapter])], self.now);
            }
            Step::Nothing => {
                self.notes += 1;
                self.wanted.clear();
                self.gone_since.clear();
                self.outbox.note(&[Note::Nothing], self.now);
            }
            Step::Advance(ms) => {
                self.now += Duration::from_millis(ms);
                self.server.pass(self.now);
            }
            Step::Issue => while self.issue() {},
            Step::End(at, fate) => {
                if !self.in_flight.is_empty() {
                    let at = at % self.in_flight.len();
                    self.end(at, fate);
                }
            }
            Step::Disconnect => self.disconnect(),
            Step::Reconnect { restarted } => {
                self.disconnect();
                if restarted {
                    self.server = Server::default();
                }
                self.up = true;
                self.outbox.connected(self.now);
            }
        }
    }

    fn disconnect(&mut self) {
        self.up = false;
        self.outbox.disconnected();
    }

    fn issue(&mut self) -> bool {
        let Next::Call(call) = self.outbox.next(self.now) else { return false };
        assert!(self.up, "a call without a connection");
        self.check_order(&call);
        self.in_flight.push(call);
        true
    }

    fn check_order(&self, call: &Call) {
        let others: Vec<&Saying> = self.in_flight.iter().map(|other| &other.saying).collect();
        match &call.saying {
            Saying::Clear => assert!(others.is_empty(), "a clear beside {others:?}"),
            Saying::Adds(adds) => {
                assert!(others.is_empty(), "adds beside {others:?}");
                assert!(!adds.is_empty() && adds.len() <= MAX_BATCH);
            }
            Saying::Eviction { fingerprint, adapter } => {
                assert!(others.len() < CONCURRENCY);
                let key = (adapter.to_string(), *fingerprint);
                assert!(!self.wanted.contains_key(&key), "an eviction of what is held: {key:?}");
                let mut keys = BTreeSet::new();
                for other in others {
                    let Saying::Eviction { fingerprint, adapter } = other else {
                        panic!("an eviction beside {other:?}")
                    };
                    keys.insert((adapter.to_string(), *fingerprint));
                }
                assert!(!keys.contains(&key), "two calls about {key:?}");
                if let Some(&gone) = self.gone_since.get(&key) {
                    let overtaken = self.wanted.iter().find(|(_, held)| held.since < gone && !held.taken);
                    assert!(overtaken.is_none(), "{key:?} is evicted before {overtaken:?} is added");
                }
            }
            Saying::Stats(_) => {}
        }
    }

    fn end(&mut self, at: usize, fate: Fate) {
        let Call { saying, ticket } = self.in_flight.remove(at);
        match fate {
            Fate::Taken | Fate::Broken => self.server.apply(&saying, self.now),
            Fate::Lost => {}
            Fate::Late(ms) => self.server.late.push((self.now + Duration::from_millis(ms), saying.clone())),
        }
        let taken = matches!(fate, Fate::Taken);
        if let Saying::Adds(adds) = &saying {
            for add in adds.iter().filter(|_| taken) {
                let key = (add.adapter.to_string(), add.fingerprint);
                if let Some(wanted) = self.wanted.get_mut(&key) {
                    wanted.taken |= wanted.tier == add.tier;
                }
            }
        }
        let outcome = match fate {
            Fate::Taken => Outcome::Taken,
            Fate::Broken => Outcome::Failed,
            Fate::Lost | Fate::Late(_) => Outcome::Unanswered,
        };
        self.outbox.done(ticket, outcome, self.now);
    }

    /// Calls succeed from now on, for as long as this takes.
    fn go_well(&mut self, until: Duration) {
        if !self.up {
            self.step(&Step::Reconnect { restarted: false });
        }
        loop {
            while self.issue() {}
            if !self.in_flight.is_empty() {
                self.end(0, Fate::Taken);
                continue;
            }
            match self.outbox.next(self.now) {
                Next::Wait(Some(at)) if at <= until => {
                    assert!(at > self.now, "waits for what is over");
                    self.now = at;
                    self.server.pass(self.now);
                }
                _ => break,
            }
        }
        self.now = until;
        self.server.pass(self.now);
    }

    fn check_equal(&self) {
        // What is about to be refreshed may wait for its window at any time.
        let pending = self.outbox.pending();
        assert!(!pending.clear && pending.evictions == 0, "{pending:?}");
        let server: BTreeMap<&Key, CacheTier> =
            self.server.entries.iter().map(|(key, (_, tier, _))| (key, *tier)).collect();
        let replica: BTreeMap<&Key, CacheTier> =
            self.wanted.iter().map(|(key, wanted)| (key, wanted.tier)).collect();
        assert_eq!(server, replica);
        assert_eq!(pending.maybe_reported, replica.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600 * ProptestConfig::default().cases / 256, ..ProptestConfig::default() })]

    #[test]
    fn the_server_holds_what_the_replica_holds_when_calls_succeed_again(
        steps in prop::collection::vec(step(), 1..150)
    ) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
        }
        // The longest pause, what is late, once more where that met a call under way, and windows.
        let until = world.now + Duration::from_secs(6) + 2 * GRACE;
        world.go_well(until);
        world.check_equal();
        // And it stays so, however much the server forgets.
        for _ in 0..8 {
            let until = world.now + TTL / 2;
            world.go_well(until);
            world.check_equal();
        }
    }
}
