//! A plane between a client and the real one, which changes what passes.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::{Stream, StreamExt as _};
use kvplane_client::proto;
use kvplane_proto::Encoded;
use kvplane_proto::kvplane::v1::plane_client::PlaneClient;
use kvplane_proto::kvplane::v1::server::plane_server::{Plane, PlaneServer};
use prost::Message as _;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

/// What becomes of a message.
pub type Change = dyn Fn(proto::SubscribeResponse) -> Result<proto::SubscribeResponse, Status> + Send + Sync;

pub struct Liar {
    url: String,
    change: Arc<Change>,
    mute: Arc<AtomicBool>,
}

impl Liar {
    /// Stands before the plane at `url`.
    pub async fn before(
        url: String,
        change: impl Fn(proto::SubscribeResponse) -> Result<proto::SubscribeResponse, Status>
        + Send
        + Sync
        + 'static,
    ) -> SocketAddr {
        Self { url, change: Arc::new(change), mute: Arc::default() }.serve().await
    }

    /// Stands before the plane at `url`, and leaves questions for its status without an answer while it is
    /// `mute`.
    pub async fn mute(url: String, mute: Arc<AtomicBool>) -> SocketAddr {
        Self { url, change: Arc::new(Ok), mute }.serve().await
    }

    async fn serve(self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tonic::transport::Server::builder().add_service(PlaneServer::new(self));
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        address
    }
}

type Responses = Pin<Box<dyn Stream<Item = Result<Encoded, Status>> + Send>>;

#[tonic::async_trait]
impl Plane for Liar {
    type SubscribeStream = Responses;

    async fn subscribe(
        &self,
        request: Request<proto::SubscribeRequest>,
    ) -> Result<Response<Responses>, Status> {
        let mut plane = PlaneClient::connect(self.url.clone()).await.unwrap();
        let messages = plane.subscribe(request.into_inner()).await?.into_inner();
        let change = self.change.clone();
        let changed = messages.map(move |message| {
            message.and_then(|message| change(message)).map(|message| Encoded(message.encode_to_vec().into()))
        });
        Ok(Response::new(changed.boxed()))
    }

    async fn status(
        &self,
        request: Request<proto::StatusRequest>,
    ) -> Result<Response<proto::StatusResponse>, Status> {
        if self.mute.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        let mut plane = PlaneClient::connect(self.url.clone()).await.unwrap();
        plane.status(request.into_inner()).await
    }

    type QueryStreamStream = Pin<Box<dyn Stream<Item = Result<proto::QueryBatchResponse, Status>> + Send>>;

    async fn query(
        &self,
        request: Request<proto::QueryRequest>,
    ) -> Result<Response<proto::QueryResponse>, Status> {
        let mut plane = PlaneClient::connect(self.url.clone()).await.unwrap();
        plane.query(request.into_inner()).await
    }

    async fn tokenize(
        &self,
        _request: Request<proto::QueryRequest>,
    ) -> Result<Response<proto::TokenizeResponse>, Status> {
        Err(Status::unimplemented("nobody asks for it here"))
    }

    async fn query_stream(
        &self,
        _request: Request<Streaming<proto::QueryBatch>>,
    ) -> Result<Response<Self::QueryStreamStream>, Status> {
        Err(Status::unimplemented("nobody asks for it here"))
    }
}
