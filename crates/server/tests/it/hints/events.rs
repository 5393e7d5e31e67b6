//! `StreamCacheEvents`.

use kvplane_proto::inferencecache as proto;
use kvplane_proto::inferencecache::cache_event::Type;
use tonic::{Code, Streaming};

use crate::hints::talk::{Hints, MODEL, TENANT, bytes, entries, event, update};
use crate::rig::DEADLINE;

async fn next(events: &mut Streaming<proto::CacheEvent>) -> Result<proto::CacheEvent, tonic::Status> {
    let event = tokio::time::timeout(DEADLINE, events.message()).await.expect("no event came")?;
    Ok(event.expect("the stream ended without a status"))
}

fn all() -> proto::StreamEventsRequest {
    proto::StreamEventsRequest::default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_hears_what_changes_from_now_on() {
    let mut hints = Hints::serve().await;
    hints.hold("a", &[1]).await;
    let mut events = hints.client.stream_cache_events(all()).await.unwrap().into_inner();
    let reported = proto::CacheStateUpdate { adapter_id: "lora".to_owned(), ..update("a", entries(&[2])) };
    hints.report(vec![reported]).await;
    let added = next(&mut events).await.unwrap();
    let expected = proto::CacheEvent {
        adapter_id: "lora".to_owned(),
        timestamp_us: added.timestamp_us,
        ..event(Type::PrefixAdded, "a", Some(2))
    };
    assert_eq!(added, expected);
    assert!(added.timestamp_us > 0);
    // A repeated announcement is nothing new.
    hints.hold("a", &[1]).await;
    hints.publish(event(Type::PrefixEvicted, "a", Some(1))).await;
    let evicted = next(&mut events).await.unwrap();
    assert_eq!((evicted.r#type(), evicted.prefix_hash), (Type::PrefixEvicted, bytes(1)));
    let stats = Some(proto::ReplicaStats::default());
    hints.report(vec![proto::CacheStateUpdate { stats, ..update("a", vec![]) }]).await;
    assert_eq!(next(&mut events).await.unwrap().r#type(), Type::ReplicaUpdated);
    hints.publish(event(Type::AllCleared, "a", None)).await;
    assert_eq!(next(&mut events).await.unwrap().r#type(), Type::AllCleared);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_hears_what_it_wants_to_hear() {
    let mut hints = Hints::serve().await;
    let only = |model: &str, tenant: &str, types: &[Type]| proto::StreamEventsRequest {
        model_id: model.to_owned(),
        tenant_id: tenant.to_owned(),
        types: types.iter().map(|kind| *kind as i32).collect(),
    };
    let wanted = [
        (only(MODEL, TENANT, &[]), 4),
        (only("", TENANT, &[Type::PrefixEvicted]), 1),
        (only(MODEL, "", &[Type::PrefixAdded]), 6),
        (only("other", "", &[]), 3),
        (only(MODEL, "other", &[]), 3),
    ];
    let mut listeners = Vec::new();
    for (request, count) in wanted {
        listeners.push((hints.client.stream_cache_events(request).await.unwrap().into_inner(), count));
    }
    let mut other_model = update("a", entries(&[1, 2, 3]));
    other_model.model_id = "other".to_owned();
    let mut other_tenant = update("a", entries(&[1, 2, 3]));
    other_tenant.tenant_id = "other".to_owned();
    hints.report(vec![other_model, other_tenant, update("a", entries(&[1, 2, 3]))]).await;
    hints.publish(event(Type::PrefixEvicted, "a", Some(1))).await;
    for (events, count) in &mut listeners {
        for _ in 0..*count {
            next(events).await.unwrap();
        }
    }
    // The end of all of them, before which nothing else came.
    let Hints { rig, .. } = hints;
    rig.stop().await;
    for (mut events, _) in listeners {
        let end = next(&mut events).await.unwrap_err();
        assert_eq!(end.code(), Code::Unavailable, "{end}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_is_too_slow_gets_an_error() {
    let mut hints = Hints::serve().await;
    let mut slow = hints.client.stream_cache_events(all()).await.unwrap().into_inner();
    let hashes: Vec<u64> = (1..=100_000).collect();
    hints.hold("a", &hashes).await;
    hints.publish(event(Type::AllCleared, "a", None)).await;
    hints.hold("a", &hashes).await;
    let end = loop {
        if let Err(status) = next(&mut slow).await {
            break status;
        }
    };
    assert_eq!(end.code(), Code::DataLoss, "{end}");
    assert!(hints.metric("kvplane_hints_refused_total{reason=\"slow_listener\"}").await > 0.5);
    // Others go on, and so can this one.
    let mut again = hints.client.stream_cache_events(all()).await.unwrap().into_inner();
    hints.hold("b", &[7]).await;
    assert_eq!(next(&mut again).await.unwrap().replica_id, "b");
}
