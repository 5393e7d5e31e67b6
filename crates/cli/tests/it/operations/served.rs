//! The same commands against a real plane, over simulated engines.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use kvplane_client::{Client, Options};
use kvplane_proto::kvplane::v1::StatusRequest;
use kvplane_sim::{CompletionOptions, SimConfig, SimEngine, SimHandle};
use kvplane_wire::Profile;
use serde_json::Value;

use crate::operations::{code, err, kvplane, out};

/// Far beyond anything that should take: only a hang reaches it.
const PATIENCE: Duration = Duration::from_mins(1);

/// An engine that holds a prompt.
fn engine(profile: Profile, model: &str) -> SimHandle {
    let (http, model) = (Some(([127, 0, 0, 1], 0).into()), model.to_owned());
    let engine = SimEngine::start(SimConfig { profile, model, http, ..SimConfig::default() }).unwrap();
    let prompt: Vec<u32> = (0..64).collect();
    engine.complete(&prompt, 1, &CompletionOptions::default()).unwrap();
    engine
}

/// `kvplane serve` over engines, which are called `e0`, `e1`, …
struct Served {
    process: Child,
    url: String,
    log: BufReader<std::process::ChildStderr>,
}

impl Served {
    async fn start(engines: &[&SimHandle]) -> Self {
        let mut command =
            kvplane(&["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--log-format", "json"]);
        for (number, engine) in engines.iter().enumerate() {
            let kind = engine.config().profile.engine();
            let (events, replay) =
                (&engine.event_endpoints()[0], engine.replay_endpoints()[0].clone().unwrap());
            let (http, model) = (engine.http_address().unwrap(), &engine.config().model);
            command.args([
                "--engine",
                &format!("{kind}={events},replay={replay},id=e{number},model={model},http=http://{http}"),
            ]);
        }
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(process.stderr.take().unwrap());
        let mut served = Self { process, url: String::new(), log };
        let serving = served.logged("serving");
        served.url = format!("http://{}", serving["grpc"].as_str().unwrap());
        served.until_held(engines.len()).await;
        served
    }

    /// The next line of the log that says this.
    fn logged(&mut self, message: &str) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.log.read_line(&mut line).unwrap() > 0, "the log ends without {message:?}");
            let line: Value = serde_json::from_str(&line).unwrap();
            if line["message"] == message {
                return line;
            }
        }
    }

    /// Waits until every engine is known to hold something.
    async fn until_held(&self, engines: usize) {
        let mut calls = Client::connect(&self.url, Options::default()).await.unwrap().calls();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = calls.status(StatusRequest::default()).await.unwrap().into_inner();
            let ranks = status.engines.iter().flat_map(|engine| &engine.ranks);
            if ranks.filter(|rank| rank.blocks.get("device").is_some_and(|&blocks| blocks > 0)).count()
                == engines
            {
                return;
            }
            assert!(Instant::now() < deadline, "{status:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Runs a command against it: its exit code, and the JSON that it prints.
    fn json(&self, words: &[&str]) -> (i32, Value) {
        let output = kvplane(words).args(["-o", "json", "--plane", &self.url]).output().unwrap();
        let document = serde_json::from_str(&out(&output));
        (code(&output), document.unwrap_or_else(|_| panic!("{}{}", out(&output), err(&output))))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn verdicts(document: &Value) -> Vec<(String, String)> {
    let ranks = document["ranks"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    ranks.map(|rank| (text(&rank["engine"]), text(&rank["verdict"]))).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|&(engine, verdict)| (engine.to_owned(), verdict.to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_is_proven_by_the_streams() {
    let (sglang, vllm) = (engine(Profile::Sglang0_5_22, "a"), engine(Profile::Vllm0_32, "b"));
    let mut served = Served::start(&[&sglang, &vllm]).await;
    let (code, document) = served.json(&["flush", "--all", "--nudge"]);
    assert_eq!(verdicts(&document), pairs(&[("e0", "proven"), ("e1", "proven")]), "{document}");
    assert_eq!((code, &document["summary"]["outcome"]), (0, &Value::from("all")));
    assert_eq!(document["ranks"][0]["tiers_cleared"], serde_json::json!(["device"]), "{document}");
    let audit = served.logged("operation");
    assert_eq!(audit["operation"], document["operation"], "{audit}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_stream_does_not_show_is_not_proven() {
    let (sglang, vllm) = (engine(Profile::Sglang0_5_22, "a"), engine(Profile::Vllm0_32, "b"));
    let served = Served::start(&[&sglang, &vllm]).await;
    // An idle vLLM publishes nothing.
    let (code, document) = served.json(&["flush", "--all", "--proof-timeout", "500ms"]);
    assert_eq!(verdicts(&document), pairs(&[("e0", "proven"), ("e1", "timeout")]), "{document}");
    assert_eq!((code, &document["ranks"][1]["may_still_complete"]), (3, &Value::Bool(true)));
    // A busy one refuses.
    let prompt: Vec<u32> = (0..64).collect();
    let running = vllm.begin(&prompt, 1, &CompletionOptions::default()).unwrap();
    let (code, document) = served.json(&["flush", "--kind", "vllm"]);
    assert_eq!(verdicts(&document), pairs(&[("e1", "refused")]), "{document}");
    assert_eq!(code, 1);
    drop(running);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_are_selected_and_asked_about_themselves() {
    let (sglang, vllm) = (engine(Profile::Sglang0_5_22, "a"), engine(Profile::Vllm0_32, "b"));
    let served = Served::start(&[&sglang, &vllm]).await;
    let (code, document) = served.json(&["flush", "--dry-run"]);
    assert_eq!(code, 0);
    assert_eq!(document["ranks"][0]["call"], "POST /flush_cache", "{document}");
    for words in [["--engine", "e0"], ["--model", "a"], ["--kind", "sglang"]] {
        let (code, document) = served.json(&[&["health"][..], &words].concat());
        assert_eq!((code, verdicts(&document)), (0, pairs(&[("e0", "done")])), "{document}");
    }
    for verb in ["info", "loads"] {
        let (code, document) = served.json(&[verb]);
        assert_eq!((code, verdicts(&document)), (0, pairs(&[("e0", "done"), ("e1", "done")])), "{document}");
        assert!(
            document["ranks"][0]["detail"].is_object() || document["ranks"][0]["detail"].is_array(),
            "{document}"
        );
    }
    for wrong in [["--engine", "nobody"], ["--model", "nobody"], ["--kind", "nobody"]] {
        let output = kvplane(&["flush", "--plane", &served.url]).args(wrong).output().unwrap();
        assert_eq!(crate::operations::code(&output), 2, "{wrong:?}");
        assert!(err(&output).contains("nobody"), "{}", err(&output));
    }
}
