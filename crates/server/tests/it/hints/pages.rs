//! The pages that a controller uses, and metrics under the peer's names.

use kvplane_proto::inferencecache as proto;
use serde_json::{Value, json};

use crate::hints::talk::{Hints, TENANT, ask, chain, entries, exact, update};
use crate::rig::{call, send};

const HELD: [u64; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_counts_replicas_and_tenants() {
    let mut hints = Hints::serve().await;
    hints.hold("a", &HELD).await;
    let stats = proto::ReplicaStats {
        cache_memory_bytes: 5,
        hit_rate: 0.5,
        pressure: 0.25,
        t2_hit_tokens: 1,
        t2_query_tokens: 2,
        ..Default::default()
    };
    let moment = 1_794_700_800_000_000;
    let reported = proto::CacheStateUpdate {
        stats: Some(stats),
        timestamp_us: moment,
        ..update("b", entries(&HELD[..2]))
    };
    let mut second_model = reported.clone();
    second_model.model_id = "second".to_owned();
    hints.report(vec![reported, second_model]).await;
    let (status, page) = call(hints.rig.http, "GET", "/snapshot", &Value::Null).await;
    assert_eq!(status, 200);
    assert_eq!((&page["totalPrefixes"], &page["hotPrefixes"]), (&json!(10), &json!(0)));
    let mut replicas = page["replicas"].as_array().unwrap().clone();
    let first = replicas[0].as_object_mut().unwrap();
    assert!(first.remove("lastEventAt").unwrap().as_str().unwrap() > "2026-");
    assert_eq!(
        replicas[0],
        json!({
            "replicaId": "a", "tenant": TENANT, "cacheMemoryBytes": 0, "hitRate": 0.0, "pressure": 0.0,
            "lastUpdate": "0001-01-01T00:00:00Z", "prefixCount": 8, "statsReported": false, "t2HitTokens": 0, "t2QueryTokens": 0,
        })
    );
    assert_eq!(
        replicas[1],
        json!({
            "replicaId": "b", "tenant": TENANT, "cacheMemoryBytes": 5, "hitRate": 0.5, "pressure": 0.25,
            "lastUpdate": "2026-11-15T00:00:00.000000Z", "prefixCount": 4, "lastEventAt": "2026-11-15T00:00:00.000000Z",
            "statsReported": true, "t2HitTokens": 1, "t2QueryTokens": 2,
        })
    );
    assert_eq!(
        page["tenants"],
        json!([{"tenantId": TENANT, "indexEntries": 10, "hitRate": 0.5, "hitRateReported": true, "memoryUsed": 0}])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_are_replaced_whole() {
    let mut hints = Hints::serve().await;
    hints.hold("a", &HELD).await;
    let http = hints.rig.http;
    assert_eq!(hints.route(exact(8, 128)).await.0, "PREFIX_MATCH");
    let strict =
        json!({"version": 7, "policies": [{"namespace": TENANT, "strategy": {"requireChain": true}}]});
    assert_eq!(call(http, "PUT", "/policy", &strict).await.0, 204);
    assert_eq!(hints.route(exact(8, 128)).await.0, "POLICY_REQUIRES_CHAIN");
    let others = json!({"version": 7, "policies": [{"namespace": "other", "strategy": {"requireChain": true}}],
        "tenants": [{"tenantID": TENANT, "maxIndexEntries": 2}]});
    assert_eq!(call(http, "POST", "/policy", &others).await.0, 204);
    assert_eq!(hints.route(exact(8, 128)).await.0, "PREFIX_MATCH", "what is not told is as configured");
    hints.hold("a", &[8]).await;
    assert!(
        (hints.metric("kvplane_hints_entries ").await - 2.0).abs() < 0.5,
        "the quota holds from the next report on"
    );
    for wrong in [json!({"version": 8, "policies": []}), json!({"version": 7, "policy": []}), json!([])] {
        let (status, answer) = call(http, "POST", "/policy", &wrong).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("invalid_argument")), "{wrong}");
    }
    let padded = format!("{{\"version\": 7, \"policies\": []{}}}", " ".repeat(1 << 20));
    assert_eq!(send(http, "POST", "/policy", padded).await.0, 400, "too long");
    assert_eq!(call(http, "GET", "/policy", &Value::Null).await.0, 405);
    assert!((hints.metric("inferencecache_policy_auth_total{result=\"ok\"}").await - 6.0).abs() < 0.5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_leaves_no_traces() {
    let mut hints = Hints::serve().await;
    let http = hints.rig.http;
    let mut events =
        hints.client.stream_cache_events(proto::StreamEventsRequest::default()).await.unwrap().into_inner();
    let asked = json!({"backend": "b", "model": "m", "hashScheme": "vllm", "backendType": "LMCache"});
    let (status, result) = call(http, "POST", "/probe", &asked).await;
    assert_eq!(status, 200);
    assert_eq!(
        result,
        json!({"backend": "b", "ingest": "ok", "routing": "ok", "t2": "skipped", "errors": []})
    );
    let (_, page) = call(http, "GET", "/snapshot", &Value::Null).await;
    assert_eq!(
        (&page["replicas"], &page["tenants"], &page["totalPrefixes"]),
        (&json!([]), &json!([]), &json!(0))
    );
    hints.hold("a", &[1]).await;
    let first = events.message().await.unwrap().unwrap();
    assert_eq!(first.replica_id, "a", "of the probe nothing was told");
    for wrong in [
        json!({"backend": "b", "model": "m"}),
        json!({"backend": "", "model": "m", "hashScheme": "s"}),
        json!({"backend": "b", "model": "m", "hashScheme": "s", "x": 1}),
    ] {
        assert_eq!(call(http, "POST", "/probe", &wrong).await.0, 400, "{wrong}");
    }
    let long = json!({"backend": "b".repeat(5000), "model": "m", "hashScheme": "s"});
    assert_eq!(call(http, "POST", "/probe", &long).await.0, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_have_the_names_that_alerts_know() {
    let mut hints = Hints::serve().await;
    hints.hold("a", &HELD).await;
    for request in [chain(&HELD), chain(&HELD), chain(&[90]), ask()] {
        hints.look_up(request).await;
    }
    let unknown = proto::LookupRouteRequest { model_id: "nobody-serves-it".to_owned(), ..chain(&HELD) };
    hints.look_up(unknown).await;
    let page = hints.metrics().await;
    for line in [
        "inferencecache_server_up 1",
        "inferencecache_server_grpc_tls_enabled 0",
        "inferencecache_index_entries{model=\"model\"} 8",
        "inferencecache_lookup_route_calls_total{model=\"model\",reason_code=\"PREFIX_MATCH\",hint_used=\"true\"} 2",
        "inferencecache_lookup_route_calls_total{model=\"model\",reason_code=\"AFFINITY_HINT\",hint_used=\"true\"} 1",
        "inferencecache_lookup_route_calls_total{model=\"model\",reason_code=\"NO_HINT\",hint_used=\"false\"} 1",
        "inferencecache_lookup_route_calls_total{model=\"other\",reason_code=\"UNKNOWN_MODEL\",hint_used=\"false\"} 1",
        "inferencecache_lookup_route_latency_seconds_count{model=\"model\"} 4",
        "inferencecache_lookup_route_latency_seconds_bucket{le=\"+Inf\",model=\"model\"} 4",
        "# TYPE inferencecache_lookup_route_latency_seconds histogram",
        "# TYPE inferencecache_tenant_evictions counter",
        "# TYPE inferencecache_index_evictions counter",
        "inferencecache_snapshot_auth_total{result=\"ok\"} 0",
        "inferencecache_policy_auth_total{result=\"ok\"} 0",
        "inferencecache_probe_auth_total{result=\"ok\"} 0",
        "kvplane_hints_replicas{from=\"reported\"} 1",
    ] {
        assert!(page.lines().any(|known| known == line), "no {line:?} in\n{page}");
    }
    for bound in ["0.0001", "0.00025", "0.1"] {
        let line =
            format!("inferencecache_lookup_route_latency_seconds_bucket{{le=\"{bound}\",model=\"model\"}}");
        assert!(page.contains(&line), "{line}\n{page}");
    }
    assert!(!page.contains("nobody-serves-it"), "names of callers are not labels");
}
