//! Sharing bookings with planes that are followed: one call to each, for as long as the link is configured.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kvplane_core::{Backoff, EngineId};
use kvplane_ingest::{LinkSpec, Plane, Source};
use kvplane_proto::kvplane::v1 as proto;
use kvplane_proto::kvplane::v1::routing_client::RoutingClient;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use tracing::{debug, info, warn};

use super::Routing;
use super::peers::{Joined, Way};

/// How often links are looked for that came or went.
const LOOK: Duration = Duration::from_secs(1);
/// How long the other plane may take to accept the call.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Waits between attempts, and between those that can hardly have another outcome.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
const SLOW_WAIT: Duration = Duration::from_secs(30);
/// How often a quiet connection is tested, and how long the answer may take.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Updates of one message: they fit with the longest lists of prefixes.
const BATCH: usize = 128;
/// Messages that wait for the connection.
const MESSAGES: usize = 4;

/// Shares bookings with every plane that is followed, until `stop`.
pub(crate) async fn share(plane: Arc<Plane>, routing: Arc<Routing>, stop: CancellationToken) {
    let mut running: HashMap<EngineId, (LinkSpec, tokio_util::sync::DropGuard)> = HashMap::new();
    loop {
        let links: HashMap<EngineId, LinkSpec> = plane
            .engines()
            .iter()
            .filter_map(|engine| match &engine.spec.source {
                Source::Linked(spec) => Some((engine.spec.id.clone(), spec.clone())),
                _ => None,
            })
            .collect();
        running.retain(|id, (spec, _)| links.get(id) == Some(spec));
        for (id, spec) in links {
            running.entry(id.clone()).or_insert_with(|| {
                let ends = stop.child_token();
                let (plane, routing) = (plane.clone(), routing.clone());
                let link = Link { plane, routing, id, spec: spec.clone(), failing: None };
                let run = ends.clone().run_until_cancelled_owned(link.run());
                kvplane_runtime::spawn("share bookings", async {
                    run.await;
                });
                (spec, ends.drop_guard())
            });
        }
        if stop.run_until_cancelled(sleep(LOOK)).await.is_none() {
            return;
        }
    }
}

/// A peer, for as long as this exists.
pub(crate) struct Guard {
    plane: Arc<Plane>,
    routing: Arc<Routing>,
    pub(crate) number: u64,
}

impl Guard {
    pub(crate) fn new(plane: Arc<Plane>, routing: Arc<Routing>, number: u64) -> Self {
        Self { plane, routing, number }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.routing.leave(&self.plane, self.number);
    }
}

/// Messages of updates: what is booked, and what happens from then on.
pub(crate) fn messages(joined: Joined) -> impl futures::Stream<Item = proto::BookingBatch> + Send {
    let Joined { now, next, .. } = joined;
    let now = futures::stream::iter(now).chunks(BATCH);
    let next = ReceiverStream::new(next).map(|queued| queued.update).ready_chunks(BATCH);
    now.chain(next).map(|updates| proto::BookingBatch { updates })
}

struct Link {
    plane: Arc<Plane>,
    routing: Arc<Routing>,
    id: EngineId,
    spec: LinkSpec,
    /// Why nothing was shared when it was last tried.
    failing: Option<String>,
}

impl Link {
    async fn run(mut self) {
        let mut backoff = Backoff::new(SHORTEST_WAIT, LONGEST_WAIT);
        loop {
            let begun = Instant::now();
            let ended = self.session().await;
            if begun.elapsed() > LONGEST_WAIT {
                backoff.reset();
            }
            let wait = backoff.wait();
            // An older release, or a caller without the role.
            let hopeless =
                matches!(ended.code(), Code::Unimplemented | Code::Unauthenticated | Code::PermissionDenied);
            let reason = format!("{:?}: {}", ended.code(), ended.message());
            if self.failing.as_ref() == Some(&reason) {
                debug!(link = %self.id, reason, "bookings are not shared");
            } else {
                warn!(link = %self.id, reason, "bookings are not shared: picks do not count what other planes sent to its engines");
                self.failing = Some(reason);
            }
            sleep(if hopeless { SLOW_WAIT } else { wait }).await;
        }
    }

    /// One call, from its beginning to its end.
    async fn session(&mut self) -> Status {
        match self.call().await {
            Ok(()) => Status::unavailable("the other plane ended the call"),
            Err(status) => status,
        }
    }

    async fn call(&mut self) -> Result<(), Status> {
        let refused = |error: &dyn std::error::Error| Status::unavailable(error.to_string());
        let endpoint = self.spec.endpoint().map_err(|error| refused(&error))?;
        let channel = endpoint
            .connect_timeout(ANSWER_WITHIN)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .keep_alive_while_idle(true)
            .connect_lazy();
        let spec = self.spec.clone();
        let token = tokio::task::spawn_blocking(move || spec.token()).await;
        let bearer = token.map_err(|error| refused(&error))?;
        let bearer = bearer.map_err(|error| Status::unauthenticated(error.to_string()))?;
        let mut client = RoutingClient::with_interceptor(channel, bearer);
        let (out, sent) = mpsc::channel(MESSAGES);
        let answer = client.share_bookings(ReceiverStream::new(sent));
        let slow = |_| Status::deadline_exceeded("it did not answer in time");
        let mut heard = timeout(ANSWER_WITHIN, answer).await.map_err(slow)??.into_inner();
        // After the answer: an absent plane is no peer, and nothing is kept for it.
        let Some(joined) = self.routing.join(&self.plane, Way::Followed(self.id.clone())) else {
            return Err(Status::resource_exhausted("too many planes share bookings with this one"));
        };
        let guard = Guard::new(self.plane.clone(), self.routing.clone(), joined.number);
        info!(link = %self.id, "bookings are shared");
        self.failing = None;
        let forwarding = messages(joined).map(Ok).forward(tokio_util::sync::PollSender::new(out));
        let mut forwarding = std::pin::pin!(forwarding);
        loop {
            tokio::select! {
                _ = &mut forwarding => return Err(Status::aborted("it reads too slowly, or ended the call")),
                batch = heard.message() => {
                    let Some(batch) = batch? else { return Ok(()) };
                    if !self.routing.take(&self.plane, guard.number, &batch.updates) {
                        return Err(Status::aborted("it reads too slowly"));
                    }
                }
            }
        }
    }
}
