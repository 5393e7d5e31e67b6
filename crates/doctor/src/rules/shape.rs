//! Whether what is heard is what kvplane can make sense of.

use std::collections::{BTreeMap, BTreeSet};

use super::both;
use crate::seen::{EngineSeen, RankSeen};
use crate::{Code, Finding, Severity, Width};

/// A lag that nobody would take for a delay on the way.
const SKEW_WARNING: f64 = 2.0;
/// Beyond this a clock is not set at all.
const SKEW_ERROR: f64 = 60.0;

/// What is wrong with the frames of a rank.
pub(super) fn judge(seen: &EngineSeen, rank: &RankSeen) -> Vec<Finding> {
    let subject = seen.stream(rank.rank);
    let rules = [block_size, foreign_batches, clock, widths, unread];
    rules.iter().filter_map(|rule| rule(seen, rank, &subject)).collect()
}

/// Configured, said, and heard: all three have to agree.
fn block_size(seen: &EngineSeen, rank: &RankSeen, subject: &str) -> Option<Finding> {
    let heard: BTreeSet<u32> = both(rank).flat_map(|heard| &heard.block_sizes).copied().collect();
    let said = seen.said.block_size.or_else(|| seen.word()?.block_size);
    let numbers = || {
        let all: Vec<String> = heard.iter().map(u32::to_string).collect();
        all.join(" and ")
    };
    let (severity, what) = match (seen.block_size, said) {
        // Groups of a cache may have sizes of their own: one that fits is enough.
        (Some(wanted), _) if !heard.is_empty() && !heard.contains(&wanted) => {
            (Severity::Error, format!("block_size is configured as {wanted}; the events have {}", numbers()))
        }
        (Some(wanted), Some(said)) if heard.is_empty() && wanted != said => {
            (Severity::Error, format!("block_size is configured as {wanted}; the engine says {said}"))
        }
        (None, Some(said)) if !heard.is_empty() && !heard.contains(&said) => (
            Severity::Warning,
            format!("the engine says {said} tokens per block; its events have {}", numbers()),
        ),
        _ => return None,
    };
    let todo = "leave block_size out: kvplane learns it from the events; and let gateways use the size of the events";
    Some(Finding::new(Code::BlockSizeContradiction, severity, subject, what, todo))
}

fn foreign_batches(seen: &EngineSeen, rank: &RankSeen, subject: &str) -> Option<Finding> {
    let other = rank.live.ranks.iter().find(|other| **other != i64::from(rank.rank))?;
    let is_alone = seen.ranks.len() == 1 && rank.live.ranks.len() == 1;
    let what = format!("{} publishes batches of rank {other}", rank.events.address());
    Some(foreign_rank(is_alone, subject, what))
}

/// The finding about batches that name another rank than their stream's. kvplane applies them, and counts
/// them. An engine of one rank may be a rank of a larger one: with external data parallelism each has a
/// process, and is configured, by itself.
pub(super) fn foreign_rank(is_alone: bool, subject: &str, seen: String) -> Finding {
    let (severity, todo) = if is_alone {
        (
            Severity::Info,
            "nothing, if each rank of the engine is a process of its own that is configured as an engine of its own: kvplane records its batches all the same; otherwise rank r publishes at the port of `events` + r: configure the port of rank 0",
        )
    } else {
        (
            Severity::Error,
            "rank r publishes at the port of `events` + r: configure the port of rank 0, and as many ranks as there are",
        )
    };
    Finding::new(Code::RankMissing, severity, subject, seen, todo)
}

fn clock(_: &EngineSeen, rank: &RankSeen, subject: &str) -> Option<Finding> {
    let skew = both(rank).find_map(|heard| heard.skew).filter(|skew| skew.abs() >= SKEW_WARNING)?;
    let what = if skew < 0.0 {
        format!("the engine's clock is {:.1} s ahead of this machine's", -skew)
    } else {
        format!("the engine's clock is {skew:.1} s behind this machine's, or its events come that late")
    };
    let severity = if skew.abs() >= SKEW_ERROR { Severity::Error } else { Severity::Warning };
    Some(Finding::new(Code::ClockSkew, severity, subject, what, "synchronise both machines' clocks (NTP)"))
}

fn widths(_: &EngineSeen, rank: &RankSeen, subject: &str) -> Option<Finding> {
    let widths: BTreeSet<Width> = both(rank).flat_map(|heard| &heard.widths).copied().collect();
    (widths.len() > 1).then(|| {
        let all: Vec<String> = widths.iter().map(Width::to_string).collect();
        Finding::new(
            Code::HashWidthMix,
            Severity::Warning,
            subject,
            format!("one stream has hashes as {}", all.join(" and as ")),
            "kvplane joins them by their last 64 bits; for other consumers use a vLLM from 0.24 on, whose tiers agree",
        )
    })
}

fn unread(_: &EngineSeen, rank: &RankSeen, subject: &str) -> Option<Finding> {
    let mut all: BTreeMap<&str, u64> = BTreeMap::new();
    for (what, count) in both(rank).flat_map(|heard| &heard.unread) {
        *all.entry(what).or_default() += count;
    }
    (!all.is_empty()).then(|| {
        let all: Vec<String> = all.iter().map(|(what, count)| format!("{what} ({count})")).collect();
        Finding::new(
            Code::UnsupportedLayout,
            Severity::Error,
            subject,
            format!("cannot be read: {}", all.join(", ")),
            "see which releases are known in docs/reference/engines.md; a newer kvplane may know this one",
        )
    })
}
