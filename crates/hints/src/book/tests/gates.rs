//! Every gate, reason code, factor of a score and tie, by name.

use super::*;
use crate::policy::Strategy;

/// Nothing is left out for being short or doubtful.
fn open() -> Policy {
    Policy { minimum_matched_tokens: 0, routing_floor_score: 0.0, ..Policy::default() }
}

/// Two replicas, `r0` with the blocks 1 to 8, `r1` with something else.
fn two(policy: Policy) -> Book {
    let book = book(policy);
    book.reported("r0", NOW, &entries(1..9));
    book.reported("r1", NOW, &entries(50..51));
    book
}

fn nobody(reason: ReasonCode) -> Verdict {
    Verdict::nobody(reason)
}

#[test]
fn reasons_in_the_order_in_which_they_count() {
    struct Case<'a> {
        what: &'a str,
        policy: Policy,
        change: fn(&mut Question<'_>),
        reason: ReasonCode,
    }
    let no_affinity = || Policy { affinity_routing: false, ..open() };
    let insists = || Policy { strategy: Strategy { require_chain: true, ..Strategy::default() }, ..open() };
    let cases = [
        Case { what: "a match", policy: open(), change: |_| {}, reason: ReasonCode::PrefixMatch },
        Case {
            what: "a reserved tenant, before time that is over",
            policy: open(),
            change: |question| {
                question.tenant = RESERVED_TENANT;
                question.expired = true;
            },
            reason: ReasonCode::NoHint,
        },
        Case {
            what: "time that is over, before a chain that is missing",
            policy: insists(),
            change: |question| {
                question.expired = true;
                question.chain_on_wire = false;
            },
            reason: ReasonCode::Timeout,
        },
        Case {
            what: "a chain that is missing, before a prompt that cannot be used",
            policy: insists(),
            change: |question| {
                question.asked = Asked::Nothing;
                question.chain_on_wire = false;
            },
            reason: ReasonCode::PolicyRequiresChain,
        },
        Case {
            what: "a chain that is there",
            policy: insists(),
            change: |_| {},
            reason: ReasonCode::PrefixMatch,
        },
        Case {
            what: "a prompt that cannot be used gets no affinity",
            policy: open(),
            change: |question| question.asked = Asked::Nothing,
            reason: ReasonCode::NoHint,
        },
        Case {
            what: "a chain of nothing",
            policy: open(),
            change: |question| question.asked = Asked::Chain { hashes: &[], counts: &[] },
            reason: ReasonCode::NoHint,
        },
        Case {
            what: "too short a prompt, before an unknown tenant",
            policy: Policy { minimum_prefix_tokens: 1_000, ..no_affinity() },
            change: |question| question.tenant = "nobody",
            reason: ReasonCode::NoHint,
        },
        Case {
            what: "too short a prompt, with affinity",
            policy: Policy { minimum_prefix_tokens: 1_000, ..open() },
            change: |_| {},
            reason: ReasonCode::AffinityHint,
        },
        Case {
            what: "no tenant",
            policy: open(),
            change: |question| question.tenant = "",
            reason: ReasonCode::NoHint,
        },
        Case {
            what: "no model",
            policy: open(),
            change: |question| question.model = "",
            reason: ReasonCode::NoHint,
        },
        Case {
            what: "no scheme",
            policy: open(),
            change: |question| question.scheme = "",
            reason: ReasonCode::NoHint,
        },
        Case {
            what: "the outermost that is unknown: the tenant",
            policy: open(),
            change: |question| {
                question.tenant = "nobody";
                question.model = "nothing";
            },
            reason: ReasonCode::UnknownTenant,
        },
        Case {
            what: "the model",
            policy: open(),
            change: |question| {
                question.model = "nothing";
                question.scheme = "none";
            },
            reason: ReasonCode::UnknownModel,
        },
        Case {
            what: "the scheme",
            policy: open(),
            change: |question| question.scheme = "none",
            reason: ReasonCode::UnknownHashScheme,
        },
        Case {
            what: "another adapter is no match, but known",
            policy: no_affinity(),
            change: |question| question.adapter = "x",
            reason: ReasonCode::NoHint,
        },
        Case {
            what: "too little is held",
            policy: Policy { minimum_matched_tokens: 129, ..no_affinity() },
            change: |_| {},
            reason: ReasonCode::NoHint,
        },
        Case {
            what: "too little is held, with affinity",
            policy: Policy { minimum_matched_tokens: 129, ..open() },
            change: |_| {},
            reason: ReasonCode::AffinityHint,
        },
        Case {
            what: "just enough is held",
            policy: Policy { minimum_matched_tokens: 128, ..open() },
            change: |_| {},
            reason: ReasonCode::PrefixMatch,
        },
        Case {
            // 128 tokens, fresh, half of the replicas.
            what: "a score at the floor",
            policy: Policy { routing_floor_score: 64.0, ..no_affinity() },
            change: |_| {},
            reason: ReasonCode::PrefixMatch,
        },
        Case {
            what: "a score below the floor",
            policy: Policy { routing_floor_score: 64.1, ..no_affinity() },
            change: |_| {},
            reason: ReasonCode::NoHint,
        },
    ];
    let (hashes, counts) = (hashes(1..9), [16; 8]);
    for Case { what, policy, change, reason } in cases {
        let mut question = question(Asked::Chain { hashes: &hashes, counts: &counts });
        change(&mut question);
        assert_eq!(two(policy).lookup(&question, NOW).reason, reason, "{what}");
    }
}

#[test]
fn an_empty_book_has_no_hint_whatever_is_asked() {
    let book = book(open());
    assert_eq!(book.ask_chain(1..9), nobody(ReasonCode::NoHint));
    book.set_stats(whose("r0"), Stats::default(), NOW).unwrap();
    book.hear(whose("r1"), "s", &[]);
    assert_eq!(book.ask_chain(1..9), nobody(ReasonCode::NoHint), "statistics are no entries");
    assert_eq!(book.ask_exact(1, 64), nobody(ReasonCode::NoHint));
}

#[test]
fn a_chain_is_matched_from_its_start_to_the_first_hole() {
    let book = book(open());
    book.reported("whole", NOW, &entries(1..9));
    book.reported("holey", NOW, &entries([1, 2, 3, 5, 6]));
    book.reported("late", NOW, &entries(2..9));
    book.reported("other", NOW, &entries(70..71));
    assert_eq!(named(&book.ask_chain(1..9)), [("whole", 128), ("holey", 48)]);
    assert_eq!(named(&book.ask_chain(1..40)), [("whole", 128), ("holey", 48)]);
    // Tokens are the question's, not the entry's.
    let (hashes, counts) = (hashes(1..4), [10, 20, 30]);
    let verdict = book.ask(Asked::Chain { hashes: &hashes, counts: &counts });
    assert_eq!(named(&verdict), [("holey", 60), ("whole", 60)]);
}

#[test]
fn long_chains_and_many_replicas_are_no_different() {
    let book = book(open());
    let name = |replica: u64| format!("r{replica:03}");
    for replica in 0..100 {
        book.reported(&name(replica), NOW, &entries(0..(replica + 1) * 10));
    }
    let verdict = book.ask_chain(0..1_000);
    assert_eq!(verdict.scores.len(), 100);
    for score in &verdict.scores {
        let replica: u32 = score.replica[1..].parse().unwrap();
        assert_eq!(score.matched_tokens, (replica + 1) * 160);
        let deeper = 100 - replica;
        let expected = score.matched_tokens as f32 * (1.0 - deeper as f32 / 100.0);
        assert!((score.score - expected).abs() < 0.01, "{score:?}");
    }
    assert_eq!(named(&verdict)[0], ("r099", 16_000));
    assert_eq!(named(&verdict)[99], ("r000", 160), "everybody holds that much");
}

#[test]
fn without_chain_matching_the_last_hash_decides() {
    let strategy = Strategy { chain_matching: false, ..Strategy::default() };
    let book = two(Policy { strategy, ..open() });
    book.reported("r1", NOW, &[entry(8, 99)]);
    book.reported("r2", NOW, &entries(60..61));
    assert_eq!(named(&book.ask_chain(1..9)), [("r0", 128), ("r1", 99)], "as many tokens as each entry says");
    assert_eq!(book.ask_chain(1..10).reason, ReasonCode::AffinityHint, "the last one is not held");
}

#[test]
fn scores_are_the_product_of_what_counts() {
    /// Of one replica of two that holds 64 tokens, `age` minutes old, of thirty.
    fn score(age: i64, pressure: f32, ttft_ms: i32) -> Option<f32> {
        let book = book(open());
        book.reported("r0", NOW - age * MINUTE, &entries(1..5));
        book.reported("r1", NOW, &entries(50..51));
        book.set_stats(whose("r0"), Stats { pressure, ..Stats::default() }, NOW).unwrap();
        let (hashes, counts) = (hashes(1..5), [16; 4]);
        let question = Question { ttft_ms, ..question(Asked::Chain { hashes: &hashes, counts: &counts }) };
        let verdict = book.lookup(&question, NOW);
        (verdict.reason == ReasonCode::PrefixMatch).then(|| verdict.scores[0].score)
    }
    assert_eq!(score(0, 0.0, 0), Some(32.0));
    assert_eq!(score(15, 0.0, 0), Some(16.0), "half as fresh");
    assert_eq!(score(-15, 0.0, 0), Some(32.0), "from the future: as fresh as now");
    assert_eq!(score(30, 0.0, 0), None, "too old to be matched");
    assert_eq!(score(0, 0.25, 0), Some(24.0), "busy");
    assert_eq!(score(0, 1.5, 0), Some(0.0), "busier than possible");
    assert_eq!(score(0, -1.0, 0), Some(64.0), "and less busy than possible");
    assert_eq!(score(0, f32::MIN, 199), Some(f32::MAX), "a number all the same");
    assert_eq!(score(0, f32::NAN, 0), Some(32.0), "no number is 0");
    assert_eq!(score(0, f32::INFINITY, 0), Some(32.0), "no number is 0");
    assert_eq!(score(0, 0.0, 199), Some(64.0), "urgent");
    assert_eq!(score(15, 0.0, 199), Some(24.0), "urgent, and half as fresh");
    assert_eq!(score(0, 0.0, 200), Some(32.0), "not urgent");
    assert_eq!(score(0, 0.0, -1), Some(32.0), "no wish");
}

#[test]
fn what_everybody_holds_tells_nobody_apart() {
    let book = book(Policy::default());
    book.reported("r0", NOW, &entries(1..9));
    assert_eq!(named(&book.ask_chain(1..9)), [("r0", 128)], "one replica alone is named");
    book.reported("r1", NOW, &entries(1..9));
    assert_eq!(book.ask_chain(1..9).reason, ReasonCode::AffinityHint);
    book.reported("r2", NOW, &entries(1..5));
    let verdict = book.ask_chain(1..9);
    let scores: Vec<f32> = verdict.scores.iter().map(|score| score.score).collect();
    assert_eq!(named(&verdict), [("r0", 128), ("r1", 128), ("r2", 64)]);
    assert_eq!(scores, [128.0 * (1.0 - 2.0 / 3.0), 128.0 * (1.0 - 2.0 / 3.0), 0.0]);
    // Any adapter puts a replica in scope.
    book.report(whose("r3"), "s", NOW, &[Entry { adapter: "x".into(), ..entry(9, 16) }]).unwrap();
    assert_eq!(book.ask_chain(1..9).scores.iter().map(|score| score.score).next_back(), Some(64.0 * 0.25));
}

#[test]
fn the_oldest_and_the_coldest_of_a_run_count() {
    let book = two(open());
    book.reported("r0", NOW - 15 * MINUTE, &[entry(3, 48)]);
    book.reported("r0", NOW, &[Entry { tier: CacheTier::T2, ..entry(5, 80) }]);
    let best = book.ask_chain(1..9).scores[0].clone();
    assert_eq!((best.freshness, best.tier), (0.5, Some(CacheTier::T2)));
    let best = book.ask_chain(1..3).scores[0].clone();
    assert_eq!((best.freshness, best.tier), (1.0, Some(CacheTier::T1)));
    book.reported("r0", NOW, &[Entry { tier: CacheTier::from_wire(-7), ..entry(2, 32) }]);
    assert_eq!(book.ask_chain(1..9).scores[0].tier.unwrap().to_wire(), 0, "coldest of all, sent as none");
}

#[test]
fn runs_are_distinguished_by_their_blocks_even_if_those_have_no_tokens() {
    let book = book(open());
    book.reported("r0", NOW, &entries(1..4));
    book.reported("r1", NOW, &entries(1..3));
    book.reported("r2", NOW, &entries(1..2));
    book.reported("r3", NOW, &entries(50..51));
    let hashes = hashes(1..4);
    let verdict = book.ask(Asked::Chain { hashes: &hashes, counts: &[16, 0, 0] });
    let scores: Vec<(&str, f32)> =
        verdict.scores.iter().map(|score| (&*score.replica, score.score)).collect();
    assert_eq!(scores, [("r0", 12.0), ("r1", 8.0), ("r2", 4.0)]);
}

#[test]
fn a_score_without_bounds_is_still_nothing_for_what_everybody_holds() {
    let book = book(open());
    for replica in ["r0", "r1"] {
        book.reported(replica, NOW, &entries(1..2));
        book.set_stats(whose(replica), Stats { pressure: f32::MIN, ..Stats::default() }, NOW).unwrap();
    }
    let verdict = book.ask_chain(1..2);
    assert!(verdict.scores.iter().all(|score| score.score == 0.0), "{verdict:?}");
}

#[test]
fn equals_are_named_by_name() {
    let book = book(open());
    for replica in ["b", "a", "c", "d"] {
        book.reported(replica, NOW, &entries(1..5));
    }
    book.reported("e", NOW, &entries(9..10));
    assert_eq!(named(&book.ask_chain(1..5)), [("a", 64), ("b", 64), ("c", 64), ("d", 64)]);
}

#[test]
fn a_hash_that_nobody_holds_names_those_who_serve_well() {
    let book = book(open());
    for (replica, hit_rate, pressure, at_us) in [
        ("good", 0.5, 0.0, NOW),
        ("busy", 0.9, 0.9, NOW),
        ("earlier", 0.8, 0.0, NOW - 4 * MINUTE),
        ("stale", 0.9, 0.0, NOW - 5 * MINUTE),
        ("bad", 0.09, 0.0, NOW),
        ("none", f32::NAN, 0.0, NOW),
    ] {
        book.reported(replica, NOW, &entries(1..2));
        book.set_stats(whose(replica), Stats { hit_rate, pressure, ..Stats::default() }, at_us).unwrap();
    }
    book.set_stats(whose("elsewhere"), Stats { hit_rate: 1.0, ..Stats::default() }, NOW).unwrap();
    let verdict = book.ask_exact(77, 64);
    assert_eq!(verdict.reason, ReasonCode::TenantHot);
    assert_eq!(
        named(&verdict),
        [("good", 0), ("earlier", 0), ("busy", 0)],
        "by hit rate, what is old counts less"
    );
    assert!(verdict.scores.iter().all(|score| score.tier.is_none()));
    assert_eq!(book.ask_chain(70..74).reason, ReasonCode::AffinityHint, "a chain never does");
    book.alive(whose("stale"), NOW);
    assert_eq!(named(&book.ask_exact(77, 64)), named(&verdict), "a sign of life makes no number younger");
    book.set_policies(Policies {
        default: Policy { strategy: Strategy { tenant_hot: false, ..Strategy::default() }, ..open() },
        ..Policies::default()
    });
    assert_eq!(book.ask_exact(77, 64).reason, ReasonCode::AffinityHint);
}

#[test]
fn one_hash_matches_with_the_tokens_of_the_entry() {
    let book = two(Policy::default());
    assert_eq!(named(&book.ask_exact(8, 128)), [("r0", 128)]);
    assert_eq!(book.ask_exact(3, 48).reason, ReasonCode::AffinityHint, "48 tokens are not worth it");
}

/// Computed with Python's hashlib: `int.from_bytes(sha256(seed).digest()[:8], "big") % replicas`.
#[test]
fn affinity_is_the_hash_of_the_prompt_over_the_names_in_order() {
    let wide = PrefixHash::Wide(vec![7; 32].into());
    for (replicas, chains, exact, of_wide, of_both) in [
        (1, [0, 0, 0, 0], [0, 0], 0, 0),
        (2, [0, 1, 1, 0], [0, 1], 1, 0),
        (3, [0, 1, 1, 0], [2, 0], 0, 0),
        (5, [4, 0, 1, 3], [0, 4], 0, 3),
    ] {
        let book = book(open());
        // Reported in another order than that of their names.
        for replica in (0..replicas).rev() {
            book.reported(&format!("r{replica}"), NOW, &entries(900..901));
        }
        let chosen = |verdict: Verdict| {
            assert_eq!((verdict.reason, verdict.scores.len()), (ReasonCode::AffinityHint, 1));
            let score = &verdict.scores[0];
            assert_eq!((score.score, score.matched_tokens, score.freshness), (0.0, 0, 0.0));
            score.replica[1..].parse::<usize>().unwrap()
        };
        let of_chains = [1..2, 1..3, 7..10, 100..104].map(|chain| chosen(book.ask_chain(chain)));
        assert_eq!(of_chains, chains, "{replicas} replicas");
        let of_exact = [1, 16_863_443_419_780_771_464].map(|hash| chosen(book.ask_exact(hash, 16)));
        assert_eq!(of_exact, exact, "{replicas} replicas");
        assert_eq!(chosen(book.ask(Asked::Exact { hash: &wide, tokens: 16 })), of_wide);
        let both = [wide.clone(), hash(5)];
        assert_eq!(chosen(book.ask(Asked::Chain { hashes: &both, counts: &[16, 16] })), of_both);
    }
}

#[test]
fn engines_that_are_heard_are_always_fresh_and_speak_for_themselves() {
    let book = book(open());
    book.reported("r0", NOW, &entries(1..9));
    book.hear(whose("r0"), "s", &[held(1, 16), held(2, 32)]);
    book.reported("r1", NOW, &entries(50..51));
    assert_eq!(
        book.report(whose("r0"), "s", NOW, &entries(1..9)),
        Ok(taken(0)),
        "a report about it is not taken"
    );
    assert_eq!((book.evict(whose("r0"), &hash(1), ""), book.clear(whose("r0"))), (0, 0), "nor this");
    let later = NOW + 100 * MINUTE;
    assert_eq!(book.expire(later), Expired { entries: 1 });
    let (hashes, counts) = (hashes(1..9), [16; 8]);
    let verdict = book.lookup(&question(Asked::Chain { hashes: &hashes, counts: &counts }), later);
    assert_eq!((named(&verdict), verdict.scores[0].freshness), (vec![("r0", 32)], 1.0));
    book.hear(whose("r0"), "s", &[Note::Gone { fingerprint: 2, adapter: "".into() }]);
    assert_eq!(named(&book.ask_chain(1..9)), [("r0", 16)]);
    book.hear(whose("r0"), "s", &[Note::Nothing]);
    assert_eq!(book.ask_chain(1..9), nobody(ReasonCode::NoHint));
    assert_eq!(
        book.report(whose("r0"), "s", NOW, &entries(1..9)),
        Ok(taken(0)),
        "it still speaks for itself"
    );
    book.forget(whose("r0"));
    assert_eq!(book.report(whose("r0"), "s", NOW, &entries(1..9)), Ok(taken(8)));
}

#[test]
fn statistics_of_an_engine_that_is_heard_are_its_own() {
    let book = book(open());
    let (reported, own) = (Stats { pressure: 1.0, ..Stats::default() }, Stats::default());
    assert_eq!(book.set_stats(whose("r0"), reported, NOW), Ok(true));
    book.hear(whose("r0"), "s", &[held(1, 16)]);
    assert_eq!(book.state("t", "m").0, [], "what others said before is void");
    book.hear_stats(whose("r0"), own, NOW);
    assert_eq!(book.set_stats(whose("r0"), reported, NOW + SECOND), Ok(false));
    assert!(!book.alive(whose("r0"), NOW + SECOND));
    assert_eq!(book.census().replicas[0].stats, Some((own, NOW)));
    book.hear(whose("r0"), "s", &[Note::Nothing]);
    assert_eq!(book.state("t", "m").0, [("r0".into(), own)], "it holds nothing, and still says so itself");

    book.reported("r1", NOW, &entries(1..9));
    book.hear_stats(whose("r1"), own, NOW);
    assert_eq!(book.census().replicas[1].prefixes, 0, "its statistics alone make it heard");
    assert!(book.alive(whose("nobody"), NOW), "nobody is not heard");
}

#[test]
fn an_eviction_is_for_every_scheme_and_a_clear_takes_statistics_along() {
    let book = book(open());
    for scheme in ["s", "u"] {
        book.report(whose("r0"), scheme, NOW, &entries(1..3)).unwrap();
        book.report(whose("r0"), scheme, NOW, &[Entry { adapter: "x".into(), ..entry(1, 16) }]).unwrap();
    }
    assert_eq!(book.evict(whose("r0"), &hash(1), "x"), 2);
    assert_eq!(book.evict(whose("r0"), &hash(1), ""), 2);
    assert_eq!(book.evict(whose("r0"), &hash(1), ""), 0);
    book.report(whose("r0"), "s", NOW, &[Entry { adapter: "x".into(), ..entry(2, 16) }]).unwrap();
    assert_eq!(book.evict(whose("r0"), &hash(2), ""), 3, "every adapter");
    book.reported("r0", NOW, &entries(1..3));
    book.set_stats(whose("r0"), Stats::default(), NOW).unwrap();
    assert_eq!(book.state("t", "m"), (vec![("r0".into(), Stats::default())], 2));
    assert_eq!(book.clear(whose("r0")), 2);
    assert_eq!(book.state("t", "m"), (vec![], 0));
}
