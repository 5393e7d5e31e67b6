//! Too much, and what is not there.

use kvplane_proto::inferencecache as proto;
use tonic::Code;
use tonic::transport::Channel;
use tonic_health::pb::health_client::HealthClient;

use crate::hints::talk::{Hints, ask, bytes, entries, event, update};

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_are_too_large_are_refused_as_grpc_wants_it() {
    let mut hints = Hints::serve().await;
    let text = "x".repeat(4 << 20);
    let lookup = proto::LookupRouteRequest { prompt_text: text.clone(), ..ask() };
    let report = proto::CacheStateUpdate { adapter_id: text.clone(), ..update("a", Vec::new()) };
    let reported = proto::CacheEvent {
        adapter_id: text,
        ..event(proto::cache_event::Type::PrefixEvicted, "a", Some(1))
    };
    let refused = [
        hints.client.lookup_route(lookup).await.unwrap_err(),
        hints.client.report_cache_state(tokio_stream::iter([report])).await.unwrap_err(),
        hints.client.publish_event(reported).await.unwrap_err(),
    ];
    for status in refused {
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        assert!(status.message().contains("4194304"), "{status}");
    }
    assert!((hints.metric("kvplane_hints_refused_total{reason=\"oversized\"}").await - 3.0).abs() < 0.5);
    // The connection goes on.
    hints.hold("a", &[1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_of_too_many_entries_is_refused_whole() {
    let mut hints = Hints::serve().await;
    let hash = bytes::Bytes::from_static(&[7]);
    let count = (1 << 18) + 1;
    let chain = proto::PrefixEntry {
        block_hashes: vec![hash; count],
        block_token_counts: vec![1; count],
        ..Default::default()
    };
    let stream = tokio_stream::iter([update("a", vec![chain])]);
    let status = hints.client.report_cache_state(stream).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(status.message().contains("262144"), "{status}");
    assert!((hints.metric("kvplane_hints_entries ").await).abs() < 0.5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_as_large_as_a_message_is_taken() {
    let mut hints = Hints::serve().await;
    let hashes: Vec<u64> = (1..=150_000).collect();
    hints.hold("a", &hashes).await;
    assert!((hints.metric("kvplane_hints_entries ").await - 150_000.0).abs() < 0.5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_names_is_refused() {
    let mut hints = Hints::with(|options| options.limits.max_names = 64).await;
    let flood = (0..256).map(|at| update(&format!("replica-{at}"), entries(&[1])));
    let status =
        hints.client.report_cache_state(tokio_stream::iter(flood.collect::<Vec<_>>())).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(hints.metric("kvplane_hints_refused_total{reason=\"names\"}").await > 0.5);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_named_is_left_out_of_a_report() {
    let mut hints = Hints::serve().await;
    let mut prefixes = entries(&[1, 2]);
    prefixes[0].adapter_id = "x".repeat(2_000);
    hints.report(vec![update("a", prefixes)]).await;
    assert!((hints.metric("kvplane_hints_dropped_total{reason=\"unnamed\"}").await - 1.0).abs() < 0.5);
    assert!((hints.metric("kvplane_hints_entries ").await - 1.0).abs() < 0.5, "the rest is taken");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_says_so() {
    let mut hints = Hints::serve().await;
    let refused = [
        hints.client.lookup_pd_route(proto::LookupPdRouteRequest::default()).await.unwrap_err(),
        hints.client.stream_metrics(proto::StreamMetricsRequest::default()).await.unwrap_err(),
    ];
    for status in refused {
        assert_eq!(status.code(), Code::Unimplemented);
        assert!(status.message().starts_with("kvplane "), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn health_knows_the_service_and_the_server() {
    let hints = Hints::serve().await;
    let channel =
        Channel::from_shared(format!("http://{}", hints.rig.grpc)).unwrap().connect().await.unwrap();
    let mut health = HealthClient::new(channel);
    for service in ["", "inferencecache.v1alpha1.InferenceCache", "kvplane.v1.Plane"] {
        let request = tonic_health::pb::HealthCheckRequest { service: service.to_owned() };
        let status = health.check(request).await.unwrap().into_inner().status();
        assert_eq!(status, tonic_health::pb::health_check_response::ServingStatus::Serving, "{service:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_served_where_hints_are_off() {
    let mut hints = Hints::with(|options| options.enabled = false).await;
    let status = hints.client.lookup_route(ask()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("unknown call"), "{}", status.message());
    assert_eq!(crate::rig::send(hints.rig.http, "GET", "/snapshot", String::new()).await.0, 404);
    let page = hints.metrics().await;
    assert!(!page.contains("kvplane_hints") && !page.contains("inferencecache"), "{page}");
    assert!(page.contains("kvplane_prompts_total{protocol=\"hints\"} 0"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hashes_of_any_width_are_distinguished() {
    let mut hints = Hints::with(|options| options.policies.default.minimum_matched_tokens = 0).await;
    let wide = |width: usize| proto::PrefixEntry {
        prefix_hash: vec![7; width].into(),
        token_count: 16,
        ..Default::default()
    };
    hints.report(vec![update("a", vec![wide(7), wide(8), wide(32)]), update("b", vec![wide(64)])]).await;
    for (width, replica) in [(7, Some("a")), (8, Some("a")), (32, Some("a")), (64, Some("b")), (9, None)] {
        let request =
            proto::LookupRouteRequest { prefix_hash: vec![7; width].into(), prefix_token_count: 16, ..ask() };
        let (reason, replicas) = hints.route(request).await;
        assert_eq!(reason == "PREFIX_MATCH", replica.is_some(), "{width}");
        if let Some(replica) = replica {
            assert_eq!(replicas, [replica], "{width}");
        }
    }
    assert_eq!(bytes(1).len(), 8);
}
