//! Any flood of reports, of any names and hashes: the book stays within its bounds, and every lookup is answered.

#![no_main]

use std::sync::Arc;
use std::time::Duration;

use kvplane_fuzz::Input;
use kvplane_hints::{
    Asked, Book, CacheTier, Entry, Eviction, Limits, Note, Policies, Policy, Prefix, PrefixHash, Question,
    Quota, RESERVED_TENANT, Stats, Strategy, Whose,
};
use libfuzzer_sys::fuzz_target;

const LIMITS: Limits = Limits { max_entries: 64, max_names: 24 };
/// Far above what so few entries and names take, and far below what a leak would within one input.
const MAX_BYTES: usize = 4 << 20;

fn name<'a>(input: &mut Input<'_>, words: &[&'a str]) -> &'a str {
    input.pick(words)
}

fn hash(input: &mut Input<'_>) -> PrefixHash {
    match input.below(8) {
        0 => PrefixHash::from_bytes(input.bytes(300)),
        1 => PrefixHash::from_bytes(&vec![input.byte(); input.below(80) * 4]),
        _ => PrefixHash::Fingerprint(u64::from(input.byte())),
    }
}

fn tier(input: &mut Input<'_>) -> CacheTier {
    CacheTier::from_wire(input.number() as i32)
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    let long = "x".repeat(1025);
    let pool: Vec<String> = (0..64).map(|at| format!("name-{at}")).collect();
    let mut words: Vec<&str> = pool.iter().map(String::as_str).collect();
    words.extend(["", RESERVED_TENANT, long.as_str(), "a", "a", "a", "a", "b", "b"]);
    let policy = |input: &mut Input<'_>| Policy {
        ttl: Duration::from_micros(input.number()),
        minimum_prefix_tokens: input.number32(),
        minimum_matched_tokens: input.number32(),
        routing_floor_score: f32::from_bits(input.number32()),
        affinity_routing: input.flag(),
        eviction: input.pick(&[Eviction::Lru, Eviction::Lfu]),
        strategy: Strategy {
            chain_matching: input.flag(),
            require_chain: input.flag(),
            tenant_hot: input.flag(),
        },
        ..Policy::default()
    };
    let book = Book::new(LIMITS, Policies::default(), None);
    let (mut now, mut heard) = (1_700_000_000_000_000_i64, 0_usize);
    while !input.is_empty() {
        let whose = Whose {
            tenant: name(&mut input, &words),
            model: name(&mut input, &words),
            replica: name(&mut input, &words),
        };
        let at = if input.below(8) == 0 { input.number() as i64 } else { now };
        match input.below(16) {
            0..6 => {
                let entries: Vec<Entry> = (0..input.below(40))
                    .map(|_| Entry {
                        hash: hash(&mut input),
                        tokens: input.number32(),
                        tier: tier(&mut input),
                        adapter: Arc::from(name(&mut input, &words)),
                    })
                    .collect();
                if let Ok(reported) = book.report(whose, name(&mut input, &words), at, &entries) {
                    assert!(reported.taken + reported.unnamed <= entries.len());
                }
            }
            6 => drop(book.evict(whose, &hash(&mut input), name(&mut input, &words))),
            7 => drop(book.clear(whose)),
            8 => book.forget(whose),
            9 => {
                let stats = Stats {
                    cache_memory_bytes: input.number() as i64,
                    hit_rate: f32::from_bits(input.number32()),
                    pressure: f32::from_bits(input.number32()),
                    t2_hit_tokens: input.number() as i64,
                    t2_query_tokens: input.number() as i64,
                };
                if input.flag() {
                    let _ = book.set_stats(whose, stats, at);
                } else {
                    book.hear_stats(whose, stats, at);
                    heard += 4;
                }
            }
            10 => drop(book.alive(whose, at)),
            11 => drop(book.expire(at)),
            12 => now = now.saturating_add(input.number() as i64 & 0xffff_ffff),
            13 => {
                // Engines that are heard here are bounded elsewhere: few of them.
                let notes: Vec<Note> = (0..input.below(4))
                    .map(|_| match input.below(4) {
                        0 => Note::Nothing,
                        1 => Note::Gone { fingerprint: u64::from(input.byte()), adapter: Arc::from("") },
                        _ => Note::Held(Prefix {
                            fingerprint: u64::from(input.byte()),
                            tokens: input.number32(),
                            block: input.number32(),
                            tier: tier(&mut input),
                            sure: input.flag(),
                            adapter: Arc::from(name(&mut input, &words)),
                        }),
                    })
                    .collect();
                heard += 4 + notes.len();
                book.hear(whose, name(&mut input, &words), &notes);
            }
            14 => {
                let mut policies = Policies { default: policy(&mut input), ..Policies::default() };
                policies.by_tenant.insert("a".to_owned(), policy(&mut input));
                let quota = Quota { max_entries: input.flag().then(|| input.number() as usize) };
                policies.quotas.insert("b".to_owned(), quota);
                book.set_policies(policies);
            }
            _ => {
                let hashes: Vec<PrefixHash> = (0..input.below(20)).map(|_| hash(&mut input)).collect();
                let counts: Vec<u32> = hashes.iter().map(|_| input.number32()).collect();
                let asked = match (input.below(3), hashes.first()) {
                    (0, Some(hash)) => Asked::Exact { hash, tokens: input.number32() },
                    (1, _) => Asked::Chain { hashes: &hashes, counts: &counts },
                    _ => Asked::Nothing,
                };
                let question = Question {
                    tenant: whose.tenant,
                    model: whose.model,
                    scheme: name(&mut input, &words),
                    adapter: name(&mut input, &words),
                    asked,
                    chain_on_wire: input.flag(),
                    ttft_ms: input.number() as i32,
                    expired: input.below(8) == 0,
                };
                drop(book.lookup(&question, at));
                drop(book.state(whose.tenant, whose.model));
            }
        }
        let census = book.census();
        let reported: usize =
            census.replicas.iter().filter(|replica| !replica.heard).map(|replica| replica.prefixes).sum();
        assert!(reported <= LIMITS.max_entries, "{reported} entries");
        let replicas = census.replicas.iter().filter(|replica| !replica.heard).count();
        assert!(replicas <= LIMITS.max_names, "{replicas} replicas");
        assert!(book.bytes() <= MAX_BYTES + heard * 4096, "{} bytes", book.bytes());
    }
});
