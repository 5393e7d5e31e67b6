//! What is too old, too much or too many, and what is left of it.

use std::collections::HashMap;
use std::time::Duration;

use super::*;
use crate::policy::Quota;

fn quota(tenant: &str, max_entries: usize, policy: Policy) -> Policies {
    let quotas = HashMap::from([(tenant.into(), Quota { max_entries: Some(max_entries) })]);
    Policies { default: policy, quotas, ..Policies::default() }
}

/// Which of these numbers a replica holds.
fn left(book: &Book, replica: &str, numbers: impl IntoIterator<Item = u64>) -> Vec<u64> {
    numbers.into_iter().filter(|number| book.holds(whose(replica), "s", "", &hash(*number))).collect()
}

/// One entry every 5 s, so that all differ in age.
fn one_by_one(book: &Book, replica: &str, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        book.reported(replica, NOW + number as i64 * 5 * SECOND, &[entry(number, 64)]);
    }
}

#[test]
fn the_oldest_goes_for_the_cap_whatever_the_order_of_reports() {
    let book = Book::new(Limits { max_entries: 5, ..Limits::default() }, Policies::default(), None);
    one_by_one(&book, "r", [7, 1, 9, 3, 5, 2, 8]);
    assert_eq!(left(&book, "r", 0..10), [3, 5, 7, 8, 9], "2 went as soon as it came");
    one_by_one(&book, "r", [3]);
    book.reported("r", NOW + 60 * SECOND, &[entry(3, 64)]);
    one_by_one(&book, "r", [10]);
    assert_eq!(left(&book, "r", 0..11), [3, 7, 8, 9, 10], "3 was reported again");
    let dropped = book.dropped();
    assert_eq!(dropped.len(), 1);
    assert_eq!((&*dropped[0].tenant, dropped[0].algorithm.as_str(), dropped[0].reason), ("t", "LRU", "cap"));
    assert_eq!(dropped[0].entries, 3);
}

#[test]
fn the_least_used_goes_first_where_the_policy_says_so() {
    let policy = Policy { eviction: Eviction::Lfu, minimum_matched_tokens: 0, ..Policy::default() };
    let book = Book::new(Limits::default(), quota("t", 4, policy.clone()), None);
    one_by_one(&book, "r", 0..4);
    book.ask_exact(0, 64);
    book.ask_exact(0, 64);
    book.ask_exact(1, 64);
    one_by_one(&book, "r", [4]);
    assert_eq!(left(&book, "r", 0..9), [0, 1, 3, 4]);
    one_by_one(&book, "r", [5, 6]);
    assert_eq!(left(&book, "r", 0..9), [0, 1, 5, 6]);
    book.ask_exact(5, 64);
    book.ask_exact(6, 64);
    one_by_one(&book, "r", [7]);
    assert_eq!(left(&book, "r", 0..9), [0, 1, 5, 6], "7 answered nothing yet");
    // By time again.
    book.set_policies(quota("t", 4, Policy { eviction: Eviction::Lru, ..policy }));
    one_by_one(&book, "r", [8]);
    assert_eq!(left(&book, "r", 0..9), [1, 5, 6, 8]);
    let dropped: Vec<_> =
        book.dropped().iter().map(|of| (of.algorithm.as_str(), of.reason, of.entries)).collect();
    assert_eq!(dropped, [("LRU", "quota", 1), ("LFU", "quota", 4)]);
}

#[test]
fn a_quota_counts_prefixes_and_hurts_nobody_else() {
    let book = Book::new(Limits::default(), quota("t", 2, Policy::default()), None);
    let other = Whose { tenant: "other", ..whose("r0") };
    book.report(other, "s", NOW - 20 * MINUTE, &entries(0..9)).unwrap();
    for replica in ["r0", "r1", "r2"] {
        book.reported(replica, NOW, &[entry(1, 16), entry(2, 32)]);
    }
    assert_eq!(book.census().models[1].entries, 6, "two prefixes, however many hold them");
    book.hear(whose("heard"), "s", &[held(7, 16), held(8, 32), held(9, 48)]);
    book.reported("r0", NOW + 10 * SECOND, &[entry(3, 48)]);
    let models = book.census().models;
    assert_eq!((models[0].entries, models[1].prefixes), (9, 5), "engines that are heard do not count");
    book.set_policies(quota("t", 1, Policy::default()));
    assert_eq!(book.expire(NOW).entries, 0);
    assert_eq!(book.census().models[1].prefixes, 4, "a smaller quota");
    assert_eq!(left(&book, "r0", 0..9), [3]);
}

#[test]
fn a_report_that_is_larger_than_the_cap_leaves_as_much_as_fits() {
    let book = Book::new(Limits { max_entries: 1_000, ..Limits::default() }, Policies::default(), None);
    book.reported("r", NOW, &entries(0..5_000));
    assert_eq!(book.census().models[0].entries, 1_000);
    assert_eq!(book.dropped()[0].entries, 4_000);
}

#[test]
fn what_is_too_old_is_never_matched_and_counts_until_it_is_swept() {
    let ttl = Duration::from_mins(30);
    let book = book(Policy { ttl, routing_floor_score: 0.0, ..Policy::default() });
    book.reported("r", NOW - 30 * MINUTE, &entries(0..1_000));
    assert_eq!(book.ask_chain(0..8).reason, ReasonCode::AffinityHint, "it is still in scope");
    book.reported("r", NOW - 30 * MINUTE + 1, &[entry(0, 16), entry(1, 32), entry(2, 48), entry(3, 64)]);
    assert_eq!(named(&book.ask_chain(0..8)), [("r", 64)], "one microsecond before");
    assert_eq!(book.expire(NOW), Expired { entries: 996 });
    assert_eq!(left(&book, "r", 0..1_000), [0, 1, 2, 3]);
    assert_eq!(book.expire(NOW + 1), Expired { entries: 4 });
    assert_eq!(book.ask_chain(0..8), Verdict::nobody(ReasonCode::NoHint));
    assert_eq!((book.dropped()[0].reason, book.dropped()[0].entries), ("ttl", 1_000));
}

#[test]
fn statistics_that_nobody_confirms_are_forgotten() {
    let book = book(Policy::default());
    book.set_stats(whose("a"), Stats::default(), NOW).unwrap();
    book.set_stats(whose("b"), Stats::default(), NOW).unwrap();
    book.alive(whose("b"), NOW + 20 * MINUTE);
    book.expire(NOW + 30 * MINUTE);
    assert_eq!(book.state("t", "m").0, [("b".into(), Stats::default())]);
    book.expire(NOW + 50 * MINUTE);
    assert_eq!((book.census(), book.known.read().names()), (Census::default(), 0));
}

#[test]
fn a_flood_of_names_is_refused_and_leaves_nothing() {
    let book = Book::new(Limits { max_names: 10, ..Limits::default() }, Policies::default(), None);
    // Tenant, model, replica, scheme, adapter.
    book.reported("r0", NOW, &entries(0..2));
    for replica in 1..6 {
        book.reported(&format!("r{replica}"), NOW, &entries(0..2));
    }
    let full = Err(Refused::TooManyNames { max: 10 });
    assert_eq!(book.report(whose("r6"), "s", NOW, &entries(0..2)), full);
    assert_eq!(book.set_stats(whose("r6"), Stats::default(), NOW), full.map(|_| true));
    assert_eq!(book.report(Whose { tenant: "u", ..whose("r0") }, "s", NOW, &entries(0..2)), full);
    let left_out = |taken, unnamed| Ok(Reported { taken, unnamed });
    assert_eq!(book.report(whose("r0"), "other", NOW, &entries(0..2)), left_out(0, 2));
    let odd = [entry(5, 16), Entry { adapter: "x".into(), ..entry(6, 16) }, entry(7, 16)];
    assert_eq!(book.report(whose("r0"), "s", NOW, &odd), left_out(2, 1));
    assert_eq!(left(&book, "r0", 5..8), [5, 7], "what can be named is taken");
    book.reported("r0", NOW, &entries(8..9));
    book.hear(whose("heard"), "s", &[held(1, 16)]);
    assert_eq!(book.census().replicas.len(), 7, "engines that are heard are not refused");
    for replica in 0..6 {
        book.clear(whose(&format!("r{replica}")));
    }
    book.reported("r6", NOW, &entries(0..2));
    let long = "x".repeat(Limits::MAX_NAME_BYTES + 1);
    let refused = Refused::NameTooLong { bytes: long.len(), max: Limits::MAX_NAME_BYTES };
    assert_eq!(book.report(whose(&long), "s", NOW, &entries(0..2)), Err(refused));
    assert_eq!(book.report(whose("r6"), &long, NOW, &entries(0..2)), left_out(0, 2));
    let odd = |number| Entry { adapter: long.as_str().into(), ..entry(number, 16) };
    assert_eq!(book.report(whose("r6"), "s", NOW, &[odd(5), odd(6), entry(7, 16)]), left_out(1, 2));
}

#[test]
fn a_report_of_a_new_replica_of_which_nothing_is_taken_leaves_no_name() {
    let book = Book::new(Limits { max_names: 4, ..Limits::default() }, Policies::default(), None);
    let no_room_for_a_scheme = Ok(Reported { taken: 0, unnamed: 600 });
    assert_eq!(book.report(whose("r"), "s", NOW, &entries(0..600)), no_room_for_a_scheme);
    assert_eq!(book.known.read().names(), 0);
}

#[test]
fn memory_is_given_back() {
    let book = book(Policy::default());
    let empty = book.bytes();
    for round in 0..3 {
        for replica in 0..4 {
            let name = format!("r{replica}-{round}");
            book.reported(&name, NOW, &entries(replica * 10_000..replica * 10_000 + 20_000));
        }
        let wide: Vec<Entry> = (0..1_000_u32)
            .map(|number| Entry { hash: PrefixHash::Wide(number.to_be_bytes().into()), ..entry(0, 16) })
            .collect();
        book.reported("wide", NOW, &wide);
        assert!(book.bytes() > 80_000 * 20);
        match round {
            0 => assert_eq!(book.expire(NOW + 30 * MINUTE).entries, 81_000),
            1 => {
                for replica in 0..4 {
                    assert_eq!(book.clear(whose(&format!("r{replica}-1"))), 20_000);
                }
                book.forget(whose("wide"));
            }
            _ => {
                for replica in 0..4 {
                    for number in replica * 10_000..replica * 10_000 + 20_000 {
                        assert_eq!(book.evict(whose(&format!("r{replica}-2")), &hash(number), ""), 1);
                    }
                }
                for entry in &wide {
                    assert_eq!(book.evict(whose("wide"), &entry.hash, ""), 1);
                }
            }
        }
        assert_eq!(book.census(), Census::default());
        assert!(book.bytes() < empty + 20_000, "{} bytes are left of round {round}", book.bytes());
    }
}

#[test]
fn keys_that_come_and_go_in_one_step_leave_no_trail() {
    let book = book(Policy::default());
    book.reported("r", NOW, &entries(0..100));
    book.hear(whose("heard"), "s", &(0..100).map(|number| held(number, 16)).collect::<Vec<_>>());
    let before = book.bytes();
    for round in 0..2_000 {
        // All come, then all go.
        book.reported("r", NOW, &entries(500..510));
        for number in 500..510 {
            book.evict(whose("r"), &hash(number), "");
        }
        // One goes and comes back.
        let number = round % 100;
        book.evict(whose("r"), &hash(number), "");
        book.reported("r", NOW, &[entry(number, 16)]);
        let gone = Note::Gone { fingerprint: number, adapter: "".into() };
        book.hear(whose("heard"), "s", &[gone, held(number, 16)]);
    }
    assert!(book.bytes() < before + 20_000, "{} grew to {}", before, book.bytes());
    book.known.read().assert_counts();
}

#[test]
fn hashes_that_are_none_are_not_taken() {
    let book = book(Policy::default());
    let wide = |bytes| Entry { hash: PrefixHash::Wide(vec![1; bytes].into()), ..entry(0, 16) };
    let longest = PrefixHash::MAX_BYTES;
    assert_eq!(book.report(whose("r"), "s", NOW, &[wide(longest + 1)]), Ok(taken(0)));
    assert_eq!(book.census(), Census::default());
    assert_eq!(
        book.report(whose("r"), "s", NOW, &[wide(longest), wide(longest + 1), entry(1, 16)]),
        Ok(taken(2))
    );
    assert_eq!(book.census().models[0].entries, 2);
}
