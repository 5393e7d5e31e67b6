//! The caller disconnects: no further engine is asked, and requests in flight are watched to their end.

use std::time::{Duration, Instant};

use kvplane_core::{EngineKind, Reason};
use kvplane_proto::kvplane::v1::Phase;
use kvplane_proto::kvplane::v1::progress::Item;
use serde_json::json;

use crate::operations::scripted::{Act, Scripted, rig};
use crate::operations::talk::{admin, flush_request, refused};
use crate::rig::{Rig, text};

/// Waits until every operation has ended. An operation whose caller has gone tells nobody of its end but the
/// metrics.
pub async fn until_none_is_in_flight(rig: &Rig) {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        let (_, page) = text(rig.http, "GET", "/metrics", String::new()).await;
        let mut lines = page.lines().filter(|line| line.starts_with("kvplane_operations_in_flight "));
        let in_flight = lines.next().expect("the page counts operations under way");
        if in_flight == "kvplane_operations_in_flight 0" {
            return;
        }
        assert!(Instant::now() < deadline, "operations did not end: {in_flight}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rest_is_not_asked_when_the_caller_goes() {
    const ENGINES: usize = 40;
    const AT_ONCE: usize = 32;
    let server = Scripted::new(|_| Act::Hang).await;
    let specs = (0..ENGINES).map(|number| server.silent(&format!("e{number:02}"), EngineKind::Vllm, 1));
    let rig = rig(specs.collect()).await;
    let mut client = admin(&rig).await;
    let request = flush_request(&json!({"proof_timeout_s": 0.2, "deadline_s": 600.0}));
    let steps = client.flush(request).await.unwrap().into_inner();
    server.until_seen(AT_ONCE).await;
    let flushing =
        || rig.plane.streams().filter(|stream| stream.status().trust.has(Reason::Flushing)).count();
    assert_eq!(flushing(), 0, "no engine has accepted");
    drop(steps);
    until_none_is_in_flight(&rig).await;
    assert_eq!(server.seen().len(), AT_ONCE, "nobody else is asked");
    let asked: Vec<_> = server.seen().into_iter().map(|seen| seen.engine).collect();
    for engine in rig.plane.engines().iter() {
        let trust = engine.streams[0].status().trust;
        let was_asked = asked.iter().any(|asked| asked == engine.spec.id.as_str());
        assert_eq!(trust.has(Reason::UnprovenFlush), was_asked, "{}", engine.spec.id);
        assert!(!trust.has(Reason::Flushing));
    }
    let (_, page) = text(rig.http, "GET", "/metrics", String::new()).await;
    assert!(page.contains(r#"kvplane_operations_total{verb="flush",outcome="cancelled"} 1"#), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_nudged_for_a_caller_that_has_gone() {
    let server = Scripted::new(|_| Act::Say(200, r#"{"success": true}"#)).await;
    let rig = rig(vec![server.silent("e0", EngineKind::Vllm, 2)]).await;
    // Longer than the interval between nudges: a caller that stayed would see one.
    let request = flush_request(&json!({"proof_timeout_s": 2.5, "nudge": true}));
    let mut steps = admin(&rig).await.flush(request).await.unwrap().into_inner();
    loop {
        let step = steps.message().await.unwrap().unwrap();
        if matches!(step.item, Some(Item::Rank(rank)) if rank.phase() == Phase::Proving) {
            break;
        }
    }
    drop(steps);
    until_none_is_in_flight(&rig).await;
    let seen: Vec<_> = server.seen().into_iter().map(|seen| seen.path).collect();
    assert_eq!(seen, ["reset_prefix_cache"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_so_many_operations_run_at_once() {
    const AT_ONCE: usize = 16;
    let server = Scripted::new(|_| Act::Hang).await;
    let rig = rig(vec![server.silent("e0", EngineKind::Vllm, 1)]).await;
    let mut under_way = Vec::new();
    let body = json!({"proof_timeout_s": 0.0, "deadline_s": 600.0});
    for _ in 0..AT_ONCE {
        under_way.push(admin(&rig).await.flush(flush_request(&body)).await.unwrap().into_inner());
    }
    let (code, message) = refused(&rig, &body).await;
    assert_eq!(code, tonic::Code::ResourceExhausted, "{message}");
    let (status, _) = text(rig.http, "POST", "/flush_cache", String::new()).await;
    assert_eq!(status, 429);
    drop(under_way);
    until_none_is_in_flight(&rig).await;
}
