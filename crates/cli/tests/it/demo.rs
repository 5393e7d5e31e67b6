//! The tour, as it is run from a shell: what it promises at its end, and how it ends.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

fn demo(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvplane"));
    command.arg("demo").args(words).env_remove("KVPLANE_TOKEN").stdin(Stdio::null());
    command
}

/// What Ctrl-C does.
fn interrupt(tour: &Child) {
    let words = format!("kill -INT {}", tour.id());
    assert!(Command::new("sh").args(["-c", &words]).status().unwrap().success());
}

/// The summary of a tour that must go well.
fn summary(words: &[&str]) -> Value {
    let output = demo(words).args(["-o", "json"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}"));
    assert_eq!(output.status.code(), Some(0), "{said}\n{summary:#}");
    assert!(said.starts_with("dashboard  http://127.0.0.1:"), "{said}");
    summary
}

/// What has to be true of every tour that went to its end.
fn check(summary: &Value) {
    assert_eq!((&summary["complete"], &summary["failure"]), (&Value::Bool(true), &Value::Null));
    let steps: Vec<&str> =
        summary["steps"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert_eq!(steps, ["late_join", "lost_frames", "overtaken", "stolen_drain", "flush"]);
    for step in summary["steps"].as_array().unwrap() {
        assert_eq!(step["met"], true, "{step}");
        for voice in ["done", "plain", "kvplane", "checked"] {
            assert!(!step[voice].as_array().unwrap().is_empty(), "{step}");
        }
    }
    assert_eq!(summary["false_hits"], 0);
    let exact = &summary["exact"];
    assert!(exact["answers"].as_u64().unwrap() > 0 && exact["equal"] == exact["answers"], "{exact}");
    for engine in summary["engines"].as_array().unwrap() {
        // Events of it were stolen, and it cannot be flushed: what is known of it is said to be less.
        let expected = if engine["engine"] == "trtllm-0" { ["lower", "equal"] } else { ["equal"; 2] };
        assert!(expected.iter().any(|agreement| engine["agreement"] == *agreement), "{engine}");
    }
    assert_eq!(summary["engines"].as_array().unwrap().len(), 5);
    assert_eq!(summary["engines"][0]["restarts"], 1, "{}", summary["engines"][0]);
}

#[test]
fn conversations_are_found_again_where_the_plane_said() {
    let summary = summary(&["--seconds", "10"]);
    check(&summary);
    let cached = |way: &str| summary[way]["cached_tokens"].as_u64().unwrap();
    assert!(cached("routed") > cached("round_robin"), "{summary:#}");
    assert!(cached("plain") > 0 && summary["plain_false_hits"].is_u64(), "{summary:#}");
    let said = |step: usize| summary["steps"][step]["kvplane"].to_string();
    for step in [0, 1] {
        assert!(said(step).contains(" replayed"), "{}", said(step));
    }
    assert!(said(1).contains("gap repaired: "), "{}", said(1));
    assert!(said(2).contains("restart proven"), "{}", said(2));
    assert!(said(4).contains("sglang-0: timeout") && said(4).contains("vllm-0: proven"), "{}", said(4));
}

/// A trace in a file of its own, which goes with it.
struct Trace(PathBuf);

impl Trace {
    fn new(name: &str, lines: impl Iterator<Item = String>) -> Self {
        let path = std::env::temp_dir().join(format!("kvplane-demo-{name}-{}.jsonl", std::process::id()));
        fs::write(&path, lines.collect::<String>()).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn recorded(at: u64, length: usize, ids: &[u64]) -> String {
    let at = at * 100;
    format!(
        "{{\"timestamp\": {at}, \"input_length\": {length}, \"output_length\": 20, \"hash_ids\": {ids:?}}}\n"
    )
}

#[test]
fn a_trace_is_read_and_ends() {
    let line = |at: u64| {
        // Every third request goes on where the one before it ended.
        let ids: Vec<u64> = (0..=at % 3).map(|block| at / 3 * 3 + block).collect();
        recorded(at, ids.len() * 512, &ids)
    };
    let trace = Trace::new("goes-on", (0..100).map(line));
    let summary = summary(&["--seconds", "600", "--trace", trace.path()]);
    check(&summary);
    assert_eq!(summary["requests"], 100, "every line is measured");
}

#[test]
fn a_trace_of_one_short_prompt_is_no_mistake_of_the_plane() {
    let trace = Trace::new("short", (0..50).map(|at| recorded(at, 5, &[1])));
    let summary = summary(&["--seconds", "1", "--trace", trace.path()]);
    check(&summary);
    assert_eq!((&summary["requests"], &summary["routed"]["cached_tokens"]), (&50.into(), &0.into()));
}

#[test]
fn a_trace_that_measures_too_little_is_refused() {
    let trace = Trace::new("few", (0..49).map(|at| recorded(at, 5, &[1])));
    let output = demo(&["--trace", trace.path()]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("has 49 requests, and the tour needs 50"), "{said}");
}

#[test]
fn a_trace_that_is_none_is_a_mistake_of_the_caller() {
    let output = demo(&["--trace", "/does/not/exist"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let output = demo(&["--trace", env!("CARGO_MANIFEST_PATH")]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("line 1: not a request with timestamp"), "{said}");
}

#[test]
fn whoever_has_seen_enough_gets_the_summary_so_far() {
    let mut tour = demo(&["--seconds", "600", "--plain"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(tour.stdout.take().unwrap());
    loop {
        let mut line = String::new();
        assert!(lines.read_line(&mut line).unwrap() > 0, "the tour ended");
        // Load follows, for minutes.
        if line.trim_start().starts_with("checked") {
            break;
        }
    }
    interrupt(&tour);
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert_eq!(tour.wait().unwrap().code(), Some(0), "{rest}");
    assert!(rest.contains("not completed") && rest.contains("a late join"), "{rest}");
    assert!(rest.contains("vllm-0") && rest.contains("equal") && !rest.contains('\x1b'), "{rest}");
}

#[test]
fn a_plane_that_stays_shows_its_dashboard_until_it_is_ended() {
    // Nobody can press Enter, so nobody is waited for.
    let words = ["--seconds", "1", "--pause", "--stay", "-o", "json"];
    let mut tour = demo(&words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(tour.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let summary: Value = serde_json::from_str(&line).unwrap();
    check(&summary);
    let address = summary["dashboard"].as_str().unwrap();
    let address = address.strip_prefix("http://").unwrap().trim_end_matches('/');
    let mut page = TcpStream::connect(address).unwrap();
    write!(page, "GET / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    page.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("<html"), "{answer}");
    interrupt(&tour);
    assert_eq!(tour.wait().unwrap().code(), Some(0));
}
