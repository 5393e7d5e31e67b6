//! The plane of the tour: served on loopback as any other, and asked as any other.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use http::Method;
use kvplane_core::{Continuity, Trust};
use kvplane_ingest::{PlaneOptions, Remark, Stream, StreamStatus};
use kvplane_server::Options;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Halt;
use super::fleet::{Engine, Held, MODEL};
use crate::app::App;
use crate::args::KeyArgs;
use crate::commands::http_client;
use crate::version::COMMIT;

/// Far beyond anything that a step takes, on a slow machine too.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A plane and its servers.
pub(super) struct ServedPlane {
    app: App,
    url: String,
    pub(super) grpc: SocketAddr,
    key: KeyArgs,
    ends: CancellationToken,
    serving: JoinHandle<()>,
    /// Somebody does not want to see the rest.
    stop: CancellationToken,
}

/// What the plane says of one engine and a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Prediction {
    pub(super) tokens: u64,
    pub(super) exact: bool,
}

/// What the tour reads of an answer to a question.
#[derive(Deserialize)]
struct Answer {
    matches: Vec<Match>,
}

#[derive(Deserialize)]
struct Match {
    engine: String,
    tokens: u64,
    trust: String,
}

/// What became of a flush on one engine.
pub(super) struct FlushVerdict {
    pub(super) engine: String,
    pub(super) verdict: String,
    pub(super) why: String,
}

/// What the plane holds of an engine, beside what the engine holds.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    pub(super) engine: &'static str,
    pub(super) trust: &'static str,
    /// Blocks that kvplane holds of it.
    pub(super) blocks: usize,
    /// Blocks that it holds.
    pub(super) engine_blocks: usize,
    pub(super) agreement: Agreement,
    pub(super) restarts: u64,
    pub(super) gaps: u64,
    pub(super) gaps_unfilled: u64,
    pub(super) disconnects: u64,
}

/// How two sets of blocks compare, copies included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Agreement {
    /// They are the same.
    Equal,
    /// kvplane holds less than the engine, and nothing that the engine does not hold: as it says (`lower`).
    Lower,
    /// What kvplane holds is not what it says.
    Different,
}

impl ServedPlane {
    /// A plane without engines, on free loopback ports.
    pub(super) async fn start(stop: CancellationToken) -> anyhow::Result<Self> {
        let http = TcpListener::bind("127.0.0.1:0").await.context("cannot listen on loopback")?;
        let grpc = TcpListener::bind("127.0.0.1:0").await.context("cannot listen on loopback")?;
        let url = format!("http://{}", http.local_addr().context("http")?);
        let grpc_address = grpc.local_addr().context("grpc")?;
        let ends = CancellationToken::new();
        let options = Options { commit: COMMIT, ..Options::default() };
        let (app, service) = App::start(&PlaneOptions::default(), options)?;
        let serving = kvplane_runtime::spawn("demo plane", service.run(http, grpc, ends.clone()));
        let key = KeyArgs { token_file: None, ca: None, cert: None, key: None };
        Ok(Self { app, url, grpc: grpc_address, key, ends, serving, stop })
    }

    /// Where its HTTP server is, and the dashboard.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Lets the last waits end by themselves: after an early end the summary must still be right.
    pub(super) fn finish(&mut self) {
        self.stop = CancellationToken::new();
    }

    /// Ends the servers and the plane.
    pub(super) async fn shutdown(self) -> anyhow::Result<()> {
        self.ends.cancel();
        self.app.drain(self.serving).await;
        self.app.close().await
    }

    /// Adds an engine, as `kvplane engines add` does.
    pub(super) async fn add(&self, engine: &Engine) -> Result<(), Halt> {
        self.call(Method::POST, "/v1/engines", &engine.described()).await.map(drop)
    }

    /// What each engine holds of a prompt, as `POST /v1/query` says it. Engines that are not credited are not
    /// among them.
    pub(super) async fn ask(&self, prompt: &[u32]) -> Result<BTreeMap<String, Prediction>, Halt> {
        let question = json!({ "model": MODEL, "token_ids": prompt, "all": true });
        let answer = self.call(Method::POST, "/v1/query", &question).await?;
        let Answer { matches } =
            serde_json::from_value(answer).map_err(|error| failed("/v1/query", error.into()))?;
        let prediction = |found: Match| {
            let exact = found.trust == Trust::Exact.as_str();
            (found.engine, Prediction { tokens: found.tokens, exact })
        };
        Ok(matches.into_iter().map(prediction).collect())
    }

    /// Flushes engines, and says what became of it on each.
    pub(super) async fn flush(&self, engines: &[&str], proof_s: u64) -> Result<Vec<FlushVerdict>, Halt> {
        let request = json!({ "engine": engines, "nudge": true, "proof_timeout_s": proof_s });
        let path = "/flush_cache";
        let answer = http_client::answer(&self.url, &self.key, Method::POST, path, Some(&request)).await;
        let (status, answer) = answer.map_err(|failure| failed(path, failure.error))?;
        // The answer has verdicts also where no engine did it, with an error status.
        let Some(ranks) = answer["ranks"].as_array() else {
            return Err(failed(path, anyhow!(http_client::refusal(&self.url, status, &answer))));
        };
        let verdict = |rank: &Value| FlushVerdict {
            engine: text(&rank["engine"]),
            verdict: text(&rank["verdict"]),
            why: text(&rank["why"]),
        };
        Ok(ranks.iter().map(verdict).collect())
    }

    async fn call(&self, method: Method, path: &str, body: &Value) -> Result<Value, Halt> {
        let answer = http_client::ask(&self.url, &self.key, method, path, Some(body)).await;
        answer.map_err(|failure| failed(path, failure.error))
    }

    /// The number of the last remark in the plane's timeline.
    pub(super) fn last_remark(&self) -> u64 {
        *self.app.plane.chronicle().watch().borrow()
    }

    /// What the plane's timeline says of an engine since a remark, as soon as it says something of a topic:
    /// it is written a moment after a stream has changed.
    pub(super) async fn remarks_since(
        &self,
        number: u64,
        engine: &Engine,
        topic: &str,
    ) -> Result<Vec<String>, Halt> {
        let is_its = |remark: &Remark| {
            remark.stream.as_ref().is_some_and(|stream| stream.engine.as_str() == engine.name)
        };
        let its = || self.app.plane.chronicle().after(number).into_iter().filter(|remark| is_its(remark));
        let wanted = format!("the timeline says something of its {topic}");
        self.until(engine, &wanted, |_| its().any(|remark| remark.said.topic == topic)).await?;
        Ok(its().map(|remark| remark.said.words.clone()).collect())
    }

    /// Waits until an engine's stream is as wanted.
    pub(super) async fn until(
        &self,
        engine: &Engine,
        wanted: &str,
        is_so: impl Fn(&StreamStatus) -> bool,
    ) -> Result<StreamStatus, Halt> {
        let stream = self.stream(engine)?;
        let deadline = kvplane_runtime::now() + PATIENCE;
        loop {
            let status = stream.status();
            if is_so(&status) {
                return Ok(status);
            }
            if kvplane_runtime::now() >= deadline {
                let (seconds, name) = (PATIENCE.as_secs(), engine.name);
                let (continuity, trust) = (status.continuity, status.trust.level());
                return Err(Halt::Failed(anyhow!(
                    "{name}: not within {seconds} s: {wanted} (it is {continuity}, {trust})"
                )));
            }
            tokio::select! {
                () = self.stop.cancelled() => return Err(Halt::Stopped),
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }

    /// Waits until the plane has heard everything that an engine published.
    pub(super) async fn until_heard(&self, engine: &Engine) -> Result<StreamStatus, Halt> {
        let last = engine.last_reported();
        let heard =
            |status: &StreamStatus| status.continuity == Continuity::Live && status.engine_sequence == last;
        self.until(engine, "everything that it published is heard", heard).await
    }

    /// What the plane holds of an engine, block by block beside what the engine holds.
    pub(super) async fn compare(&self, engine: &Engine) -> Result<Comparison, Halt> {
        let stream = self.stream(engine)?;
        let snapshot = stream.snapshot().await;
        let blocks = snapshot.image.blocks.iter().filter(|block| !block.holdings.is_empty());
        let ours: Held = blocks
            .map(|block| (block.hash, block.holdings.iter().map(|held| u64::from(held.copies)).sum()))
            .collect();
        let truth = engine.held();
        let status = stream.status();
        Ok(Comparison {
            engine: engine.name,
            trust: status.trust.level().as_str(),
            blocks: ours.len(),
            engine_blocks: truth.len(),
            agreement: Agreement::of(&ours, &truth, status.trust.level()),
            restarts: status.counters.restarts,
            gaps: status.counters.gaps,
            gaps_unfilled: status.counters.gaps_unfilled,
            disconnects: status.counters.disconnects,
        })
    }

    fn stream(&self, engine: &Engine) -> Result<Arc<Stream>, Halt> {
        let stream = self.app.plane.streams().find(|stream| stream.id().engine.as_str() == engine.name);
        stream.ok_or_else(|| Halt::Failed(anyhow!("the plane does not know {}", engine.name)))
    }
}

impl Agreement {
    fn of(ours: &Held, truth: &Held, trust: Trust) -> Self {
        if ours == truth {
            return Self::Equal;
        }
        let is_less = ours.iter().all(|(hash, copies)| truth.get(hash).is_some_and(|held| copies <= held));
        if is_less && trust == Trust::Lower { Self::Lower } else { Self::Different }
    }
}

/// A call that the plane did not answer as it should.
fn failed(path: &str, error: anyhow::Error) -> Halt {
    Halt::Failed(error.context(format!("the plane's {path}")))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_is_right_only_where_it_is_said() {
        let held = |blocks: &[(u64, u64)]| blocks.iter().copied().collect::<Held>();
        let truth = held(&[(1, 2), (2, 1)]);
        for (ours, trust, expected) in [
            (held(&[(1, 2), (2, 1)]), Trust::Exact, Agreement::Equal),
            (held(&[(1, 1)]), Trust::Lower, Agreement::Lower),
            (held(&[(1, 1)]), Trust::Exact, Agreement::Different),
            (held(&[(1, 3)]), Trust::Lower, Agreement::Different),
            (held(&[(3, 1)]), Trust::Lower, Agreement::Different),
        ] {
            assert_eq!(Agreement::of(&ours, &truth, trust), expected, "{ours:?} {trust}");
        }
    }
}
