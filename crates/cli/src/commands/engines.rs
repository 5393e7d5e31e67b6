//! `kvplane engines`: which engines a running kvplane has, and changing that.

use anyhow::{Context as _, anyhow};
use http::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::http_client::ask;
use super::page::{aligned, print};
use super::{Failure, usage};
use crate::args::{EnginesArgs, EnginesCommand, Output};
use crate::config::engine_flag;

pub(crate) async fn run(args: EnginesArgs) -> Result<(), Failure> {
    let server = &args.server;
    let json = args.output == Output::Json;
    match args.command {
        None | Some(EnginesCommand::List) => {
            let answer = ask(&server.server, &server.key, Method::GET, "/v1/engines", None).await?;
            print(&if json { format!("{answer}\n") } else { table(&answer) })
        }
        Some(EnginesCommand::Add { id, engine }) => {
            let described = describe(&id, &engine).map_err(usage)?;
            let answer =
                ask(&server.server, &server.key, Method::POST, "/v1/engines", Some(&described)).await?;
            print(&if json { format!("{answer}\n") } else { format!("added {id}\n") })
        }
        Some(EnginesCommand::Remove { id }) => {
            let path = format!("/v1/engines/{}", escaped(&id));
            ask(&server.server, &server.key, Method::DELETE, &path, None).await?;
            print(&if json {
                format!("{}\n", serde_json::json!({"removed": id}))
            } else {
                format!("removed {id}\n")
            })
        }
    }
}

/// The engine as the plane takes it, from what `serve --engine` takes.
fn describe(id: &str, flag: &str) -> anyhow::Result<Value> {
    let mut engine = engine_flag(flag).with_context(|| format!("--engine {flag}"))?;
    if engine.get("id").is_some_and(|given| given.as_str() != Some(id)) {
        return Err(anyhow!("--engine {flag}: has another id than {id}: leave id out of it"));
    }
    engine.insert("id".to_owned(), toml::Value::String(id.to_owned()));
    serde_json::to_value(engine).context("cannot describe the engine")
}

/// All that a segment of a path may not have as it is (RFC 3986, "unreserved").
const RESERVED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A segment of a path.
pub(super) fn escaped(id: &str) -> String {
    utf8_percent_encode(id, &RESERVED).to_string()
}

/// One line per rank: an engine may have several, each with addresses of its own.
fn table(answer: &Value) -> String {
    let text = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut rows =
        vec![["ENGINE", "KIND", "MODEL", "RANK", "EVENTS", "REPLAY", "ADDED BY"].map(str::to_owned)];
    for engine in answer["engines"].as_array().into_iter().flatten() {
        // Another plane has no ranks itself: its engines have lines of their own.
        let other_plane = serde_json::json!([{ "events": engine["grpc"] }]);
        let ranks = engine["ranks"].as_array().filter(|ranks| !ranks.is_empty());
        for rank in ranks.or_else(|| other_plane.as_array()).into_iter().flatten() {
            rows.push([
                text(&engine["id"]),
                text(&engine["kind"]),
                text(&engine["model"]),
                text(&rank["rank"]),
                text(&rank["events"]),
                text(&rank["replay"]),
                text(&engine["added_by"]),
            ]);
        }
    }
    aligned(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_described_as_for_serve() {
        let described = describe("a", "vllm=tcp://h:1,replay=tcp://h:2,ranks=2,model=7").unwrap();
        let expected = serde_json::json!({
            "id": "a", "kind": "vllm", "events": "tcp://h:1", "replay": "tcp://h:2", "ranks": 2, "model": "7"
        });
        assert_eq!(described, expected);
        let link = serde_json::json!({"id": "a", "kind": "kvplane", "grpc": "http://h:1"});
        assert_eq!(describe("a", "kvplane=http://h:1").unwrap(), link);
        assert!(describe("a", "vllm=tcp://h:1,id=b").is_err());
        assert!(describe("a", "vllm").is_err());
        assert_eq!(escaped("a/b c"), "a%2Fb%20c");
    }

    #[test]
    fn the_table_has_a_line_for_every_rank() {
        let rank = |rank| serde_json::json!({"rank": rank, "events": "tcp://h:1", "replay": null});
        let engine = serde_json::json!({
            "id": "a", "kind": "vllm", "model": "", "ranks": [rank(0), rank(3)], "added_by": "api"
        });
        let page = table(&serde_json::json!({"engines": [engine]}));
        let lines: Vec<&str> = page.lines().collect();
        assert_eq!(lines[0], "ENGINE  KIND  MODEL  RANK  EVENTS     REPLAY  ADDED BY");
        assert_eq!(lines[2], "a       vllm  -      3     tcp://h:1  -       api");
        let hostile = serde_json::json!({
            "id": "a", "kind": "vllm", "model": "\u{1b}]0;owned\u{7}", "ranks": [rank(0)], "added_by": "api"
        });
        let page = table(&serde_json::json!({"engines": [hostile]}));
        assert!(page.contains("\\u001b]0;owned\\u0007") && !page.contains('\u{1b}'), "{page:?}");
        let link = serde_json::json!({"id": "b", "kind": "kvplane", "ranks": [], "grpc": "http://h:1", "added_by": "api"});
        let page = table(&serde_json::json!({"engines": [link]}));
        assert_eq!(page.lines().last(), Some("b       kvplane  -      -     http://h:1  -       api"));
    }
}
