//! What an engine says of itself, held against what is configured.

use kvplane_discovery::Refusal;

use super::reach::is_published;
use super::versions;
use crate::heard::shown;
use crate::seen::{EngineSeen, Way};
use crate::{Code, Finding, Severity};

/// Whether the engine says that it announces nothing.
pub(super) fn publishes_nothing(seen: &EngineSeen) -> bool {
    matches!(seen.said.sources, Some(Err(Refusal::Disabled))) || seen.said.prefix_caching == Some(false)
}

/// What is wrong by the engine's own word.
pub(super) fn judge(seen: &EngineSeen) -> Vec<Finding> {
    let mut found: Vec<Finding> = versions::judge(seen);
    found.extend(unreachable(seen));
    found.extend(sources(seen));
    found.extend(ranks(seen));
    found.extend(model(seen));
    if seen.said.prefix_caching == Some(false) {
        found.push(Finding::new(
            Code::PrefixCachingOff,
            Severity::Error,
            &seen.id,
            "the engine says that it does not reuse prefixes",
            "start it without --no-enable-prefix-caching (vLLM) or --disable-radix-cache (SGLang)",
        ));
    }
    found
}

/// The HTTP server is no part of the way of events, unless the engine is asked there.
fn unreachable(seen: &EngineSeen) -> Option<Finding> {
    let (why, http) = seen.said.unreachable.as_ref().zip(seen.http.as_ref())?;
    let severity = if seen.way == Way::Published { Severity::Warning } else { Severity::Error };
    Some(Finding::new(
        Code::EndpointUnreachable,
        severity,
        &seen.id,
        format!("its HTTP server {http}: {why}"),
        "start the engine, or correct `http`; without it kvplane learns neither start time nor capacity, and cannot operate the engine",
    ))
}

fn sources(seen: &EngineSeen) -> Option<Finding> {
    let refusal = seen.said.sources.as_ref()?.as_ref().err()?;
    let (code, todo) = match refusal {
        Refusal::Disabled => (
            Code::EventsDisabled,
            "start it with --kv-events-config: {\"enable_kv_cache_events\": true, \"publisher\": \"zmq\"} (vLLM), {\"publisher\": \"zmq\"} (SGLang)",
        ),
        // Already said of its HTTP server.
        Refusal::Silent(_) if seen.said.unreachable.is_some() => return None,
        // Only who is asked where it publishes has to be able to say so.
        _ if seen.way != Way::Discovered => return None,
        _ => (
            Code::SourcesUntold,
            "configure `events` and `replay`; vLLM can be asked from 0.31 on, SGLang from 0.5.13 on",
        ),
    };
    Some(Finding::new(code, Severity::Error, &seen.id, refusal.to_string(), todo))
}

/// Ranks that the engine has and nobody listens to, and complaints about those that it names.
fn ranks(seen: &EngineSeen) -> Vec<Finding> {
    let Some(word) = seen.word().filter(|_| is_published(seen)) else { return Vec::new() };
    let mut found = Vec::new();
    let listened = |rank: u32| seen.ranks.iter().any(|listened| listened.rank == rank);
    let unheard: Vec<String> =
        word.says.iter().filter(|said| !listened(said.rank)).map(|said| said.rank.to_string()).collect();
    if !unheard.is_empty() {
        found.push(Finding::new(
            Code::RankMissing,
            Severity::Error,
            &seen.id,
            format!(
                "the engine has {} ranks, {} are configured; nobody listens to rank {}",
                word.says.len(),
                seen.ranks.len(),
                unheard.join(", ")
            ),
            format!("set ranks = {}, or leave it out and say discover = true", word.says.len()),
        ));
    }
    found.extend(word.complaints.iter().map(|complaint| {
        Finding::new(
            Code::RankMissing,
            Severity::Error,
            &seen.id,
            complaint.clone(),
            "correct `ranks`, or configure `events`",
        )
    }));
    found
}

fn model(seen: &EngineSeen) -> Option<Finding> {
    let models = seen.said.models.as_ref().filter(|models| !models.is_empty())?;
    if seen.model.is_empty() {
        return Some(Finding::new(
            Code::ModelUnknown,
            Severity::Warning,
            &seen.id,
            format!("no model is configured; the engine serves {}", shown(&models[0])),
            format!("set model = {}", shown(&models[0])),
        ));
    }
    (!models.contains(&seen.model)).then(|| {
        let all: Vec<String> = models.iter().take(4).map(|model| shown(model)).collect();
        Finding::new(
            Code::ModelUnknown,
            Severity::Warning,
            &seen.id,
            format!("model is configured as {}; the engine serves {}", shown(&seen.model), all.join(", ")),
            "configure the name that gateways ask for; if that is the configured one on purpose, all is well",
        )
    })
}
