//! Engines to look at, and what the doctor says of them.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use kvplane_core::{EngineId, EngineKind};
use kvplane_discovery::{DiscoverySpec, FoundRank, Overrides};
use kvplane_doctor::{Code, Examination, Finding, Severity, Window, examine};
use kvplane_ingest::{Discovered, Endpoint, EngineSpec, Published, PublishedRank, Source};
use kvplane_sim::{CompletionOptions, SimConfig, SimEngine, SimHandle};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Far above what anything here takes, so that only a defect reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);
/// Where something is heard, listening ends long before.
pub(crate) const LONG: Duration = Duration::from_secs(30);
/// Where nothing can be heard.
pub(crate) const SHORT: Duration = Duration::from_millis(300);
/// A window that is never too small here.
pub(crate) const WIDE: Window = Window { max_batches: usize::MAX, max_bytes: usize::MAX };

/// An engine whose one rank publishes at an address.
pub(crate) fn published(events: &str, replay: Option<&str>) -> EngineSpec {
    let events = match events.strip_prefix("bind:") {
        Some(address) => Endpoint::Bind(address.to_owned()),
        None => Endpoint::Connect(events.to_owned()),
    };
    let ranks = vec![PublishedRank { rank: 0, events, replay: replay.map(str::to_owned) }];
    with_source(EngineKind::Vllm, Source::Published(Published { ranks }))
}

/// Where the ranks of an engine publish.
pub(crate) fn ranks(spec: &mut EngineSpec) -> &mut Vec<PublishedRank> {
    match &mut spec.source {
        Source::Published(published) => &mut published.ranks,
        source => panic!("{source:?}"),
    }
}

/// An engine whose events come like this.
pub(crate) fn with_source(kind: EngineKind, source: Source) -> EngineSpec {
    EngineSpec::new(EngineId::new("e"), kind, "sim", source)
}

/// An engine that is asked where it publishes.
pub(crate) fn asked(kind: EngineKind, http: String) -> EngineSpec {
    let spec =
        DiscoverySpec { http: Some(http.clone()), grpc: None, overrides: Overrides::default(), usual: None };
    let source = Source::Discovered(Discovered { spec, ranks: vec![FoundRank::unknown(0)] });
    EngineSpec { http: Some(http), ..with_source(kind, source) }
}

/// A simulated engine with an HTTP server.
pub(crate) fn sim(config: SimConfig) -> SimHandle {
    SimEngine::start(SimConfig { http: Some("127.0.0.1:0".parse().unwrap()), ..config }).unwrap()
}

/// The engine as a simulated one is.
pub(crate) fn spec_of(sim: &SimHandle) -> EngineSpec {
    let replays = sim.replay_endpoints();
    let ranks = sim.event_endpoints().into_iter().zip(replays).zip(0..);
    let ranks = ranks.map(|((events, replay), rank)| {
        let events = Endpoint::Connect(events);
        PublishedRank { rank, events, replay }
    });
    let source = Source::Published(Published { ranks: ranks.collect() });
    EngineSpec { topic: sim.config().topic.clone(), ..with_source(sim.config().profile.engine(), source) }
}

/// Its HTTP server.
pub(crate) fn http_of(sim: &SimHandle) -> String {
    format!("http://{}", sim.http_address().unwrap())
}

/// One request of 64 new tokens on a rank: one batch, which has been published when this returns.
pub(crate) fn talk(sim: &SimHandle, rank: u32, from: u32) {
    let prompt: Vec<u32> = (from..from + 64).collect();
    let options = CompletionOptions { rank: Some(rank), ..CompletionOptions::default() };
    sim.complete(&prompt, 1, &options).unwrap();
    // The publisher has a thread of its own: the next subscriber must not hear this batch.
    sim.next_sequence(rank);
}

/// Seconds since 1970, and some more or less.
pub(crate) fn now(and: f64) -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64() + and
}

/// Engines of a configuration, to be looked at.
pub(crate) fn examination(engines: Vec<EngineSpec>, listen: Duration) -> Examination {
    Examination { engines, listen, window: Some(WIDE), listed: None, descriptors: None }
}

/// What is found, in the order of the codes.
pub(crate) async fn find(engines: Vec<EngineSpec>, listen: Duration) -> Vec<Finding> {
    let examination = examination(engines, listen);
    tokio::time::timeout(PATIENCE, examine(&examination)).await.expect("the doctor ends")
}

/// What is found while every rank of an engine says something, as soon as somebody listens.
pub(crate) async fn find_while(
    sim: &SimHandle,
    spec: EngineSpec,
    say: impl FnOnce(&SimHandle) + Send + 'static,
) -> Vec<Finding> {
    let (speaker, began) = (sim.clone(), Instant::now());
    let ranks: Vec<u32> = spec.source.ranks().iter().map(|rank| rank.rank).collect();
    let spoken = tokio::task::spawn_blocking(move || {
        for rank in ranks {
            assert!(speaker.wait_for_subscriptions(rank, 1, PATIENCE.saturating_sub(began.elapsed())));
        }
        say(&speaker);
    });
    let found = find(vec![spec], LONG).await;
    spoken.await.unwrap();
    found
}

/// The codes, and how much each matters.
pub(crate) fn codes(found: &[Finding]) -> Vec<(Code, Severity)> {
    found.iter().map(|finding| (finding.code, finding.severity)).collect()
}

/// An address of this machine where nobody listens.
pub(crate) fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("tcp://{}", listener.local_addr().unwrap())
}

/// A server with a few pages; others are not found. Lives as long as the test's runtime.
pub(crate) async fn pages(pages: &'static [(&'static str, &'static str)]) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    match stream.read_u8().await {
                        Ok(byte) => request.push(byte),
                        Err(_) => return,
                    }
                }
                let request = String::from_utf8_lossy(&request).into_owned();
                let path = request.split(' ').nth(1).unwrap_or_default();
                let found = pages.iter().find(|(page, _)| *page == path);
                let (status, body) = found.map_or(("404 Not Found", ""), |(_, body)| ("200 OK", body));
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                // The caller may have disconnected.
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    format!("http://{address}")
}
