//! `kvplane.v1.Plane`.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream as FutureStream, StreamExt as _, stream};
use kvplane_access::ApiError;
use kvplane_catalog::age_ms;
use kvplane_core::{Cursor, EngineId, Epoch, ErrorCode, PlaneId, PublicError, StateDigest, StreamId, Tier};
use kvplane_ingest::{Engine, Stream};
use kvplane_proto::Encoded;
use kvplane_proto::kvplane::v1 as proto;
use kvplane_proto::kvplane::v1::server::plane_server::Plane;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::encode;
use super::everything::{Wanted, everything};
use super::follow::{Begin, Follower};
use super::query;
use crate::questions::Asker;
use crate::select;

/// The service.
#[derive(Debug)]
pub(crate) struct PlaneService {
    asker: Arc<Asker>,
    stop: CancellationToken,
}

impl PlaneService {
    pub(crate) fn new(asker: Arc<Asker>, stop: CancellationToken) -> Self {
        Self { asker, stop }
    }

    /// The streams that a request names, each with where to begin.
    fn selected(
        &self,
        request: &proto::SubscribeRequest,
        begin: Begin,
    ) -> Result<Vec<(Arc<Stream>, Begin)>, PublicError> {
        let plane = &self.asker.plane;
        let mut selected: Vec<(Arc<Stream>, Begin)> = Vec::new();
        for selector in &request.streams {
            let engine = select::engine(plane, Some(&selector.engine))?;
            let streams = match (selector.rank, &selector.resume) {
                (None, None) => engine.streams.clone(),
                (rank, _) => vec![select::stream(&engine, rank)?.clone()],
            };
            let begin = selector.resume.as_ref().map_or(begin, after);
            for stream in streams {
                if selected.iter().any(|(known, _)| known.id() == stream.id()) {
                    let message = format!("stream {} is named twice", stream.id());
                    return Err(
                        PublicError::new(ErrorCode::InvalidArgument, message).with_next("name it once")
                    );
                }
                selected.push((stream, begin));
            }
        }
        Ok(selected)
    }
}

/// What a subscriber of everything wants of each stream.
fn wanted(request: &proto::SubscribeRequest, begin: Begin) -> Result<Wanted, PublicError> {
    let mut resume = HashMap::new();
    for proto::StreamSelector { engine, rank, resume: at } in &request.streams {
        let Some(at) = at else { continue };
        let Some(rank) = rank else {
            let message = format!("engine {engine}: resume needs a rank where all streams are followed");
            return Err(PublicError::new(ErrorCode::InvalidArgument, message)
                .with_next("name the rank, or leave resume out"));
        };
        resume.insert(StreamId::new(EngineId::new(engine), *rank), after(at));
    }
    let asker = (!request.plane.is_empty()).then(|| PlaneId::reported(&request.plane));
    Ok(Wanted { begin, resume, asker })
}

/// Behind a subscriber's position.
fn after(given: &proto::Cursor) -> Begin {
    let cursor = Cursor { epoch: Epoch::from_raw(given.epoch), sequence: given.sequence };
    let digest = given.digest.map(|digest| StateDigest::from_parts(digest.low, digest.high));
    Begin::After(cursor, digest)
}

/// A stream that was named, until it is removed.
fn named(stream: Arc<Stream>, begin: Begin) -> Responses {
    let removed = stream.removed().clone().cancelled_owned();
    let message = format!("engine {} (rank {}) was removed", stream.id().engine, stream.id().rank);
    let farewell = Status::from(ApiError(PublicError::new(ErrorCode::NotFound, message)));
    let messages = Follower::new(stream, begin).into_stream().take_until(removed);
    messages.chain(stream::once(async { Err(farewell) })).boxed()
}

type Responses = Pin<Box<dyn FutureStream<Item = Result<Encoded, Status>> + Send>>;

#[tonic::async_trait]
impl Plane for PlaneService {
    type SubscribeStream = Responses;
    async fn tokenize(
        &self,
        request: Request<proto::QueryRequest>,
    ) -> Result<Response<proto::TokenizeResponse>, Status> {
        Ok(Response::new(query::tokenize(&self.asker, request.into_inner()).await?))
    }

    type QueryStreamStream = query::Answers;

    async fn subscribe(
        &self,
        request: Request<proto::SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let request = request.get_ref();
        let begin = match request.start() {
            proto::Start::Snapshot => Begin::Snapshot,
            proto::Start::Live => Begin::Live,
        };
        let messages: Responses = if request.streams.is_empty() || request.others {
            everything(&self.asker.plane, wanted(request, begin).map_err(ApiError)?).boxed()
        } else {
            let selected = self.selected(request, begin).map_err(ApiError)?;
            stream::select_all(selected.into_iter().map(|(stream, begin)| named(stream, begin))).boxed()
        };
        let stop = self.stop.clone().cancelled_owned();
        let farewell =
            Status::from(ApiError(PublicError::new(ErrorCode::ShuttingDown, "kvplane is shutting down")));
        let responses = messages.take_until(stop).chain(stream::once(async { Err(farewell) }));
        Ok(Response::new(responses.boxed()))
    }

    async fn status(
        &self,
        request: Request<proto::StatusRequest>,
    ) -> Result<Response<proto::StatusResponse>, Status> {
        let plane = self.asker.plane.clone();
        let id = plane.id().to_string();
        let proto::StatusRequest { engine, brief } = request.into_inner();
        let of = move |rank_status: fn(&Stream) -> proto::RankStatus| match engine {
            Some(name) => Ok(vec![engine_status(&*select::engine(&plane, Some(&name))?, rank_status)]),
            None => Ok(plane.engines().iter().map(|engine| engine_status(engine, rank_status)).collect()),
        };
        let engines = if brief {
            of(brief_status)
        } else {
            // Streams may be busy: not on a thread that serves others.
            let failed = |_| PublicError::new(ErrorCode::Internal, "the status could not be read");
            tokio::task::spawn_blocking(move || of(rank_status)).await.map_err(failed).flatten()
        };
        let engines = engines.map_err(ApiError)?;
        Ok(Response::new(proto::StatusResponse { engines, plane: id }))
    }

    async fn query(
        &self,
        request: Request<proto::QueryRequest>,
    ) -> Result<Response<proto::QueryResponse>, Status> {
        query::query(&self.asker, request.into_inner()).await.map(Response::new)
    }

    async fn query_stream(
        &self,
        request: Request<Streaming<proto::QueryBatch>>,
    ) -> Result<Response<Self::QueryStreamStream>, Status> {
        Ok(Response::new(query::query_stream(self.asker.clone(), self.stop.clone(), request.into_inner())))
    }
}

fn engine_status(engine: &Engine, rank_status: fn(&Stream) -> proto::RankStatus) -> proto::EngineStatus {
    proto::EngineStatus {
        id: engine.spec.id.to_string(),
        kind: engine.spec.kind.to_string(),
        model: engine.spec.model.clone(),
        ranks: engine.streams.iter().map(|stream| rank_status(stream)).collect(),
        via: engine.streams.first().map(|stream| encode::via(stream)).unwrap_or_default(),
    }
}

/// What a follower asks for several times a second, without the stream's lock. The cursor is read after the
/// age: what the age speaks of is no later than the cursor.
fn brief_status(stream: &Stream) -> proto::RankStatus {
    let freshness = stream.freshness();
    let age = freshness.age();
    let cursor = stream.cursor();
    proto::RankStatus {
        rank: stream.id().rank,
        continuity: encode::proto_continuity(freshness.judge(stream.continuity(), age)).into(),
        cursor: Some(proto::Cursor { epoch: cursor.epoch.as_u64(), sequence: cursor.sequence, digest: None }),
        age_ms: age.map(age_ms),
        ..Default::default()
    }
}

fn rank_status(stream: &Stream) -> proto::RankStatus {
    let status = stream.glance();
    proto::RankStatus {
        rank: stream.id().rank,
        continuity: encode::proto_continuity(status.continuity).into(),
        trust: Some(encode::trust(&status.trust)),
        cursor: Some(proto::Cursor {
            epoch: status.epoch.as_u64(),
            sequence: status.cursor.sequence,
            digest: None,
        }),
        engine_sequence: status.engine_sequence,
        known_from: status.known_from,
        blocks: Tier::ALL.iter().map(|tier| (tier.to_string(), status.blocks[tier.index()])).collect(),
        block_size: status.block_size,
        digest: Some(encode::state_digest(status.digest)),
        age_ms: status.age.map(age_ms),
    }
}
