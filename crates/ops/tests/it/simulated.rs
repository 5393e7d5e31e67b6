//! Every verb to every simulated engine, over everything that it speaks, well and ill: what the answer means.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::time::Duration;

use kvplane_core::{EngineKind, PlaneId};
use kvplane_ops::{
    Answer, Backend, Covers, Flush, GrpcServer, Limits, Meaning, Profile as Recording, ProfileIds, Sent,
    Service, Speaker, Support, Transport, Verb, VerbName, ask, support,
};
use kvplane_sim::{
    CompletionOptions, Conduct, Question, RelayConfig, RelayService, Reply, SimConfig, SimEngine, SimHandle,
    SimRelay, VllmOptions, Without,
};
use kvplane_wire::Profile;
use serde_json::json;

/// Nobody reaches it who answers at all.
const PATIENCE: Duration = Duration::from_mins(1);
/// For those who do not answer; a busy machine asks within it.
const DEADLINE: Duration = Duration::from_secs(2);
/// For those who do not answer, and act: a busy machine does within it.
const LATE: Duration = Duration::from_secs(5);

fn config(profile: Profile) -> SimConfig {
    let (http, grpc) = (Some("127.0.0.1:0".parse().unwrap()), Some("127.0.0.1:0".parse().unwrap()));
    SimConfig { profile, http, grpc, block_size: 4, ..SimConfig::default() }
}

fn start(config: SimConfig) -> SimHandle {
    SimEngine::start(config).unwrap()
}

fn over_http(engine: &SimHandle) -> Backend {
    Backend {
        kind: engine.config().profile.engine(),
        http: engine.http_address().map(|address| format!("http://{address}")),
        grpc: None,
        version: None,
        authorization: None,
    }
}

fn over_grpc(engine: &SimHandle) -> Backend {
    let url = format!("http://{}", engine.grpc_address().unwrap());
    Backend { http: None, grpc: Some(GrpcServer { url, ca: None }), ..over_http(engine) }
}

async fn asked_within(backend: &Backend, verb: &Verb, deadline: Duration) -> Answer {
    ask(backend, verb, &Limits { deadline, ..Limits::of(verb) }, &Sent::default()).await
}

async fn asked(backend: &Backend, verb: &Verb) -> Answer {
    asked_within(backend, verb, PATIENCE).await
}

fn flush() -> Verb {
    Verb::Flush(Flush::default())
}

fn verb(name: VerbName) -> Verb {
    match name {
        VerbName::Flush => flush(),
        VerbName::StartProfile => {
            Verb::StartProfile(Recording::new(ProfileIds::new(PlaneId::from_bits(1)).mint()))
        }
        VerbName::StopProfile => Verb::StopProfile,
        VerbName::Info => Verb::Info,
        VerbName::Loads => Verb::Loads,
        VerbName::Health => Verb::Health,
        VerbName::Nudge => Verb::Nudge { model: "sim".to_owned(), rank: None },
    }
}

fn question(name: VerbName) -> Question {
    match name {
        VerbName::Flush => Question::Flush,
        VerbName::StartProfile => Question::StartProfile,
        VerbName::StopProfile => Question::StopProfile,
        VerbName::Info => Question::Info,
        VerbName::Loads => Question::Loads,
        VerbName::Health => Question::Health,
        VerbName::Nudge => Question::Nudge,
    }
}

/// What goes wrong in one cell of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ill {
    Well,
    Busy,
    NoEffect,
    Unwell,
    Answers(Reply),
}

const ILLS: [Ill; 9] = [
    Ill::Well,
    Ill::Busy,
    Ill::NoEffect,
    Ill::Unwell,
    Ill::Answers(Reply::Hang),
    Ill::Answers(Reply::Late),
    Ill::Answers(Reply::Error),
    Ill::Answers(Reply::Broken),
    Ill::Answers(Reply::Garbage),
];

impl Ill {
    fn conduct(self, name: VerbName) -> Conduct {
        let usual = Conduct::default();
        match self {
            Self::Well => usual,
            Self::Busy => Conduct { busy: true, ..usual },
            Self::NoEffect => Conduct { no_effect: true, ..usual },
            Self::Unwell => Conduct { ill: true, ..usual },
            Self::Answers(answer) => Conduct { answer, verbs: Some(vec![question(name)]), ..usual },
        }
    }

    /// What the answer has to mean, where the speaker has the verb.
    fn meaning(self, speaker: Speaker, name: VerbName) -> (Meaning, bool) {
        let over_http = speaker.transport() == Transport::Http;
        let covers = if over_http && name == VerbName::Flush { Covers::FirstRank } else { Covers::Backend };
        let yes = (Meaning::Accepted { proves: true, covers }, false);
        match (self, name) {
            (Self::Busy, VerbName::Flush) => (Meaning::Refused, false),
            (Self::Unwell, VerbName::Health) => (Meaning::Failed, false),
            (Self::Well | Self::Busy | Self::NoEffect | Self::Unwell, _) => yes,
            (Self::Answers(Reply::Hang | Reply::Late), _) => (Meaning::Timeout, name.changes()),
            (Self::Answers(Reply::Error | Reply::Broken), _) => (Meaning::Failed, name.changes()),
            // Who says yes by its status alone is believed, whatever it says besides.
            (Self::Answers(Reply::Garbage), _) if over_http && status_is_all(speaker, name) => yes,
            (Self::Answers(_), _) => (Meaning::Unknown, name.changes()),
        }
    }

    /// Whether a flush has its effect.
    fn flushes(self) -> bool {
        let does_nothing = [Reply::Hang, Reply::Error].map(Ill::Answers);
        !matches!(self, Self::Busy | Self::NoEffect) && !does_nothing.contains(&self)
    }
}

fn status_is_all(speaker: Speaker, name: VerbName) -> bool {
    match name {
        VerbName::Flush => speaker != Speaker::Http(EngineKind::Vllm),
        VerbName::Info | VerbName::Loads => false,
        _ => true,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_to_every_engine_well_and_ill() {
    let mut tables = tokio::task::JoinSet::new();
    for (profile, service) in [
        (Profile::Vllm0_32, Service::Vllm),
        (Profile::Sglang0_5_22, Service::Sglang),
        (Profile::Tokenspeed0_1_1, Service::Tokenspeed),
        (Profile::TrtllmZmq, Service::Trtllm),
    ] {
        for speaker in [Speaker::Http(profile.engine()), Speaker::Grpc(service)] {
            let engine = start(config(profile));
            tables.spawn(async move {
                for name in VerbName::ALL {
                    for ill in ILLS {
                        // Nobody but a flush shows whether it was done before the answer was due.
                        if ill == Ill::Answers(Reply::Late) && name != VerbName::Flush {
                            continue;
                        }
                        cell(&engine, speaker, name, ill).await;
                    }
                }
            });
        }
    }
    while let Some(ended) = tables.join_next().await {
        ended.unwrap();
    }
}

async fn cell(engine: &SimHandle, speaker: Speaker, name: VerbName, ill: Ill) {
    let backend = match speaker.transport() {
        Transport::Http => over_http(engine),
        Transport::Grpc => over_grpc(engine),
    };
    engine.conduct(Conduct::default());
    if name == VerbName::StopProfile {
        asked(&backend, &verb(VerbName::StartProfile)).await;
    }
    engine.complete(&[7; 9], 1, &CompletionOptions::default()).unwrap();
    let questions = engine.asked().len();
    engine.conduct(ill.conduct(name));
    let deadline = match ill {
        Ill::Answers(Reply::Hang) => DEADLINE,
        Ill::Answers(Reply::Late) => LATE,
        _ => PATIENCE,
    };
    let answer = asked_within(&backend, &verb(name), deadline).await;
    let here = format!("{speaker:?} {name} {ill:?}: {answer:?}");
    if let Support::No(why) = support(speaker, name) {
        assert_eq!(
            (answer.meaning, answer.sent, answer.why.as_str()),
            (Meaning::Unsupported, false, why),
            "{here}"
        );
        assert_eq!(engine.asked().len(), questions, "{here}");
        return;
    }
    assert_eq!((answer.meaning, answer.open), ill.meaning(speaker, name), "{here}");
    assert!(answer.sent, "{here}");
    if name == VerbName::Flush {
        assert_eq!(engine.state()[0].blocks.is_empty(), ill.flushes(), "{here}");
    }
    let tells = matches!(name, VerbName::Info | VerbName::Loads);
    let accepted = matches!(answer.meaning, Meaning::Accepted { .. });
    assert_eq!(answer.detail.is_some(), tells && accepted, "{here}");
    engine.conduct(Conduct::default());
    if name == VerbName::StartProfile {
        asked(&backend, &Verb::StopProfile).await;
    }
}

#[tokio::test]
async fn a_relay_is_asked_under_the_service_that_it_has() {
    for service in [
        RelayService::Vllm,
        RelayService::Sglang,
        RelayService::Tokenspeed,
        RelayService::Trtllm,
        RelayService::Mlx,
    ] {
        let relay = SimRelay::start(RelayConfig { service, ..RelayConfig::default() }).unwrap();
        relay.complete(0, &[1; 40], 1).unwrap();
        let url = format!("http://{}", relay.address());
        let grpc = Some(GrpcServer { url, ca: None });
        let backend =
            Backend { kind: EngineKind::Grpc, http: None, grpc, version: None, authorization: None };
        let has_operations = !matches!(service, RelayService::Trtllm | RelayService::Mlx);
        let yes = Meaning::Accepted { proves: true, covers: Covers::Backend };
        for name in [VerbName::Health, VerbName::Info] {
            assert_eq!(asked(&backend, &verb(name)).await.meaning, yes, "{service:?} {name}");
        }
        let expected = if has_operations { yes } else { Meaning::Unsupported };
        for name in [VerbName::Flush, VerbName::StartProfile, VerbName::StopProfile, VerbName::Loads] {
            let answer = asked(&backend, &verb(name)).await;
            assert_eq!(answer.meaning, expected, "{service:?} {name}: {answer:?}");
        }
        assert_eq!(relay.held(0).is_empty(), has_operations, "{service:?}");
    }
}

#[tokio::test]
async fn vllm_by_release_and_by_how_it_was_started() {
    let old = start(config(Profile::Vllm0_24));
    for held in [true, false] {
        let running = held.then(|| old.begin(&[1; 9], 2, &CompletionOptions::default()).unwrap());
        let answer = asked(&over_http(&old), &flush()).await;
        let proves_nothing = Meaning::Accepted { proves: false, covers: Covers::FirstRank };
        assert_eq!((answer.meaning, answer.open), (proves_nothing, true), "whatever happened");
        assert_eq!(old.state()[0].blocks.is_empty(), !held);
        drop(running);
    }
    let without = Without { dev_mode: true, profiler: true, load_tracking: false };
    let vllm = VllmOptions { without, ..VllmOptions::default() };
    let plain = start(SimConfig { vllm, ..config(Profile::Vllm0_32) });
    let backend = over_http(&plain);
    for (name, what_to_set) in [
        (VerbName::Flush, "VLLM_SERVER_DEV_MODE=1"),
        (VerbName::StartProfile, "--profiler-config"),
        (VerbName::StopProfile, "--profiler-config"),
    ] {
        let answer = asked(&backend, &verb(name)).await;
        assert_eq!((answer.meaning, answer.open), (Meaning::Unsupported, false));
        assert!(answer.why.contains(what_to_set), "{}", answer.why);
    }
    let info = asked(&backend, &Verb::Info).await;
    assert_eq!(
        (info.asked.as_deref(), info.detail),
        (Some("GET /version"), Some(json!({"version": "0.32"})))
    );
    // Over gRPC it is the engine that fails.
    assert_eq!(asked(&over_grpc(&plain), &verb(VerbName::StartProfile)).await.meaning, Meaning::Failed);
}

#[tokio::test]
async fn a_busy_engine_is_waited_for_whoever_does_the_waiting() {
    for profile in [Profile::Vllm0_32, Profile::Sglang0_5_22, Profile::Sglang0_5_9, Profile::Tokenspeed0_1_1]
    {
        let engine = start(config(profile));
        for backend in [over_http(&engine), over_grpc(&engine)] {
            let running = engine.begin(&[1; 9], 2, &CompletionOptions::default()).unwrap();
            let before = engine.asked().len();
            let waiting = tokio::spawn(async move {
                let verb = Verb::Flush(Flush { timeout: PATIENCE, ..Flush::default() });
                asked(&backend, &verb).await
            });
            while engine.asked().len() == before {
                tokio::task::yield_now().await;
            }
            drop(running);
            let answer = waiting.await.unwrap();
            assert!(
                matches!(answer.meaning, Meaning::Accepted { proves: true, .. }),
                "{profile:?} {answer:?}"
            );
            assert!(engine.state()[0].blocks.is_empty());
        }
    }
}

#[tokio::test]
async fn options_of_a_recording_arrive() {
    let ids = ProfileIds::new(PlaneId::from_bits(1));
    let recording = |id| Recording { num_steps: Some(3), ..Recording::new(id) };
    let vllm = start(config(Profile::Vllm0_32));
    let id = ids.mint();
    asked(&over_http(&vllm), &Verb::StartProfile(recording(id.clone()))).await;
    assert_eq!(vllm.profiles().0, [json!({"profile_prefix": id.as_str(), "max_iterations": 3})]);
    // gRPC has no field for it: it is not asked.
    let answer = asked(&over_grpc(&vllm), &Verb::StartProfile(recording(ids.mint()))).await;
    assert_eq!((answer.meaning, answer.sent), (Meaning::Unsupported, false));
    for profile in [Profile::Sglang0_5_22, Profile::Tokenspeed0_1_1] {
        let engine = start(config(profile));
        let id = ids.mint();
        asked(&over_http(&engine), &Verb::StartProfile(recording(id.clone()))).await;
        let again = asked(&over_http(&engine), &Verb::StartProfile(recording(ids.mint()))).await;
        assert_eq!(again.meaning, Meaning::Failed, "one is under way");
        let again = asked(&over_grpc(&engine), &Verb::StartProfile(recording(ids.mint()))).await;
        assert_eq!(again.meaning, Meaning::Refused, "and it says so");
        asked(&over_grpc(&engine), &Verb::StopProfile).await;
        asked(&over_grpc(&engine), &Verb::StartProfile(recording(ids.mint()))).await;
        let reported = [json!({"profile_prefix": id.as_str(), "num_steps": 3}), json!({"num_steps": 3})];
        assert_eq!(engine.profiles(), (reported.to_vec(), true));
    }
}

#[tokio::test]
async fn an_engine_is_sent_what_its_release_knows() {
    let recording = || {
        let id = ProfileIds::new(PlaneId::from_bits(1)).mint();
        Verb::StartProfile(Recording { num_steps: Some(3), ..Recording::new(id) })
    };
    for (profile, knows) in [(Profile::Vllm0_29, false), (Profile::Vllm0_32, true)] {
        let engine = start(config(profile));
        let answer = asked(&over_http(&engine), &recording()).await;
        assert_eq!(answer.meaning == Meaning::Unsupported, !knows, "{profile:?} {answer:?}");
        // One that would pass over the number of steps would record without end.
        assert_eq!(engine.profiles().0.len(), usize::from(knows), "{profile:?}");
    }
    let running = Verb::Flush(Flush { reset_running: true, ..Flush::default() });
    for (profile, knows) in [(Profile::Vllm0_10, false), (Profile::Vllm0_14, true)] {
        let engine = start(config(profile));
        let answer = asked(&over_http(&engine), &running).await;
        assert_eq!(answer.meaning == Meaning::Unsupported, !knows, "{profile:?} {answer:?}");
    }
}

#[tokio::test]
async fn every_rank_can_be_nudged() {
    let engine = start(SimConfig { ranks: 3, ..config(Profile::Vllm0_32) });
    for rank in 0..3 {
        let options = CompletionOptions { rank: Some(rank), ..CompletionOptions::default() };
        engine.complete(&[7; 9], 1, &options).unwrap();
    }
    // Every rank has a clear to publish, with its next step.
    asked(&over_http(&engine), &flush()).await;
    let before = engine.state();
    let verb = Verb::Nudge { model: engine.config().model.clone(), rank: Some(2) };
    for _ in 0..2 {
        let answer = asked(&over_http(&engine), &verb).await;
        assert!(matches!(answer.meaning, Meaning::Accepted { .. }), "{answer:?}");
    }
    let published = |rank: usize| engine.state()[rank].next_sequence - before[rank].next_sequence;
    assert_eq!((published(0), published(1)), (0, 0));
    assert!(published(2) > 0);
}
