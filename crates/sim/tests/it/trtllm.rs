//! The drain over HTTP, read by the dialect that reads the real one, against the server's own state.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use kvplane_sim::load::{LoadConfig, Workload};
use kvplane_sim::trtllm::{TrtAnswer, TrtConfig, TrtFault, TrtHandle, TrtRestart, TrtSim};
use kvplane_sim::{CompletionOptions, Conduct, Reply};
use kvplane_wire::trtllm::encode::{HashAlgo, TrtHash};
use kvplane_wire::trtllm::{Drained, SplitError, split};
use kvplane_wire::{Decoder, Dialect, Event};
use serde_json::{Value, json};

/// Far above what anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

async fn call(server: &TrtHandle, method: Method, path: &str, body: Value) -> (StatusCode, Bytes) {
    crate::support::client::ask(server.http_address(), method, path, &body).await.unwrap()
}

async fn poll(server: &TrtHandle) -> Result<Drained, SplitError> {
    let (status, body) = call(server, Method::POST, "/kv_cache_events", Value::Null).await;
    assert_eq!(status, StatusCode::OK);
    split(&body)
}

async fn json_of(server: &TrtHandle, path: &str) -> Value {
    let (status, body) = call(server, Method::GET, path, Value::Null).await;
    assert_eq!(status, StatusCode::OK, "{path}");
    serde_json::from_slice(&body).unwrap_or(Value::Null)
}

fn small(config: TrtConfig) -> TrtHandle {
    TrtSim::start(TrtConfig { block_size: 4, ..config }).unwrap()
}

fn ask(server: &TrtHandle, prompt: &[u32], rank: u32) -> usize {
    let options = CompletionOptions { rank: Some(rank), ..CompletionOptions::default() };
    server.complete(prompt, 1, &options).unwrap().cached_tokens
}

/// A block as a follower knows it: tokens and medium by group and hash, of one rank.
type Known = BTreeMap<(Option<u32>, u64), (Option<u64>, Vec<u32>, String)>;

/// Somebody who believes every event.
#[derive(Default)]
struct Follower {
    ranks: BTreeMap<u32, (u64, Known)>,
    created: usize,
}

impl Follower {
    /// Takes a drain in; every rank's numbers must go on.
    fn follow(&mut self, drained: &Drained) {
        assert_eq!(drained.unreadable, 0);
        let mut decoder = Decoder::default();
        for part in &drained.parts {
            let (next, known) = self.ranks.entry(part.rank).or_default();
            assert_eq!(part.first_id, *next, "rank {}", part.rank);
            *next = part.last_id + 1;
            let batch = decoder.decode_as(Dialect::TrtllmJson, &part.payload).unwrap();
            assert_eq!((batch.broken, batch.unknown_fields), (None, 0));
            for event in &batch.events {
                match event {
                    Event::Created(_) => self.created += 1,
                    Event::Stored(stored) => {
                        let mut parent = stored.parent.map(|parent| parent.bits);
                        let tokens = batch.tokens(stored).ids().chunks(stored.block_size as usize);
                        for (hash, tokens) in batch.stored_hashes(stored).iter().zip(tokens) {
                            let medium = stored.medium.unwrap().to_owned();
                            known.insert((stored.group, hash.bits), (parent, tokens.to_vec(), medium));
                            parent = Some(hash.bits);
                        }
                    }
                    Event::Removed(removed) => {
                        for hash in batch.removed_hashes(removed) {
                            assert!(known.remove(&(removed.group, hash.bits)).is_some());
                        }
                    }
                    Event::Moved(moved) => {
                        let block = known.get_mut(&(moved.group, moved.hash.bits)).unwrap();
                        assert_eq!(block.2, moved.from);
                        moved.to.clone_into(&mut block.2);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn known(&self) -> BTreeMap<u32, Known> {
        self.ranks.iter().map(|(rank, (_, known))| (*rank, known.clone())).collect()
    }
}

fn truth(server: &TrtHandle) -> BTreeMap<u32, Known> {
    let bits = |hash: &TrtHash| match hash {
        TrtHash::Number(bits) => *bits,
        TrtHash::Digest(digits) => u64::from_str_radix(&digits[..16], 16).unwrap(),
    };
    let state = server.state();
    let ranks = state.iter().map(|rank| {
        let blocks = rank.pools.iter().flat_map(|pool| {
            let group = pool.layer_group_id.or(Some(pool.window_size));
            pool.blocks.iter().map(move |(hash, block)| {
                let medium = ["GPU", "CPU", "DISK"][block.level].to_owned();
                ((group, bits(hash)), (block.parent.as_ref().map(bits), block.tokens.clone(), medium))
            })
        });
        (rank.rank, blocks.collect())
    });
    ranks.collect()
}

#[tokio::test]
async fn whoever_drains_everything_knows_everything() {
    let configs = [
        TrtConfig { levels: vec![40], ..TrtConfig::default() },
        TrtConfig { levels: vec![40, 24], ranks: 3, ..TrtConfig::default() },
        TrtConfig {
            levels: vec![40, 16, 16],
            hash_algo: Some(HashAlgo::V2Sha256),
            windows: vec![4096, 512],
            ..TrtConfig::default()
        },
        TrtConfig { hash_algo: Some(HashAlgo::V2Sha256Short), ranks: 2, ..TrtConfig::default() },
    ];
    for config in configs {
        let pools = config.windows.len() * config.ranks as usize;
        let server = small(config);
        let load =
            LoadConfig { system_tokens: 20, turn_tokens: 12, output_tokens: 8, ..LoadConfig::default() };
        let mut workload = Workload::new(LoadConfig { turns: 3, ..load });
        let mut follower = Follower::default();
        for turn in 0..200 {
            let next = workload.next_turn();
            let result =
                server.complete(&next.prompt, next.max_tokens, &CompletionOptions::default()).unwrap();
            assert!(result.cached_tokens < next.prompt.len());
            workload.replied(next.conversation, &result.output);
            if turn % 7 == 0 {
                follower.follow(&poll(&server).await.unwrap());
            }
        }
        follower.follow(&poll(&server).await.unwrap());
        assert_eq!(follower.known(), truth(&server));
        assert_eq!(follower.created, pools);
        assert_eq!(poll(&server).await.unwrap().events, 0);
        server.stop();
    }
}

#[tokio::test]
async fn hashes_beyond_63_bits_occur() {
    let server = small(TrtConfig::default());
    for token in 0..20 {
        ask(&server, &[token; 9], 0);
    }
    assert!(truth(&server)[&0].keys().any(|(_, bits)| *bits >> 63 == 1));
}

#[tokio::test]
async fn two_readers_share_what_one_should_have() {
    let server = small(TrtConfig::default());
    assert_eq!(poll(&server).await.unwrap().parts[0].first_id, 0);
    ask(&server, &[1; 9], 0);
    let stolen = server.drain();
    ask(&server, &[2; 9], 0);
    let ours = poll(&server).await.unwrap();
    assert_eq!(ours.parts[0].first_id, stolen.last().unwrap().event_id + 1);
    ask(&server, &[3; 9], 0);
    server.fault(None, TrtFault::Steal);
    assert_eq!(poll(&server).await.unwrap().events, 0);
}

#[tokio::test]
async fn a_full_buffer_forgets_the_oldest() {
    let server = small(TrtConfig { event_buffer: 3, ..TrtConfig::default() });
    for token in 0..5 {
        ask(&server, &[token; 9], 0);
    }
    let drained = poll(&server).await.unwrap();
    let state = &server.state()[0];
    assert_eq!(drained.events, 3);
    assert_eq!(
        (drained.parts[0].last_id + 1, drained.parts[0].first_id),
        (state.next_event_id, state.forgotten_events)
    );
    assert!(!drained.parts[0].created);

    server.fault(Some(0), TrtFault::Lose(1));
    ask(&server, &[9; 5], 0);
    let after = poll(&server).await.unwrap();
    assert_eq!(after.parts[0].first_id, drained.parts[0].last_id + 2);
}

#[tokio::test]
async fn a_server_without_events_answers_with_an_empty_list() {
    let server = small(TrtConfig { event_buffer: 0, ..TrtConfig::default() });
    ask(&server, &[1; 9], 0);
    let (status, body) = call(&server, Method::POST, "/kv_cache_events", Value::Null).await;
    assert_eq!((status, &body[..]), (StatusCode::OK, &b"[]"[..]));
    server.fault(None, TrtFault::Restart(TrtRestart { first_event_id: 7, same_content: false }));
    assert_eq!((server.state()[0].next_event_id, poll(&server).await.unwrap().events), (0, 0));
}

#[tokio::test]
async fn answers_can_be_wrong() {
    let server = small(TrtConfig::default());
    let answer = |answer, polls| server.fault(None, TrtFault::Answer { answer, polls });
    answer(TrtAnswer::Unavailable, 1);
    answer(TrtAnswer::Html, 2);
    answer(TrtAnswer::Object, 1);
    let (status, _) = call(&server, Method::POST, "/kv_cache_events", Value::Null).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(poll(&server).await, Err(SplitError::NotJson));
    assert_eq!(poll(&server).await, Err(SplitError::NotJson));
    assert_eq!(poll(&server).await, Err(SplitError::NotAList));
    answer(TrtAnswer::Huge, 1);
    assert_eq!(poll(&server).await.unwrap().parts[0].first_id, 0, "nothing was lost so far");

    ask(&server, &[1; 9], 0);
    answer(TrtAnswer::Truncated, 1);
    assert_eq!(poll(&server).await, Err(SplitError::Truncated));
    assert_eq!(poll(&server).await.unwrap().events, 0, "now it is");

    ask(&server, &[2; 9], 0);
    answer(TrtAnswer::Lost, 1);
    let asker = server.clone();
    let unanswered = tokio::spawn(async move { poll(&asker).await });
    let deadline = Instant::now() + PATIENCE;
    while server.state()[0].waiting_events > 0 {
        assert!(Instant::now() < deadline, "nobody drained");
        tokio::task::yield_now().await;
    }
    assert!(!unanswered.is_finished());
    unanswered.abort();
    assert_eq!(poll(&server).await.unwrap().events, 0);
}

#[tokio::test]
async fn a_new_life_counts_from_zero() {
    let server = small(TrtConfig { event_buffer: 8, ranks: 2, ..TrtConfig::default() });
    for rank in [0, 1] {
        ask(&server, &[5; 9], rank);
    }
    let before = truth(&server);
    let first = poll(&server).await.unwrap();
    server.fault(None, TrtFault::Restart(TrtRestart::default()));
    let mut follower = Follower::default();
    follower.follow(&poll(&server).await.unwrap());
    assert_eq!((follower.known(), follower.created), (truth(&server), 2));
    assert!(truth(&server).values().all(BTreeMap::is_empty));

    ask(&server, &[5; 9], 0);
    let overtake = TrtRestart { first_event_id: first.parts[0].last_id + 20, same_content: true };
    server.fault(None, TrtFault::Restart(overtake));
    let drained = poll(&server).await.unwrap();
    assert!(drained.parts.iter().all(|part| part.first_id > first.parts[0].last_id), "as if it had gone on");
    assert!(
        before[&0].keys().all(|block| truth(&server)[&0].contains_key(block)),
        "with blocks of the old life"
    );
}

#[tokio::test]
async fn an_old_server_takes_its_time() {
    let wait = Duration::from_millis(150);
    let server = small(TrtConfig { drain_wait: wait, ..TrtConfig::default() });
    let start = Instant::now();
    assert_eq!(poll(&server).await.unwrap().events, 1);
    assert!(start.elapsed() >= wait);
}

#[tokio::test]
async fn the_other_routes() {
    let server = small(TrtConfig { levels: vec![8, 4], ..TrtConfig::default() });
    let complete = |body: Value| call(&server, Method::POST, "/v1/completions", body);
    let request = json!({ "model": "sim", "prompt": (0..10).collect::<Vec<u32>>(), "max_tokens": 1 });
    let (_, body) = complete(request.clone()).await;
    let first: Value = serde_json::from_slice(&body).unwrap();
    let (_, body) = complete(request).await;
    let second: Value = serde_json::from_slice(&body).unwrap();
    let cached = |body: &Value| body["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    assert_eq!((cached(&first), cached(&second)), (json!(0), json!(9)), "two full blocks and a part of one");
    assert_eq!(first["choices"][0]["token_ids"], second["choices"][0]["token_ids"]);
    for (bad, status) in [
        (json!({ "model": "other", "prompt": "x" }), StatusCode::NOT_FOUND),
        (json!({ "prompt": "" }), StatusCode::BAD_REQUEST),
        (json!({ "prompt": "x", "rank": 1 }), StatusCode::BAD_REQUEST),
        (json!({ "prompt": vec![1; 99] }), StatusCode::SERVICE_UNAVAILABLE),
    ] {
        assert_eq!(complete(bad).await.0, status);
    }

    let metrics = json_of(&server, "/metrics").await;
    assert_eq!(metrics[0]["kvCacheStats"]["usedNumBlocks"], json!(3));
    assert_eq!(metrics[0]["kvCacheStats"]["tokensPerBlock"], json!(4));
    for path in ["/health", "/version", "/server_info"] {
        json_of(&server, path).await;
    }
    let state = json_of(&server, "/sim/state").await;
    assert_eq!(state["ranks"][0]["pools"][0]["blocks"].as_object().unwrap().len(), 3);

    let fault = |body: Value| call(&server, Method::POST, "/sim/fault", body);
    for good in [
        json!({ "answer": "html", "polls": 2 }),
        json!({ "lose": 1, "rank": 0 }),
        json!({ "steal": true }),
        json!({ "restart": { "first_event_id": 3 } }),
    ] {
        assert_eq!(fault(good).await.0, StatusCode::OK);
    }
    for bad in [json!({}), json!({ "answer": "maybe" }), json!({ "lose": 1, "rank": 7 }), json!({ "x": 1 })] {
        assert!(fault(bad).await.0.is_client_error());
    }
    assert_eq!(poll(&server).await, Err(SplitError::NotJson));
}

#[tokio::test]
async fn operators_get_what_there_is_and_wrong_answers_on_request() {
    let server = small(TrtConfig::default());
    let status = |path: &'static str| {
        let server = server.clone();
        async move { call(&server, Method::GET, path, Value::Null).await.0 }
    };
    for path in ["/health", "/server_info", "/version"] {
        assert_eq!(status(path).await, StatusCode::OK, "{path}");
    }
    for path in ["/flush_cache", "/reset_prefix_cache", "/start_profile", "/v1/loads"] {
        assert_eq!(call(&server, Method::POST, path, Value::Null).await.0, StatusCode::NOT_FOUND, "{path}");
    }
    server.conduct(Conduct { ill: true, ..Conduct::default() });
    assert_eq!(status("/health").await, StatusCode::SERVICE_UNAVAILABLE);
    server.conduct(Conduct { answer: Reply::Error, ..Conduct::default() });
    assert_eq!(status("/server_info").await, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(call(&server, Method::POST, "/kv_cache_events", Value::Null).await.0, StatusCode::OK);
    let lifted = json!({ "operations": {} });
    assert_eq!(call(&server, Method::POST, "/sim/fault", lifted).await.0, StatusCode::OK);
    assert_eq!(status("/server_info").await, StatusCode::OK);
}
