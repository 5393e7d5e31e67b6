//! The HTTP drain of TensorRT-LLM: one poller per engine, for all of its ranks and for everybody who follows
//! them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request, Uri};
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kvplane_core::{Backoff, Trouble};
use kvplane_stream::{DrainFailure, DrainOptions, DrainedPart, JournalOptions, Now, Recorder};
use kvplane_wire::trtllm::{self, SplitError};
use tracing::{info, warn};

use crate::check::AddError;
use crate::shared_source::{Ranks, share};
use crate::source::{Opening, RankSpec, SharedRanks, SourceKind};
use crate::spec::PlaneOptions;

/// What an answer may weigh.
const MAX_ANSWER: usize = trtllm::MAX_BODY_BYTES;
/// Older servers wait up to two seconds for a first event.
const DEADLINE: Duration = Duration::from_secs(10);
/// A busy engine is asked again after the first, an idle one after the second.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// An answer with this many events means that we come too seldom.
const MANY_EVENTS: usize = 64;
/// After failures the pause grows from the first to the second.
const SHORTEST_BACKOFF: Duration = Duration::from_millis(20);
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);
/// An answer of this size is read off the runtime's threads.
const LARGE_ANSWER: usize = 64 << 10;

/// Older releases of TensorRT-LLM answer a drain only after two seconds when there is nothing to tell.
const SLOWEST_DRAIN: Duration = Duration::from_secs(5);

/// A buffer for all ranks that is drained over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drained {
    /// The engine's HTTP server: `http://host:port`.
    pub url: String,
    /// Events that the buffer holds per rank, where the operator configured it.
    pub buffer: Option<usize>,
    /// Its ranks, as far as they are known.
    pub ranks: SharedRanks,
}

impl SourceKind for Drained {
    fn ranks(&self) -> Vec<RankSpec> {
        self.ranks.at(&self.url)
    }

    fn server(&self) -> Option<&str> {
        Some(&self.url)
    }

    fn shared_ranks(&mut self) -> Option<&mut SharedRanks> {
        Some(&mut self.ranks)
    }

    /// At least the time that one drain may take.
    fn max_silence(&self, configured: Duration) -> Duration {
        configured.max(SLOWEST_DRAIN)
    }

    fn recorder(&self, options: &PlaneOptions, keep: JournalOptions, rank: u32, now: Now) -> Recorder {
        let follow = DrainOptions {
            on_gap: options.on_gap,
            down_after: options.down_after,
            buffer: self.buffer,
            ..DrainOptions::default()
        };
        Recorder::of_drain(follow, keep, rank, now)
    }

    fn open(&self, opening: Opening<'_>) -> Result<(), AddError> {
        let url = self.url.clone();
        share(opening, "drain an engine", move |ranks, _| run(url, ranks));
        Ok(())
    }
}

/// Why an engine could not be drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Failure {
    trouble: Trouble,
    /// Whether the engine may have emptied its buffer for us.
    effect: DrainFailure,
}

impl Failure {
    const fn unreached(trouble: Trouble) -> Self {
        Self { trouble, effect: DrainFailure::Unreached }
    }

    const fn answer_lost(trouble: Trouble) -> Self {
        Self { trouble, effect: DrainFailure::AnswerLost }
    }
}

/// Drains an engine until it is cancelled.
async fn run(url: String, ranks: Arc<Ranks>) {
    let mut poller = Poller::new(&url);
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
                    Ok(Err(failure)) => poller.failed(&ranks, failure),
                    Err(_) => poller.failed(&ranks, Failure::answer_lost(Trouble::ReaderFailed)),
                }
            }
            Err(failure) => poller.failed(&ranks, failure),
        };
        tokio::time::sleep(pause).await;
    }
}

struct Poller {
    client: Client<HttpConnector, Empty<Bytes>>,
    uri: Option<Uri>,
    pause: Duration,
    backoff: Backoff,
    trouble: Option<Trouble>,
}

impl Poller {
    fn new(url: &str) -> Self {
        // Engines close idle connections after 5 s: keep none that long.
        let client =
            Client::builder(TokioExecutor::new()).pool_idle_timeout(Duration::from_secs(4)).build_http();
        let uri = format!("{}/kv_cache_events", url.trim_end_matches('/')).parse().ok();
        Self {
            client,
            uri,
            pause: SHORTEST_PAUSE,
            backoff: Backoff::new(SHORTEST_BACKOFF, LONGEST_BACKOFF),
            trouble: None,
        }
    }

    async fn ask(&self) -> Result<Bytes, Failure> {
        let Some(uri) = self.uri.clone() else { return Err(Failure::unreached(Trouble::BadUrl)) };
        let request = Request::builder().method(Method::POST).uri(uri).body(Empty::new());
        let Ok(request) = request else { return Err(Failure::unreached(Trouble::BadUrl)) };
        match tokio::time::timeout(DEADLINE, self.drain(request)).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::answer_lost(Trouble::Timeout)),
        }
    }

    async fn drain(&self, request: Request<Empty<Bytes>>) -> Result<Bytes, Failure> {
        let response = self.client.request(request).await.map_err(|error| {
            if error.is_connect() {
                Failure::unreached(Trouble::Unreachable)
            } else {
                Failure::answer_lost(Trouble::ConnectionLost)
            }
        })?;
        if !response.status().is_success() {
            let server_error = response.status().is_server_error();
            let trouble = if server_error { Trouble::HttpServerError } else { Trouble::HttpRefused };
            return Err(Failure::answer_lost(trouble));
        }
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                Failure::answer_lost(Trouble::TooLarge)
            } else {
                Failure::answer_lost(Trouble::Truncated)
            }
        })?;
        Ok(body.to_bytes())
    }

    /// The engine answered with this many events: when to ask again.
    fn answered(&mut self, ranks: &Ranks, events: usize) -> Duration {
        self.backoff.reset();
        if let Some(over) = self.trouble.take() {
            info!(engine = %ranks.engine(), %over, "drain recovered");
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

    fn failed(&mut self, ranks: &Ranks, Failure { trouble, effect }: Failure) -> Duration {
        if self.trouble.replace(trouble) != Some(trouble) {
            warn!(engine = %ranks.engine(), %trouble, "drain failed");
        }
        for feeder in ranks.all() {
            // In this order: who sees the trouble sees the continuity that it made.
            feeder.tell(|recorder, now| recorder.drain_failed(now, effect));
            feeder.stream().set_trouble(Some(trouble));
            feeder.tell(Recorder::tick);
        }
        self.backoff.wait()
    }
}

/// Hands an answer to the ranks that it is about; says how many events it had.
fn read(body: &Bytes, ranks: &Ranks, asked: Instant) -> Result<usize, Failure> {
    let trtllm::Drained { parts, unreadable, events } =
        trtllm::split(body).map_err(|error| Failure::answer_lost(unreadable_body(error)))?;
    let mut known: Vec<u32> = ranks.all().iter().map(|feeder| feeder.stream().id().rank).collect();
    known.extend(parts.iter().map(|part| part.rank));
    known.sort_unstable();
    known.dedup();
    for rank in known {
        // A rank beyond the limit was logged where it was rejected.
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

fn unreadable_body(error: SplitError) -> Trouble {
    match error {
        SplitError::NotJson => Trouble::NotJson,
        SplitError::NotAList => Trouble::NotAList,
        SplitError::Truncated => Trouble::Truncated,
        SplitError::TooLarge => Trouble::TooLarge,
    }
}
