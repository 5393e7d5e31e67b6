//! Engines as a running plane lists them.

use kvplane_access::descriptor_limit;
use kvplane_doctor::{Code, Examination, Finding, PlaneSeen, examine};
use kvplane_ingest::{Endpoint, EngineSpec, Published, PublishedRank, Source};
use kvplane_server::EngineConfig;
use serde::Deserialize as _;
use serde_json::{Map, Value};

use super::Looked;
use crate::args::DoctorArgs;

/// Looks at the engines of a plane that nobody has looked at yet, and says what the plane does not know
/// better.
pub(super) async fn look(args: &DoctorArgs, seen: &PlaneSeen, looked: &Looked) -> Vec<Finding> {
    let new = |engine: &EngineSpec| !looked.engines.contains(&engine.id.to_string());
    let engines: Vec<EngineSpec> = listed(seen).filter_map(described).filter(new).collect();
    if engines.is_empty() {
        return Vec::new();
    }
    let examination = Examination {
        engines,
        listen: args.listen.0,
        window: None,
        listed: Some(seen.hears()),
        descriptors: descriptor_limit(),
    };
    let mut found = examine(&examination).await;
    found.retain(|finding| match finding.code {
        // It is the plane that listens there.
        Code::AddressInUse => false,
        // The plane has heard more than we did within some seconds.
        Code::Silent => !seen.has_heard(&finding.subject),
        _ => true,
    });
    found
}

/// Engines of this plane. Those of another that it follows are looked at from there.
fn listed(seen: &PlaneSeen) -> impl Iterator<Item = &Value> {
    let mirrored = |id: &Value| {
        let mut engines = seen.status["engines"].as_array().into_iter().flatten();
        engines.any(|engine| engine["id"] == *id && engine.get("from").is_some())
    };
    let engines = seen.engines["engines"].as_array().into_iter().flatten();
    engines.filter(move |engine| !mirrored(&engine["id"]))
}

/// What the plane says of an engine, as it would be configured; none where this release cannot make sense of
/// it.
fn described(listed: &Value) -> Option<EngineSpec> {
    let ranks = listed["ranks"].as_array()?;
    let mut config = Map::new();
    for key in ["id", "kind", "model", "topic", "block_size", "http", "grpc"] {
        config.insert(key.to_owned(), listed[key].clone());
    }
    // The plane may know where some ranks are and not yet where others are: those that it knows are what it
    // listens to.
    if let Some(known) = ranks.iter().find(|rank| rank["events"].is_string()) {
        for key in ["events", "replay"] {
            config.insert(key.to_owned(), known[key].clone());
        }
    }
    config.retain(|_, value| !value.is_null());
    let config = EngineConfig::deserialize(Value::Object(config)).ok()?;
    let mut spec = config.plan().ok()?.spec().clone();
    // Ranks are where the plane says, and not only where counting ports up leads.
    if let Source::Published(Published { ranks: known }) = &mut spec.source {
        // The plane does not know the addresses of the others.
        let placed = ranks.iter().filter(|rank| !rank["events"].is_null());
        *known = placed.map(rank).collect::<Option<_>>()?;
    }
    Some(spec)
}

fn rank(listed: &Value) -> Option<PublishedRank> {
    let rank = listed["rank"].as_u64()?.try_into().ok()?;
    let address = listed["events"].as_str()?;
    let events = match address.strip_prefix("bind:") {
        Some(address) => Endpoint::Bind(address.to_owned()),
        None => Endpoint::Connect(address.to_owned()),
    };
    let replay = listed["replay"].as_str().map(str::to_owned);
    Some(PublishedRank { rank, events, replay })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn engines_are_described_as_the_plane_lists_them() {
        let published = json!({
            "id": "e", "kind": "vllm", "model": "m", "topic": "t", "block_size": 16, "http": null, "grpc": null,
            "worker_id": 1, "tenant": null, "added_by": "config", "ranks": [
                {"rank": 0, "events": "bind:tcp://127.0.0.1:5557", "replay": null},
                {"rank": 4, "events": "tcp://127.0.0.1:7000", "replay": "tcp://127.0.0.1:7001"}],
        });
        let spec = described(&published).unwrap();
        let ranks = spec.source.ranks();
        assert_eq!(ranks[0].events, kvplane_ingest::Events::Bind("tcp://127.0.0.1:5557".to_owned()));
        assert_eq!((ranks[1].rank, ranks[1].events.address()), (4, "tcp://127.0.0.1:7000"));
        assert_eq!((spec.topic.as_str(), spec.block_size), ("t", Some(16)));
        let drained = json!({
            "id": "e", "kind": "trtllm", "model": "m", "topic": "",
            "ranks": [{"rank": 0, "events": "http://127.0.0.1:8000", "replay": null}],
        });
        assert!(matches!(described(&drained).unwrap().source, Source::Drained(_)));
        let half_known = json!({
            "id": "e", "kind": "vllm", "model": "m", "topic": "", "http": "http://127.0.0.1:8000",
            "ranks": [{"rank": 0, "events": null, "replay": null},
                {"rank": 1, "events": "tcp://127.0.0.1:7000", "replay": null}],
        });
        let spec = described(&half_known).unwrap();
        let Source::Published(Published { ranks }) = spec.source else {
            panic!("it is looked at where the plane listens")
        };
        assert_eq!((ranks.len(), ranks[0].rank), (1, 1));
        assert!(described(&json!({"id": "e", "kind": "of a newer release", "ranks": []})).is_none());
    }

    #[test]
    fn engines_of_another_plane_are_left_to_that() {
        let seen = PlaneSeen {
            status: json!({"engines": [{"id": "a"}, {"id": "b", "from": {"link": "l"}}]}),
            engines: json!({"engines": [{"id": "a"}, {"id": "b"}]}),
            ..PlaneSeen::default()
        };
        assert_eq!(listed(&seen).map(|engine| engine["id"].clone()).collect::<Vec<_>>(), [json!("a")]);
    }
}
