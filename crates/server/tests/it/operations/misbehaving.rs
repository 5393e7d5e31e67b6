//! Simulated engines that do wrong, over HTTP and over SMG's services.

use kvplane_core::Reason;
use kvplane_ingest::{ControlSpec, EngineSpec};
use kvplane_sim::{ClearEvent, CompletionOptions, Conduct, Reply, SimConfig};
use kvplane_transport::grpc::GrpcSpec;
use kvplane_wire::Profile;
use serde_json::json;

use crate::operations::talk::{Ranks, flush_over_grpc, flush_over_http};
use crate::rig::{Engine, Rig};

/// An engine that is asked over its gRPC server alone, or over its HTTP server alone.
fn spec(engine: &Engine, over_grpc: bool) -> EngineSpec {
    let spec = engine.spec("e0");
    if !over_grpc {
        return spec;
    }
    let url = format!("http://{}", engine.sim.grpc_address().unwrap());
    let services = spec.kind.grpc_service().into_iter().collect();
    let control = ControlSpec { grpc: Some(GrpcSpec { url, ca: None, services }), ..ControlSpec::default() };
    EngineSpec { http: None, control, ..spec }
}

fn with_grpc(config: &mut SimConfig) {
    config.grpc = Some(([127, 0, 0, 1], 0).into());
}

/// A request of which every rank holds something, and the streams know it.
async fn filled(over_grpc: bool, profile: Profile, ranks: u32) -> (Engine, Rig) {
    let engine = Engine::start(|config| {
        with_grpc(config);
        (config.profile, config.ranks) = (profile, ranks);
    });
    let rig = Rig::of_specs(vec![spec(&engine, over_grpc)], kvplane_ingest::PlaneOptions::default()).await;
    for rank in 0..ranks as usize {
        rig.until_rank(0, rank, "live", |status| status.continuity == kvplane_core::Continuity::Live).await;
    }
    for rank in 0..ranks {
        let prompt: Vec<u32> = (rank * 1_000..rank * 1_000 + 97).collect();
        let options = CompletionOptions { rank: Some(rank), ..CompletionOptions::default() };
        engine.sim.complete(&prompt, 1, &options).unwrap();
    }
    for rank in 0..ranks as usize {
        rig.until_rank(0, rank, "filled", |status| status.blocks[0] > 0).await;
    }
    (engine, rig)
}

fn verdicts(ranks: &Ranks) -> Vec<&str> {
    ranks.values().map(|reported| reported.verdict.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_wrong_has_its_verdict_over_both_transports() {
    let early = || Conduct { clear: ClearEvent::Early, ..Conduct::default() };
    // What the engine does, the verdict, and a part of the sentence.
    let table: Vec<(Conduct, &str, &str)> = vec![
        (early(), "proven", "shows the clear"),
        (Conduct { busy: true, ..early() }, "refused", ""),
        (Conduct { no_effect: true, clear: ClearEvent::Lost, ..early() }, "timeout", "not confirmed"),
        (Conduct { clear: ClearEvent::Lost, ..early() }, "timeout", "not confirmed"),
        (Conduct { answer: Reply::Error, ..early() }, "failed", "not confirmed"),
        (Conduct { answer: Reply::Hang, ..early() }, "timeout", "no answer in time"),
        // It did it, and the stream shows it, whatever became of the answer.
        (Conduct { answer: Reply::Late, ..early() }, "proven", "shows the clear"),
        (Conduct { answer: Reply::Broken, ..early() }, "proven", "shows the clear"),
        (Conduct { answer: Reply::Garbage, ..early() }, "proven", "shows the clear"),
    ];
    for over_grpc in [false, true] {
        for (conduct, verdict, why) in &table {
            let (engine, rig) = filled(over_grpc, Profile::Vllm0_32, 1).await;
            engine.sim.conduct(conduct.clone());
            let body =
                json!({"deadline_s": 1.0, "proof_timeout_s": if *verdict == "proven" { 30.0 } else { 0.05 }});
            let (status, ranks) = flush_over_grpc(&rig, body).await;
            let reported = &ranks[&("e0".to_owned(), 0)];
            assert_eq!(reported.verdict, *verdict, "over gRPC: {over_grpc}, {conduct:?}: {reported:?}");
            assert!(reported.why.contains(why), "{conduct:?}: {}", reported.why);
            assert_eq!(status, if *verdict == "proven" { 200 } else { 502 });
            // What is not proven, and may have happened, is not credited. The engine kept it, or not.
            let trust = rig.status(0).trust;
            assert!(!trust.has(Reason::Flushing));
            assert_eq!(
                trust.has(Reason::UnprovenFlush),
                ["timeout", "failed"].contains(verdict),
                "{conduct:?}"
            );
            engine.sim.conduct(Conduct::default());
        }
    }
}

/// All ranks say that they did it, and two of four keep everything.
async fn half_of_the_ranks_did_it(over_grpc: bool, expected: [&str; 4]) {
    let (engine, rig) = filled(over_grpc, Profile::Sglang0_5_22, 4).await;
    let (no_effect, clear, ranks) = (true, ClearEvent::Lost, Some(vec![1, 3]));
    engine.sim.conduct(Conduct { no_effect, clear, ranks, ..Conduct::default() });
    // Long enough for the two that show it, on a busy machine.
    let (status, ranks) = flush_over_http(&rig, json!({"proof_timeout_s": 10.0})).await;
    assert_eq!((status, verdicts(&ranks)), (207, expected.to_vec()), "{ranks:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn half_of_the_ranks_did_it_over_http_whose_answer_is_the_first_ranks() {
    half_of_the_ranks_did_it(false, ["proven", "unknown", "proven", "unknown"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_of_the_ranks_did_it_over_grpc_whose_answer_is_every_ranks() {
    half_of_the_ranks_did_it(true, ["proven", "timeout", "proven", "timeout"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_engine_is_waited_for() {
    for over_grpc in [false, true] {
        let (engine, rig) = filled(over_grpc, Profile::Sglang0_5_22, 1).await;
        engine.sim.conduct(Conduct { busy_ms: Some(300), ..Conduct::default() });
        let (status, ranks) = flush_over_http(&rig, json!({"timeout_s": 30.0})).await;
        assert_eq!((status, verdicts(&ranks)), (200, vec!["proven"]), "{ranks:?}");
    }
}
