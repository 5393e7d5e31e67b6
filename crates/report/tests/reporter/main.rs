//! A reporter over real sockets, against a server that fails in every way.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod feeds;
mod health;
mod reports;
mod script;
mod stats;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvplane_hints::{CacheTier, Note, Prefix};
use kvplane_proto::inferencecache::cache_event::Type;
use kvplane_report::{
    Credentials, Identity, Link, OutboxOptions, ReplicaReport, ReportSink, ReporterOptions, ServerAddress,
    Sink as _, begin,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use script::{DEADLINE, Mood, Script};

const WINDOW: Duration = Duration::from_millis(20);

fn held_in(fingerprint: u64, adapter: &str, tier: CacheTier) -> Note {
    let tokens = fingerprint as u32 * 16;
    Note::Held(Prefix { fingerprint, tokens, block: 16, tier, sure: true, adapter: Arc::from(adapter) })
}

fn held(fingerprint: u64) -> Note {
    held_in(fingerprint, "", CacheTier::T1)
}

fn gone(fingerprint: u64) -> Note {
    Note::Gone { fingerprint, adapter: Arc::from("") }
}

/// A reporter that runs.
struct Reporting {
    sink: Option<ReportSink>,
    report: Arc<ReplicaReport>,
    task: JoinHandle<()>,
    stop: CancellationToken,
}

impl Reporting {
    fn to(script: &Script, change: impl FnOnce(&mut ReporterOptions)) -> Self {
        Self::at(ServerAddress::new(&script.address.to_string(), Credentials::default()).unwrap(), change)
    }

    fn at(address: ServerAddress, change: impl FnOnce(&mut ReporterOptions)) -> Self {
        let outbox = OutboxOptions { window: WINDOW, ..OutboxOptions::default() };
        let mut options = ReporterOptions { outbox, ..ReporterOptions::default() };
        change(&mut options);
        let identity = Identity {
            tenant: "t".to_owned(),
            model: "m".to_owned(),
            scheme: "vllm".to_owned(),
            replica: "r".to_owned(),
        };
        let stop = CancellationToken::new();
        let (sink, report, reporter) =
            begin("engine".to_owned(), identity, Link::open(address), options, stop.clone());
        Self { sink: Some(sink), report, task: tokio::spawn(reporter.run()), stop }
    }

    fn tell(&mut self, notes: &[Note]) {
        self.sink.as_mut().unwrap().tell(notes);
    }

    /// As when the process receives SIGTERM.
    async fn stopped(mut self) -> Arc<ReplicaReport> {
        self.stop.cancel();
        self.sink = None;
        tokio::time::timeout(DEADLINE, self.task).await.expect("it never stops").unwrap();
        self.report
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_life_reported_is_cleared_before_anything_is_added() {
    let script = Script::start();
    script.shared.state.lock().entries.insert((String::new(), 99), (16, 1, "t".to_owned()));
    let mut reporting = Reporting::to(&script, |_| {});
    reporting.tell(&[held(1), held_in(2, "sql", CacheTier::T2)]);
    script.until("both are told", |state| state.entries.len() == 2).await;
    let state = script.shared.state.lock();
    assert_eq!(state.entries[&(String::new(), 1)], (16, 1, "t".to_owned()));
    assert_eq!(state.entries[&("sql".to_owned(), 2)], (32, 2, "t".to_owned()));
    let (clear, update) = (state.events()[0], state.updates()[0]);
    assert_eq!(clear.r#type(), Type::AllCleared);
    assert_eq!(
        (clear.tenant_id.as_str(), clear.model_id.as_str(), clear.replica_id.as_str()),
        ("t", "m", "r")
    );
    assert_eq!((update.tenant_id.as_str(), update.model_id.as_str()), ("t", "m"));
    assert_eq!((update.replica_id.as_str(), update.hash_scheme.as_str()), ("r", "vllm"));
    // Microseconds of the wall clock: after 2020, and not from the future.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros() as i64;
    assert!(update.timestamp_us > 1_577_836_800_000_000 && update.timestamp_us <= now);
    assert_eq!(&update.prefixes[0].prefix_hash[..], 1_u64.to_be_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn evictions_go_singly_after_the_adds_before_them_and_many_at_a_time() {
    let script = Script::start();
    let mut reporting = Reporting::to(&script, |_| {});
    let all: Vec<Note> = (1..=40).map(held).collect();
    reporting.tell(&all);
    script.until("all are told", |state| state.entries.len() == 40).await;
    script.hold(true);
    let mut notes: Vec<Note> = vec![held(41)];
    notes.extend((1..=40).map(gone));
    reporting.tell(&notes);
    script.until("the add comes", |state| state.in_flight == 1).await;
    assert_eq!(script.shared.state.lock().events().len(), 1);
    script.hold(false);
    script.until_holds(&[41]).await;
    {
        let state = script.shared.state.lock();
        let added = state.log.iter().position(
            |said| matches!(said, script::Said::Update(update) if update.prefixes[0].token_count == 41 * 16),
        );
        let first_eviction = state.log.iter().position(
            |said| matches!(said, script::Said::Event(event) if event.r#type() == Type::PrefixEvicted),
        );
        assert!(added < first_eviction, "{added:?} {first_eviction:?}");
        assert_eq!(state.events().len(), 41);
    }
    // Now with all of them on the way.
    reporting.tell(&all);
    script.until("all are told again", |state| state.entries.len() == 41).await;
    script.hold(true);
    reporting.tell(&notes[1..]);
    script.until("sixteen are under way", |state| state.in_flight == 16).await;
    script.hold(false);
    script.until_holds(&[41]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_restarts_is_sent_everything_again() {
    for has_health in [true, false] {
        let mut script = Script::of(has_health, None);
        let mut reporting = Reporting::to(&script, |_| {});
        reporting.tell(&[held(1), held(2)]);
        script.until_holds(&[1, 2]).await;
        let clears = reporting.report.counts().clears;
        // Idle: nobody makes a call that could fail.
        let at = Instant::now();
        script.restart();
        script.until_holds(&[1, 2]).await;
        println!("told again {:?} after the restart (health: {has_health})", at.elapsed());
        let counts = reporting.report.counts();
        assert!(counts.resyncs >= 1 && counts.clears == clears, "{counts:?}");
        // What happens while it is away is reported, too.
        script.go_away();
        reporting.tell(&[gone(1), held(3)]);
        script.come_back();
        script.until_holds(&[2, 3]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_health_stream_that_a_proxy_ends_is_asked_for_again_before_everything_is_reported_again() {
    let script = Script::start();
    let mut reporting = Reporting::to(&script, |_| {});
    reporting.tell(&[held(1)]);
    script.until_holds(&[1]).await;
    for times in 1..=3 {
        script.health.until_asked(times).await;
        script.health.end();
    }
    script.health.until_asked(4).await;
    assert_eq!((reporting.report.counts().resyncs, reporting.report.link.connects()), (0, 1));
    // The server is away, and the proxy is not.
    script.health.refuse(true);
    script.forget();
    script.health.end();
    script.health.until_asked(5).await;
    script.health.refuse(false);
    script.until_holds(&[1]).await;
    assert!(reporting.report.counts().resyncs >= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_absent_server_holds_up_nobody() {
    let mut script = Script::start();
    script.go_away();
    let mut reporting = Reporting::to(&script, |_| {});
    for at in 1..=100 {
        reporting.tell(&[held(at)]);
    }
    assert_eq!(reporting.report.pending().adds, 100);
    assert_eq!(reporting.report.state(), "unreachable");
    script.come_back();
    script.until("all are told", |state| state.entries.len() == 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_has_its_deadline_and_what_it_said_is_said_again() {
    let script = Script::start();
    let mut reporting = Reporting::to(&script, |options| options.deadline = Duration::from_millis(200));
    reporting.tell(&[held(1)]);
    script.until_holds(&[1]).await;
    script.hold(true);
    reporting.tell(&[held(2)]);
    // The first call has to end before the second is made.
    let calls = script.shared.state.lock().calls;
    script.until("it is tried again", |state| state.calls >= calls + 2).await;
    assert!(reporting.report.counts().retries >= 1);
    assert_eq!(reporting.report.state(), "failing");
    script.hold(false);
    script.until_holds(&[1, 2]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_call_says_is_not_lost_with_it() {
    let script = Script::start();
    let mut reporting = Reporting::to(&script, |_| {});
    reporting.tell(&[held(1), held(2)]);
    script.until_holds(&[1, 2]).await;
    for mood in [Mood::Fails, Mood::LosesAnswers] {
        script.set_mood(mood);
        let calls = script.shared.state.lock().calls;
        reporting.tell(&[gone(2), held(3)]);
        script.until("it is tried", |state| state.calls > calls).await;
        script.set_mood(Mood::Takes);
        script.until_holds(&[1, 3]).await;
        reporting.tell(&[held(2), gone(3)]);
        script.until_holds(&[1, 2]).await;
    }
    // A refused eviction is reported until it is accepted: the server would overstate.
    script.set_mood(Mood::Refuses);
    let calls = script.shared.state.lock().calls;
    reporting.tell(&[gone(2)]);
    script.until("it is tried three times", |state| state.calls >= calls + 3).await;
    script.set_mood(Mood::Takes);
    script.until_holds(&[1]).await;
    assert!(reporting.report.calls(1, 1) >= 2, "refusals are counted");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_add_that_the_server_will_not_take_holds_up_no_eviction() {
    let script = Script::start();
    let mut reporting = Reporting::to(&script, |options| options.outbox.refresh = Duration::from_secs(1));
    reporting.tell(&[held(1), held(2)]);
    script.until_holds(&[1, 2]).await;
    script.set_mood(Mood::RejectsAdds);
    reporting.tell(&[held(3), gone(1)]);
    script.until_holds(&[2]).await;
    let counts = reporting.report.counts();
    assert!(counts.refused_blocks >= 1 && counts.retries == 0, "{counts:?}");
    script.set_mood(Mood::Takes);
    script.until_holds(&[2, 3]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_forgets_is_reminded_in_time() {
    let script = Script::start();
    let mut reporting = Reporting::to(&script, |options| options.outbox.refresh = Duration::from_secs(1));
    let all: Vec<Note> = (1..=200).map(held).collect();
    reporting.tell(&all);
    script.until("all are told", |state| state.entries.len() == 200).await;
    script.forget();
    script.until("all are told again", |state| state.entries.len() == 200).await;
    assert_eq!(reporting.report.counts().resyncs, 0);
    assert!(reporting.report.counts().refreshed_blocks >= 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clear_drops_what_waits() {
    let script = Script::start();
    let mut reporting = Reporting::to(&script, |_| {});
    reporting.tell(&[held(1)]);
    script.until_holds(&[1]).await;
    script.hold(true);
    reporting.tell(&[held(2)]);
    script.until("an add is under way", |state| state.in_flight == 1).await;
    reporting.tell(&[held(3), Note::Nothing, held(4)]);
    script.hold(false);
    script.until_holds(&[4]).await;
    let state = script.shared.state.lock();
    let reported =
        state.updates().iter().flat_map(|update| &update.prefixes).any(|prefix| prefix.token_count == 48);
    assert!(!reported, "what the clear superseded was told");
    assert_eq!(state.events().iter().filter(|event| event.r#type() == Type::AllCleared).count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_gone_is_withdrawn() {
    let script = Script::start();
    let mut reporting = Reporting::to(&script, |_| {});
    reporting.tell(&[held(1)]);
    script.until_holds(&[1]).await;
    reporting.sink = None;
    script.until_holds(&[]).await;
    tokio::time::timeout(DEADLINE, reporting.task).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_tells_what_waits_and_leaves_the_rest() {
    let script = Script::start();
    let mut reporting = Reporting::to(&script, |options| options.outbox.window = Duration::from_mins(1));
    reporting.tell(&[held(1), held(2)]);
    script.until("it began", |state| !state.log.is_empty()).await;
    reporting.stopped().await;
    assert_eq!(script.shared.state.lock().hashes(), [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_does_not_wait_for_a_server_that_stalls() {
    let script = Script::start();
    let mut reporting = Reporting::to(&script, |_| {});
    reporting.tell(&[held(1)]);
    script.until_holds(&[1]).await;
    script.hold(true);
    reporting.tell(&[held(2)]);
    let at = Instant::now();
    let report = reporting.stopped().await;
    assert!(at.elapsed() < Duration::from_secs(20), "{:?}", at.elapsed());
    assert!(report.pending().maybe_reported >= 1);
    script.hold(false);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_state_goes_in_messages_that_servers_take() {
    let script = Script::start();
    let mut reporting = Reporting::to(&script, |_| {});
    let adapter = "a".repeat(1_024);
    let notes: Vec<Note> = (1..=4_096).map(|at| held_in(at, &adapter, CacheTier::T1)).collect();
    reporting.tell(&notes);
    // tonic's servers have the same limit as Go's: 4 MiB.
    script.until("all are told", |state| state.entries.len() == 4_096).await;
    assert_eq!(reporting.report.counts().retries, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_may_speak_tls() {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, key) = (certified.cert.pem(), certified.signing_key.serialize_pem());
    let script = Script::of(true, Some((certificate.clone(), key)));
    let url = format!("https://localhost:{}", script.address.port());
    let ca = Some(certificate.into_bytes());
    let address = ServerAddress::new(&url, Credentials { ca, ..Credentials::default() }).unwrap();
    let mut reporting = Reporting::at(address, |_| {});
    reporting.tell(&[held(1)]);
    script.until_holds(&[1]).await;
}
