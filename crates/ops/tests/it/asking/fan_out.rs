//! Many backends at once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use kvplane_core::{EngineKind, PlaneId};
use kvplane_ops::{Backend, FanOut, Flush, Limits, Meaning, Profile, ProfileIds, Remainder, Verb};
use parking_lot::Mutex;

use crate::asking::peer::{Act, Peer};
use crate::asking::{SLACK, flush};

/// Backends that share a listener, selected by a path.
fn fleet(peer: &Peer, count: usize) -> impl Iterator<Item = (usize, Backend)> {
    let address = peer.address;
    (0..count).map(move |number| {
        let http = Some(format!("http://{address}/{number}"));
        (number, Backend { kind: EngineKind::Sglang, http, grpc: None, version: None, authorization: None })
    })
}

/// The number in `POST /17/flush_cache HTTP/1.1`.
fn number(line: &str) -> usize {
    line.split('/').nth(1).unwrap().parse().unwrap()
}

fn done() -> Act {
    Act::Say(200, "done".to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_backends_of_which_a_tenth_hangs() {
    const BACKENDS: usize = 1000;
    // Long enough for a machine that is busy with other things to answer within it.
    const DEADLINE: Duration = Duration::from_secs(5);
    let peer = Peer::new(|line, _| if number(line) % 10 == 3 { Act::Hang } else { done() }).await;
    let verb = flush();
    let limits = Limits { deadline: DEADLINE, ..Limits::of(&verb) };
    let began = Instant::now();
    let fan_out = FanOut::new(fleet(&peer, BACKENDS), verb, limits);
    let answers: Vec<_> = fan_out.collect().await;
    let dead = BACKENDS / 10;
    // One after the other, those who hang alone would take more than eight minutes.
    let bound = DEADLINE * dead.div_ceil(limits.in_flight) as u32 + SLACK;
    assert!(began.elapsed() < bound, "{:?} are more than {bound:?}", began.elapsed());
    assert!(peer.seen.most_open() <= limits.in_flight, "{}", peer.seen.most_open());
    assert_eq!(peer.seen.requests(), BACKENDS);

    let mut heard = BTreeSet::new();
    for asked in &answers {
        let [number] = asked.targets[..] else { panic!("{asked:?}") };
        assert!(heard.insert(number));
        let hangs = number % 10 == 3;
        assert_eq!(asked.answer.meaning == Meaning::Timeout, hangs, "{asked:?}");
        assert_eq!(matches!(asked.answer.meaning, Meaning::Accepted { .. }), !hangs, "{asked:?}");
    }
    assert_eq!(heard.len(), BACKENDS);
}

#[tokio::test]
async fn answers_come_as_they_are_ready() {
    let peer = Peer::new(|line, _| if number(line) == 0 { Act::Hang } else { done() }).await;
    let verb = flush();
    let limits = Limits { deadline: Duration::from_mins(2), ..Limits::of(&verb) };
    let mut fan_out = FanOut::new(fleet(&peer, 20), verb, limits);
    for _ in 1..20 {
        assert_ne!(fan_out.next().await.unwrap().targets, [0]);
    }
    assert_eq!(fan_out.in_flight(), 1);
}

#[tokio::test]
async fn a_backend_with_several_targets_is_asked_once() {
    let peer = Peer::always(done()).await;
    let backend = peer.over_http(EngineKind::Sglang);
    let verb = flush();
    let limits = Limits::of(&verb);
    let targets = (0..8).map(|rank| (rank, backend.clone()));
    let answers: Vec<_> = FanOut::new(targets, verb.clone(), limits).collect().await;
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].targets, (0..8).collect::<Vec<_>>());
    assert_eq!(peer.seen.requests(), 1);

    // Without an address there is nobody to share.
    let nowhere = Backend { http: None, ..backend };
    let targets = (0..3).map(|rank| (rank, nowhere.clone()));
    assert_eq!(FanOut::new(targets, verb, limits).collect::<Vec<_>>().await.len(), 3);
}

#[tokio::test]
async fn everybody_is_reported_before_they_are_asked() {
    let reported = Arc::new(Mutex::new(Vec::new()));
    let (telling, known) = (reported.clone(), reported.clone());
    let peer = Peer::new(move |line, _| {
        assert!(known.lock().contains(&number(line)));
        done()
    })
    .await;
    let verb = flush();
    let fan_out = FanOut::new(fleet(&peer, 100), verb.clone(), Limits::of(&verb))
        .before_each(move |targets| telling.lock().extend_from_slice(targets));
    let answers: Vec<_> = fan_out.collect().await;
    assert!(answers.iter().all(|asked| matches!(asked.answer.meaning, Meaning::Accepted { .. })));
    assert_eq!(reported.lock().len(), 100);
}

#[tokio::test]
async fn everybody_is_reported_before_they_are_asked_again() {
    let reported = Arc::new(Mutex::new(Vec::new()));
    let (telling, known) = (reported.clone(), reported.clone());
    let asked = AtomicUsize::new(0);
    let peer = Peer::new(move |_, _| {
        let before = asked.fetch_add(1, Ordering::SeqCst);
        assert_eq!(*known.lock(), vec![vec![7, 8]; before]);
        if before < 3 { Act::Say(400, "not idle".to_owned()) } else { done() }
    })
    .await;
    let backend = peer.over_http(EngineKind::Tokenspeed);
    let verb = Verb::Flush(Flush { timeout: Duration::from_mins(1), ..Flush::default() });
    let fan_out = FanOut::new([(7, backend.clone()), (8, backend)], verb.clone(), Limits::of(&verb))
        .before_again(move |targets| telling.lock().push(targets.to_vec()));
    let answers: Vec<_> = fan_out.collect().await;
    assert!(matches!(answers[0].answer.meaning, Meaning::Accepted { .. }), "{answers:?}");
    assert_eq!(reported.lock().len(), 3);
}

#[tokio::test]
async fn who_ends_it_learns_what_may_still_complete() {
    let peer = Peer::new(|line, _| if number(line) < 4 { Act::Hang } else { done() }).await;
    let verb = flush();
    let limits = Limits { in_flight: 4, deadline: Duration::from_mins(1), ..Limits::of(&verb) };
    let mut fan_out = FanOut::new(fleet(&peer, 10), verb, limits);
    // All four places are taken by backends that have the request.
    let all_asked = async {
        while peer.seen.requests() < 4 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = all_asked => {}
        asked = fan_out.next() => panic!("{asked:?}"),
    }
    let Remainder { answered, mut sent, not_sent } = fan_out.cancel().await;
    sent.sort_unstable();
    assert_eq!((answered.len(), sent, not_sent), (0, vec![0, 1, 2, 3], (4..10).collect()));
    // The connections are closed, not left behind.
    tokio::time::timeout(SLACK, async {
        while peer.seen.open() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("connections that stay open");
    assert_eq!(peer.seen.requests(), 4);
}

#[tokio::test]
async fn answers_that_nobody_took_are_not_lost() {
    let peer = Peer::always(done()).await;
    let verb = flush();
    let mut fan_out = FanOut::new(fleet(&peer, 5), verb.clone(), Limits::of(&verb));
    let mut taken = vec![fan_out.next().await.unwrap().targets[0]];
    let Remainder { answered, sent, not_sent } = fan_out.cancel().await;
    taken.extend(answered.iter().map(|asked| asked.targets[0]).chain(sent).chain(not_sent));
    taken.sort_unstable();
    assert_eq!(taken, [0, 1, 2, 3, 4]);
}

#[tokio::test]
async fn recordings_of_one_operation_have_names_of_their_own() {
    let names = Arc::new(Mutex::new(BTreeSet::new()));
    let heard = names.clone();
    let peer = Peer::new(move |_, body| {
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        heard.lock().insert(body["profile_prefix"].as_str().unwrap().to_owned());
        done()
    })
    .await;
    let profile = Profile::new(ProfileIds::new(PlaneId::from_bits(3)).mint());
    let verb = Verb::StartProfile(profile);
    let answers: Vec<_> = FanOut::new(fleet(&peer, 50), verb.clone(), Limits::of(&verb)).collect().await;
    assert_eq!((answers.len(), names.lock().len()), (50, 50));
}
