//! `GET /dump` in the JSON of Dynamo's indexer: what every credited stream holds, as stores alone.
//!
//! Its readers read every event as a store, and ignore a block whose parent they have not seen: what lies
//! behind a hole is left out, and blocks that follow one another are one event. Beside the events stands at
//! which batch each stream was dumped, for a kvplane that recovers from this one; others do not read it.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Extension, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::{StreamExt as _, stream};
use kvplane_access::Peer;
use kvplane_ingest::Stream;
use kvplane_stream::{Snapshot, Transition, Worker};
use kvplane_transport::edge::Share;
use kvplane_wire::dynamo::DumpedStream;
use serde_json::json;

use super::peer_query::Refusal;
use super::recover::{Dumps, not_worth_crediting, too_many_dumps};
use crate::held::held_until_sent;

type Sources = Vec<(Worker, Arc<Stream>)>;

/// A part of the dump.
enum Part {
    Text(String),
    Events(Worker, Arc<Stream>),
    /// At which batches the streams before it were dumped.
    Positions,
    #[cfg(test)]
    Panics,
}

/// Every credited stream's state, parents first. It is written stream by stream: a whole fleet's state is
/// never in memory as JSON.
pub(super) async fn dump(State(dumps): State<Dumps>, peer: Option<Extension<ConnectInfo<Peer>>>) -> Response {
    let peer = peer.as_ref().map(|Extension(ConnectInfo(peer))| peer);
    let Some(place) = dumps.edge.dump(peer).await else { return too_many_dumps() };
    let mut by_key: BTreeMap<(String, String, u32), Sources> = BTreeMap::new();
    for engine in dumps.asker.plane.engines().iter() {
        for stream in &engine.streams {
            let known = stream.glance().block_size.or(engine.spec.block_size);
            let Some(block_size) = known else { continue };
            let key = (engine.spec.model.clone(), engine.spec.routing_group.clone(), block_size);
            // Also without anything to tell: the reader's index is of this block size.
            let sources = by_key.entry(key).or_default();
            if not_worth_crediting(&dumps.asker.credit, stream).is_none() {
                let worker = Worker { id: engine.spec.worker_id, rank: stream.id().rank };
                sources.push((worker, stream.clone()));
            }
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
        parts.push(Part::Positions);
        opening = ",";
    }
    parts.push(Part::Text(if names.is_empty() { "{}" } else { "}" }.to_owned()));
    send(parts, place).await
}

async fn send(parts: Vec<Part>, place: Share) -> Response {
    let mut dump =
        Dump { parts: parts.into_iter(), events: None, after_events: false, positions: Vec::new() };
    // What fails before anything was sent is an error that the caller can read: so the first events are
    // written first.
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
    let body = held_until_sent(Body::from_stream(body.boxed()), place);
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// The dump of a stream failed: a defect.
#[derive(Debug, thiserror::Error)]
#[error("the state could not be dumped")]
struct DumpFailed;

impl IntoResponse for DumpFailed {
    fn into_response(self) -> Response {
        Refusal::failed(self.to_string()).into_response()
    }
}

/// The dump, piece by piece: no more than a piece of it is in memory as JSON, however slowly it is read.
struct Dump {
    parts: std::vec::IntoIter<Part>,
    /// The stream that is being written.
    events: Option<(Worker, Arc<[Transition]>, usize)>,
    /// Whether a comma comes before the next event.
    after_events: bool,
    /// Of the streams that were written since the last of them were.
    positions: Vec<DumpedStream>,
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
                    self.positions.extend(position(worker, &snapshot));
                    let events = tokio::task::spawn_blocking(move || snapshot.as_chains().into()).await;
                    let Ok(events) = events else { return Some(Err(DumpFailed)) };
                    self.events = Some((worker, events, 0));
                }
                Part::Positions => {
                    let Ok(list) = serde_json::to_string(&std::mem::take(&mut self.positions)) else {
                        return Some(Err(DumpFailed));
                    };
                    return Some(Ok(format!("],\"streams\":{list}}}").into()));
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

/// At which batch a stream was dumped: another kvplane that has read it too knows what has happened since.
fn position(worker: Worker, snapshot: &Snapshot) -> Option<DumpedStream> {
    let position = snapshot.position?;
    Some(DumpedStream {
        worker_id: worker.id,
        dp_rank: worker.rank,
        sequence: position.sequence,
        digest: format!("{:032x}", position.digest),
        trust: snapshot.trust.level().to_string(),
        groups: snapshot.groups.len(),
    })
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

    use axum::http::StatusCode;
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
