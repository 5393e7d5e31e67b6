use std::collections::{BTreeMap, BTreeSet};

use kvplane_core::{Namespace, Trust};
use proptest::prelude::*;

use super::*;
use crate::rate::assumed;
use crate::{Booking, BookingId, Candidate, Role, Skip, Standing};

fn router(workers: u32, options: Options) -> Router {
    let mut router = Router::new(options);
    for at in 0..workers {
        assert_eq!(router.worker(&format!("engine-{at}/0")), Some(Slot(at)));
    }
    router
}

fn candidate(worker: u32, cached: u64) -> Candidate {
    Candidate {
        worker: Slot(worker),
        cached,
        tiers: [cached; 3],
        main: cached,
        trust: Trust::Exact,
        standing: Standing::Credited,
        age: Some(0.0),
        ready: true,
        role: Role::Both,
    }
}

fn ask(outline: &Outline) -> Ask<'_> {
    Ask {
        about: 0,
        prompt: outline.tokens(),
        outline,
        session: None,
        role: Role::Both,
        output: 100,
        limit: 3,
        book: true,
        policy: None,
        exclude: &[],
    }
}

fn prompt(seed: u32, tokens: u32) -> Outline {
    let ids: Vec<u32> = (0..tokens).map(|at| at.wrapping_mul(31).wrapping_add(seed * 7_919)).collect();
    Outline::of_tokens(&ids, Namespace::PLAIN)
}

#[test]
fn the_holder_is_picked_and_says_why() {
    let mut router = router(4, Options::default());
    let outline = prompt(1, 4_096);
    let candidates = [candidate(0, 0), candidate(1, 2_048), candidate(2, 4_080), candidate(3, 0)];
    let decision = router.pick(&ask(&outline), &candidates, 0.0);
    assert_eq!((decision.order[0].worker, decision.why), (Slot(2), Why::Cached));
    assert_eq!(decision.order.len(), 3);
    assert!(decision.order.is_sorted_by(|one, next| one.cost <= next.cost));
    assert_eq!((decision.best_fleet, decision.best_eligible, decision.eligible), (4_080, 4_080, 4));
    assert_eq!(router.booked(Slot(2)), Some((1, 16)));
}

#[test]
fn a_prompt_without_tokens_goes_by_load_and_is_booked_by_its_size() {
    let mut router = router(2, Options::default());
    let nothing = Outline::default();
    let blind = Ask { prompt: 0, about: 50_000, ..ask(&nothing) };
    let candidates = [candidate(0, 0), candidate(1, 0)];
    let first = router.pick(&blind, &candidates, 0.0);
    let second = router.pick(&blind, &candidates, 0.0);
    assert_eq!((first.why, second.why), (Why::NoTokens, Why::NoTokens));
    assert_ne!(first.order[0].worker, second.order[0].worker, "the first one's work is known");
    for slot in [Slot(0), Slot(1)] {
        assert_eq!(router.booked(slot), Some((1, 50_000)));
    }
    // It says nothing of the engine's speed: its length is a guess.
    assert!(router.first_token(first.booking.unwrap(), 100.0).is_some());
    assert_eq!(router.slowness(first.order[0].worker), Some(1.0));
}

#[test]
fn what_another_router_tells_counts_as_what_is_booked_here() {
    let outline = prompt(1, 4_096);
    let (mut here, mut there) = (router(3, Options::default()), router(3, Options::default()));
    let candidates: Vec<Candidate> = (0..3).map(|at| candidate(at, 0)).collect();
    let first = there.pick(&ask(&outline), &candidates, 100.0);
    let (slot, id) = (first.order[0].worker, first.booking.unwrap());
    let &Booking { prompt, uncached, output, made, started, .. } = there.booking(id).unwrap();
    let prefixes: Vec<u64> = there.prefixes(id).to_vec();
    let reported =
        RemoteBooking { prompt, uncached, output, age: 101.0 - made, started, prefixes: &prefixes };
    let same = here.book_remote(slot, &reported, 7.0).unwrap();
    assert_eq!(here.booked(slot), there.booked(slot));
    assert_eq!(here.in_flight(&outline), there.in_flight(&outline));
    let dry = Ask { book: false, ..ask(&outline) };
    let (one, other) = (here.pick(&dry, &candidates, 7.0), there.pick(&dry, &candidates, 101.0));
    assert_eq!((one.order[0].worker, one.why), (other.order[0].worker, Why::InFlight));
    // Its end, its first token and its age do as here; it says nothing of the engine's speed.
    assert!(here.first_token(same, 7.1).is_some());
    assert_eq!((here.booked(slot), here.slowness(slot)), (Some((1, 0)), Some(1.0)));
    assert!(here.in_flight(&outline).iter().all(|tokens| *tokens == 0));
    assert_eq!(here.bookings().map(|(id, _)| id).collect::<Vec<_>>(), [same]);
    here.expire(7.0 + 300.0);
    assert_eq!((here.booked(slot), here.totals().expired), (Some((0, 0)), 1));
    // What cannot be is not taken, and cannot break sums.
    for age in [-1.0, 300.0, f64::NAN, f64::INFINITY] {
        assert_eq!(here.book_remote(slot, &RemoteBooking { age, ..reported }, 8.0), None);
    }
    assert_eq!(here.book_remote(Slot(9), &reported, 8.0), None);
    let huge = RemoteBooking { prompt: u64::MAX, uncached: u64::MAX, output: u64::MAX, ..reported };
    let ids: Vec<BookingId> = (0..3).map(|_| here.book_remote(slot, &huge, 8.0).unwrap()).collect();
    for id in ids {
        assert!(here.finish(id));
    }
    assert_eq!(here.booked(slot), Some((0, 0)));
}

#[test]
fn a_burst_of_one_prompt_goes_where_it_is_on_its_way_and_is_never_called_cached() {
    let mut router = router(4, Options::default());
    let outline = prompt(1, 4_096);
    let candidates: Vec<Candidate> = (0..4).map(|at| candidate(at, 0)).collect();
    let first = router.pick(&ask(&outline), &candidates, 0.0);
    assert_eq!(first.why, Why::NotHeld);
    let second = router.pick(&ask(&outline), &candidates, 0.01);
    assert_eq!((second.order[0].worker, second.why), (first.order[0].worker, Why::InFlight));
    let Choice { cached, in_flight, .. } = second.order[0];
    assert!(cached == 0 && in_flight > 3_800, "{in_flight}");
    // The first token ends the prediction: from here on the engine's events say what it holds.
    for decision in [first, second] {
        assert!(router.first_token(decision.booking.unwrap(), 0.5).is_some());
    }
    assert_eq!(router.in_flight(&outline), [0; 4]);
}

#[test]
fn one_hot_prefix_spreads_when_its_holder_is_busy() {
    let mut router = router(4, Options::default());
    let mut picked = [0; 4];
    for at in 0..64 {
        // Each shares 2,048 tokens and has 6,000 of its own.
        let ids: Vec<u32> = (0..2_048).chain((0..6_000).map(|token| token + at * 10_000)).collect();
        let outline = Outline::of_tokens(&ids, Namespace::PLAIN);
        let candidates = [candidate(0, 2_048), candidate(1, 0), candidate(2, 0), candidate(3, 0)];
        let decision = router.pick(&ask(&outline), &candidates, 0.0);
        picked[decision.order[0].worker.index()] += 1;
    }
    assert!(picked.iter().all(|count| *count >= 10), "{picked:?}");
    assert!(picked[0] >= 16, "{picked:?}");
}

#[test]
fn guards_come_before_any_cost() {
    let outline = prompt(1, 1_000);
    let skipped = |options: Options, change: fn(&mut Candidate)| {
        let mut router = router(2, options);
        let mut best = candidate(0, 999);
        change(&mut best);
        router.report_load(Slot(0), Load { waiting: 9, running: 3, ..Load::default() }, 0.0, 1.0);
        let decision = router.pick(&ask(&outline), &[best, candidate(1, 0)], 0.0);
        assert_eq!(decision.best_eligible, 0);
        assert_eq!(decision.order.len(), 1);
        decision.skipped[0].why
    };
    let usual = Options::default;
    assert_eq!(skipped(usual(), |one| one.standing = Standing::Down), Skip::Down);
    assert_eq!(skipped(usual(), |one| one.ready = false), Skip::NotReady);
    assert_eq!(skipped(usual(), |one| one.role = Role::Prefill), Skip::Role);
    assert_eq!(skipped(Options { max_waiting: Some(9), ..usual() }, |_| ()), Skip::OverCap);
    assert_eq!(skipped(Options { max_in_flight: Some(12), ..usual() }, |_| ()), Skip::OverCap);
}

#[test]
fn a_silent_engine_gets_one_request_until_it_gives_a_sign() {
    let mut router = router(2, Options::default());
    let outline = prompt(1, 4_096);
    let pick = |router: &mut Router, age: f64| {
        let silent = Candidate { age: Some(age), ..candidate(0, 4_000) };
        router.pick(&ask(&outline), &[silent, candidate(1, 0)], 0.0).order[0].worker
    };
    assert_eq!(pick(&mut router, 2.5), Slot(0));
    assert_eq!(pick(&mut router, 2.6), Slot(1));
    assert_eq!(pick(&mut router, 0.1), Slot(0));
    assert_eq!(pick(&mut router, 2.5), Slot(0));
}

#[test]
fn nobody_is_an_answer_too() {
    let mut router = router(1, Options::default());
    let outline = prompt(1, 100);
    let down = Candidate { standing: Standing::Down, ..candidate(0, 64) };
    let decision = router.pick(&ask(&outline), &[down, candidate(9, 0)], 0.0);
    assert_eq!((decision.order.len(), decision.why, decision.booking), (0, Why::Nobody, None));
    assert_eq!(decision.best_fleet, 0, "what is down is not known to hold anything");
}

#[test]
fn what_is_not_verified_counts_half_and_what_is_unsound_nothing() {
    let mut router = router(3, Options::default());
    let outline = prompt(1, 4_096);
    let of = |worker, trust| Candidate { trust, ..candidate(worker, 4_000) };
    let candidates = [of(0, Trust::Unsound), of(1, Trust::Unverified), candidate(2, 2_100)];
    let decision = router.pick(&ask(&outline), &candidates, 0.0);
    let order: Vec<u32> = decision.order.iter().map(|choice| choice.worker.0).collect();
    assert_eq!(order, [2, 1, 0]);
}

#[test]
fn without_tokens_the_load_decides() {
    let mut router = router(2, Options::default());
    let outline = Outline::default();
    router.report_load(Slot(0), Load { waiting: 20, running: 10, ..Load::default() }, 0.0, 5.0);
    let decision = router.pick(&ask(&outline), &[candidate(0, 0), candidate(1, 0)], 0.0);
    assert_eq!((decision.order[0].worker, decision.why), (Slot(1), Why::NoTokens));
}

#[test]
fn equal_ones_are_picked_by_chance_and_the_same_way_under_the_same_seed() {
    let outline = Outline::default();
    let run = |seed| {
        let mut router = router(8, Options { seed, ..Options::default() });
        let candidates: Vec<Candidate> = (0..8).map(|at| candidate(at, 0)).collect();
        let ask = Ask { book: false, ..ask(&outline) };
        (0..80).map(|_| router.pick(&ask, &candidates, 0.0).order[0].worker.0).collect::<Vec<_>>()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
    let seen: BTreeSet<u32> = run(5).into_iter().collect();
    assert_eq!(seen.len(), 8);
}

#[test]
fn a_worker_that_leaves_takes_its_bookings_along() {
    let mut router = router(2, Options::default());
    let outline = prompt(3, 2_000);
    let decision = router.pick(&ask(&outline), &[candidate(0, 0)], 0.0);
    router.remove_worker("engine-0/0");
    assert!(!router.finish(decision.booking.unwrap()));
    assert_eq!(router.totals(), Totals::default());
    assert_eq!(router.worker("another/0"), Some(Slot(0)));
    assert_eq!(router.booked(Slot(0)), Some((0, 0)));
}

/// What a worker's books must say, counted anew from a list of bookings.
#[derive(Debug, Clone)]
struct Kept {
    worker: u32,
    uncached: u64,
    made: f64,
    started: bool,
}

#[derive(Debug, Clone)]
enum Step {
    Pick(u32),
    FirstToken(usize),
    End(usize),
    Wait(f64),
    Restart(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0u32..6).prop_map(Step::Pick),
        2 => (0usize..8).prop_map(Step::FirstToken),
        3 => (0usize..8).prop_map(Step::End),
        2 => (0.0..40.0f64).prop_map(Step::Wait),
        1 => (0u32..4).prop_map(Step::Restart),
    ];
    proptest::collection::vec(step, 1..120)
}

proptest! {
    #[test]
    fn the_books_are_those_of_a_list(steps in steps(), max_bookings in prop_oneof![Just(5usize), Just(1_000)]) {
        let options = Options { max_bookings, booking_ttl: 60.0, flight_ttl: 15.0, ..Options::default() };
        let mut router = router(4, options);
        let mut naive: BTreeMap<u64, Kept> = BTreeMap::new();
        let mut ids: Vec<BookingId> = Vec::new();
        let mut now = 0.0;
        for step in steps {
            let of = |at: usize| ids.get(at % ids.len().max(1)).copied();
            match step {
                Step::Pick(seed) => {
                    let outline = prompt(seed, 600 + seed * 100);
                    let candidates: Vec<Candidate> = (0..4).map(|at| candidate(at, u64::from(at) * 64)).collect();
                    naive.retain(|_, kept| kept.made >= now - 60.0);
                    let decision = router.pick(&ask(&outline), &candidates, now);
                    prop_assert_eq!(decision.booking.is_some(), naive.len() < max_bookings);
                    if let Some(id) = decision.booking {
                        let chosen = decision.order[0];
                        let held = chosen.cached.max(chosen.in_flight);
                        let uncached = outline.tokens() - held;
                        let kept = Kept { worker: chosen.worker.0, uncached, made: now, started: false };
                        prop_assert!(naive.insert(id.0, kept).is_none());
                        ids.push(id);
                    }
                }
                Step::FirstToken(at) => {
                    let Some(id) = of(at) else { continue };
                    let fresh = naive.get_mut(&id.0).filter(|kept| !kept.started);
                    prop_assert_eq!(router.first_token(id, now), fresh.as_ref().map(|kept| now - kept.made));
                    if let Some(kept) = fresh {
                        kept.started = true;
                    }
                }
                Step::End(at) => {
                    let Some(id) = of(at) else { continue };
                    prop_assert_eq!(router.finish(id), naive.remove(&id.0).is_some());
                }
                Step::Wait(seconds) => {
                    now += seconds;
                    router.expire(now);
                    naive.retain(|_, kept| kept.made >= now - 60.0);
                }
                Step::Restart(worker) => {
                    router.restart(Slot(worker));
                    naive.retain(|_, kept| kept.worker != worker);
                }
            }
            prop_assert_eq!(router.totals().bookings, naive.len());
            for worker in 0..4 {
                let here = || naive.values().filter(|kept| kept.worker == worker);
                let pending: u64 = here().filter(|kept| !kept.started).map(|kept| kept.uncached).sum();
                prop_assert_eq!(router.booked(Slot(worker)), Some((here().count() as u32, pending)));
            }
        }
    }
}

#[test]
fn a_report_that_is_too_old_counts_no_more_and_the_answer_says_so() {
    let mut router = router(2, Options { max_waiting: Some(20), ..Options::default() });
    let outline = prompt(1, 1_000);
    let candidates = [candidate(0, 999), candidate(1, 0)];
    let dry = Ask { book: false, ..ask(&outline) };
    router.report_load(Slot(0), Load { waiting: 20, ..Load::default() }, 0.0, 5.0);
    let fresh = router.pick(&dry, &candidates, 5.0);
    assert_eq!((fresh.skipped[0].why, fresh.order[0].load), (Skip::OverCap, LoadSource::Bookings));
    let stale = router.pick(&dry, &candidates, 5.1);
    assert_eq!((stale.order[0].worker, stale.order[0].load), (Slot(0), LoadSource::Stale));
    assert_eq!(router.load_sources(5.1), [1, 0, 1]);
    router.report_load(Slot(0), Load { waiting: 1, ..Load::default() }, 6.0, 9.0);
    let choice = router.pick(&dry, &candidates, 6.0).order[0];
    assert_eq!((choice.worker, choice.load), (Slot(0), LoadSource::Reported));
    assert!((choice.terms.queue - 1_024.0 / 16_000.0).abs() < 1e-9, "{}", choice.terms.queue);
}

#[test]
fn a_first_token_that_is_reported_at_the_end_teaches_the_speed() {
    let mut router = router(1, Options::default());
    for round in 0..8 {
        let now = f64::from(round) * 10.0;
        let decision = router.pick(&ask(&prompt(round, 8_000)), &[candidate(0, 0)], now);
        let booking = decision.booking.unwrap();
        let expected = assumed(8_000, 8_000, 1.0 / 16_000.0, 0.6e-9);
        assert!(!router.first_token_took(booking, f64::NAN));
        assert!(router.first_token_took(booking, 2.0 * expected));
        assert!(!router.first_token_took(booking, 9.0), "once");
        assert!(router.finish(booking));
    }
    let slowness = router.slowness(Slot(0)).unwrap();
    assert!((slowness - 2.0).abs() < 1e-9, "{slowness}");
    assert_eq!(router.booked(Slot(0)), Some((0, 0)));
}

#[test]
fn what_is_booked_here_is_no_load_of_others_and_old_reports_fade() {
    let mut router = router(1, Options::default());
    let candidates = [candidate(0, 0)];
    let dry = |router: &mut Router, now: f64| {
        router.pick(&Ask { book: false, ..ask(&prompt(9, 640)) }, &candidates, now).order[0].terms
    };
    let booked: Vec<BookingId> =
        (0..4).map(|at| router.pick(&ask(&prompt(at, 1_600)), &candidates, 0.0).booking.unwrap()).collect();
    // Two more wait there, and one more runs.
    router.report_load(Slot(0), Load { waiting: 6, running: 1, ..Load::default() }, 0.0, 5.0);
    let own = 4.0 * assumed(1_600, 1_600, 1.0 / 16_000.0, 0.6e-9);
    let foreign = 2.0 * 1_024.0 / 16_000.0;
    let queue = dry(&mut router, 0.0).queue;
    assert!((queue - own - foreign).abs() < 1e-9, "{queue}");
    for id in booked {
        router.first_token(id, 0.05);
        router.finish(id);
    }
    // The report still says 6; what is over here is over.
    let terms = dry(&mut router, 0.05);
    assert!((terms.queue - (foreign - 0.05)).abs() < 1e-9, "{terms:?}");
    assert!((terms.decode - 3.0 * Weights::default().d).abs() < 1e-9, "{terms:?}");
    assert!(dry(&mut router, 1.0).queue.abs() < 1e-9, "an engine works on what it reported");
}

#[test]
fn routers_that_do_not_know_of_each_other_send_a_new_prefix_to_the_same_endpoint() {
    let candidates: Vec<Candidate> = (0..8).map(|at| candidate(at, 0)).collect();
    let busy = Load { running: 20, ..Load::default() };
    let pick = |seed: u64, document: u32| {
        let mut router = router(8, Options { seed, ..Options::default() });
        for at in 0..8 {
            router.report_load(Slot(at), busy, 0.0, 5.0);
        }
        router.pick(&ask(&prompt(document, 4_096)), &candidates, 0.0).order[0].worker
    };
    let mut used = BTreeSet::new();
    for document in 0..64 {
        let first = pick(1, document);
        assert!((2..6).all(|seed| pick(seed, document) == first), "{document}");
        used.insert(first);
    }
    assert_eq!(used.len(), 8, "documents are spread");
}
