//! Any history, on the book and on the plain one: equal answers, equal counts.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use proptest::prelude::*;

use super::observed::Mirror;
use super::oracle::Oracle;
use super::*;
use crate::policy::{Quota, Strategy as Matching};

#[derive(Debug, Clone)]
enum Op {
    Report { who: Who, scheme: u8, at: i64, entries: Vec<Entry> },
    Evict { who: Who, hash: PrefixHash, adapter: u8 },
    Clear(Who),
    Stats { who: Who, stats: Stats, at: i64 },
    HearStats { who: Who, stats: Stats, at: i64 },
    Alive { who: Who, at: i64 },
    Hear { who: Who, scheme: u8, notes: Vec<Note> },
    Forget(Who),
    Expire { at: i64 },
    Policies(Policies),
    Lookup { who: Who, scheme: u8, adapter: u8, hashes: Vec<PrefixHash>, exact: bool, ttft_ms: i32, at: i64 },
}

#[derive(Debug, Clone, Copy)]
struct Who {
    tenant: u8,
    model: u8,
    replica: u8,
}

impl Who {
    fn whose(self) -> Whose<'static> {
        Whose {
            tenant: ["a", "b", crate::RESERVED_TENANT][usize::from(self.tenant)],
            model: ["m", "n"][usize::from(self.model)],
            replica: ["r0", "r1", "r2", "r3", "r4"][usize::from(self.replica)],
        }
    }
}

const SCHEMES: [&str; 3] = ["s", "u", ""];
const ADAPTERS: [&str; 2] = ["", "x"];

fn who() -> impl Strategy<Value = Who> {
    let tenant = prop_oneof![12 => Just(0_u8), 6 => Just(1), 1 => Just(2)];
    let model = prop_oneof![5 => Just(0_u8), 1 => Just(1)];
    (tenant, model, 0_u8..5).prop_map(|(tenant, model, replica)| Who { tenant, model, replica })
}

fn scheme() -> impl Strategy<Value = u8> {
    prop_oneof![10 => Just(0_u8), 4 => Just(1), 1 => Just(2)]
}

fn adapter() -> impl Strategy<Value = u8> {
    prop_oneof![4 => Just(0_u8), 1 => Just(1)]
}

fn any_hash() -> impl Strategy<Value = PrefixHash> {
    prop_oneof![
        12 => (0_u64..10).prop_map(hash),
        1 => (0_u8..3).prop_map(|byte| PrefixHash::Wide(vec![byte; 32].into())),
        1 => (0_u8..2).prop_map(|byte| PrefixHash::Wide(vec![byte; 3].into())),
    ]
}

/// Our own clock.
fn now() -> impl Strategy<Value = i64> {
    (0_i64..240).prop_map(|halves| NOW + halves * SECOND / 2)
}

/// As odd as others' clocks.
fn at() -> impl Strategy<Value = i64> {
    prop_oneof![
        20 => now(),
        2 => (0_i64..100).prop_map(|seconds| NOW - seconds * SECOND),
        1 => Just(i64::MIN / 2),
        1 => Just(-5_i64),
        1 => Just(i64::MAX),
    ]
}

fn tier() -> impl Strategy<Value = CacheTier> {
    prop_oneof![5 => Just(0), 2 => Just(2), 1 => Just(-1), 1 => Just(9)].prop_map(CacheTier::from_wire)
}

fn entry_of() -> impl Strategy<Value = Entry> {
    (any_hash(), 0_u32..300, tier(), adapter()).prop_map(|(hash, tokens, tier, adapter)| Entry {
        hash,
        tokens,
        tier,
        adapter: ADAPTERS[usize::from(adapter)].into(),
    })
}

/// Blocks in a row, so that chains are found.
fn run() -> impl Strategy<Value = Vec<Entry>> {
    (0_u64..4, 1_u64..8).prop_map(|(first, count)| entries(first..first + count))
}

fn note() -> impl Strategy<Value = Note> {
    let adapter = || adapter().prop_map(|adapter| ADAPTERS[usize::from(adapter)].into());
    prop_oneof![
        8 => (0_u64..10, 0_u32..300, tier(), adapter()).prop_map(|(fingerprint, tokens, tier, adapter)| {
            Note::Held(Prefix { fingerprint, tokens, block: 16, tier, sure: true, adapter })
        }),
        3 => (0_u64..10, adapter()).prop_map(|(fingerprint, adapter)| Note::Gone { fingerprint, adapter }),
        1 => Just(Note::Nothing),
    ]
}

fn number() -> impl Strategy<Value = f32> {
    prop_oneof![8 => 0.0_f32..1.0, 1 => Just(f32::NAN), 1 => Just(f32::INFINITY), 1 => Just(1.5_f32)]
}

fn stats() -> impl Strategy<Value = Stats> {
    (number(), number()).prop_map(|(hit_rate, pressure)| Stats { hit_rate, pressure, ..Stats::default() })
}

fn policy() -> impl Strategy<Value = Policy> {
    let matching = (any::<bool>(), prop::bool::weighted(0.1), any::<bool>()).prop_map(
        |(chain_matching, require_chain, tenant_hot)| Matching { chain_matching, require_chain, tenant_hot },
    );
    let least = || prop_oneof![3 => Just(0_u32), 1 => 0_u32..80];
    (0_u64..120, least(), least(), 0.0_f32..0.5, any::<bool>(), any::<bool>(), matching).prop_map(
        |(
            ttl,
            minimum_prefix_tokens,
            minimum_matched_tokens,
            routing_floor_score,
            affinity,
            by_hits,
            strategy,
        )| {
            Policy {
                ttl: Duration::from_secs(ttl),
                minimum_prefix_tokens,
                minimum_matched_tokens,
                routing_floor_score,
                affinity_routing: affinity,
                eviction: if by_hits { Eviction::Lfu } else { Eviction::Lru },
                strategy,
                ..Policy::default()
            }
        },
    )
}

fn policies() -> impl Strategy<Value = Policies> {
    (policy(), policy(), prop::option::of(0_usize..12)).prop_map(|(default, own, max_entries)| Policies {
        default,
        by_tenant: HashMap::from([("b".into(), own)]),
        quotas: HashMap::from([("a".into(), Quota { max_entries })]),
    })
}

fn op() -> impl Strategy<Value = Op> {
    let report = |entries: BoxedStrategy<Vec<Entry>>| {
        (who(), scheme(), at(), entries).prop_map(|(who, scheme, at, entries)| Op::Report {
            who,
            scheme,
            at,
            entries,
        })
    };
    let asked = prop_oneof![
        (0_u64..4, 1_u64..9).prop_map(|(first, count)| hashes(first..first + count)),
        prop::collection::vec(any_hash(), 1..4),
    ];
    let lookup =
        (who(), scheme(), adapter(), asked, any::<bool>(), prop_oneof![Just(0), Just(199), Just(200)], now());
    prop_oneof![
        8 => report(run().boxed()),
        6 => report(prop::collection::vec(entry_of(), 0..6).boxed()),
        4 => (who(), any_hash(), adapter()).prop_map(|(who, hash, adapter)| Op::Evict { who, hash, adapter }),
        1 => who().prop_map(Op::Clear),
        2 => (who(), stats(), at()).prop_map(|(who, stats, at)| Op::Stats { who, stats, at }),
        1 => (who(), stats(), at()).prop_map(|(who, stats, at)| Op::HearStats { who, stats, at }),
        1 => (who(), at()).prop_map(|(who, at)| Op::Alive { who, at }),
        4 => (who(), 0_u8..2, prop::collection::vec(note(), 0..8))
            .prop_map(|(who, scheme, notes)| Op::Hear { who, scheme, notes }),
        1 => who().prop_map(Op::Forget),
        2 => now().prop_map(|at| Op::Expire { at }),
        1 => policies().prop_map(Op::Policies),
        12 => lookup.prop_map(|(who, scheme, adapter, hashes, exact, ttft_ms, at)| {
            Op::Lookup { who, scheme, adapter, hashes, exact, ttft_ms, at }
        }),
    ]
}

/// Both, and an observer of changes.
struct Pair {
    book: Book,
    oracle: Oracle,
    mirror: Arc<Mirror>,
}

impl Pair {
    fn new(max_entries: usize, policies: Policies) -> Self {
        let limits = Limits { max_entries, ..Limits::default() };
        let mirror = Arc::new(Mirror::default());
        Self {
            book: Book::new(limits.clone(), policies.clone(), Some(mirror.clone())),
            oracle: Oracle::new(limits, policies),
            mirror,
        }
    }

    fn apply(&mut self, op: &Op) {
        let Self { book, oracle, .. } = self;
        match op {
            Op::Report { who, scheme, at, entries } => {
                let scheme = SCHEMES[usize::from(*scheme)];
                let reported = book.report(who.whose(), scheme, *at, entries);
                assert!(reported == Ok(taken(0)) || reported == Ok(taken(entries.len())));
                oracle.report(who.whose(), scheme, *at, entries, book);
            }
            Op::Evict { who, hash, adapter } => {
                let adapter = ADAPTERS[usize::from(*adapter)];
                let evicted = book.evict(who.whose(), hash, adapter);
                assert_eq!(evicted, oracle.evict(who.whose(), hash, adapter));
            }
            Op::Clear(who) => assert_eq!(book.clear(who.whose()), oracle.clear(who.whose())),
            Op::Stats { who, stats, at } => {
                let taken = book.set_stats(who.whose(), *stats, *at);
                assert_eq!(taken, Ok(oracle.set_stats(who.whose(), *stats, *at)));
            }
            Op::HearStats { who, stats, at } => {
                book.hear_stats(who.whose(), *stats, *at);
                oracle.hear_stats(who.whose(), *stats, *at);
            }
            Op::Alive { who, at } => {
                assert_eq!(book.alive(who.whose(), *at), oracle.alive(who.whose(), *at));
            }
            Op::Hear { who, scheme, notes } => {
                book.hear(who.whose(), SCHEMES[usize::from(*scheme)], notes);
                oracle.hear(who.whose(), SCHEMES[usize::from(*scheme)], notes);
            }
            Op::Forget(who) => {
                book.forget(who.whose());
                oracle.forget(who.whose());
            }
            Op::Expire { at } => assert_eq!(book.expire(*at), oracle.expire(*at, book)),
            Op::Policies(policies) => {
                book.set_policies(policies.clone());
                oracle.set_policies(policies.clone());
            }
            Op::Lookup { who, scheme, adapter, hashes, exact, ttft_ms, at } => {
                let counts = vec![16; hashes.len()];
                let asked = if *exact {
                    Asked::Exact { hash: &hashes[0], tokens: 64 }
                } else {
                    Asked::Chain { hashes, counts: &counts }
                };
                let Whose { tenant, model, .. } = who.whose();
                let question = Question {
                    tenant,
                    model,
                    scheme: SCHEMES[usize::from(*scheme)],
                    adapter: ADAPTERS[usize::from(*adapter)],
                    ttft_ms: *ttft_ms,
                    ..question(asked)
                };
                assert_eq!(book.lookup(&question, *at), oracle.lookup(&question, *at), "{question:?}");
            }
        }
    }

    fn compare(&self) {
        assert_eq!(self.book.census(), self.oracle.census());
        for (tenant, model) in [("a", "m"), ("a", "n"), ("b", "m")] {
            assert_eq!(self.book.state(tenant, model), self.oracle.state(tenant, model));
        }
        assert_eq!(self.mirror.held(), self.oracle.held());
        self.book.known.read().assert_counts();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400 * ProptestConfig::default().cases / 256, ..ProptestConfig::default() })]

    #[test]
    fn any_history_is_answered_as_the_plain_book_does(
        max_entries in prop_oneof![Just(1000_usize), 0_usize..30],
        policies in policies(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut pair = Pair::new(max_entries, policies);
        for op in &ops {
            pair.apply(op);
            pair.compare();
        }
        // Nothing is left of what is forgotten.
        for tenant in 0..3 {
            for model in 0..2 {
                for replica in 0..5 {
                    pair.apply(&Op::Forget(Who { tenant, model, replica }));
                }
            }
        }
        pair.compare();
        let known = pair.book.known.read();
        prop_assert_eq!((known.names(), known.bytes() < 2_000), (0, true), "{} bytes", known.bytes());
    }
}

impl Known {
    /// What is counted is what is there.
    pub(super) fn assert_counts(&self) {
        let mut live: BTreeMap<_, usize> = BTreeMap::new();
        let (mut reported, mut room) = (0, 0);
        for (number, replica) in self.replicas.iter() {
            for ((rank, place), bucket) in &replica.filing {
                let mut keys: Vec<u64> = bucket.keys().collect();
                keys.sort_unstable();
                keys.dedup();
                let filed = (*rank, number, *place);
                let current = keys.iter().filter(|key| self.is_filed(filed, **key)).count();
                assert_eq!(current, bucket.live, "{filed:?}");
                assert!(bucket.live > 0 && bucket.len() <= 3 * bucket.live + 40);
                room += bucket.room();
                *live.entry((number, *place)).or_default() += bucket.live;
                let in_order = self.order.contains(&filed);
                assert_eq!(in_order, self.tenants[replica.tenant].order.contains(&filed));
                reported += if in_order { bucket.live } else { 0 };
            }
            for (place, held) in &replica.places {
                assert_eq!(live.get(&(number, *place)), Some(held));
            }
        }
        assert_eq!((reported, room), (self.reported, self.filed_room));
        assert_eq!(
            self.buckets,
            self.replicas.iter().map(|(_, replica)| replica.filing.len()).sum::<usize>()
        );
    }
}
