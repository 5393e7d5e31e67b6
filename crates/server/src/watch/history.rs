//! The last hour, sampled whether somebody looks or not, so that plots do not begin when a page is opened.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kvplane_core::{Continuity, StreamId, Tier, Trust};
use kvplane_ingest::Plane;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::cell::held;
use crate::value::{Tally, Value};

/// Time between two samples.
const EVERY: Duration = Duration::from_secs(15);
/// Samples that are kept: an hour.
const KEPT: usize = 240;
/// Streams whose own samples are kept, at about 15 KiB each. Of a larger fleet the sums alone are.
const MAX_STREAMS: usize = 2_048;

/// The whole fleet at one moment.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct FleetSample {
    unix_ms: u64,
    /// What was asked up to then, since the process started.
    #[serde(flatten)]
    asked: Tally,
    /// Events since the sample before, per second; null for the first.
    events_per_s: Option<u64>,
    /// Device blocks of streams that are live.
    blocks: u64,
    /// Streams that are live and exact.
    exact: usize,
    streams: usize,
}

/// One stream at one moment.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct RankSample {
    unix_ms: u64,
    /// Events since the sample before, per second; null for the first.
    events_per_s: Option<u64>,
    /// Blocks by tier: those that hold something, the device always.
    blocks: BTreeMap<&'static str, u64>,
}

/// A sample of a stream as it is kept.
#[derive(Debug)]
struct KeptRank {
    unix_ms: u64,
    events_per_s: Option<u64>,
    held: [u64; Tier::ALL.len()],
}

#[derive(Debug, Default)]
struct Kept {
    fleet: VecDeque<FleetSample>,
    ranks: HashMap<StreamId, VecDeque<KeptRank>>,
    /// Events that each stream had counted at its last sample.
    events: HashMap<StreamId, u64>,
    last_ms: u64,
}

/// The last hour.
#[derive(Debug, Default)]
pub(crate) struct History(Mutex<Kept>);

/// Samples of one engine, or of the whole fleet.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Past {
    /// Milliseconds between two samples.
    every_ms: u64,
    /// The fleet, oldest first.
    fleet: Vec<FleetSample>,
    /// Ranks of the engine that was asked for.
    ranks: Vec<RankPast>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct RankPast {
    rank: u32,
    samples: Vec<RankSample>,
}

impl RankSample {
    fn of(KeptRank { unix_ms, events_per_s, held: blocks }: &KeptRank) -> Self {
        Self { unix_ms: *unix_ms, events_per_s: *events_per_s, blocks: held(blocks) }
    }
}

impl History {
    /// Takes a sample now.
    pub(crate) fn sample(&self, plane: &Plane, value: &Value) {
        let engines = plane.engines();
        let unix_ms = kvplane_runtime::unix_ms();
        let mut seen = Vec::new();
        for stream in engines.iter().flat_map(|engine| &engine.streams) {
            let status = stream.glance();
            let live = status.continuity == Continuity::Live;
            let exact = live && status.trust.level() == Trust::Exact;
            seen.push((stream.id().clone(), status.journal.events, status.blocks, live, exact));
        }
        let mut kept = self.0.lock();
        let elapsed = unix_ms.saturating_sub(kept.last_ms).max(1);
        let is_first = kept.fleet.is_empty();
        kept.last_ms = unix_ms;
        let (mut events, mut blocks, mut exact_streams, mut next) = (0, 0, 0, HashMap::new());
        let (streams, ranks_kept) = (seen.len(), seen.len() <= MAX_STREAMS);
        let mut before = std::mem::take(&mut kept.ranks);
        for (id, counted, held, live, exact) in seen {
            // A stream that is new, or counts from 0 again, has no rate yet.
            let new = kept.events.get(&id).and_then(|last| counted.checked_sub(*last));
            events += new.unwrap_or(0);
            blocks += if live { held[Tier::Device.index()] } else { 0 };
            exact_streams += usize::from(exact);
            next.insert(id.clone(), counted);
            if ranks_kept {
                let mut samples = before.remove(&id).unwrap_or_default();
                keep(
                    &mut samples,
                    KeptRank { unix_ms, events_per_s: new.map(|new| new * 1000 / elapsed), held },
                );
                kept.ranks.insert(id, samples);
            }
        }
        kept.events = next;
        let sample = FleetSample {
            unix_ms,
            asked: value.all(),
            events_per_s: (!is_first).then(|| events * 1000 / elapsed),
            blocks,
            exact: exact_streams,
            streams,
        };
        keep(&mut kept.fleet, sample);
    }

    /// The past of the fleet, and of one engine's ranks.
    pub(crate) fn past(&self, engine: Option<&str>) -> Past {
        let kept = self.0.lock();
        let of_engine = |id: &&StreamId| engine.is_some_and(|engine| id.engine.as_str() == engine);
        let mut ids: Vec<&StreamId> = kept.ranks.keys().filter(of_engine).collect();
        ids.sort();
        let past = |id: &StreamId| RankPast {
            rank: id.rank,
            samples: kept.ranks.get(id).into_iter().flatten().map(RankSample::of).collect(),
        };
        Past {
            every_ms: EVERY.as_millis() as u64,
            fleet: kept.fleet.iter().cloned().collect(),
            ranks: ids.into_iter().map(past).collect(),
        }
    }

    /// Samples until it is stopped.
    pub(crate) async fn run(self: Arc<Self>, plane: Arc<Plane>, value: Arc<Value>, stop: CancellationToken) {
        let mut beat = interval(EVERY);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(beat.tick()).await.is_some() {
            let (history, plane, value) = (self.clone(), plane.clone(), value.clone());
            // Streams may be busy. A sample that failed is left out.
            let _ = tokio::task::spawn_blocking(move || history.sample(&plane, &value)).await;
        }
    }
}

fn keep<T>(samples: &mut VecDeque<T>, sample: T) {
    if samples.len() == KEPT {
        samples.pop_front();
    }
    samples.push_back(sample);
}

#[cfg(test)]
mod tests {
    use kvplane_ingest::PlaneOptions;

    use super::*;
    use crate::value::Protocol;

    #[tokio::test]
    async fn an_hour_is_kept_and_no_more() {
        let plane = Plane::start(Vec::new(), &PlaneOptions::default()).unwrap();
        let (history, value) = (History::default(), Value::new("test"));
        for _ in 0..KEPT + 5 {
            value.count(Protocol::Http, 10, 5);
            history.sample(&plane, &value);
        }
        let past = history.past(None);
        assert_eq!(past.fleet.len(), KEPT);
        assert_eq!(past.fleet.last().map(|last| last.asked.questions), Some(KEPT as u64 + 5));
        assert_eq!(past.fleet[0].asked.questions, 6);
        assert!(past.ranks.is_empty());
    }
}
