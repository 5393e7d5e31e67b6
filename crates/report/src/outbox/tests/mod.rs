//! The outbox by its promises, and against any history of a server that fails, forgets and restarts
//! (`model.rs`).

mod model;

use std::sync::Arc;
use std::time::Duration;

use kvplane_hints::{CacheTier, Note, Prefix, Stats};

use super::*;

const MS: Duration = Duration::from_millis(1);
const WINDOW: Duration = Duration::from_millis(100);
pub(super) const GRACE: Duration = Duration::from_secs(5);

pub(super) fn held_in(fingerprint: u64, adapter: &str, tier: CacheTier) -> Note {
    let tokens = fingerprint as u32 * 16;
    Note::Held(Prefix { fingerprint, tokens, block: 16, tier, sure: true, adapter: Arc::from(adapter) })
}

fn held(fingerprint: u64) -> Note {
    held_in(fingerprint, "", CacheTier::T1)
}

pub(super) fn gone_in(fingerprint: u64, adapter: &str) -> Note {
    Note::Gone { fingerprint, adapter: Arc::from(adapter) }
}

fn gone(fingerprint: u64) -> Note {
    gone_in(fingerprint, "")
}

/// Every call that is due now, none of them ended.
fn due(outbox: &mut Outbox, now: Duration) -> Vec<Call> {
    let mut calls = Vec::new();
    while let Next::Call(call) = outbox.next(now) {
        calls.push(call);
    }
    calls
}

/// The only call that is due.
fn only(outbox: &mut Outbox, now: Duration) -> Call {
    let mut calls = due(outbox, now);
    assert_eq!(calls.len(), 1, "{calls:?}");
    calls.remove(0)
}

/// Connected, and the server is known to hold nothing.
fn begun(options: OutboxOptions) -> Outbox {
    let mut outbox = Outbox::new(options, GRACE);
    outbox.connected(Duration::ZERO);
    let call = only(&mut outbox, Duration::ZERO);
    assert_eq!(call.saying, Saying::Clear);
    outbox.done(call.ticket, Outcome::Taken, Duration::ZERO);
    outbox
}

fn fingerprints(call: &Call) -> Vec<u64> {
    match &call.saying {
        Saying::Adds(adds) => adds.iter().map(|add| add.fingerprint).collect(),
        Saying::Eviction { fingerprint, .. } => vec![*fingerprint],
        other => panic!("{other:?}"),
    }
}

#[test]
fn adds_wait_for_the_window_or_for_company() {
    let mut outbox = begun(OutboxOptions { max_batch: 3, ..OutboxOptions::default() });
    outbox.note(&[held(1)], MS);
    assert!(matches!(outbox.next(50 * MS), Next::Wait(Some(due)) if due == MS + WINDOW));
    let call = only(&mut outbox, MS + WINDOW);
    assert_eq!(fingerprints(&call), [1]);
    outbox.done(call.ticket, Outcome::Taken, MS + WINDOW);
    outbox.note(&[held(2), held(3), held(4), held(5)], 200 * MS);
    let call = only(&mut outbox, 200 * MS);
    assert_eq!(fingerprints(&call), [2, 3, 4]);
    outbox.done(call.ticket, Outcome::Taken, 200 * MS);
    assert_eq!(fingerprints(&only(&mut outbox, 200 * MS)), [5]);
}

#[test]
fn what_comes_and_goes_within_a_window_is_not_reported() {
    let mut outbox = begun(OutboxOptions::default());
    outbox.note(&[held(1), held(2), gone(1)], MS);
    assert_eq!(fingerprints(&only(&mut outbox, WINDOW + MS)), [2]);
}

#[test]
fn evictions_follow_the_adds_before_them_several_at_a_time() {
    let mut outbox = begun(OutboxOptions { concurrency: 2, ..OutboxOptions::default() });
    outbox.note(&[held(1), held(2), held(3)], MS);
    let call = only(&mut outbox, 200 * MS);
    // While they are under way nothing else is said of them.
    outbox.note(&[gone(1), gone(2), gone(3), held(4)], 210 * MS);
    assert!(due(&mut outbox, 400 * MS).is_empty());
    outbox.done(call.ticket, Outcome::Taken, 400 * MS);
    let call = only(&mut outbox, 400 * MS + WINDOW);
    assert_eq!(fingerprints(&call), [4]);
    outbox.done(call.ticket, Outcome::Taken, 500 * MS);
    let mut evictions = due(&mut outbox, 500 * MS);
    assert_eq!(evictions.iter().map(fingerprints).collect::<Vec<_>>(), [[1], [2]]);
    outbox.done(evictions.remove(0).ticket, Outcome::Taken, 500 * MS);
    assert_eq!(fingerprints(&only(&mut outbox, 500 * MS)), [3]);
}

#[test]
fn a_failed_call_is_reported_again_after_a_pause() {
    let mut outbox = begun(OutboxOptions::default());
    outbox.note(&[held(1)], MS);
    let call = only(&mut outbox, 200 * MS);
    outbox.done(call.ticket, Outcome::Failed, 200 * MS);
    assert!(matches!(outbox.next(200 * MS), Next::Wait(Some(until)) if until > 200 * MS));
    let call = only(&mut outbox, 400 * MS);
    assert_eq!(fingerprints(&call), [1]);
    outbox.note(&[gone(1)], 400 * MS);
    outbox.done(call.ticket, Outcome::Failed, 400 * MS);
    // It may have been taken: its eviction is reported.
    let call = only(&mut outbox, 900 * MS);
    assert!(matches!(call.saying, Saying::Eviction { fingerprint: 1, .. }));
    outbox.done(call.ticket, Outcome::Taken, 900 * MS);
    assert!(outbox.is_settled());
    assert_eq!(outbox.counts().retries, 2);
}

/// Everything that is due by then is said and taken. Returns what was said, and when.
fn all_taken(outbox: &mut Outbox, from: Duration, until: Duration) -> Vec<(Duration, Saying)> {
    let (mut said, mut now) = (Vec::new(), from);
    while now <= until {
        while let Next::Call(Call { saying, ticket }) = outbox.next(now) {
            said.push((now, saying));
            outbox.done(ticket, Outcome::Taken, now);
        }
        now += 50 * MS;
    }
    said
}

#[test]
fn an_eviction_after_an_add_without_an_answer_is_reported_twice() {
    let mut outbox = begun(OutboxOptions::default());
    outbox.note(&[held(1), held(2)], MS);
    let call = only(&mut outbox, 200 * MS);
    outbox.note(&[gone(1)], 200 * MS);
    outbox.done(call.ticket, Outcome::Unanswered, 200 * MS);
    let said = all_taken(&mut outbox, 200 * MS, 3 * GRACE);
    let about = |wanted: u64| -> Vec<Duration> {
        let is_it = |saying: &Saying| match saying {
            Saying::Adds(adds) => adds.iter().any(|add| add.fingerprint == wanted),
            Saying::Eviction { fingerprint, .. } => *fingerprint == wanted,
            _ => false,
        };
        said.iter().filter(|(_, saying)| is_it(saying)).map(|(at, _)| *at).collect()
    };
    // The add may be applied as late as that.
    for times in [about(1), about(2)] {
        assert_eq!(times.len(), 2, "{said:?}");
        assert!(times[0] < GRACE && times[1] >= 200 * MS + GRACE, "{times:?}");
    }
    assert!(outbox.is_settled());
    assert_eq!(outbox.pending().maybe_reported, 1);
}

#[test]
fn a_clear_after_a_call_without_an_answer_is_reported_twice_and_nothing_between() {
    let mut outbox = begun(OutboxOptions::default());
    outbox.note(&[held(1)], MS);
    let call = only(&mut outbox, 200 * MS);
    outbox.note(&[Note::Nothing, held(2)], 200 * MS);
    outbox.done(call.ticket, Outcome::Unanswered, 200 * MS);
    let said = all_taken(&mut outbox, 200 * MS, 3 * GRACE);
    assert_eq!([&said[0].1, &said[1].1], [&Saying::Clear, &Saying::Clear], "{said:?}");
    assert!(said[0].0 < GRACE && said[1].0 >= 200 * MS + GRACE, "{said:?}");
    assert!(matches!(&said[2].1, Saying::Adds(adds) if adds[0].fingerprint == 2));
    assert_eq!(said.len(), 3);
}

#[test]
fn a_refused_add_waits_for_its_refresh_a_refused_eviction_does_not() {
    let mut outbox = begun(OutboxOptions::default());
    outbox.note(&[held(1)], MS);
    let call = only(&mut outbox, 200 * MS);
    outbox.done(call.ticket, Outcome::Refused, 200 * MS);
    assert!(outbox.is_settled());
    assert_eq!((outbox.counts().refused_blocks, outbox.counts().reported_blocks), (1, 0));
    outbox.note(&[gone(1)], 300 * MS);
    let call = only(&mut outbox, 500 * MS);
    outbox.done(call.ticket, Outcome::Refused, 500 * MS);
    assert!(!outbox.is_settled());
}

#[test]
fn a_clear_supersedes_what_waits_and_waits_for_what_is_under_way() {
    let mut outbox = begun(OutboxOptions { max_batch: 2, ..OutboxOptions::default() });
    outbox.set_stats(Stats::default());
    let stats = only(&mut outbox, MS);
    outbox.done(stats.ticket, Outcome::Taken, MS);
    outbox.note(&[held(1), held(2), held(3)], MS);
    let call = only(&mut outbox, MS);
    outbox.note(&[Note::Nothing, held(9)], 2 * MS);
    assert!(due(&mut outbox, 500 * MS).is_empty());
    outbox.done(call.ticket, Outcome::Taken, 500 * MS);
    let clear = only(&mut outbox, 500 * MS);
    assert_eq!(clear.saying, Saying::Clear);
    assert!(due(&mut outbox, 900 * MS).is_empty());
    outbox.done(clear.ticket, Outcome::Taken, 900 * MS);
    // The server has dropped the statistics, too.
    let calls = due(&mut outbox, 900 * MS);
    assert!(matches!(calls[0].saying, Saying::Stats(_)));
    assert_eq!(fingerprints(&calls[1]), [9]);
}

#[test]
fn a_server_that_holds_nothing_is_not_cleared_again() {
    let mut outbox = begun(OutboxOptions::default());
    outbox.note(&[held(1), Note::Nothing, Note::Nothing], MS);
    assert!(due(&mut outbox, 500 * MS).is_empty());
    assert_eq!(outbox.counts().clears, 1);
}

#[test]
fn a_new_connection_is_sent_everything_and_evicts_nothing() {
    let mut outbox = begun(OutboxOptions::default());
    outbox.note(&[held(1), held(2)], MS);
    let call = only(&mut outbox, 200 * MS);
    outbox.done(call.ticket, Outcome::Taken, 200 * MS);
    assert!(outbox.is_settled());
    outbox.disconnected();
    outbox.note(&[held(3)], 300 * MS);
    assert!(matches!(outbox.next(9_000 * MS), Next::Wait(None)));
    outbox.connected(10_000 * MS);
    let call = only(&mut outbox, 10_000 * MS + WINDOW);
    assert_eq!(fingerprints(&call), [3, 1, 2]);
    assert_eq!(outbox.counts().resyncs, 1);
}

#[test]
fn an_answer_of_an_earlier_connection_counts_for_nothing() {
    let mut outbox = begun(OutboxOptions::default());
    outbox.note(&[held(1)], MS);
    let call = only(&mut outbox, 200 * MS);
    outbox.disconnected();
    outbox.connected(300 * MS);
    outbox.done(call.ticket, Outcome::Taken, 300 * MS);
    assert_eq!(fingerprints(&only(&mut outbox, 300 * MS + WINDOW)), [1]);
}

#[test]
fn an_eviction_without_an_adapter_is_one_of_all_of_them() {
    let mut outbox = begun(OutboxOptions::default());
    outbox.note(&[held(1), held_in(1, "sql", CacheTier::T1)], MS);
    let call = only(&mut outbox, 200 * MS);
    outbox.done(call.ticket, Outcome::Taken, 200 * MS);
    outbox.note(&[gone(1)], 300 * MS);
    let call = only(&mut outbox, 400 * MS);
    outbox.done(call.ticket, Outcome::Taken, 400 * MS);
    let call = only(&mut outbox, 500 * MS);
    assert!(matches!(&call.saying, Saying::Adds(adds) if *adds[0].adapter == *"sql"));
}

#[test]
fn too_many_evictions_become_a_clear() {
    let mut outbox = begun(OutboxOptions { max_evictions: 3, ..OutboxOptions::default() });
    let notes: Vec<Note> = (1..=6).map(held).collect();
    outbox.note(&notes, MS);
    let call = only(&mut outbox, 200 * MS);
    outbox.done(call.ticket, Outcome::Taken, 200 * MS);
    outbox.note(&[gone(1), gone(2), gone(3), gone(4)], 300 * MS);
    let clear = only(&mut outbox, 300 * MS);
    assert_eq!(clear.saying, Saying::Clear);
    outbox.done(clear.ticket, Outcome::Taken, 300 * MS);
    assert_eq!(fingerprints(&only(&mut outbox, 500 * MS)), [5, 6]);
    assert_eq!(outbox.pending().evictions, 0);
}

#[test]
fn a_message_stays_below_its_bound() {
    let mut outbox = begun(OutboxOptions { max_message: 2_500, ..OutboxOptions::default() });
    let adapter = "a".repeat(1_000);
    let notes: Vec<Note> = (1..=5).map(|at| held_in(at, &adapter, CacheTier::T1)).collect();
    outbox.note(&notes, MS);
    let mut sizes = Vec::new();
    while let Next::Call(call) = outbox.next(200 * MS) {
        sizes.push(fingerprints(&call).len());
        outbox.done(call.ticket, Outcome::Taken, 200 * MS);
    }
    assert_eq!(sizes, [2, 2, 1]);
}

#[test]
fn what_is_held_is_reported_again_spread_over_the_refresh() {
    let refresh = Duration::from_mins(10);
    let mut outbox = begun(OutboxOptions { refresh, ..OutboxOptions::default() });
    let notes: Vec<Note> = (0..6_000).map(held).collect();
    outbox.note(&notes, MS);
    let mut last = vec![0_u64; 6_000];
    let mut most = 0;
    for second in 1..=1_800_u64 {
        let now = Duration::from_secs(second);
        while let Next::Call(call) = outbox.next(now) {
            let reported = fingerprints(&call);
            if second > 2 {
                most = most.max(reported.len());
            }
            for fingerprint in reported {
                last[fingerprint as usize] = second;
            }
            outbox.done(call.ticket, Outcome::Taken, now);
        }
        assert!(last.iter().all(|&at| second < 2 || second - at <= 602), "at {second} s");
    }
    assert!(most <= 21, "{most} at once");
    assert!(outbox.counts().refreshed_blocks >= 2 * 6_000);
}

#[test]
fn what_is_not_sure_is_reported_once() {
    let refresh = Duration::from_mins(1);
    let mut outbox = begun(OutboxOptions { refresh, max_evictions: 1, ..OutboxOptions::default() });
    let left = |fingerprint| match held_in(fingerprint, "", CacheTier::T2) {
        Note::Held(prefix) => Note::Held(Prefix { sure: false, ..prefix }),
        other => other,
    };
    outbox.note(&[held(1), held(2), left(2), held(3)], MS);
    assert_eq!(fingerprints_of(&all_taken(&mut outbox, MS, 2 * refresh))[..3], [1, 2, 3]);
    // Neither for a refresh nor for a new server.
    let mut later = fingerprints_of(&all_taken(&mut outbox, 2 * refresh, 4 * refresh));
    outbox.disconnected();
    outbox.connected(5 * refresh);
    later.extend(fingerprints_of(&all_taken(&mut outbox, 5 * refresh, 6 * refresh)));
    assert!(later.contains(&1) && later.contains(&3) && !later.contains(&2), "{later:?}");
    // When the engine says so itself it is reported again.
    outbox.note(&[held_in(2, "", CacheTier::T2)], 7 * refresh);
    let later = fingerprints_of(&all_taken(&mut outbox, 7 * refresh, 8 * refresh));
    assert!(later.contains(&2), "{later:?}");
    // It is evicted like any other.
    outbox.note(&[left(2)], 9 * refresh);
    outbox.note(&[gone(2)], 9 * refresh);
    let said = all_taken(&mut outbox, 9 * refresh, 10 * refresh);
    assert!(said.iter().any(|(_, saying)| matches!(saying, Saying::Eviction { fingerprint: 2, .. })));
    // After a clear it is not reported either.
    outbox.note(&[left(4), held(5), held(6), held(7)], 11 * refresh);
    all_taken(&mut outbox, 11 * refresh, 12 * refresh);
    outbox.note(&[gone(5), gone(6)], 13 * refresh);
    let said = all_taken(&mut outbox, 13 * refresh, 14 * refresh);
    assert_eq!(said[0].1, Saying::Clear);
    let later = fingerprints_of(&said[1..]);
    assert!(later.contains(&7) && !later.contains(&4), "{later:?}");
}

/// What was added.
fn fingerprints_of(said: &[(Duration, Saying)]) -> Vec<u64> {
    let adds =
        said.iter().filter_map(|(_, saying)| if let Saying::Adds(adds) = saying { Some(adds) } else { None });
    adds.flatten().map(|add| add.fingerprint).collect()
}

#[test]
fn what_waits_is_reported_at_once_when_it_ends() {
    let mut outbox = begun(OutboxOptions::default());
    outbox.note(&[held(1)], MS);
    outbox.close();
    let call = only(&mut outbox, MS);
    outbox.done(call.ticket, Outcome::Taken, MS);
    assert!(outbox.is_settled());
}

#[test]
fn a_prefix_that_flaps_leaves_no_trail() {
    let mut outbox = begun(OutboxOptions::default());
    outbox.note(&[held(1)], MS);
    let call = only(&mut outbox, 200 * MS);
    outbox.done(call.ticket, Outcome::Taken, 200 * MS);
    assert!(due(&mut outbox, 200 * MS).is_empty());
    for _ in 0..100_000 {
        outbox.note(&[gone(1), held_in(1, "", CacheTier::T2), held(1)], 210 * MS);
    }
    assert!(outbox.adds.len() + outbox.evictions.len() < 3_000);
    assert!(outbox.is_settled());
}
