//! Engines' own load, while somebody picks: from `GetLoads` where they have a gRPC server, and otherwise from
//! their `/metrics` (`TokenSpeed`: `/v1/loads`).
//!
//! A report counts for three rounds. Afterwards the engine is judged by bookings alone, and answers say so
//! (`load`: `stale`).

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use kvplane_core::{EngineKind, StreamId};
use kvplane_ingest::{Engine, Plane, Source, samples};
use kvplane_ops::{Backend, GrpcServer, Limits, Meaning, Verb};
use kvplane_route::Load;
use kvplane_transport::{HttpClient, HttpQuestion, Sent};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Routing;
use crate::parity::authorization;

/// How often engines are asked, and how much longer a round is for each of many.
const EVERY: Duration = Duration::from_secs(1);
const PER_ENGINE: Duration = Duration::from_millis(10);
/// Engines that are asked at the same time.
const AT_ONCE: usize = 16;
/// A page of metrics is some hundred kilobytes.
const MAX_BYTES: usize = 2 << 20;
/// How long an engine may take to answer.
const DEADLINE: Duration = Duration::from_secs(2);
/// Nobody asks engines of a plane that nobody asks.
const IDLE: f64 = 30.0;
/// Ranks of an engine: more are not read.
const MAX_RANKS: u32 = 1_024;

/// How questions for loads ended.
#[derive(Debug, Default)]
pub(super) struct Polls {
    outcomes: [AtomicU64; Outcome::ALL.len()],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Read,
    NoAnswer,
    NoLoads,
}

impl Outcome {
    const ALL: [(Self, &str); 3] =
        [(Self::Read, "read"), (Self::NoAnswer, "no_answer"), (Self::NoLoads, "no_loads")];
}

impl Polls {
    fn count(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn outcomes(&self) -> Vec<(&'static str, u64)> {
        let read =
            |(outcome, name): (Outcome, _)| (name, self.outcomes[outcome as usize].load(Ordering::Relaxed));
        Outcome::ALL.into_iter().map(read).collect()
    }
}

/// Reads loads until `stop`.
pub(crate) async fn poll(plane: Arc<Plane>, routing: Arc<Routing>, stop: CancellationToken) {
    let client = HttpClient::new();
    let mut failing: HashSet<String> = HashSet::new();
    while stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
        if !routing.is_busy(IDLE) {
            continue;
        }
        let engines: Vec<Arc<Engine>> =
            plane.engines().iter().filter(|engine| tells_loads(engine)).cloned().collect();
        let round = EVERY.max(PER_ENGINE * engines.len() as u32);
        let valid = 3.0 * round.as_secs_f64() + DEADLINE.as_secs_f64();
        failing.retain(|name| engines.iter().any(|engine| engine.spec.id.as_str() == name));
        let asked = engines.iter().map(|engine| ask_one(client.clone(), engine.clone()));
        let asked = futures::stream::iter(asked.collect::<Vec<_>>());
        let mut answers = asked.buffer_unordered(AT_ONCE);
        let read = async {
            while let Some((engine, answer)) = answers.next().await {
                take(&routing, &mut failing, &engine, answer, valid);
            }
        };
        if stop.run_until_cancelled(read).await.is_none() {
            return;
        }
        stop.run_until_cancelled(tokio::time::sleep(round.saturating_sub(EVERY))).await;
    }
}

/// Whether an engine can be asked how busy it is.
fn tells_loads(engine: &Engine) -> bool {
    let own = !matches!(engine.spec.source, Source::Mirrored(_) | Source::Linked(_));
    own && (service(engine).is_some() || has_page(engine))
}

/// Whether its metrics say it. Reading those of TensorRT-LLM empties them.
fn has_page(engine: &Engine) -> bool {
    engine.spec.http.is_some() && matches!(engine.spec.kind, EngineKind::Vllm | EngineKind::Sglang)
}

/// The server that is asked for loads by the contract of SMG's services. TensorRT-LLM's has none.
fn service(engine: &Engine) -> Option<Backend> {
    let kind = engine.spec.kind;
    if kind == EngineKind::Trtllm {
        return None;
    }
    let grpc = engine.spec.control.grpc.as_ref();
    let grpc = grpc.map(|grpc| GrpcServer { url: grpc.url.clone(), ca: grpc.ca.clone() });
    // Over HTTP only TokenSpeed has nothing better.
    let http = engine.spec.http.clone().filter(|_| kind == EngineKind::Tokenspeed && grpc.is_none());
    if grpc.is_none() && http.is_none() {
        return None;
    }
    Some(Backend { kind, http, grpc, version: None, authorization: authorization(engine) })
}

type Answer = Result<BTreeMap<u32, Load>, Outcome>;

async fn ask_one(client: HttpClient, engine: Arc<Engine>) -> (Arc<Engine>, Answer) {
    let answer = ask(&client, &engine).await;
    (engine, answer)
}

async fn ask(client: &HttpClient, engine: &Engine) -> Answer {
    if let Some(backend) = service(engine) {
        let answer = ask_service(&backend).await;
        // An older server has no loads; its page may have.
        if answer.is_ok() || !has_page(engine) {
            return answer;
        }
    }
    ask_page(client, engine).await
}

/// `GetLoads`, or the same over HTTP.
async fn ask_service(backend: &Backend) -> Answer {
    let limits = Limits { deadline: DEADLINE, connect: DEADLINE, ..Limits::of(&Verb::Loads) };
    let answer = kvplane_ops::ask(backend, &Verb::Loads, &limits, &Sent::default()).await;
    match answer.meaning {
        Meaning::Accepted { .. } => {}
        Meaning::Unsupported => return Err(Outcome::NoLoads),
        _ => return Err(Outcome::NoAnswer),
    }
    let loads = answer.detail.as_ref().map(read_loads).unwrap_or_default();
    if loads.is_empty() { Err(Outcome::NoLoads) } else { Ok(loads) }
}

async fn ask_page(client: &HttpClient, engine: &Engine) -> Answer {
    let base = engine.spec.http.as_deref().ok_or(Outcome::NoAnswer)?;
    let mut question = HttpQuestion::get(base, "/metrics");
    question.authorization = authorization(engine);
    let answered = client.ask(question, MAX_BYTES, DEADLINE, &Sent::default()).await;
    let (status, page) = answered.map_err(|_| Outcome::NoAnswer)?;
    if !status.is_success() {
        return Err(Outcome::NoAnswer);
    }
    let page = std::str::from_utf8(&page).map_err(|_| Outcome::NoLoads)?;
    let loads = read(engine.spec.kind, page);
    if loads.is_empty() { Err(Outcome::NoLoads) } else { Ok(loads) }
}

fn take(routing: &Routing, failing: &mut HashSet<String>, engine: &Engine, answer: Answer, valid: f64) {
    let name = engine.spec.id.as_str();
    routing.polls.count(match &answer {
        Ok(_) => Outcome::Read,
        Err(outcome) => *outcome,
    });
    match answer {
        Ok(loads) => {
            if failing.remove(name) {
                info!(engine = name, "engine's load readable again");
            }
            routing.take_loads(engine, &loads, valid);
        }
        Err(outcome) => {
            if failing.insert(name.to_owned()) {
                let (_, reason) = Outcome::ALL[outcome as usize];
                warn!(engine = name, reason, "cannot read the engine's load; picks use bookings only");
            }
        }
    }
}

impl Routing {
    fn take_loads(&self, engine: &Engine, loads: &BTreeMap<u32, Load>, valid: f64) {
        let now = self.now();
        let mut books = self.books.lock();
        for (rank, load) in loads {
            if let Some(slot) = books.find(&StreamId::new(engine.spec.id.clone(), *rank)) {
                books.router.report_load(slot, *load, now, now + valid);
            }
        }
    }
}

/// The loads of a `GetLoadsResponse` as JSON, by rank.
fn read_loads(detail: &Value) -> BTreeMap<u32, Load> {
    let mut loads = BTreeMap::new();
    for load in detail["loads"].as_array().into_iter().flatten() {
        let number = |name: &str| load[name].as_u64();
        let rank = number("dp_rank").and_then(|rank| u32::try_from(rank).ok());
        let (Some(rank), Some(running)) = (rank.filter(|rank| *rank < MAX_RANKS), number("num_running_reqs"))
        else {
            continue;
        };
        let usage = load["token_usage"].as_f64().filter(|usage| usage.is_finite() && *usage >= 0.0);
        let count = |requests: u64| u32::try_from(requests).unwrap_or(u32::MAX);
        let waiting = number("num_waiting_reqs").unwrap_or(0);
        let load = Load {
            running: count(running),
            waiting: count(waiting),
            kv_usage: usage.map(|usage| usage.min(1.0)),
            kv_capacity: number("max_total_num_tokens").filter(|tokens| *tokens > 0),
            // An engine that does not count them says 0, whatever waits.
            waiting_tokens: number("num_waiting_uncached_tokens")
                .filter(|tokens| *tokens > 0 || waiting == 0),
        };
        loads.insert(rank, load);
    }
    loads
}

/// The loads of a page, by rank.
fn read(kind: EngineKind, page: &str) -> BTreeMap<u32, Load> {
    let rank_label = if kind == EngineKind::Vllm { "engine" } else { "dp_rank" };
    let mut loads: BTreeMap<u32, Load> = BTreeMap::new();
    let mut reported = HashSet::new();
    for sample in samples(page) {
        let Some(metric) = sample.name.strip_prefix("vllm:").or_else(|| sample.name.strip_prefix("sglang:"))
        else {
            continue;
        };
        let rank = sample.label(rank_label).map_or(Some(0), |rank| rank.parse().ok());
        let Some(rank) = rank.filter(|rank| *rank < MAX_RANKS) else { continue };
        if !(sample.value.is_finite() && sample.value >= 0.0) {
            continue;
        }
        let load = loads.entry(rank).or_default();
        match metric {
            "num_requests_running" | "num_running_reqs" => {
                load.running = sample.value as u32;
                reported.insert(rank);
            }
            "num_requests_waiting" | "num_queue_reqs" => load.waiting = sample.value as u32,
            "kv_cache_usage_perc" | "gpu_cache_usage_perc" | "token_usage" => {
                load.kv_usage = Some(sample.value.min(1.0));
            }
            "max_total_num_tokens" => load.kv_capacity = Some(sample.value as u64),
            "cache_config_info" => {
                let number = |name: &str| sample.label(name).and_then(|text| text.parse::<u64>().ok());
                let size = number("effective_attention_block_size").or_else(|| number("block_size"));
                load.kv_capacity =
                    size.zip(number("num_gpu_blocks")).and_then(|(size, blocks)| size.checked_mul(blocks));
            }
            _ => {}
        }
    }
    loads.retain(|rank, _| reported.contains(rank));
    loads
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answers_of_get_loads_are_read_by_rank() {
        let detail = json!({"loads": [
            {"dp_rank": 0, "num_running_reqs": 3, "num_waiting_reqs": 2, "num_waiting_uncached_tokens": 900,
             "max_total_num_tokens": 4096, "token_usage": 0.5},
            {"dp_rank": 1, "num_running_reqs": 0, "num_waiting_reqs": 4, "num_waiting_uncached_tokens": 0, "token_usage": -1.0},
            {"dp_rank": -1, "num_running_reqs": 1}, {"dp_rank": 9_999_999, "num_running_reqs": 1}, {"dp_rank": 2}, 7,
        ]});
        let first = Load {
            running: 3,
            waiting: 2,
            kv_usage: Some(0.5),
            kv_capacity: Some(4_096),
            waiting_tokens: Some(900),
        };
        // That nothing waits although requests do is no measure.
        let second = Load { waiting: 4, ..Load::default() };
        assert_eq!(read_loads(&detail), BTreeMap::from([(0, first), (1, second)]));
        assert!(read_loads(&json!("no")).is_empty());
    }

    #[test]
    fn pages_of_vllm_and_sglang_are_read_by_rank() {
        let page = "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0\n\
                    vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 7.0\n\
                    vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.25\n\
                    vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"100\"} 1.0\n\
                    vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 1.0\n\
                    vllm:num_requests_running{engine=\"9999999\"} 1.0\n\
                    vllm:num_requests_waiting{engine=\"1\"} NaN\n\
                    vllm:num_requests_waiting{engine=\"2\"} 5\n";
        let loads = read(EngineKind::Vllm, page);
        let first = Load {
            running: 3,
            waiting: 7,
            kv_usage: Some(0.25),
            kv_capacity: Some(1_600),
            waiting_tokens: None,
        };
        assert_eq!(loads, BTreeMap::from([(0, first), (1, Load { running: 1, ..Load::default() })]));
        let page = "sglang:num_running_reqs{dp_rank=\"1\"} 2\nsglang:num_queue_reqs{dp_rank=\"1\"} 4\n\
                    sglang:token_usage{dp_rank=\"1\"} 0.5\nsglang:max_total_num_tokens{dp_rank=\"1\"} 9000\n";
        let load = Load {
            running: 2,
            waiting: 4,
            kv_usage: Some(0.5),
            kv_capacity: Some(9_000),
            waiting_tokens: None,
        };
        assert_eq!(read(EngineKind::Sglang, page), BTreeMap::from([(1, load)]));
        assert!(read(EngineKind::Vllm, "").is_empty());
    }
}
