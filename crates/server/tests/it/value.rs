//! What was asked for and what was found of it, counted for every protocol alike.

use kvplane_ingest::PlaneOptions;
use kvplane_proto::inferencecache::LookupRouteRequest;
use kvplane_proto::inferencecache::inference_cache_client::InferenceCacheClient;
use kvplane_proto::kvplane::v1 as proto;
use kvplane_server::{HintsOptions, Options};
use kvplane_sim::CompletionOptions;
use serde_json::{Value, json};

use crate::rig::{Engine, Rig, call, text};

const MODEL: &str = "sim";

async fn status(rig: &Rig) -> Value {
    let (code, status) = call(rig.http, "GET", "/v1/status", &Value::Null).await;
    assert_eq!(code, 200, "{status}");
    status
}

fn asked(status: &Value, protocol: &str) -> [u64; 3] {
    let counts = &status["queries"]["by_protocol"][protocol];
    ["questions", "tokens_asked", "tokens_found"].map(|name| counts[name].as_u64().unwrap_or(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_protocol_counts_what_was_asked_and_what_was_found() {
    let engines = [Engine::plain(), Engine::plain()];
    let ids: Vec<u32> = (1_000..1_200).collect();
    for engine in &engines {
        engine.sim.complete(&ids, 1, &CompletionOptions::default()).unwrap();
        engine.sim.state();
    }
    let specs = engines.iter().enumerate().map(|(at, engine)| engine.spec(&format!("e{at}"))).collect();
    let hints = HintsOptions { enabled: true, ..HintsOptions::default() };
    let rig = Rig::serving(specs, PlaneOptions::default(), Options { hints, ..Options::default() }).await;
    for (at, engine) in engines.iter().enumerate() {
        rig.exact(at, engine).await;
    }
    assert_eq!(status(&rig).await["queries"]["questions"], 0);

    let (whole, found) = (200, 192);
    let question = json!({"model": MODEL, "token_ids": ids});
    for _ in 0..3 {
        assert_eq!(call(rig.http, "POST", "/v1/query", &question).await.0, 200);
    }
    let unknown: Vec<u32> = (9_000..9_100).collect();
    call(rig.http, "POST", "/v1/query", &json!({"model": MODEL, "token_ids": unknown})).await;
    // Neither a listing that leaves out the holders nor a refusal changes what was found.
    let filtered = json!({"model": MODEL, "token_ids": ids, "min_tokens": 1_000_000});
    assert_eq!(call(rig.http, "POST", "/v1/query", &filtered).await.1["matches"], json!([]));
    assert_eq!(call(rig.http, "POST", "/v1/query", &json!({"model": MODEL})).await.0, 400);
    let request =
        proto::QueryRequest { model: MODEL.to_owned(), token_ids: ids.clone(), ..Default::default() };
    rig.grpc_query(request).await.unwrap();
    assert_eq!(call(rig.http, "POST", "/v1/pick", &question).await.0, 200);
    let peer = json!({"model_name": MODEL, "token_ids": ids, "routing_group": "default"});
    let (code, answer) = call(rig.http, "POST", "/query", &peer).await;
    assert_eq!(code, 200, "{answer}");
    let mut client = InferenceCacheClient::connect(format!("http://{}", rig.grpc)).await.unwrap();
    let lookup = LookupRouteRequest {
        tenant_id: "default".to_owned(),
        model_id: MODEL.to_owned(),
        token_ids: ids.clone(),
        ..Default::default()
    };
    client.lookup_route(lookup).await.unwrap();

    let now = status(&rig).await;
    assert_eq!(asked(&now, "http"), [5, 4 * whole + 100, 4 * found], "{}", now["queries"]);
    assert_eq!(asked(&now, "grpc"), [1, whole, found]);
    assert_eq!(asked(&now, "pick"), [1, whole, found]);
    assert_eq!(asked(&now, "indexer"), [1, whole, found]);
    assert_eq!(asked(&now, "hints")[..2], [1, whole]);

    // Both engines hold the same blocks, and say how many they could hold.
    let held = &now["duplication"];
    assert_eq!(
        held["blocks"].as_u64(),
        held["distinct_blocks"].as_u64().map(|distinct| distinct * 2),
        "{held}"
    );
    let rank = &now["engines"][0]["ranks"][0];
    let (used, capacity) = (rank["used_blocks"].as_u64().unwrap(), rank["capacity_blocks"].as_u64().unwrap());
    assert!(used >= 12 && used <= capacity, "{used} of {capacity}");

    // The prefix is shown as a hash, at its longest shared length.
    let top = &now["queries"]["top_prefixes"][0];
    assert_eq!((&top["tokens"], &top["over_by_at_most"]), (&json!(128), &json!(0)), "{}", now["queries"]);
    assert_eq!(top["tokens_found"].as_u64().map(|tokens| tokens % 128), Some(0));
    let (_, metrics) = text(rig.http, "GET", "/metrics", String::new()).await;
    for line in [
        "kvplane_prompts_total{protocol=\"http\"} 5",
        "kvplane_prompt_tokens_found_total{protocol=\"pick\"} 192",
        "kvplane_stream_capacity_blocks{",
        "kvplane_index_distinct_blocks{",
        "kvplane_top_prefix_tokens{prefix=",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
}
