//! `kvplane discover`: where engines are found, what became of every pod, and by which rule.

use anyhow::anyhow;
use http::Method;
use serde_json::Value;

use super::Failure;
use super::engines::escaped;
use super::http_client::ask;
use super::page::{aligned, print};
use crate::args::{DiscoverArgs, DiscoverCommand, Output};

pub(crate) async fn run(args: DiscoverArgs) -> Result<(), Failure> {
    let server = &args.server;
    let pod = match &args.command {
        Some(DiscoverCommand::Explain { pod }) => Some(pod),
        None | Some(DiscoverCommand::List) => None,
    };
    let path =
        pod.map_or_else(|| "/v1/discover".to_owned(), |pod| format!("/v1/discover?pod={}", escaped(pod)));
    let answer = ask(&server.server, &server.key, Method::GET, &path, None).await?;
    let found = answer["pods"].as_array().is_some_and(|pods| !pods.is_empty());
    if let Some(pod) = pod.filter(|_| !found) {
        let error = anyhow!(
            "no source has a pod {pod}: `kvplane discover` lists those that match; does its namespace, and do its labels?"
        );
        return Err(error.into());
    }
    match (args.output, pod) {
        (Output::Json, _) => print(&format!("{answer}\n")),
        (Output::Text, Some(_)) => print(&explained(&answer)),
        (Output::Text, None) => print(&listed(&answer)),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Sources, then pods, with the first thing that is wrong.
fn listed(answer: &Value) -> String {
    let mut rows = vec![["SOURCE", "STATE", "PODS", "ENGINES", "PROBLEM"].map(str::to_owned)];
    for source in array(&answer["sources"]) {
        rows.push(["name", "state", "pods", "engines", "problem"].map(|key| text(&source[key])));
    }
    if rows.len() == 1 {
        return "no source: engines are listed, or register themselves; [[discover]] finds them in a cluster\n".to_owned();
    }
    let mut page = aligned(&rows);
    let mut rows = vec![["ENGINE", "VERDICT", "REASON OR REMARK"].map(str::to_owned)];
    for pod in array(&answer["pods"]) {
        let remark = array(&pod["remarks"]).next().map_or(&Value::Null, |remark| &remark["text"]);
        let why = if pod["reason"].is_null() { remark } else { &pod["reason"] };
        rows.push([text(&pod["engine"]), text(&pod["verdict"]), text(why)]);
    }
    if rows.len() > 1 {
        page.push('\n');
        page.push_str(&aligned(&rows));
    }
    page
}

/// Everything about one pod.
fn explained(answer: &Value) -> String {
    let mut page = String::new();
    for pod in array(&answer["pods"]) {
        let mut head = vec![["engine".to_owned(), text(&pod["engine"])]];
        head.push(["verdict".to_owned(), text(&pod["verdict"])]);
        if !pod["reason"].is_null() {
            head.push(["reason".to_owned(), text(&pod["reason"])]);
        }
        head.extend(
            array(&pod["pods"])
                .map(|one| ["pod".to_owned(), format!("{} (uid {})", text(&one["pod"]), text(&one["uid"]))]),
        );
        head.extend(array(&pod["remarks"]).map(|remark| ["remark".to_owned(), text(&remark["text"])]));
        page.push_str(&aligned(&head));
        let mut rows = vec![["KEY", "VALUE", "DECIDED BY"].map(str::to_owned)];
        rows.extend(array(&pod["decided"]).map(|one| ["key", "value", "rule"].map(|key| text(&one[key]))));
        if rows.len() > 1 {
            page.push('\n');
            page.push_str(&aligned(&rows));
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer() -> Value {
        let decided = json!([{"key": "events", "value": "5557", "rule": "container port kv-events"}]);
        let remarks = json!([{"code": "no_replay", "text": "no replay"}]);
        json!({
            "sources": [{"name": "discover[0] ns: app=vllm", "state": "forbidden", "pods": 2, "engines": 1, "problem": "no rights"}],
            "pods": [
                {"engine": "ns/vllm-0", "verdict": "engine", "reason": null, "pods": [{"pod": "ns/vllm-0", "uid": "u"}], "decided": decided, "remarks": remarks},
                {"engine": "ns/web", "verdict": "none", "reason": "no engine by annotation kvplane.io/ignore", "pods": [], "decided": [], "remarks": []},
            ],
        })
    }

    #[test]
    fn the_list_says_how_sources_are_and_what_is_wrong() {
        let page = listed(&answer());
        let lines: Vec<&str> = page.lines().collect();
        assert_eq!(lines[1], "discover[0] ns: app=vllm  forbidden  2     1        no rights");
        assert_eq!(lines[4], "ns/vllm-0  engine   no replay");
        assert_eq!(lines[5], "ns/web     none     no engine by annotation kvplane.io/ignore");
        assert!(listed(&json!({"sources": [], "pods": []})).starts_with("no source"));
    }

    #[test]
    fn an_explanation_has_every_key_and_its_rule() {
        let page = explained(&answer());
        assert!(page.contains("pod      ns/vllm-0 (uid u)"), "{page}");
        assert!(page.contains("remark   no replay"), "{page}");
        assert!(page.contains("events  5557   container port kv-events"), "{page}");
    }
}
