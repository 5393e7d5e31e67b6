//! What is wrong with engines of a cluster, as far as the objects of its API and the plane's own streams tell.

use serde::Deserialize;

use crate::seen::PlaneSeen;
use crate::{Code, Finding, Severity};

/// The part of `/v1/discover` that is looked at.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Discovered {
    sources: Vec<Source>,
    pods: Vec<Pod>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Source {
    name: String,
    state: String,
    problem: Option<String>,
    pods: usize,
    engines: usize,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Pod {
    engine: String,
    verdict: String,
    reason: Option<String>,
    remarks: Vec<Remark>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Remark {
    code: String,
    text: String,
}

/// The part of `/v1/status` that is looked at.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    engines: Vec<Engine>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Engine {
    id: String,
    found: Option<serde_json::Value>,
    ranks: Vec<Rank>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Rank {
    continuity: String,
    trouble: Option<String>,
}

pub(super) fn judge(seen: &PlaneSeen) -> Vec<Finding> {
    let discovered = Discovered::deserialize(&seen.discovered).unwrap_or_default();
    let status = Status::deserialize(&seen.status).unwrap_or_default();
    let mut found: Vec<Finding> = discovered.sources.iter().filter_map(source).collect();
    found.extend(discovered.pods.iter().flat_map(pod));
    found.extend(status.engines.iter().filter_map(unreachable));
    found
}

fn source(source: &Source) -> Option<Finding> {
    let finding = |code, severity, seen: String, todo: &str| {
        Some(Finding::new(code, severity, &source.name, seen, todo))
    };
    let problem = source.problem.clone().unwrap_or_else(|| source.state.clone());
    match source.state.as_str() {
        "forbidden" => finding(
            Code::DiscoveryForbidden,
            Severity::Error,
            problem,
            "bind a Role with get, list and watch on pods (or endpointslices, inferencepools) to kvplane's service account",
        ),
        "unreachable" | "no_pool" => finding(
            Code::DiscoveryUnreachable,
            Severity::Error,
            problem,
            "is the API server there, is egress to it open, and does the pool exist in that namespace?",
        ),
        "watching" if source.pods == 0 => finding(
            Code::DiscoveryEmpty,
            Severity::Warning,
            "no pod matches".to_owned(),
            "compare the selector and the namespace with `kubectl get pods --show-labels`",
        ),
        "watching" if source.engines == 0 => finding(
            Code::DiscoveryEmpty,
            Severity::Warning,
            format!("{} pods match, and none of them is an engine", source.pods),
            "`kvplane discover` says why, pod by pod",
        ),
        _ => None,
    }
}

fn pod(pod: &Pod) -> Vec<Finding> {
    let subject = pod.engine.as_str();
    let mut found = Vec::new();
    if matches!(pod.verdict.as_str(), "waiting" | "not_added") {
        let seen = format!("{}: {}", pod.verdict, pod.reason.as_deref().unwrap_or("no reason given"));
        let todo = format!("`kvplane discover explain {subject}` shows every rule");
        found.push(Finding::new(Code::PodNotFollowed, Severity::Warning, subject, seen, todo));
    }
    found.extend(pod.remarks.iter().map(|remark| {
        let (code, severity) = match remark.code.as_str() {
            "events_off" => (Code::EventsDisabled, Severity::Error),
            "loopback" => (Code::EndpointUnreachable, Severity::Error),
            "no_replay" => (Code::ReplayAbsent, Severity::Warning),
            "port_undeclared" => (Code::PortUndeclared, Severity::Info),
            "ports" => (Code::ReplayOnNextRanksPort, Severity::Warning),
            "model" => (Code::ModelUnknown, Severity::Warning),
            _ => (Code::PodAnnotation, Severity::Warning),
        };
        // The text says what is wrong, then what to do.
        let (seen, todo) = remark
            .text
            .rsplit_once(": ")
            .or_else(|| remark.text.rsplit_once("; "))
            .unwrap_or((&remark.text, "correct the pod"));
        Finding::new(code, severity, subject, seen, todo)
    }));
    found
}

/// A pod that is there and that no connection reaches: the API does not say why, and a policy is the usual reason.
fn unreachable(engine: &Engine) -> Option<Finding> {
    let away = |rank: &Rank| {
        rank.continuity != "live"
            && rank.trouble.as_deref().is_some_and(|trouble| trouble.contains("unreach"))
    };
    let all = engine.found.is_some() && !engine.ranks.is_empty() && engine.ranks.iter().all(away);
    all.then(|| {
        Finding::new(
            Code::NetworkPolicySuspected,
            Severity::Warning,
            &engine.id,
            "the pod is there, and none of its event ports can be reached",
            "does a NetworkPolicy of the pod admit kvplane's pods to its kv-events and kv-replay ports, and is egress open here?",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn codes(discovered: Value, status: Value) -> Vec<&'static str> {
        let seen = PlaneSeen { status, discovered, ..PlaneSeen::default() };
        judge(&seen).iter().map(|finding| finding.code.as_str()).collect()
    }

    #[test]
    fn sources_that_see_nothing_are_named() {
        let of = |state: &str, pods: usize, engines: usize| {
            let source =
                json!({"name": "s", "state": state, "problem": null, "pods": pods, "engines": engines});
            codes(json!({"sources": [source]}), json!({}))
        };
        assert_eq!(of("forbidden", 3, 3), ["discovery_forbidden"]);
        assert_eq!(of("unreachable", 3, 3), ["discovery_unreachable"]);
        assert_eq!(of("no_pool", 0, 0), ["discovery_unreachable"]);
        assert_eq!(of("watching", 0, 0), ["discovery_empty"]);
        assert_eq!(of("watching", 2, 0), ["discovery_empty"]);
        assert!(of("watching", 2, 2).is_empty() && of("starting", 0, 0).is_empty());
        assert!(codes(Value::Null, Value::Null).is_empty());
    }

    #[test]
    fn remarks_about_pods_are_findings() {
        let remark = |code: &str| json!({"code": code, "text": "what is wrong: what to do"});
        let words =
            ["events_off", "loopback", "no_replay", "port_undeclared", "ports", "model", "annotation"];
        let pod =
            json!({"engine": "ns/a", "verdict": "waiting", "reason": "r", "remarks": words.map(remark)});
        let found = codes(json!({"pods": [pod]}), json!({}));
        let expected = [
            "pod_not_followed",
            "events_disabled",
            "endpoint_unreachable",
            "replay_absent",
            "port_undeclared",
            "replay_on_next_ranks_port",
            "model_unknown",
            "pod_annotation",
        ];
        assert_eq!(found, expected);
        let seen = PlaneSeen { discovered: json!({"pods": [pod]}), ..PlaneSeen::default() };
        let finding = &judge(&seen)[1];
        assert_eq!((finding.seen.as_str(), finding.todo.as_str()), ("what is wrong", "what to do"));
    }

    #[test]
    fn a_pod_that_nothing_reaches_may_be_behind_a_policy() {
        let engine = |found: Value, continuity: &str| {
            let rank = json!({"continuity": continuity, "trouble": "unreached"});
            json!({"engines": [{"id": "ns/a", "found": found, "ranks": [rank]}]})
        };
        assert_eq!(codes(json!({}), engine(json!({}), "down")), ["network_policy_suspected"]);
        assert!(codes(json!({}), engine(Value::Null, "down")).is_empty());
        assert!(codes(json!({}), engine(json!({}), "live")).is_empty());
    }
}
