//! `/v1/watch`: the fleet and what happens to it, as server-sent events.
//!
//! `plane` comes first and says which plane it is. `fleet` has ranks: all of them (`whole`) when the stream
//! begins and when others are there, else those that changed, and links when one of them changed. `remarks`
//! has what happened, oldest first; the first one all that is still known. `overview` has open problems,
//! tokens asked for and tokens found. All come with a picture, however much happens between two.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use http::{HeaderName, HeaderValue, header};
use kvplane_access::ApiError;
use kvplane_ingest::{Plane, Remark};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::overview::Overviews;
use super::parameters::{Pairs, Parameters};
use crate::watch::{History, Looking, Past, Picture, Watch};

/// So that proxies do not end a quiet stream, and readers notice a dead connection soon.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// What happens is for now: nobody on the way keeps it, or waits for more of it.
const AT_ONCE: [(HeaderName, HeaderValue); 2] = [
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
];

/// Which plane it is.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WatchedPlane")]
pub(super) struct PlaneJson {
    /// Another run has another.
    id: String,
    version: &'static str,
}

/// Something that happened.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WatchedRemark")]
pub(super) struct RemarkJson<'r> {
    /// Rises with every remark. One that happens again right away gets a new number.
    number: u64,
    unix_ms: u64,
    /// Absent for the plane as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<u32>,
    /// What it is about, as a stable word.
    topic: &'static str,
    /// `good`, `plain` or `bad`.
    mood: &'static str,
    words: &'r str,
    /// How often in a row.
    times: u64,
}

/// What watchers are served from.
#[derive(Debug, Clone)]
pub(crate) struct Watching {
    pub(crate) plane: Arc<Plane>,
    pub(crate) watch: Arc<Watch>,
    pub(crate) overviews: Arc<Overviews>,
    pub(crate) stop: CancellationToken,
}

/// One who looks.
struct Watcher {
    overviews: Arc<Overviews>,
    plane: Arc<Plane>,
    _looking: Arc<Looking>,
    pictures: watch::Receiver<Arc<Picture>>,
    seen: u64,
    /// The last remark that it was sent.
    heard: u64,
    /// The overview that it was sent last.
    overview: Option<Arc<str>>,
    ready: VecDeque<Event>,
    stop: CancellationToken,
}

pub(super) async fn watch(State(watching): State<Watching>) -> impl IntoResponse {
    let events = futures::stream::unfold(Watcher::new(watching), async |mut watcher| {
        let event = watcher.next().await?;
        Some((Ok::<_, Infallible>(event), watcher))
    });
    (AT_ONCE, Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

impl Watcher {
    fn new(Watching { plane, watch, overviews, stop }: Watching) -> Self {
        let looking = watch.look(&plane);
        let hello = PlaneJson { id: plane.id().to_string(), version: env!("CARGO_PKG_VERSION") };
        Self {
            overviews,
            plane,
            pictures: looking.pictures(),
            _looking: looking,
            seen: 0,
            heard: 0,
            overview: None,
            ready: Event::default().event("plane").json_data(hello).into_iter().collect(),
            stop,
        }
    }

    /// What to tell next; `None` when the plane ends.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            tokio::select! {
                () = self.stop.cancelled() => return None,
                changed = self.pictures.changed() => changed.ok()?,
            }
            let picture = self.pictures.borrow_and_update().clone();
            let fleet = picture.since(std::mem::replace(&mut self.seen, picture.number()));
            self.ready.extend(fleet.map(|fleet| Event::default().event("fleet").data(fleet)));
            let remarks = self.plane.chronicle().after(self.heard);
            if let Some(last) = remarks.last() {
                self.heard = last.number;
                self.ready.extend(remark_event(&remarks));
            }
            let overviews = self.overviews.clone();
            // Streams may be busy: not on a thread that serves others.
            let read = tokio::task::spawn_blocking(move || overviews.read()).await.ok();
            if let Some(overview) = read.filter(|read| self.overview.as_ref() != Some(read)) {
                self.ready.push_back(Event::default().event("overview").data(&*overview));
                self.overview = Some(overview);
            }
        }
    }
}

/// `GET /v1/history`: the last hour of the fleet, and of one engine's ranks.
pub(super) async fn history(
    State(history): State<Arc<History>>,
    query: Pairs,
) -> Result<Json<Past>, ApiError> {
    let mut given = Parameters::read(query, &[])?;
    let engine = given.text("engine", &[])?;
    given.finish()?;
    Ok(Json(history.past(engine.as_deref())))
}

fn remark_event(remarks: &[Arc<Remark>]) -> Option<Event> {
    let shown: Vec<_> = remarks
        .iter()
        .map(|remark| RemarkJson {
            number: remark.number,
            unix_ms: remark.unix_ms,
            engine: remark.stream.as_ref().map(|stream| stream.engine.as_str()),
            rank: remark.stream.as_ref().map(|stream| stream.rank),
            topic: remark.said.topic,
            mood: remark.said.mood.as_str(),
            words: &remark.said.words,
            times: remark.times,
        })
        .collect();
    Event::default().event("remarks").json_data(shown).ok()
}

#[cfg(test)]
mod tests;
