//! Engines that do not go together.

use std::collections::{BTreeMap, BTreeSet};

use crate::place::same_server;
use crate::seen::{EngineSeen, Way};
use crate::{Code, Finding, Severity, Width};

/// What is wrong between engines.
pub(super) fn judge(seen: &[EngineSeen]) -> Vec<Finding> {
    let mut found = shared_drains(seen);
    found.extend(widths(seen));
    found.extend(super::versions::judge_fleet(seen));
    found
}

/// Two engines of the configuration that empty one buffer.
fn shared_drains(seen: &[EngineSeen]) -> Vec<Finding> {
    let mut by_address: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for engine in seen.iter().filter(|engine| engine.way == Way::Drained) {
        if let Some((address, _)) = &engine.server {
            by_address.entry(same_server(address)).or_default().push(&engine.id);
        }
    }
    let shared = by_address.into_iter().filter(|(_, engines)| engines.len() > 1);
    let finding = |(address, engines): (String, Vec<&str>)| {
        Finding::new(
            Code::StolenDrain,
            Severity::Error,
            engines.join(", "),
            format!("all of them drain {address}"),
            "configure the engine once; kvplane serves its events to any number of readers",
        )
    };
    shared.map(finding).collect()
}

/// Engines of one kind and model that write their hashes in different ways.
fn widths(seen: &[EngineSeen]) -> Vec<Finding> {
    let mut by_model: BTreeMap<(&str, &str), BTreeMap<Width, Vec<&str>>> = BTreeMap::new();
    for engine in seen {
        let heard = engine.ranks.iter().flat_map(super::both);
        let widths: BTreeSet<Width> = heard.flat_map(|heard| &heard.widths).copied().collect();
        // An engine that mixes them has a finding of its own.
        if let [width] = widths.iter().copied().collect::<Vec<_>>()[..] {
            let same = by_model.entry((engine.kind.as_str(), &engine.model)).or_default();
            same.entry(width).or_default().push(&engine.id);
        }
    }
    let mixed = by_model.into_iter().filter(|(_, widths)| widths.len() > 1);
    let finding = |((_, model), widths): ((&str, &str), BTreeMap<Width, Vec<&str>>)| {
        let parts: Vec<String> =
            widths.iter().map(|(width, engines)| format!("{} as {width}", engines.join(", "))).collect();
        let subject = if model.is_empty() { "fleet".to_owned() } else { format!("model {model}") };
        Finding::new(
            Code::HashWidthMix,
            Severity::Info,
            subject,
            format!("engines of one model write hashes in different ways: {}", parts.join("; ")),
            "nothing for kvplane, which computes its own; for other consumers start all engines alike (vLLM: VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES)",
        )
    };
    mixed.map(finding).collect()
}
