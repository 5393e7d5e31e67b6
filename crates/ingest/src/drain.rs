//! The HTTP drain of TensorRT-LLM: one poller per engine, for all of its ranks and for everybody who follows them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request, Uri};
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kvplane_stream::{DrainFailure, DrainedPart, Recorder};
use kvplane_wire::trtllm::{self, Drained};
use tracing::{info, warn};

use crate::shared_source::Ranks;
use crate::spec::DrainSpec;

/// What an answer may weigh.
const MAX_ANSWER: usize = trtllm::MAX_BODY_BYTES;
/// Older servers wait up to two seconds for a first event.
const DEADLINE: Duration = Duration::from_secs(10);
/// A busy engine is asked again after the first, an idle one after the second.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// An answer with this many events means that we come too seldom.
const MANY_EVENTS: usize = 64;
/// After failures the pause grows up to this.
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);
/// An answer of this size is read off the runtime's threads.
const LARGE_ANSWER: usize = 64 << 10;

/// Why an engine could not be drained, as a stable word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Trouble {
    word: &'static str,
    failure: DrainFailure,
}

impl Trouble {
    const fn unreached(word: &'static str) -> Self {
        Self { word, failure: DrainFailure::Unreached }
    }

    /// The engine may have emptied its buffer for us.
    const fn answer_lost(word: &'static str) -> Self {
        Self { word, failure: DrainFailure::AnswerLost }
    }
}

/// Drains an engine until it is cancelled.
pub(crate) async fn run(spec: DrainSpec, ranks: Arc<Ranks>) {
    let mut poller = Poller::new(&spec);
    loop {
        let asked = kvplane_runtime::now();
        let pause = match poller.ask().await {
            Ok(body) => {
                let reading = ranks.clone();
                let large = body.len() >= LARGE_ANSWER;
                let read = move || read(&body, &reading, asked);
                let read = if large { tokio::task::spawn_blocking(read).await } else { Ok(read()) };
                match read {
                    Ok(Ok(events)) => poller.answered(&ranks, events),
                    Ok(Err(trouble)) => poller.failed(&ranks, trouble),
                    Err(_) => poller.failed(&ranks, Trouble::answer_lost("reader_failed")),
                }
            }
            Err(trouble) => poller.failed(&ranks, trouble),
        };
        tokio::time::sleep(pause).await;
    }
}

struct Poller {
    client: Client<HttpConnector, Empty<Bytes>>,
    uri: Option<Uri>,
    pause: Duration,
    backoff: Duration,
    trouble: Option<&'static str>,
}

impl Poller {
    fn new(spec: &DrainSpec) -> Self {
        // Engines close idle connections after 5 s: keep none that long.
        let client =
            Client::builder(TokioExecutor::new()).pool_idle_timeout(Duration::from_secs(4)).build_http();
        let uri = format!("{}/kv_cache_events", spec.url.trim_end_matches('/')).parse().ok();
        Self { client, uri, pause: SHORTEST_PAUSE, backoff: SHORTEST_PAUSE, trouble: None }
    }

    async fn ask(&self) -> Result<Bytes, Trouble> {
        let Some(uri) = self.uri.clone() else { return Err(Trouble::unreached("bad_url")) };
        let request = Request::builder().method(Method::POST).uri(uri).body(Empty::new());
        let Ok(request) = request else { return Err(Trouble::unreached("bad_url")) };
        match tokio::time::timeout(DEADLINE, self.drain(request)).await {
            Ok(answer) => answer,
            Err(_) => Err(Trouble::answer_lost("timeout")),
        }
    }

    async fn drain(&self, request: Request<Empty<Bytes>>) -> Result<Bytes, Trouble> {
        let response = self.client.request(request).await.map_err(|error| {
            if error.is_connect() {
                Trouble::unreached("unreachable")
            } else {
                Trouble::answer_lost("connection_lost")
            }
        })?;
        if !response.status().is_success() {
            let word = if response.status().is_server_error() { "http_server_error" } else { "http_refused" };
            return Err(Trouble::answer_lost(word));
        }
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                Trouble::answer_lost("too_large")
            } else {
                Trouble::answer_lost("truncated")
            }
        })?;
        Ok(body.to_bytes())
    }

    /// The engine answered with so many events: when to ask again.
    fn answered(&mut self, ranks: &Ranks, events: usize) -> Duration {
        self.backoff = SHORTEST_PAUSE;
        if let Some(over) = self.trouble.take() {
            info!(engine = %ranks.engine(), over, "the engine can be drained again");
            for feeder in ranks.all() {
                feeder.stream().set_trouble(None);
            }
        }
        self.pause = match events {
            0 => (self.pause * 2).min(LONGEST_PAUSE),
            MANY_EVENTS.. => (self.pause / 2).max(SHORTEST_PAUSE),
            _ => self.pause,
        };
        self.pause
    }

    fn failed(&mut self, ranks: &Ranks, trouble: Trouble) -> Duration {
        if self.trouble != Some(trouble.word) {
            self.trouble = Some(trouble.word);
            warn!(engine = %ranks.engine(), trouble = trouble.word, "the engine cannot be drained");
        }
        for feeder in ranks.all() {
            // In this order: who sees the trouble sees the continuity that it made.
            feeder.tell(|recorder, now| recorder.drain_failed(now, trouble.failure));
            feeder.stream().set_trouble(Some(trouble.word));
            feeder.tell(Recorder::tick);
        }
        self.backoff = (self.backoff * 2).min(LONGEST_BACKOFF);
        self.backoff
    }
}

/// Hands an answer to the ranks that it is about; says how many events it had.
fn read(body: &Bytes, ranks: &Ranks, asked: Instant) -> Result<usize, Trouble> {
    let Drained { parts, unreadable, events } =
        trtllm::split(body).map_err(|error| Trouble::answer_lost(error.as_str()))?;
    let mut known: Vec<u32> = ranks.all().iter().map(|feeder| feeder.stream().id().rank).collect();
    known.extend(parts.iter().map(|part| part.rank));
    known.sort_unstable();
    known.dedup();
    for rank in known {
        // A rank that is one too many was told of where it was refused.
        let Some(feeder) = ranks.feeder(rank) else { continue };
        let own = || parts.iter().filter(|part| part.rank == rank);
        let own_events = own().map(|part| part.count).sum();
        feeder.feed(|recorder, now| {
            recorder.drain_answered(now, own_events, unreadable);
            for part in own() {
                let part =
                    DrainedPart { first: part.first_id, last: part.last_id, payload: part.payload.clone() };
                recorder.drained(now, part);
            }
            recorder.drain_unreadable(now, unreadable);
            recorder.tick(now);
        });
        feeder.prove(asked);
        feeder.stream().announce();
    }
    Ok(events)
}
