//! One rank in a picture.

use std::collections::BTreeMap;

use kvplane_core::{LinkTrouble, Reason, Tier, Trouble};
use kvplane_ingest::{Engine, Finding, Stream};
use schemars::JsonSchema;
use serde::Serialize;

/// What is shown of a rank. Nothing in it changes while nothing happens.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "WatchedRank")]
pub(crate) struct Cell {
    engine: String,
    rank: u32,
    kind: &'static str,
    model: String,
    /// Where the engine was found, and by which rules; absent where somebody described it.
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<String>,
    /// Where the stream stands.
    continuity: &'static str,
    /// What answers about it are worth.
    trust: &'static str,
    /// Why that is less than exact, as a stable word.
    reason: Option<&'static str>,
    /// The reason in words.
    words: Option<&'static str>,
    /// What keeps the source from being heard, as a stable word.
    trouble: Option<&'static str>,
    /// The trouble in words.
    trouble_words: Option<&'static str>,
    epoch: u64,
    /// The engine's own number of the last batch.
    sequence: Option<u64>,
    block_size: Option<u32>,
    /// Blocks by tier: those that hold something, the device always.
    blocks: BTreeMap<&'static str, u64>,
    /// Device blocks in use: every copy, in all groups.
    used_blocks: u64,
    /// Device blocks that the engine has; null where it does not say.
    capacity_blocks: Option<u64>,
    /// Null until there are two pictures to compare.
    events_per_s: Option<u64>,
    /// When the last event was applied, in unix milliseconds, to the second; for one that came after the
    /// fact, the engine's stamp.
    last_event_ms: Option<u64>,
    /// How long the last batch was on its way, by the engine's stamp; null for one that did not come as it
    /// happened.
    lag_ms: Option<u64>,
    /// Which life of the publisher it is since it is followed, proven or assumed.
    life: u64,
    /// Restarts that were proven.
    restarts: u64,
    gaps: u64,
    gaps_unfilled: u64,
    window_batches: usize,
    state_bytes: usize,
}

/// What is shown of an engine that has no rank: another plane that is followed. Its engines are shown as
/// engines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "WatchedLink")]
pub(crate) struct Link {
    engine: String,
    kind: &'static str,
    model: String,
    connected: bool,
    /// What keeps it from being followed, as a stable word.
    trouble: Option<&'static str>,
    /// The trouble in words.
    trouble_words: Option<&'static str>,
}

impl Link {
    /// An engine without ranks now; `None` for one that has some.
    pub(super) fn of(engine: &Engine) -> Option<Self> {
        if !engine.streams.is_empty() {
            return None;
        }
        let status = engine.link.as_ref().map(|link| link.status()).unwrap_or_default();
        Some(Self {
            engine: engine.spec.id.to_string(),
            kind: engine.spec.kind.as_str(),
            model: engine.spec.model.clone(),
            connected: status.connected,
            trouble: status.trouble.map(LinkTrouble::as_str),
            trouble_words: status.trouble.map(LinkTrouble::words),
        })
    }
}

/// What a rank had counted when it was looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counted {
    events: u64,
    at_ms: u64,
}

impl Cell {
    /// A rank now, and how fast it was since `before`.
    pub(super) fn of(
        engine: &Engine,
        stream: &Stream,
        now_ms: u64,
        before: Option<Counted>,
    ) -> (Self, Counted) {
        let status = stream.glance();
        let worst = status.trust.worst().map(|worst| worst.reason);
        let counted = Counted { events: status.journal.events, at_ms: now_ms };
        let cell = Self {
            found: engine.spec.provenance.as_ref().map(|provenance| found(&provenance.get())),
            engine: engine.spec.id.to_string(),
            rank: stream.id().rank,
            kind: engine.spec.kind.as_str(),
            model: engine.spec.model.clone(),
            continuity: status.continuity.as_str(),
            trust: status.trust.level().as_str(),
            reason: worst.map(Reason::as_str),
            words: worst.map(Reason::words),
            trouble: status.trouble.map(Trouble::as_str),
            trouble_words: status.trouble.map(Trouble::words),
            epoch: status.epoch.as_u64(),
            sequence: status.engine_sequence,
            block_size: status.block_size,
            blocks: held(&status.blocks),
            used_blocks: status.used_blocks,
            capacity_blocks: status.capacity_blocks,
            events_per_s: before.map(|before| counted.rate_since(before)),
            last_event_ms: status
                .since_last_event
                .map(|since| now_ms.saturating_sub(since.as_millis() as u64) / 1000 * 1000),
            lag_ms: status.lag.map(|lag| lag.as_millis() as u64),
            life: 1 + status.counters.restarts + status.counters.unproven,
            restarts: status.counters.restarts,
            gaps: status.counters.gaps,
            gaps_unfilled: status.counters.gaps_unfilled,
            window_batches: status.window_entries,
            state_bytes: status.state_bytes,
        };
        (cell, counted)
    }
}

impl Counted {
    fn rate_since(self, before: Self) -> u64 {
        let ms = self.at_ms.saturating_sub(before.at_ms).max(1);
        // A stream that was taken off and came back counts from 0.
        self.events.saturating_sub(before.events).saturating_mul(1000) / ms
    }
}

/// The tiers that hold something; the device always.
pub(super) fn held(blocks: &[u64; Tier::ALL.len()]) -> BTreeMap<&'static str, u64> {
    let tiers = Tier::ALL.iter().map(|tier| (tier, blocks[tier.index()]));
    tiers
        .filter(|(tier, blocks)| **tier == Tier::Device || *blocks > 0)
        .map(|(tier, blocks)| (tier.as_str(), blocks))
        .collect()
}

/// Where an engine was found, and by which rules, in words.
fn found(finding: &Finding) -> String {
    let Finding { source, places, decided, remarks, .. } = finding;
    let rules = decided.iter().map(|(key, value, rule)| format!("{key} {value} by {rule}"));
    let rules = rules.collect::<Vec<_>>().join(", ");
    let mut words = format!("{} by {source}: {rules}", places.join(", "));
    for remark in remarks {
        words += &format!(". {remark}");
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_per_second_and_never_negative() {
        let counted = |events, at_ms| Counted { events, at_ms };
        assert_eq!(counted(150, 1500).rate_since(counted(100, 1000)), 100);
        assert_eq!(counted(0, 1500).rate_since(counted(100, 1000)), 0);
        assert_eq!(counted(5, 1000).rate_since(counted(0, 1000)), 5000);
    }
}
