//! Engines that do not go together.

use std::collections::{BTreeMap, BTreeSet};

use kvplane_ingest::Events;

use super::setup::short_of_descriptors;
use crate::place::same_server;
use crate::seen::{EngineSeen, Peer, RankSeen, Way};
use crate::{Code, Finding, Severity, Width};

/// What is wrong between engines.
pub(super) fn judge(seen: &[EngineSeen]) -> Vec<Finding> {
    let mut found = shared_drains(seen);
    found.extend(shared_publishers(seen));
    found.extend(unseen(seen));
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

/// Two engines of the configuration that connect to one publisher, and take the same messages from it.
fn shared_publishers(seen: &[EngineSeen]) -> Vec<Finding> {
    let connects = |engine: &EngineSeen| -> BTreeSet<String> {
        let addresses = engine.ranks.iter().filter_map(|rank| match &rank.events {
            Events::Connect(address) if engine.way == Way::Published => Some(same_server(address)),
            _ => None,
        });
        addresses.collect()
    };
    let all: Vec<_> = seen.iter().map(|engine| (engine, connects(engine))).collect();
    let mut found = Vec::new();
    for (at, (one, addresses)) in all.iter().enumerate() {
        for (other, others) in &all[..at] {
            // A topic is a beginning: what one takes under a longer one, the other takes too.
            let takes_same = one.topic.starts_with(&other.topic) || other.topic.starts_with(&one.topic);
            if let Some(address) = addresses.intersection(others).next().filter(|_| takes_same) {
                found.push(Finding::new(
                    Code::SharedAddress,
                    Severity::Error,
                    format!("{}, {}", other.id, one.id),
                    format!("both have their events from {address}"),
                    "correct the address of one, or remove it; if several engines publish there, give each its `topic`",
                ));
            }
        }
    }
    found
}

/// Addresses that nobody could look at.
fn unseen(seen: &[EngineSeen]) -> Option<Finding> {
    let short = |engine: &&EngineSeen| {
        let ranks = engine.ranks.iter().flat_map(RankSeen::peers);
        ranks.chain(engine.server.iter().map(|(_, peer)| peer)).any(|peer| *peer == Peer::NoDescriptors)
    };
    let count = seen.iter().filter(short).count();
    (count > 0).then(|| {
        short_of_descriptors(format!("{count} engines could not be looked at: too many files are open"))
    })
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
