//! The part of `/v1/status` that the screen shows.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Streams, worst first.
#[derive(Debug, Default, Serialize)]
pub(super) struct Fleet {
    pub(super) engines: usize,
    pub(super) streams: Vec<Stream>,
    pub(super) value: Option<Queries>,
}

/// What was asked for and what was found of it, since the start of the process.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Queries {
    pub(super) questions: u64,
    pub(super) tokens_asked: u64,
    pub(super) tokens_found: u64,
}

#[derive(Debug, Default, Clone, Serialize)]
pub(super) struct Stream {
    pub(super) engine: String,
    pub(super) rank: u32,
    pub(super) kind: String,
    pub(super) model: String,
    pub(super) continuity: String,
    pub(super) trust: String,
    pub(super) reason: Option<String>,
    pub(super) age_ms: Option<u64>,
    pub(super) blocks: u64,
    pub(super) tiers: BTreeMap<String, u64>,
    pub(super) idle_seconds: Option<f64>,
    pub(super) last_sequence: Option<u64>,
    pub(super) gaps: u64,
    pub(super) restarts: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Page {
    engines: Vec<Engine>,
    queries: Option<Queries>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Engine {
    id: String,
    kind: String,
    model: String,
    ranks: Vec<StreamPage>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamPage {
    rank: u32,
    continuity: String,
    age_ms: Option<u64>,
    trust: String,
    reason: Option<String>,
    blocks: BTreeMap<String, u64>,
    seconds_since_last_event: Option<f64>,
    last_sequence: Option<u64>,
    counters: BTreeMap<String, Value>,
}

impl Fleet {
    /// Reads what is known of the page; a page of another release misses fields at worst.
    pub(super) fn of(status: &Value) -> Self {
        let page = Page::deserialize(status).unwrap_or_default();
        let engines = page.engines.len();
        let mut streams: Vec<Stream> = page.engines.into_iter().flat_map(streams_of).collect();
        streams.sort_by_cached_key(|stream| (Reverse(stream.severity()), stream.engine.clone(), stream.rank));
        Self { engines, streams, value: page.queries }
    }

    /// Streams that are neither live nor exact.
    pub(super) fn troubled(&self) -> usize {
        self.streams.iter().filter(|stream| stream.severity() > 0).count()
    }

    /// How many streams have each value of a field, the most frequent first.
    pub(super) fn count_by(&self, field: impl Fn(&Stream) -> &str) -> Vec<(String, usize)> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for stream in &self.streams {
            *counts.entry(field(stream)).or_default() += 1;
        }
        let mut counts: Vec<_> = counts.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
        counts.sort_by_key(|(_, count)| Reverse(*count));
        counts
    }
}

impl Stream {
    /// How much attention it needs: 0 is none.
    pub(super) fn severity(&self) -> u8 {
        let continuity = match self.continuity.as_str() {
            "live" => 0,
            "recovering" | "connecting" => 3,
            _ => 4,
        };
        let trust = match self.trust.as_str() {
            "exact" => 0,
            "lower" => 1,
            _ => 2,
        };
        continuity.max(trust)
    }
}

fn streams_of(engine: Engine) -> impl Iterator<Item = Stream> {
    let Engine { id, kind, model, ranks } = engine;
    ranks.into_iter().map(move |rank| {
        let counter = |name: &str| rank.counters.get(name).and_then(Value::as_u64).unwrap_or(0);
        Stream {
            engine: id.clone(),
            kind: kind.clone(),
            model: model.clone(),
            rank: rank.rank,
            gaps: counter("gaps"),
            restarts: counter("restarts"),
            continuity: rank.continuity,
            trust: rank.trust,
            reason: rank.reason,
            age_ms: rank.age_ms,
            blocks: rank.blocks.values().sum(),
            tiers: rank.blocks.into_iter().filter(|(_, blocks)| *blocks > 0).collect(),
            idle_seconds: rank.seconds_since_last_event,
            last_sequence: rank.last_sequence,
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rank(continuity: &str, trust: &str) -> Value {
        json!({
            "rank": 0, "continuity": continuity, "trust": trust, "reason": null, "age_ms": 3,
            "blocks": {"device": 5, "host": 2, "disk": 0}, "counters": {"gaps": 1, "rejected": {}},
        })
    }

    fn status(engines: &[(&str, Value)]) -> Value {
        let engines: Vec<Value> = engines
            .iter()
            .map(|(id, rank)| json!({"id": id, "kind": "vllm", "model": "m", "ranks": [rank]}))
            .collect();
        json!({ "engines": engines, "a_field_of_tomorrow": 1 })
    }

    #[test]
    fn the_streams_that_need_attention_come_first() {
        let page = status(&[
            ("a", rank("live", "exact")),
            ("b", rank("live", "lower")),
            ("c", rank("down", "exact")),
            ("d", rank("recovering", "unsound")),
            ("e", rank("live", "unsound")),
        ]);
        let fleet = Fleet::of(&page);
        let order: Vec<&str> = fleet.streams.iter().map(|stream| stream.engine.as_str()).collect();
        assert_eq!(order, ["c", "d", "e", "b", "a"]);
        assert_eq!((fleet.engines, fleet.troubled()), (5, 4));
        assert_eq!(fleet.count_by(|stream| &stream.continuity)[0], ("live".to_owned(), 3));
        let first = &fleet.streams[0];
        assert_eq!((first.blocks, first.gaps, first.tiers.len()), (7, 1, 2));
    }

    #[test]
    fn a_page_that_is_not_a_status_is_an_empty_fleet() {
        for page in [json!(null), json!([]), json!({"engines": 3})] {
            assert!(Fleet::of(&page).streams.is_empty());
        }
    }
}
