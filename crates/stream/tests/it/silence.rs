//! A stream is live only while its engine was proven to be there within `max_silence`.

use std::time::Duration;

use bytes::Bytes;
use kvplane_core::Continuity;
use kvplane_stream::{Happening, JournalOptions, Now, Options, Recorder};

const MAX: Duration = Duration::from_secs(2);

fn at(ms: u64) -> Now {
    Now { mono: Duration::from_millis(ms), unix_ms: 1_800_000_000_000 + ms }
}

/// A recorder without a replay socket that follows from the first batch on.
fn following() -> Recorder {
    let options = Options { replay: false, ..Options::default() };
    let mut recorder = Recorder::new(options, JournalOptions::default(), 0, at(0));
    recorder.bound_silence(MAX);
    recorder.connected(at(0));
    recorder.live(at(10), 0, batch());
    recorder
}

/// An empty batch: a timestamp and no events.
fn batch() -> Bytes {
    let mut bytes = vec![0x92, 0xcb];
    bytes.extend(1.0f64.to_be_bytes());
    bytes.push(0x90);
    Bytes::from(bytes)
}

fn prove(recorder: &mut Recorder, now: u64, proven_at: u64) {
    recorder.prove(at(now), Duration::from_millis(proven_at));
}

#[test]
fn nothing_is_live_before_the_first_proof() {
    let mut recorder = following();
    assert_eq!(recorder.continuity(), Continuity::Recovering);
    assert_eq!(recorder.age(at(10)), None);
    prove(&mut recorder, 20, 15);
    assert_eq!(recorder.continuity(), Continuity::Live);
    assert_eq!(recorder.age(at(115)), Some(Duration::from_millis(100)));
}

#[test]
fn a_proof_counts_from_its_own_moment_and_not_from_its_arrival() {
    let mut recorder = following();
    prove(&mut recorder, 5_000, 2_900);
    assert_eq!(recorder.continuity(), Continuity::Recovering, "a late answer proves an old moment");
    prove(&mut recorder, 5_010, 3_100);
    assert_eq!(recorder.continuity(), Continuity::Live);
    prove(&mut recorder, 5_020, 1_000);
    assert_eq!(recorder.proven_at(), Some(Duration::from_millis(3_100)), "an older proof takes nothing back");
}

#[test]
fn silence_ends_live_at_the_bound_and_an_entry_says_so() {
    let mut recorder = following();
    prove(&mut recorder, 100, 100);
    recorder.take_happenings();
    recorder.tick(at(2_100));
    assert_eq!(recorder.continuity(), Continuity::Live, "the bound itself is within it");
    let before = recorder.ledger().cursor();
    recorder.tick(at(2_101));
    assert_eq!(recorder.continuity(), Continuity::Recovering);
    assert!(recorder.is_stale());
    assert_eq!(recorder.counters().silences, 1);
    assert!(recorder.take_happenings().contains(&Happening::Continuity(Continuity::Recovering)));
    let entries = recorder.ledger().read_after(before, 10).unwrap();
    assert_eq!(entries.iter().find_map(|entry| entry.continuity), Some(Continuity::Recovering));
    assert_eq!(entries[0].age, Some(Duration::from_millis(2_001)));
    prove(&mut recorder, 2_200, 2_190);
    assert_eq!(recorder.continuity(), Continuity::Live, "the connection never broke: nothing is missing");
    assert_eq!(recorder.counters().silences, 1);
}

#[test]
fn frames_alone_do_not_prove_that_the_engine_is_there() {
    let mut recorder = following();
    prove(&mut recorder, 100, 100);
    // What comes out of a queue may be of an engine that is long gone.
    for (sequence, ms) in (1..60).zip((100..).step_by(100)) {
        recorder.live(at(ms), sequence, batch());
    }
    assert_eq!(recorder.continuity(), Continuity::Recovering);
}

#[test]
fn a_source_that_cannot_fall_silent_has_no_bound() {
    let options = Options { replay: false, ..Options::default() };
    let mut recorder = Recorder::new(options, JournalOptions::default(), 0, at(0));
    recorder.connected(at(0));
    recorder.live(at(10), 0, batch());
    recorder.tick(at(1_000_000));
    assert_eq!(recorder.continuity(), Continuity::Live);
    assert_eq!(recorder.age(at(1_000_000)), Some(Duration::ZERO));
}

#[test]
fn between_its_deadlines_a_stream_needs_no_tick() {
    let mut recorder = following();
    assert_eq!(recorder.idle_until(), Duration::MAX, "nothing is proven: only a proof changes that");
    prove(&mut recorder, 100, 100);
    assert_eq!(recorder.idle_until(), Duration::from_millis(2_100));
    recorder.tick(at(2_101));
    let down_at = recorder.idle_until();
    assert!(down_at > Duration::from_millis(2_101) && down_at < Duration::MAX, "{down_at:?}");
    recorder.tick(at(down_at.as_millis() as u64 - 1));
    assert_eq!(recorder.continuity(), Continuity::Recovering);
    recorder.tick(at(down_at.as_millis() as u64));
    assert_eq!((recorder.continuity(), recorder.idle_until()), (Continuity::Down, Duration::MAX));
    recorder.disconnected(at(60_000));
    recorder.tick(at(90_000));
    assert_eq!(recorder.idle_until(), Duration::MAX, "an engine that is away costs nothing");
}
