//! A stream that joined late learns from requests that pass through its engine's front what the engine has
//! cached: never more than it has.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kvplane_core::{Continuity, Trust};
use kvplane_ingest::{Origin, PlaneOptions};
use kvplane_proto::engines::vllm::generate_response::Response;
use kvplane_proto::engines::vllm::vllm_engine_client::VllmEngineClient;
use kvplane_proto::engines::vllm::{GenerateRequest, GenerateResponse, SamplingParams, TokenizedInput};
use kvplane_server::EngineConfig;
use kvplane_sim::CompletionOptions;
use prost::Message as _;
use serde_json::json;
use tokio::net::TcpStream;

use crate::faults::query::{ask, complete, prompt};
use crate::rig::{DEADLINE, Engine, Rig, text};

/// Tokens of the prefix that stays hot: four blocks.
const HOT: u32 = 64;
/// Where prompts begin that are not asked for again: eight blocks, and four times one. The ring has the last
/// two.
const COLD: u32 = 50_000;
const FILLER: u32 = 60_000;

/// A plane that joined late, and the front of its only engine.
struct Late {
    rig: Rig,
    front: SocketAddr,
    engine: Engine,
}

/// The prompt that begins with the hot prefix, and goes on in its own way.
fn hot(own: u32) -> Vec<u32> {
    prompt(1_000, HOT).into_iter().chain(prompt(own, 17)).collect()
}

fn request(token_ids: Vec<u32>, data_parallel_rank: Option<i32>) -> GenerateRequest {
    GenerateRequest {
        request_id: "r".to_owned(),
        tokenized: Some(TokenizedInput { original_text: String::new(), input_ids: token_ids }),
        sampling_params: Some(SamplingParams { max_tokens: Some(1), n: 1 }),
        stream: true,
        data_parallel_rank,
    }
}

impl Late {
    /// The engine has computed what is cold, then what is hot, and its ring has forgotten both when the plane
    /// comes.
    async fn join(ranks: u32) -> Self {
        let engine = Engine::start(|config| {
            config.grpc = Some(([127, 0, 0, 1], 0).into());
            config.buffer_steps = 2;
            config.blocks = 48;
            if ranks > 1 {
                // Ranks are at consecutive ports, so these are chosen: on a loopback address that is this
                // process's own.
                let pid = std::process::id();
                let host = format!("127.79.{}.{}", pid / 250 % 250, pid % 250 + 1);
                config.ranks = ranks;
                config.events = kvplane_socket::Endpoint::Bind(format!("tcp://{host}:15557"));
                config.replay = Some(format!("tcp://{host}:16557"));
            }
        });
        for rank in 0..ranks {
            let on = CompletionOptions { rank: Some(rank), ..CompletionOptions::default() };
            complete(&engine, &prompt(COLD, 128), &on);
            complete(&engine, &prompt(1_000, HOT), &on);
            for at in 0..4 {
                complete(&engine, &prompt(FILLER + at * 100, 16), &on);
            }
        }
        let rig = Rig::of_specs(Vec::new(), PlaneOptions::default()).await;
        let front = kvplane_sim::free_address().unwrap();
        let config: EngineConfig = serde_json::from_value(json!({
            "id": "e0", "kind": "vllm", "model": "sim", "ranks": ranks,
            "events": engine.sim.event_endpoints()[0],
            "replay": engine.sim.replay_endpoints()[0],
            "http": engine.sim.http_address().map(|address| format!("http://{address}")),
            "grpc": engine.sim.grpc_address().map(|address| format!("http://{address}")),
            "front": front,
        }))
        .unwrap();
        rig.fleet.add(vec![config.plan().unwrap()], Origin::Api).await.unwrap();
        let late = Self { rig, front, engine };
        for rank in 0..ranks {
            late.heard(rank).await;
            assert_eq!(late.found(rank).await, 0, "what is hot is not known");
        }
        late
    }

    /// Waits until a rank's stream has heard all that was published.
    async fn heard(&self, rank: u32) {
        let last = self.engine.sim.next_sequence(rank).checked_sub(1);
        let all = |status: &kvplane_ingest::StreamStatus| {
            status.continuity == Continuity::Live && status.engine_sequence == last
        };
        let status = self.rig.until_rank(0, rank as usize, "caught up", all).await;
        assert_eq!(status.trust.level(), Trust::Lower);
    }

    /// Blocks of the hot prefix that answers credit a rank with.
    async fn found(&self, rank: u32) -> u64 {
        let answer = self.rig.query(&ask(&prompt(1_000, HOT))).await;
        let matches = answer["matches"].as_array().unwrap();
        let found = matches.iter().find(|found| found["rank"] == rank);
        assert!(found.is_none_or(|found| found["trust"] == "lower"), "{answer}");
        found.map_or(0, |found| found["blocks"].as_u64().unwrap())
    }

    /// Sends a request through the front. Says what the engine had cached.
    async fn generate(&self, request: GenerateRequest) -> u32 {
        let mut client = VllmEngineClient::connect(format!("http://{}", self.front)).await.unwrap();
        let mut messages = client.generate(request).await.unwrap().into_inner();
        let mut cached = None;
        while let Some(message) = messages.message().await.unwrap() {
            if let Some(Response::Complete(complete)) = message.response {
                cached = Some(complete.cached_tokens);
            }
        }
        cached.unwrap()
    }

    /// Waits until a line is among the metrics.
    async fn metric(&self, line: &str) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let (_, page) = text(self.rig.http, "GET", "/metrics", String::new()).await;
            if page.lines().any(|found| found == line) {
                return;
            }
            assert!(Instant::now() < deadline, "no {line} in {page}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The engine computes other prompts, and evicts what was used least recently.
    async fn evict_until(&self, done: impl Fn(&Self) -> bool) {
        for _ in 0..200 {
            let at = self.engine.sim.next_sequence(0) as u32;
            complete(&self.engine, &prompt(100_000 + at * 100, 16), &CompletionOptions::default());
            self.heard(0).await;
            if done(self) {
                return;
            }
        }
        panic!("nothing is evicted: {:#?}", self.rig.status(0));
    }

    /// Evicts all that was not announced here but the hot prefix: what is evicted next is known.
    async fn evict_what_is_cold(&self) {
        let holds = |late: &Self, first: u32| {
            late.engine.sim.would_hit(&prompt(first, 17), &CompletionOptions::default()) > 0
        };
        // The last block of a prompt goes first.
        let colds = [COLD, FILLER, FILLER + 100];
        self.evict_until(|late| !colds.iter().any(|first| holds(late, *first))).await;
        assert!(self.still_hot());
    }

    fn still_hot(&self) -> bool {
        self.engine.sim.would_hit(&hot(1), &CompletionOptions::default()) == HOT as usize
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_through_the_front_heals_a_late_join_until_something_unknown_is_evicted() {
    let late = Late::join(1).await;
    assert_eq!(late.generate(request(hot(2_000), None)).await, HOT);
    late.metric("kvplane_front_evidence_total{engine=\"e0\"} 1").await;
    late.metric("kvplane_front_evidence_blocks_total{engine=\"e0\"} 4").await;
    assert_eq!(late.found(0).await, 4);

    // Whatever it is that was evicted: its hash is not known here, and it may have been the prefix.
    let before = late.rig.status(0).journal.unknown_removals;
    late.evict_until(|late| late.rig.status(0).journal.unknown_removals > before).await;
    assert_eq!(late.found(0).await, 0);
    // The engine still has it, and says so again.
    late.evict_what_is_cold().await;
    assert_eq!(late.found(0).await, 0);
    assert_eq!(late.generate(request(hot(3_000), None)).await, HOT);
    late.metric("kvplane_front_evidence_total{engine=\"e0\"} 2").await;
    assert_eq!(late.found(0).await, 4);
    // Gone for good.
    late.evict_until(|late| !late.still_hot()).await;
    assert_eq!(late.found(0).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_is_not_used_if_something_was_evicted_since_the_request() {
    let late = Late::join(1).await;
    // Not through the front: it is used, so that it is not the next to go.
    complete(&late.engine, &hot(1_900), &CompletionOptions::default());
    late.heard(0).await;
    let message = request(hot(2_000), None).encode_to_vec();
    let mut framed = vec![0];
    framed.extend((message.len() as u32).to_be_bytes());
    framed.extend(message);
    let mut first = Bytes::from(framed);
    let second = first.split_off(20);

    // A call whose request is on its way while the engine evicts.
    let (send, connection) =
        h2::client::handshake(TcpStream::connect(late.front).await.unwrap()).await.unwrap();
    tokio::spawn(connection);
    let head = http::Request::post(format!("http://{}/vllm.grpc.engine.VllmEngine/Generate", late.front))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap();
    let (response, mut body) = send.ready().await.unwrap().send_request(head, false).unwrap();
    body.send_data(first, false).unwrap();
    late.metric("kvplane_front_forwarded_calls_total{engine=\"e0\"} 1").await;
    late.evict_until(|late| late.rig.status(0).journal.unknown_removals > 0).await;
    assert!(late.still_hot());
    body.send_data(second, true).unwrap();

    let mut answer = response.await.unwrap().into_body();
    let mut bytes = Vec::new();
    while let Some(data) = answer.data().await {
        bytes.extend(data.unwrap());
    }
    let status = answer.trailers().await.unwrap().unwrap();
    assert_eq!(status["grpc-status"], "0");
    // The token, then the end: the call was passed on as it was.
    let length = u32::from_be_bytes(bytes[1..5].try_into().unwrap()) as usize;
    let last = GenerateResponse::decode(&bytes[length + 10..]).unwrap();
    let Some(Response::Complete(complete)) = last.response else { panic!("{last:?}") };
    assert_eq!(complete.cached_tokens, HOT);
    late.metric("kvplane_front_evidence_rejected_total{engine=\"e0\",reason=\"changed\"} 1").await;
    assert_eq!(late.found(0).await, 0);

    // A request that is sent after it is used.
    late.evict_what_is_cold().await;
    assert_eq!(late.generate(request(hot(3_000), None)).await, HOT);
    late.metric("kvplane_front_evidence_total{engine=\"e0\"} 1").await;
    assert_eq!(late.found(0).await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_ranks_only_the_one_that_the_request_names_is_healed() {
    let late = Late::join(2).await;
    late.generate(request(hot(2_000), None)).await;
    late.metric("kvplane_front_evidence_rejected_total{engine=\"e0\",reason=\"rank\"} 1").await;
    assert_eq!((late.found(0).await, late.found(1).await), (0, 0));
    assert_eq!(late.generate(request(hot(3_000), Some(1))).await, HOT);
    late.metric("kvplane_front_evidence_total{engine=\"e0\"} 1").await;
    assert_eq!((late.found(0).await, late.found(1).await), (0, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_were_not_served_or_found_nothing_prove_nothing() {
    let late = Late::join(1).await;
    let mut refused = request(hot(2_000), None);
    refused.sampling_params = Some(SamplingParams { max_tokens: Some(1), n: 2 });
    let mut client = VllmEngineClient::connect(format!("http://{}", late.front)).await.unwrap();
    client.generate(refused).await.unwrap_err();
    late.metric("kvplane_front_evidence_rejected_total{engine=\"e0\",reason=\"unfinished\"} 1").await;
    assert_eq!(late.generate(request(prompt(900_000, 40), None)).await, 0);
    late.metric("kvplane_front_evidence_rejected_total{engine=\"e0\",reason=\"not_cached\"} 1").await;
    assert_eq!(late.found(0).await, 0);
    // Once all that the device holds is known, nobody listens.
    assert!(late.engine.sim.reset_prefix_cache());
    complete(&late.engine, &prompt(1_000, HOT), &CompletionOptions::default());
    late.heard(0).await;
    assert_eq!(late.found(0).await, 4);
    assert_eq!(late.generate(request(hot(3_000), None)).await, HOT);
    late.metric("kvplane_front_forwarded_calls_total{engine=\"e0\"} 3").await;
    late.metric("kvplane_front_evidence_total{engine=\"e0\"} 0").await;
}
