use proptest::prelude::*;

use super::*;

const OPTIONS: HealthOptions =
    HealthOptions { failures: 3, open: Duration::from_secs(1), open_max: Duration::from_secs(4), probes: 2 };

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn opens_after_failures_in_a_row_and_tries_once() {
    let mut health = Health::default();
    for _ in 0..2 {
        health.failed(&OPTIONS, at(0));
    }
    assert_eq!(health.standing(at(0)), Standing::Up);
    health.succeeded();
    for _ in 0..3 {
        health.failed(&OPTIONS, at(0));
    }
    assert_eq!(health.standing(at(0)), Standing::Open);
    // Late failures do not prolong it.
    health.failed(&OPTIONS, Duration::from_millis(900));
    assert_eq!(health.standing(at(1)), Standing::Trial);
    health.sent(at(1));
    assert_eq!(health.standing(at(1)), Standing::Open);
    health.failed(&OPTIONS, at(1));
    assert_eq!((health.standing(at(2)), health.standing(at(3))), (Standing::Open, Standing::Trial));
    health.sent(at(3));
    health.succeeded();
    assert_eq!(health.standing(at(3)), Standing::Up);
}

#[test]
fn is_open_for_no_longer_than_allowed() {
    let mut health = Health::default();
    let mut now = at(0);
    for _ in 0..40 {
        health.failed(&OPTIONS, now);
        now += at(100);
        assert_ne!(health.standing(now), Standing::Open);
        health.sent(now);
    }
    health.failed(&OPTIONS, now);
    assert_eq!(health.standing(now + at(4)), Standing::Trial);
}

#[test]
fn a_trial_that_ends_without_a_verdict_is_made_again() {
    let mut health = Health::default();
    for _ in 0..3 {
        health.failed(&OPTIONS, at(0));
    }
    health.sent(at(1));
    health.given_up();
    assert_eq!(health.standing(at(1)), Standing::Trial);
    health.sent(at(1));
    assert_eq!(health.standing(at(1) + TRIAL), Standing::Trial);
}

#[test]
fn probes_take_it_down_and_bring_it_back() {
    let mut health = Health::default();
    health.probed(&OPTIONS, false, at(0));
    assert_eq!(health.standing(at(0)), Standing::Up);
    health.probed(&OPTIONS, false, at(1));
    health.succeeded();
    assert_eq!(health.standing(at(1)), Standing::Down);
    health.probed(&OPTIONS, true, at(2));
    assert_eq!(health.standing(at(2)), Standing::Up);
    for _ in 0..3 {
        health.failed(&OPTIONS, at(3));
    }
    health.probed(&OPTIONS, true, at(3));
    assert_eq!(health.standing(at(3)), Standing::Trial);
}

#[derive(Debug, Clone)]
enum Event {
    Sent,
    Succeeded,
    Failed,
    GivenUp,
    Probed(bool),
    Later(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        1 => Just(Event::Sent),
        1 => Just(Event::Succeeded),
        4 => Just(Event::Failed),
        1 => Just(Event::GivenUp),
        1 => any::<bool>().prop_map(Event::Probed),
        1 => (0u64..3_000).prop_map(Event::Later),
    ]
}

proptest! {
    /// Whatever happened: it is never left alone for good, and it is not left alone without a reason.
    #[test]
    fn always_comes_back(events in prop::collection::vec(event(), 0..60)) {
        let (mut health, mut now, mut in_a_row, mut probes) = (Health::default(), at(0), 0, 0);
        let mut ever_opened = false;
        for event in events {
            match event {
                Event::Sent => health.sent(now),
                Event::Succeeded => { health.succeeded(); in_a_row = 0; ever_opened = false; }
                Event::Failed => { health.failed(&OPTIONS, now); in_a_row += 1; ever_opened |= in_a_row >= OPTIONS.failures; }
                Event::GivenUp => health.given_up(),
                Event::Probed(well) => { health.probed(&OPTIONS, well, now); probes = if well { 0 } else { probes + 1 }; }
                Event::Later(ms) => now += Duration::from_millis(ms),
            }
            let standing = health.standing(now);
            prop_assert_eq!(standing == Standing::Down, probes >= OPTIONS.probes);
            prop_assert!(ever_opened || matches!(standing, Standing::Up | Standing::Down));
        }
        health.probed(&OPTIONS, true, now);
        prop_assert!(matches!(health.standing(now + OPTIONS.open_max + TRIAL), Standing::Up | Standing::Trial));
    }
}
