//! What watchers receive, over the route's own body.

use std::time::Duration;

use axum::body::Body;
use axum::response::IntoResponse as _;
use http_body_util::BodyExt as _;
use kvplane_ingest::{Mood, Origin, PlaneOptions, Said};
use serde_json::Value;
use tokio::time::timeout;

use super::*;
use crate::fleet::{EngineConfig, Fleet, Registration};
use crate::service::{Options, Service};

/// Far beyond anything that should take: only a hang reaches it.
const DEADLINE: Duration = Duration::from_secs(30);

/// A plane with one rank that nobody answers for.
async fn plane() -> (Watching, Fleet) {
    let plane = Plane::start(Vec::new(), &PlaneOptions::default()).unwrap();
    let service = Service::new(plane, Options::default());
    register(&service.fleet(), 1).await;
    (service.parts().watching, service.fleet())
}

async fn register(fleet: &Fleet, instance_id: u64) {
    let registration = Registration {
        instance_id,
        rank: 0,
        kind: kvplane_core::EngineKind::Vllm,
        model: "m".to_owned(),
        routing_group: "g".to_owned(),
        block_size: 16,
        events: format!("tcp://127.0.0.1:{instance_id}"),
        replay: None,
    };
    fleet.register(registration).await.unwrap();
}

/// One who reads the route's body.
struct Reader(Body);

impl Reader {
    async fn begin(watching: &Watching) -> Self {
        Self(watch(State(watching.clone())).await.into_response().into_body())
    }

    /// The next event: its name and its data. `None` at the end.
    async fn next(&mut self) -> Option<(String, Value)> {
        let frame = timeout(DEADLINE, self.0.frame()).await.expect("an event")?;
        let text = String::from_utf8(frame.unwrap().into_data().unwrap().to_vec()).unwrap();
        let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        Some((line("event:")?.to_owned(), serde_json::from_str(line("data:")?).unwrap()))
    }

    /// Reads until an event of that name is as wanted.
    async fn until(&mut self, wanted: &str, fits: impl Fn(&Value) -> bool) -> Value {
        loop {
            let (name, data) = self.next().await.expect("the stream goes on");
            if name == wanted && fits(&data) {
                return data;
            }
        }
    }
}

fn engines(fleet: &Value) -> Vec<&str> {
    fleet["ranks"].as_array().unwrap().iter().map(|rank| rank["engine"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_watcher_is_sent_everything_and_then_what_changes() {
    let (watching, fleet) = plane().await;
    let mut reader = Reader::begin(&watching).await;
    let (name, hello) = reader.next().await.unwrap();
    assert_eq!((name.as_str(), &hello["id"]), ("plane", &Value::from(watching.plane.id().to_string())));
    let (name, first) = reader.next().await.unwrap();
    assert_eq!(
        (name.as_str(), first["whole"].as_bool(), engines(&first)),
        ("fleet", Some(true), vec!["instance-1"])
    );
    assert_eq!(first["ranks"][0]["continuity"], "connecting");
    assert_eq!(
        (&first["ranks"][0]["events_per_s"], &first["links"]),
        (&Value::Null, &Value::Array(Vec::new())),
        "nothing is measured by one picture"
    );
    let (name, remarks) = reader.next().await.unwrap();
    let topics: Vec<_> = remarks.as_array().unwrap().iter().map(|remark| remark["topic"].as_str()).collect();
    assert_eq!((name.as_str(), topics), ("remarks", vec![Some("plane"), Some("members")]));

    watching.plane.remark(Said::new("reload", Mood::Bad, "something went wrong"));
    let news = reader.until("remarks", |_| true).await;
    assert_eq!(news.as_array().unwrap().len(), 1);
    assert_eq!((&news[0]["mood"], &news[0]["words"]), (&"bad".into(), &"something went wrong".into()));
    assert!(news[0].get("engine").is_none(), "it is about the plane");

    register(&fleet, 2).await;
    let more = reader.until("fleet", |fleet| engines(fleet).contains(&"instance-2")).await;
    assert_eq!((more["whole"].as_bool(), more.get("gone")), (Some(false), None), "only what is new");
    fleet.remove("instance-1").await.unwrap();
    let less = reader.until("fleet", |fleet| fleet.get("gone").is_some()).await;
    let gone = serde_json::json!([{"engine": "instance-1", "rank": 0}]);
    assert_eq!((less["whole"].as_bool(), &less["gone"]), (Some(false), &gone));
}

#[tokio::test]
async fn another_plane_is_reported_without_ranks_and_again_when_it_changes() {
    let (watching, fleet) = plane().await;
    let mut reader = Reader::begin(&watching).await;
    let described = serde_json::json!({"id": "elsewhere", "kind": "kvplane", "grpc": "http://127.0.0.1:1"});
    let config: EngineConfig = serde_json::from_value(described).unwrap();
    fleet.add(vec![config.plan().unwrap()], Origin::Api).await.unwrap();
    let trouble = |fleet: &Value| fleet["links"][0]["trouble"].clone();
    let reported = reader.until("fleet", |fleet| trouble(fleet) == "unreached").await;
    let link = &reported["links"][0];
    assert_eq!((&link["engine"], &link["connected"]), (&"elsewhere".into(), &false.into()));
    assert_eq!(link["trouble_words"], "the other plane does not answer");
}

#[tokio::test]
async fn nobody_on_the_way_keeps_what_is_reported() {
    let (watching, _fleet) = plane().await;
    let response = watch(State(watching)).await.into_response();
    let header = |name| response.headers().get(name).unwrap().to_str().unwrap();
    assert_eq!((header("cache-control"), header("x-accel-buffering")), ("no-store", "no"));
}

#[tokio::test]
async fn one_who_does_not_read_holds_up_nobody_and_misses_nothing() {
    let (watching, fleet) = plane().await;
    let (mut slow, mut quick) = (Reader::begin(&watching).await, Reader::begin(&watching).await);
    for instance in 2..6 {
        register(&fleet, instance).await;
        let name = format!("instance-{instance}");
        quick.until("fleet", |fleet| engines(fleet).contains(&name.as_str())).await;
    }
    // All that happened meanwhile, at once.
    assert_eq!(slow.next().await.unwrap().0, "plane");
    assert_eq!(engines(&slow.next().await.unwrap().1).len(), 5);
    let (name, remarks) = slow.next().await.unwrap();
    assert_eq!((name.as_str(), remarks.as_array().unwrap().len()), ("remarks", 6));
}

#[tokio::test]
async fn the_stream_ends_with_the_plane() {
    let (watching, _fleet) = plane().await;
    let mut reader = Reader::begin(&watching).await;
    watching.stop.cancel();
    while reader.next().await.is_some() {}
}

#[tokio::test]
async fn pictures_are_shared_and_made_for_those_who_look_alone() {
    let (watching, _fleet) = plane().await;
    assert_eq!(watching.watch.watchers(), 0, "nobody looks yet");
    let (one, two) = (Reader::begin(&watching).await, Reader::begin(&watching).await);
    let looking = watching.watch.look(&watching.plane);
    assert!(Arc::ptr_eq(&looking, &watching.watch.look(&watching.plane)), "one picture for all");
    drop((one, looking));
    assert_eq!(watching.watch.watchers(), 1);
    drop(two);
    assert_eq!(watching.watch.watchers(), 0, "the last one who goes ends it");
}
