//! The orderings that routing rests on, over small seeded populations. The seeds here were not used for
//! tuning (that was 1).

use kvplane_lab::{Contender, Population, Summary, run};
use kvplane_route::Policy;

fn mean(population: Population, seed: u64, contender: Contender) -> f64 {
    let workload = population.workload(seed, 0.25);
    let summary: Summary = run(&workload, &population.fleet(seed, 0.25), contender);
    assert_eq!(summary.requests, workload.requests.len());
    summary.mean
}

fn work(population: Population, seed: u64) -> f64 {
    mean(population, seed, Contender::Policy(Policy::Work))
}

#[test]
fn steady_sessions_are_served_as_well_as_by_affinity() {
    let affinity = mean(Population::Sessions, 7, Contender::EvenSession);
    assert!(work(Population::Sessions, 7) <= 1.02 * affinity);
}

#[test]
fn where_sessions_share_documents_affinity_is_left_behind() {
    for population in [Population::Documents, Population::Bursts, Population::Restart] {
        let work = work(population, 7);
        for contender in [Contender::EvenSession, Contender::Policy(Policy::Session)] {
            let affinity = mean(population, 7, contender);
            assert!(work <= 0.85 * affinity, "{}: {work} {affinity}", population.as_str());
        }
        assert!(work < mean(population, 7, Contender::Policy(Policy::RoundRobin)));
        assert!(work < mean(population, 7, Contender::Policy(Policy::LeastWork)));
    }
}

#[test]
fn a_session_that_is_more_than_an_engine_is_spread() {
    let affinity = mean(Population::Agents, 7, Contender::EvenSession);
    assert!(work(Population::Agents, 7) <= 0.85 * affinity);
}

#[test]
fn routers_that_know_nothing_of_each_other_lose_to_nobody() {
    let work = work(Population::SeparateRouters, 7);
    for contender in Contender::all().into_iter().filter(|other| *other != Contender::Policy(Policy::Work)) {
        let other = mean(Population::SeparateRouters, 7, contender);
        assert!(work <= 1.05 * other, "{}: {work} {other}", contender.name());
    }
}

#[test]
fn no_policy_is_better_than_what_no_router_can_have() {
    for population in [Population::Sessions, Population::HotSessions, Population::Restart] {
        let bound = mean(population, 7, Contender::SharedCache);
        assert!(bound < work(population, 7), "{}", population.as_str());
        assert!(bound < mean(population, 7, Contender::Foresight), "{}", population.as_str());
    }
}

#[test]
fn one_hot_prefix_does_not_pin_everything_to_one_engine() {
    let prefix_hash = mean(Population::HotPrefix, 7, Contender::Policy(Policy::PrefixHash));
    assert!(work(Population::HotPrefix, 7) < prefix_hash / 10.0);
}

#[test]
fn a_burst_needs_the_prompts_in_flight() {
    let workload = Population::Bursts.workload(7, 0.25);
    let mut fleet = Population::Bursts.fleet(7, 0.25);
    let with = run(&workload, &fleet, Contender::Policy(Policy::Work));
    fleet.options.flight_ttl = 0.0;
    let without = run(&workload, &fleet, Contender::Policy(Policy::Work));
    assert!(with.mean < 0.5 * without.mean, "{with:?} {without:?}");
    assert!(with.hit_rate > without.hit_rate + 0.2);
}

#[test]
fn routers_that_share_their_bookings_do_better() {
    let shared = work(Population::SharedRouters, 7);
    assert!(shared < work(Population::SeparateRouters, 7));
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for contender in Contender::all() {
        let once = || {
            let workload = Population::HotSessions.workload(3, 0.1);
            run(&workload, &Population::HotSessions.fleet(3, 0.1), contender)
        };
        assert_eq!(once(), once());
    }
}
