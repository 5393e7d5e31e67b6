//! Metadata only: whatever leaves the process by hints and by reports holds no token of any prompt. Alone in
//! its process: it reads every log line.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "tests"
)]

#[allow(dead_code, unused_macros, reason = "most of it is the fault matrix's")]
#[path = "it/rig.rs"]
mod rig;

use std::collections::{BTreeSet, HashSet};
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvplane_proto::inferencecache as proto;
use kvplane_proto::inferencecache::inference_cache_client::InferenceCacheClient;
use kvplane_report::{Credentials, ReportSpec, Reports, ServerAddress};
use kvplane_sim::CompletionOptions;
use parking_lot::Mutex;
use rig::{DEADLINE, Engine, Rig};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tonic::transport::Channel;
use tracing_subscriber::filter::LevelFilter;

/// The name under which the engine is reported. Under its own it is heard, and speaks for itself.
const REPORTED: &str = "copy";

/// A prompt of tokens that nothing else has.
fn marked(prompt: u32) -> Vec<u32> {
    (0..96).map(|at| 0x7A3B_0000 + prompt * 0x400 + at * 7 + 1).collect()
}

/// The same prompt as text.
fn text_of(tokens: &[u32]) -> String {
    tokens.iter().map(|token| format!("{token} ")).collect()
}

/// Every form in which tokens could be written. Two fixed-width numbers in a row, because four bytes may well
/// be a part of some hash.
fn forms(tokens: &[u32]) -> HashSet<Vec<u8>> {
    let mut forms = HashSet::new();
    for pair in tokens.windows(2) {
        forms.insert(pair.iter().flat_map(|token| token.to_le_bytes()).collect());
        forms.insert(pair.iter().flat_map(|token| token.to_be_bytes()).collect());
    }
    for &token in tokens {
        let mut varint = Vec::new();
        let mut rest = token;
        while rest >= 0x80 {
            varint.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        varint.push(rest as u8);
        forms.insert(varint);
        forms.insert(token.to_string().into_bytes());
        forms.insert(format!("{token:x}").into_bytes());
    }
    forms
}

/// Bytes that somebody writes and that are searched later.
#[derive(Debug, Clone, Default)]
struct Record(Arc<Mutex<Vec<u8>>>);

impl Record {
    /// How many of these are in it.
    fn count(&self, forms: &HashSet<Vec<u8>>) -> usize {
        let bytes = self.0.lock();
        let lengths: BTreeSet<usize> = forms.iter().map(Vec::len).collect();
        let found =
            lengths.iter().flat_map(|&length| bytes.windows(length).filter(|window| forms.contains(*window)));
        found.collect::<HashSet<_>>().len()
    }

    fn len(&self) -> usize {
        self.0.lock().len()
    }
}

impl Write for Record {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Stands before a server and writes down what both sides say.
#[derive(Debug)]
struct Tap {
    address: SocketAddr,
    asked: Record,
    answered: Record,
}

impl Tap {
    async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tap = Self {
            address: listener.local_addr().unwrap(),
            asked: Record::default(),
            answered: Record::default(),
        };
        let (asked, answered) = (tap.asked.clone(), tap.answered.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(server).await.unwrap();
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(copy(from_client, to_server, asked.clone()));
                tokio::spawn(copy(from_server, to_client, answered.clone()));
            }
        });
        tap
    }

    async fn client(&self) -> InferenceCacheClient<Channel> {
        InferenceCacheClient::connect(format!("http://{}", self.address)).await.unwrap()
    }
}

async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, mut record: Record) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        record.write_all(&buffer[..count]).unwrap();
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

fn look_up(tokens: &[u32], adapter: &str) -> proto::LookupRouteRequest {
    proto::LookupRouteRequest {
        model_id: "sim".to_owned(),
        tenant_id: "default".to_owned(),
        hash_scheme: "vllm".to_owned(),
        token_ids: tokens.to_vec(),
        adapter_id: adapter.to_owned(),
        ..proto::LookupRouteRequest::default()
    }
}

/// Asks until these replicas are known to hold the prompt, which lasts.
async fn until_held(client: &mut InferenceCacheClient<Channel>, tokens: &[u32], wanted: &[&str]) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let answer = client.lookup_route(look_up(tokens, "")).await.unwrap().into_inner();
        let matched = answer.reason_code == "PREFIX_MATCH";
        let mut named: Vec<&str> =
            answer.replica_scores.iter().filter(|_| matched).map(|score| &*score.replica_id).collect();
        named.sort_unstable();
        if named == wanted {
            return;
        }
        assert!(Instant::now() < deadline, "{answer:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_token_leaves_by_hints_or_reports() {
    let logs = Record::default();
    let writer = logs.clone();
    tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_writer(move || writer.clone()).init();

    let engine = Engine::start(|config| {
        config.blocks = 600;
        config.loras = vec!["french".to_owned()];
    });
    // What everybody holds is no reason to name anybody.
    let mut bystander = Engine::start(|config| config.seed = 1);
    bystander.work(1);
    let serve = |prompt: u32, options: CompletionOptions| {
        engine.sim.complete(&marked(prompt), 1, &options).unwrap();
        engine.sim.state();
    };
    serve(0, CompletionOptions::default());
    let rig = Rig::over(&[&engine, &bystander]).await;
    rig.exact(0, &engine).await;
    let (asked, reported, pages) =
        (Tap::before(rig.grpc).await, Tap::before(rig.grpc).await, Tap::before(rig.http).await);
    let reports = Reports::default();
    let server = ServerAddress::new(&reported.address.to_string(), Credentials::default()).unwrap();
    let mut spec = ReportSpec::new(server);
    spec.engines = Some(vec!["e0".to_owned()]);
    spec.replica = Some(REPORTED.to_owned());
    reports.set(&rig.plane, vec![spec]);

    // What the engine holds is reported both ways, and every question is asked.
    let mut client = asked.client().await;
    let events = proto::StreamEventsRequest {
        model_id: "sim".to_owned(),
        tenant_id: "default".to_owned(),
        ..Default::default()
    };
    let mut events = client.stream_cache_events(events).await.unwrap().into_inner();
    until_held(&mut client, &marked(0), &[REPORTED, "e0"]).await;
    serve(1, CompletionOptions { lora: Some("french".to_owned()), ..CompletionOptions::default() });
    serve(2, CompletionOptions { cache_salt: Some("tenant-a".to_owned()), ..CompletionOptions::default() });
    serve(3, CompletionOptions::default());
    until_held(&mut client, &marked(3), &[REPORTED, "e0"]).await;
    for prompt in 0..5 {
        for adapter in ["", "french"] {
            client.lookup_route(look_up(&marked(prompt), adapter)).await.unwrap();
        }
        let text = proto::LookupRouteRequest {
            token_ids: Vec::new(),
            prompt_text: text_of(&marked(prompt)),
            ..look_up(&[], "")
        };
        let answer = client.lookup_route(text).await.unwrap().into_inner();
        assert!(answer.token_ids.is_empty(), "nobody has made tokens of it");
        let wrong =
            proto::LookupRouteRequest { block_token_counts: vec![16], ..look_up(&marked(prompt), "") };
        client.lookup_route(wrong).await.unwrap();
    }
    let state = proto::GetCacheStateRequest { model_id: "sim".to_owned(), tenant_id: "default".to_owned() };
    client.get_cache_state(state).await.unwrap();
    for (method, path) in [
        ("GET", "/snapshot"),
        ("GET", "/metrics"),
        ("GET", "/v1/status"),
        ("POST", "/probe"),
        ("POST", "/policy"),
    ] {
        let body = json!({"backend": "b", "model": "sim", "hashScheme": "vllm", "backendType": "vllm"});
        rig::call(pages.address, method, path, &body).await;
    }
    // Gone again: removals and clears leave too.
    assert!(engine.sim.reset_prefix_cache());
    serve(4, CompletionOptions::default());
    until_held(&mut client, &marked(4), &[REPORTED, "e0"]).await;
    until_held(&mut client, &marked(0), &[]).await;
    assert!(events.message().await.unwrap().is_some(), "somebody is told of changes");
    reports.shutdown().await;

    let tokens: Vec<u32> = (0..5).flat_map(marked).collect();
    let forms = forms(&tokens);
    // What was asked does hold them: they would be found.
    assert!(asked.asked.count(&forms) >= 2 * tokens.len(), "as numbers, and as text");
    let left = [
        ("lookups", &asked.answered),
        ("reports", &reported.asked),
        ("answers to reports", &reported.answered),
        ("pages", &pages.answered),
        ("log lines", &logs),
    ];
    for (what, record) in left {
        assert!(record.len() > 100, "{what} were recorded");
        assert_eq!(record.count(&forms), 0, "tokens among the {what}");
    }
}
