//! The part of `/v1/status` that the screen shows.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Streams, worst first.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Fleet {
    pub(crate) engines: usize,
    pub(crate) streams: Vec<Stream>,
    pub(crate) value: Option<Queries>,
    pub(crate) duplication: Option<Duplication>,
}

/// Blocks that several engines hold.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Duplication {
    pub(crate) blocks: u64,
    pub(crate) distinct_blocks: u64,
}

/// What was asked for and what was found of it, since the start of the process.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Queries {
    pub(crate) questions: u64,
    pub(crate) tokens_asked: u64,
    pub(crate) tokens_found: u64,
    pub(crate) top_prefixes: Vec<TopPrefix>,
}

/// A prefix that saved many tokens, by its hash.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct TopPrefix {
    pub(crate) prefix: String,
    pub(crate) model: String,
    pub(crate) tokens: u64,
    pub(crate) tokens_found: u64,
}

#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct Stream {
    pub(crate) engine: String,
    pub(crate) rank: u32,
    pub(crate) kind: String,
    pub(crate) model: String,
    pub(crate) continuity: String,
    pub(crate) trust: String,
    pub(crate) reason: Option<String>,
    pub(crate) age_ms: Option<u64>,
    pub(crate) blocks: u64,
    pub(crate) tiers: BTreeMap<String, u64>,
    pub(crate) used_blocks: u64,
    pub(crate) capacity_blocks: Option<u64>,
    pub(crate) events: u64,
    pub(crate) idle_seconds: Option<f64>,
    pub(crate) last_sequence: Option<u64>,
    pub(crate) gaps: u64,
    pub(crate) restarts: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Page {
    engines: Vec<Engine>,
    queries: Option<Queries>,
    duplication: Option<Duplication>,
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
    used_blocks: u64,
    capacity_blocks: Option<u64>,
    seconds_since_last_event: Option<f64>,
    last_sequence: Option<u64>,
    counters: BTreeMap<String, Value>,
}

impl Fleet {
    /// Reads what is known of the page; a page of another release misses fields at worst.
    pub(crate) fn of(status: &Value) -> Self {
        let page = Page::deserialize(status).unwrap_or_default();
        let engines = page.engines.len();
        let mut streams: Vec<Stream> = page.engines.into_iter().flat_map(streams_of).collect();
        streams.sort_by_cached_key(|stream| (Reverse(stream.severity()), stream.engine.clone(), stream.rank));
        Self { engines, streams, value: page.queries, duplication: page.duplication }
    }

    /// Device blocks in use and device blocks in all, over live streams whose engine says how many it has.
    pub(crate) fn fullness(&self) -> Option<(u64, u64)> {
        let live = self.streams.iter().filter(|stream| stream.continuity == "live");
        let known = live.filter_map(|stream| Some((stream.used_blocks, stream.capacity_blocks?)));
        known.fold(None, |sum, (used, capacity)| {
            let (all_used, all) = sum.unwrap_or((0, 0));
            Some((all_used + used.min(capacity), all + capacity))
        })
    }

    /// Streams that are neither live nor exact.
    pub(crate) fn troubled(&self) -> usize {
        self.streams.iter().filter(|stream| stream.severity() > 0).count()
    }

    /// How many streams have each value of a field, the most frequent first.
    pub(crate) fn count_by(&self, field: impl Fn(&Stream) -> &str) -> Vec<(String, usize)> {
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
    /// How full the device cache is, in percent, where the engine says how large it is.
    pub(crate) fn full_percent(&self) -> Option<f64> {
        let capacity = self.capacity_blocks.filter(|capacity| *capacity > 0)?;
        Some(self.used_blocks.min(capacity) as f64 / capacity as f64 * 100.0)
    }

    /// How much attention it needs: 0 is none.
    pub(crate) fn severity(&self) -> u8 {
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
            events: counter("events"),
            used_blocks: rank.used_blocks,
            capacity_blocks: rank.capacity_blocks,
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
            "rank": 0, "used_blocks": 5, "capacity_blocks": if trust == "exact" { json!(null) } else { json!(20) }, "continuity": continuity, "trust": trust, "reason": null, "age_ms": 3,
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
        assert_eq!(fleet.fullness(), Some((10, 40)), "live streams that say how many blocks they have");
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
