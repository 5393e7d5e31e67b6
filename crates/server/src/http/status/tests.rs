//! Pages of the status, and of the metrics, over a fleet that does not fit on one.

use kvplane_ingest::{Plane, PlaneOptions};
use kvplane_metrics::Detail;

use super::*;
use crate::fleet::Registration;
use crate::parts::Parts;
use crate::service::{Options, Service};

/// A plane with engines of which nobody answers.
async fn plane(engines: u64) -> Parts {
    let plane = Plane::start(Vec::new(), &PlaneOptions::default()).unwrap();
    let service = Service::new(plane, Options::default());
    for instance_id in 1..=engines {
        for rank in 0..2 {
            let registration = Registration {
                instance_id,
                rank,
                kind: kvplane_core::EngineKind::Vllm,
                model: "m".to_owned(),
                routing_group: "g".to_owned(),
                block_size: 16,
                events: format!("tcp://127.0.0.1:{}", instance_id * 2 + u64::from(rank)),
                replay: None,
            };
            service.fleet().register(registration).await.unwrap();
        }
    }
    service.parts()
}

fn names(page: &PlaneStatus) -> Vec<&str> {
    page.engines.iter().map(|engine| engine.id.as_str()).collect()
}

#[tokio::test]
async fn pages_follow_each_other_by_name_and_miss_nothing() {
    let status = plane(12).await.status;
    let whole = status.read(None, None);
    assert_eq!((whole.engines.len(), whole.engines_total, &whole.next), (12, 12, &None));
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = status.read(after.as_deref(), Some(5));
        assert!(page.engines.len() <= 5 && page.engines_total == 12);
        seen.extend(names(&page).into_iter().map(str::to_owned));
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    let mut expected: Vec<String> = (1..=12).map(|engine| format!("instance-{engine}")).collect();
    expected.sort();
    assert_eq!(seen, expected);
    let behind = status.read(Some("zzz"), None);
    assert_eq!((behind.engines.len(), behind.next), (0, None));
    let refused = ["0", "10001", "-1", "x", ""].map(limit);
    assert!(refused.iter().all(|refused| refused.as_ref().is_err_and(|error| error.field == Some("limit"))));
}

#[tokio::test]
async fn metrics_are_reported_by_stream_by_engine_or_by_model() {
    let metrics = plane(3).await.metrics;
    let page = |detail| metrics.read(detail).unwrap();
    let count = |page: &str, start: &str| page.lines().filter(|line| line.starts_with(start)).count();
    let connecting = |detail, series: &str| {
        let page = page(Some(detail));
        let line = page.lines().find(|line| line.starts_with(series)).map(str::to_owned);
        line.unwrap_or_else(|| panic!("{series} is not in {page}"))
    };
    let family = "kvplane_stream_batches_total{";
    let rows = Detail::ALL.map(|detail| count(&page(Some(detail)), family));
    assert_eq!(rows, [6, 3, 1]);
    assert_eq!(count(&page(None), family), 6, "as fine as fits");
    let series = "kvplane_stream_continuity{model=\"m\",continuity=\"connecting\"}";
    assert_eq!(connecting(Detail::Fleet, series), format!("{series} 6"));
    let series = "kvplane_stream_continuity{engine=\"instance-2\",model=\"m\",continuity=\"connecting\"}";
    assert_eq!(connecting(Detail::Engine, series), format!("{series} 2"));
    let series = "kvplane_publishers_expected{model=\"m\"}";
    assert_eq!(connecting(Detail::Fleet, series), format!("{series} 6"));
    let positions = Detail::ALL.map(|detail| count(&page(Some(detail)), "kvplane_stream_epoch{"));
    assert_eq!(positions, [6, 0, 0], "epochs have no sum");
}
