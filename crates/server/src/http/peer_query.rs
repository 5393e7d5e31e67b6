//! The questions of Dynamo's and Mooncake's indexer: `/query`, `/query_by_hash` and `/dump`, in their JSON.
//!
//! Their answers have no room for trust: only streams that are credited are in them. What these routes do not know they
//! pass over, as the peers do. Counts are tokens; those of colder tiers include the warmer ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Extension, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::{StreamExt as _, stream};
use kvplane_access::Peer;
use kvplane_catalog::{Answer, Prompt, Question, Roster};
use kvplane_core::{PublicError, Tier};
use kvplane_ingest::{DEFAULT_ROUTING_GROUP, Stream};
use kvplane_stream::{Transition, Worker};
use kvplane_transport::edge::Share;
use serde::Serialize;
use serde_json::json;

use super::fields::{Fields, Malformed};
use super::query::{on_a_fitting_thread, read_block_hashes, read_body, read_token_ids, with_question};
use super::recover::Dumps;
use super::recover::{not_worth_crediting, too_many_dumps};
use crate::held::Held;
use crate::questions::Asker;

/// A refusal in the peers' form.
#[derive(Debug)]
struct Refusal(StatusCode, String);

impl From<PublicError> for Refusal {
    fn from(error: PublicError) -> Self {
        Self(StatusCode::BAD_REQUEST, error.in_full())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "error": self.1 }))).into_response()
    }
}

pub(super) async fn query(State(asker): State<Arc<Asker>>, request: Request) -> Response {
    answer(asker, request, |asker, body| respond(asker, body, By::Tokens)).await
}

pub(super) async fn query_by_hash(State(asker): State<Arc<Asker>>, request: Request) -> Response {
    answer(asker, request, |asker, body| respond(asker, body, By::Hashes)).await
}

async fn answer(
    asker: Arc<Asker>,
    request: Request,
    respond: fn(&Asker, &[u8]) -> Result<Response, Refusal>,
) -> Response {
    let body = match read_body(&asker, request).await {
        Ok(body) => body,
        Err(error) => return Refusal::from(error).into_response(),
    };
    match on_a_fitting_thread(asker, body, respond).await {
        Ok(responded) => responded.into_response(),
        Err(error) => error.into_response(),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Tokens,
    Hashes,
}

fn respond(asker: &Asker, body: &[u8], by: By) -> Result<Response, Refusal> {
    with_question(|question| {
        let group = read(body, by, asker.max_tokens, question)?;
        let Some(model) = question.model.as_deref() else {
            return Err(Refusal(StatusCode::BAD_REQUEST, "model_name is missing".to_owned()));
        };
        let in_group = |roster: &Arc<Roster>| {
            roster.members().iter().any(|member| member.identity.routing_group == group)
        };
        let roster = asker.catalog().model(model).filter(in_group);
        let Some(roster) = roster else {
            let message = format!("no indexer for model={model} routing_group={group}");
            return Err(Refusal(StatusCode::NOT_FOUND, message));
        };
        let prompt = match (by, &question.token_ids, &question.block_hashes) {
            (By::Tokens, Some(ids), _) => Prompt::Tokens { ids, namespace: question.names().namespace() },
            (By::Hashes, _, Some(hashes)) => Prompt::Hashes { hashes, chained: false, block_size: None },
            (By::Tokens, None, _) => {
                return Err(Refusal(StatusCode::BAD_REQUEST, "token_ids is missing".to_owned()));
            }
            (By::Hashes, _, None) => {
                return Err(Refusal(StatusCode::BAD_REQUEST, "block_hashes is missing".to_owned()));
            }
        };
        Ok(Json(roster.ask(&prompt, &asker.credit, |answer| Overlap::of(answer, &group))).into_response())
    })
}

/// Reads a peer's question and gives its routing group.
fn read(body: &[u8], by: By, max_tokens: usize, question: &mut Question) -> Result<String, Refusal> {
    let malformed = |Malformed(reason)| Refusal(StatusCode::BAD_REQUEST, format!("body {reason}"));
    let not_text = |name: &str| Refusal(StatusCode::BAD_REQUEST, format!("{name} is not text"));
    let mut group = None;
    let mut fields = Fields::open(body).map_err(malformed)?;
    while let Some(name) = fields.next().map_err(malformed)? {
        match (&*name, by) {
            ("token_ids", By::Tokens) => read_token_ids(question, &mut fields, max_tokens)?,
            ("block_hashes", By::Hashes) => read_block_hashes(question, &mut fields, max_tokens)?,
            ("model_name", _) => question.model = fields.value().map_err(|_| not_text(&name))?,
            ("routing_group", _) => group = Some(fields.value().map_err(|_| not_text(&name))?),
            ("lora_name", By::Tokens) => question.lora_name = fields.value().map_err(|_| not_text(&name))?,
            ("cache_salt", _) => question.cache_salt = fields.value().map_err(|_| not_text(&name))?,
            _ => fields.skip().map_err(malformed)?,
        }
    }
    if by == By::Hashes && question.cache_salt.is_some() {
        let message = "cache_salt is not taken here: block_hashes carry it already";
        return Err(Refusal(StatusCode::BAD_REQUEST, message.to_owned()));
    }
    Ok(group.unwrap_or_else(|| DEFAULT_ROUTING_GROUP.to_owned()))
}

/// Tokens by instance, then by rank.
#[derive(Debug, Default, Serialize)]
struct Overlap {
    /// On the device.
    scores: BTreeMap<String, BTreeMap<String, u64>>,
    /// Always empty, as at the peers.
    frequencies: [u32; 0],
    instances: BTreeMap<String, Instance>,
}

/// The best of an instance's ranks.
#[derive(Debug, Default, Serialize)]
struct Instance {
    longest_matched: u64,
    gpu: u64,
    dp: BTreeMap<String, u64>,
    cpu: u64,
    disk: u64,
}

impl Overlap {
    fn of(answer: &Answer<'_>, group: &str) -> Self {
        let mut overlap = Self::default();
        for found in answer.matches().filter(|found| found.tokens() > 0) {
            let identity = &found.member.identity;
            if identity.routing_group != group {
                continue;
            }
            let (id, rank) = (identity.worker_id.to_string(), found.member.id.rank.to_string());
            let [gpu, cpu, disk] = [Tier::Device, Tier::Host, Tier::Disk].map(|tier| found.tokens_in(tier));
            let instance = overlap.instances.entry(id.clone()).or_default();
            instance.longest_matched = instance.longest_matched.max(disk);
            instance.gpu = instance.gpu.max(gpu);
            instance.cpu = instance.cpu.max(cpu);
            instance.disk = instance.disk.max(disk);
            if gpu > 0 {
                raise(&mut instance.dp, rank.clone(), gpu);
                raise(overlap.scores.entry(id).or_default(), rank, gpu);
            }
        }
        overlap
    }
}

/// Two engines may have been given one number.
fn raise(tokens: &mut BTreeMap<String, u64>, rank: String, at_least: u64) {
    let known = tokens.entry(rank).or_default();
    *known = at_least.max(*known);
}

type Sources = Vec<(Worker, Arc<Stream>)>;

/// A part of the dump.
enum Part {
    Text(String),
    Events(Worker, Arc<Stream>),
    #[cfg(test)]
    Panics,
}

/// Every credited stream's state as events, parents first. It is written stream by stream: a whole fleet's state is
/// never in memory as JSON.
pub(super) async fn dump(State(dumps): State<Dumps>, peer: Option<Extension<ConnectInfo<Peer>>>) -> Response {
    let peer = peer.as_ref().map(|Extension(ConnectInfo(peer))| peer);
    let Some(place) = dumps.edge.dump(peer).await else { return too_many_dumps() };
    let mut by_key: BTreeMap<(String, String, u32), Sources> = BTreeMap::new();
    for engine in dumps.asker.plane.engines().iter() {
        for stream in &engine.streams {
            let Some(block_size) = stream.glance().block_size else { continue };
            if not_worth_crediting(&dumps.asker.credit, stream).is_some() {
                continue;
            }
            let worker = Worker { id: engine.spec.worker_id, rank: stream.id().rank };
            let key = (engine.spec.model.clone(), engine.spec.routing_group.clone(), block_size);
            by_key.entry(key).or_default().push((worker, stream.clone()));
        }
    }
    let sizes =
        |model: &str, group: &str| by_key.keys().filter(|key| key.0 == model && key.1 == group).count();
    let names: Vec<String> = by_key
        .keys()
        .map(|(model, group, block_size)| match sizes(model, group) {
            1 => format!("{model}:{group}"),
            // The peers have one block size per key.
            _ => format!("{model}:{group}-{block_size}"),
        })
        .collect();
    let mut parts = Vec::new();
    let mut opening = "{";
    for (name, ((_, _, block_size), streams)) in names.iter().zip(by_key) {
        parts
            .push(Part::Text(format!("{opening}{}:{{\"block_size\":{block_size},\"events\":[", json!(name))));
        parts.extend(streams.into_iter().map(|(worker, stream)| Part::Events(worker, stream)));
        parts.push(Part::Text("]}".to_owned()));
        opening = ",";
    }
    parts.push(Part::Text(if names.is_empty() { "{}" } else { "}" }.to_owned()));
    send(parts, place).await
}

async fn send(parts: Vec<Part>, place: Share) -> Response {
    let mut dump = Dump { parts: parts.into_iter(), events: None, after_events: false };
    // What fails before anything was sent is an error that the caller can read: so the first events are written first.
    let mut first = Vec::new();
    while let Some(piece) = dump.next().await {
        match piece {
            Ok(piece) => first.push(Ok(piece)),
            Err(error) => return error.into_response(),
        }
        if dump.events.is_some() {
            break;
        }
    }
    let rest = stream::unfold(dump, async |mut dump| Some((dump.next().await?, dump)));
    // Later failures break the response off: half a state is never a whole answer.
    let body = stream::iter(first).chain(rest).map(|piece| piece.map_err(|_| DumpFailed));
    let body = Held::new(Body::from_stream(body.boxed()), place);
    ([(header::CONTENT_TYPE, "application/json")], Body::new(body)).into_response()
}

/// The dump of a stream failed: a defect.
#[derive(Debug, thiserror::Error)]
#[error("the state could not be dumped")]
struct DumpFailed;

impl IntoResponse for DumpFailed {
    fn into_response(self) -> Response {
        Refusal(StatusCode::INTERNAL_SERVER_ERROR, self.to_string()).into_response()
    }
}

/// The dump, piece by piece: no more than a piece of it is in memory as JSON, however slowly it is read.
struct Dump {
    parts: std::vec::IntoIter<Part>,
    /// The stream that is being written.
    events: Option<(Worker, Arc<[Transition]>, usize)>,
    /// Whether a comma comes before the next event.
    after_events: bool,
}

impl Dump {
    async fn next(&mut self) -> Option<Result<Bytes, DumpFailed>> {
        loop {
            if let Some((worker, events, at)) = self.events.take() {
                if at == events.len() {
                    continue;
                }
                let (comma, shared) = (self.after_events, events.clone());
                let Ok(Ok((text, next))) =
                    tokio::task::spawn_blocking(move || write_events(worker, &shared, at, comma)).await
                else {
                    return Some(Err(DumpFailed));
                };
                self.after_events = true;
                self.events = Some((worker, events, next));
                return Some(Ok(text));
            }
            match self.parts.next()? {
                Part::Text(text) => {
                    self.after_events = false;
                    return Some(Ok(text.into()));
                }
                Part::Events(worker, stream) => {
                    let snapshot = stream.snapshot().await;
                    let events = tokio::task::spawn_blocking(move || snapshot.as_transitions().into()).await;
                    let Ok(events) = events else { return Some(Err(DumpFailed)) };
                    self.events = Some((worker, events, 0));
                }
                #[cfg(test)]
                Part::Panics => {
                    let panicked = tokio::task::spawn_blocking(|| panic!("a defect")).await;
                    return panicked.is_err().then_some(Err(DumpFailed));
                }
            }
        }
    }
}

/// Bytes of one piece, about.
const PIECE: usize = 256 << 10;

/// Writes events from one on, up to a piece. Gives the number of the next one.
fn write_events(
    worker: Worker,
    events: &[Transition],
    from: usize,
    mut comma: bool,
) -> Result<(Bytes, usize), serde_json::Error> {
    let mut text = Vec::with_capacity(PIECE);
    let mut at = from;
    while at < events.len() && text.len() < PIECE {
        if std::mem::replace(&mut comma, true) {
            text.push(b',');
        }
        serde_json::to_writer(&mut text, &worker.event(at as u64, &events[at]))?;
        at += 1;
    }
    Ok((text.into(), at))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use kvplane_transport::edge::{PeerKey, Shares};

    use super::*;

    fn place() -> Share {
        Shares::new(1, 1).take(PeerKey::of(IpAddr::from([127, 0, 0, 1])), 1).unwrap()
    }

    #[tokio::test]
    async fn a_stream_that_cannot_be_dumped_is_not_left_out() {
        let response = send(vec![Part::Text("{".to_owned()), Part::Panics], place()).await;
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }

    #[tokio::test]
    async fn an_empty_dump_is_one() {
        let response = send(vec![Part::Text("{}".to_owned())], place()).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(axum::body::to_bytes(response.into_body(), 9).await.unwrap(), "{}");
    }
}
