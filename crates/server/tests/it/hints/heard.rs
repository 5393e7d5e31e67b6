//! Engines that are heard here answer the same lookups, beside replicas that report.

use kvplane_ingest::PlaneOptions;
use kvplane_proto::inferencecache as proto;
use kvplane_proto::inferencecache::cache_event::Type;
use kvplane_server::Options;
use kvplane_sim::CompletionOptions;

use crate::hints::talk::{Hints, entries, event, update};
use crate::rig::{Engine, Rig};

/// As many tokens as blocks of any size that a test has.
const PROMPT: std::ops::Range<u32> = 1000..1256;

impl Hints {
    /// A plane over engines: the first is of tenant "red", the others name none.
    async fn over(engines: &[&Engine]) -> Self {
        let mut specs: Vec<_> =
            engines.iter().enumerate().map(|(at, engine)| engine.spec(&format!("e{at}"))).collect();
        specs[0].tenant = Some("red".to_owned());
        let rig = Rig::serving(specs, PlaneOptions::default(), Options::default()).await;
        for (at, engine) in engines.iter().enumerate() {
            rig.exact(at, engine).await;
        }
        Self::of(rig).await
    }
}

fn asked(tenant: &str, scheme: &str) -> proto::LookupRouteRequest {
    proto::LookupRouteRequest {
        model_id: "sim".to_owned(),
        tenant_id: tenant.to_owned(),
        hash_scheme: scheme.to_owned(),
        token_ids: PROMPT.collect(),
        ..Default::default()
    }
}

fn run_prompt(engine: &Engine) {
    let prompt: Vec<u32> = PROMPT.collect();
    engine.sim.complete(&prompt, 1, &CompletionOptions::default()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_call_waits_until_engines_are_known() {
    let (engine, idle) = (Engine::plain(), Engine::plain());
    run_prompt(&engine);
    let mut hints = Hints::over(&[&engine, &idle]).await;
    let answer = hints.look_up(asked("red", "vllm")).await;
    assert_eq!((answer.reason_code.as_str(), answer.replica_scores.len()), ("PREFIX_MATCH", 1));
    let score = &answer.replica_scores[0];
    assert_eq!((score.replica_id.as_str(), score.matched_tokens, score.tier), ("e0", 256, 1));
    assert!((score.estimated_cache_hit_prob - 1.0).abs() < f32::EPSILON, "what is heard does not grow old");
    assert_eq!(hints.route(asked("blue", "vllm")).await.0, "UNKNOWN_TENANT");
    assert_eq!(hints.route(asked("red", "sglang")).await.0, "UNKNOWN_HASH_SCHEME");
    assert!((hints.metric("kvplane_hints_replicas{from=\"heard\"}").await - 2.0).abs() < 0.5);
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_and_reports_answer_together_each_in_blocks_of_its_size() {
    let engine = Engine::start(|config| config.block_size = 64);
    run_prompt(&engine);
    let mut hints = Hints::over(&[&engine]).await;
    let answer = hints.look_up(asked("red", "vllm")).await;
    assert_eq!(
        (answer.replica_scores[0].replica_id.as_str(), answer.replica_scores[0].matched_tokens),
        ("e0", 256)
    );
    // A replica with blocks of 16 holds a quarter of it, another one something else.
    let prompt: Vec<u32> = PROMPT.collect();
    let mut contents = Vec::new();
    kvplane_core::hash_blocks(&prompt[..64], 16, kvplane_core::Namespace::PLAIN, &mut contents);
    let mut previous = None;
    let hashes: Vec<u64> = contents
        .into_iter()
        .map(|content| {
            previous = Some(kvplane_core::chain_hash(previous, content));
            previous.unwrap()
        })
        .collect();
    for (replica, hashes) in [("reported", &hashes[..]), ("stranger", &[7])] {
        let reported = proto::CacheStateUpdate {
            model_id: "sim".to_owned(),
            tenant_id: "red".to_owned(),
            ..update(replica, entries(hashes))
        };
        hints.report(vec![reported]).await;
    }
    let (reason, replicas) = hints.route(asked("red", "vllm")).await;
    assert_eq!((reason.as_str(), replicas), ("PREFIX_MATCH", vec!["e0".to_owned(), "reported".to_owned()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_else_speaks_for_an_engine_that_is_heard() {
    let engine = Engine::plain();
    run_prompt(&engine);
    let mut hints = Hints::over(&[&engine]).await;
    assert_eq!(hints.route(asked("red", "vllm")).await.0, "PREFIX_MATCH");
    let of_engine = |reported: proto::CacheStateUpdate| proto::CacheStateUpdate {
        model_id: "sim".to_owned(),
        tenant_id: "red".to_owned(),
        ..reported
    };
    hints.report(vec![of_engine(update("e0", entries(&[1, 2, 3])))]).await;
    assert!((hints.metric("kvplane_hints_dropped_total{reason=\"heard\"}").await - 3.0).abs() < 0.5);
    let cleared = proto::CacheEvent {
        model_id: "sim".to_owned(),
        tenant_id: "red".to_owned(),
        ..event(Type::AllCleared, "e0", None)
    };
    hints.publish(cleared).await;
    assert_eq!(hints.route(asked("red", "vllm")).await.0, "PREFIX_MATCH", "it still says so itself");
    let busy = proto::ReplicaStats { pressure: 1.0, ..Default::default() };
    hints
        .report(vec![of_engine(proto::CacheStateUpdate { stats: Some(busy), ..update("e0", Vec::new()) })])
        .await;
    assert!((hints.metric("kvplane_hints_dropped_total{reason=\"heard\"}").await - 4.0).abs() < 0.5);
    assert_eq!(hints.route(asked("red", "vllm")).await.0, "PREFIX_MATCH", "nor is it busy");
}

#[tokio::test(flavor = "multi_thread")]
async fn listeners_hear_of_engines_too() {
    let engine = Engine::plain();
    let mut hints = Hints::over(&[&engine]).await;
    let wanted = proto::StreamEventsRequest { tenant_id: "red".to_owned(), ..Default::default() };
    let mut events = hints.client.stream_cache_events(wanted).await.unwrap().into_inner();
    run_prompt(&engine);
    let mut next = async || {
        tokio::time::timeout(crate::rig::DEADLINE, events.message()).await.unwrap().unwrap().unwrap()
    };
    // An engine that is heard for the first time is announced as a replica, at some moment before its blocks.
    let mut first = next().await;
    while first.r#type() == Type::ReplicaUpdated {
        first = next().await;
    }
    assert_eq!(
        (first.r#type(), first.replica_id.as_str(), first.model_id.as_str()),
        (Type::PrefixAdded, "e0", "sim")
    );
    let prompt: Vec<u32> = PROMPT.take(16).collect();
    let hash = kvplane_core::ContentHasher::default().plain(&prompt, kvplane_core::Namespace::PLAIN);
    assert_eq!(first.prefix_hash, hash.to_be_bytes().to_vec());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_never_asks_pays_nothing() {
    let engine = Engine::plain();
    run_prompt(&engine);
    let mut hints = Hints::over(&[&engine]).await;
    let before = hints.metrics().await;
    assert!(before.contains("kvplane_hints_entries 0"), "{before}");
    assert!(!before.contains("kvplane_hints_withheld_blocks"), "nobody is followed");
    hints.look_up(asked("red", "vllm")).await;
    assert!(hints.metric("kvplane_hints_entries ").await > 15.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_of_which_nothing_is_heard_holds_up_nobody() {
    let engine = Engine::plain();
    let spec = engine.spec("e0");
    drop(engine);
    let rig = Rig::serving(vec![spec], PlaneOptions::default(), Options::default()).await;
    let mut hints = Hints::of(rig).await;
    let answer = tokio::time::timeout(crate::rig::DEADLINE, hints.look_up(asked("default", "vllm"))).await;
    assert!(answer.unwrap().replica_scores.is_empty());
}
