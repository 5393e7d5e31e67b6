//! A picker that decides nothing: it collects a request's body, names one endpoint, and sends all bodies
//! back. What Envoy and gRPC take by themselves; `make bench-picker` measures kvplane beside it.
//!
//! `noop_picker LISTEN ENDPOINT`

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a tool for measurements"
)]

use std::collections::VecDeque;
use std::pin::Pin;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use kvplane_proto::{Received, Reply, envoy as proto};
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use proto::processing_request::Request as Incoming;
use proto::processing_response::Response as Outgoing;
use proto::server::external_processor_server::{ExternalProcessor, ExternalProcessorServer};
use tonic::{Request, Response, Status, Streaming};

#[derive(Clone)]
struct Noop {
    endpoint: String,
}

type Messages = Pin<Box<dyn Stream<Item = Result<Reply, Status>> + Send>>;

struct State {
    incoming: Streaming<Received>,
    endpoint: String,
    body: Vec<Bytes>,
    out: VecDeque<proto::ProcessingResponse>,
}

fn plain(response: Outgoing) -> proto::ProcessingResponse {
    proto::ProcessingResponse { response: Some(response), dynamic_metadata: None }
}

fn piece(body: Bytes, end_of_stream: bool) -> proto::BodyResponse {
    let streamed = proto::StreamedBodyResponse { body, end_of_stream };
    let mutation = Some(proto::body_mutation::Mutation::StreamedResponse(streamed));
    let body_mutation = Some(proto::BodyMutation { mutation });
    proto::BodyResponse { response: Some(proto::CommonResponse { body_mutation, ..Default::default() }) }
}

impl State {
    fn go(&mut self) {
        let field =
            |key: &str, kind: Kind| Struct { fields: [(key.to_owned(), Value { kind: Some(kind) })].into() };
        let lb = field("x-gateway-destination-endpoint", Kind::StringValue(self.endpoint.clone()));
        let headers = proto::HeadersResponse { response: Some(proto::CommonResponse::default()) };
        self.out.push_back(proto::ProcessingResponse {
            response: Some(Outgoing::RequestHeaders(headers)),
            dynamic_metadata: Some(field("envoy.lb", Kind::StructValue(lb))),
        });
        for chunk in std::mem::take(&mut self.body) {
            self.out.push_back(plain(Outgoing::RequestBody(piece(chunk, false))));
        }
        self.out.push_back(plain(Outgoing::RequestBody(piece(Bytes::new(), true))));
    }

    fn take(&mut self, message: proto::ProcessingRequest) {
        match message.request {
            Some(Incoming::RequestBody(body)) => {
                self.body.push(body.body);
                if body.end_of_stream {
                    self.go();
                }
            }
            Some(Incoming::ResponseHeaders(_)) => {
                let headers = proto::HeadersResponse { response: Some(proto::CommonResponse::default()) };
                self.out.push_back(plain(Outgoing::ResponseHeaders(headers)));
            }
            Some(Incoming::ResponseBody(body)) => {
                self.out.push_back(plain(Outgoing::ResponseBody(piece(body.body, body.end_of_stream))));
            }
            Some(Incoming::ResponseTrailers(_)) => {
                self.out.push_back(plain(Outgoing::ResponseTrailers(proto::TrailersResponse::default())));
            }
            _ => {}
        }
    }
}

#[tonic::async_trait]
impl ExternalProcessor for Noop {
    type ProcessStream = Messages;

    async fn process(&self, request: Request<Streaming<Received>>) -> Result<Response<Messages>, Status> {
        let (incoming, endpoint) = (request.into_inner(), self.endpoint.clone());
        let state = State { incoming, endpoint, body: Vec::new(), out: VecDeque::new() };
        let messages = futures::stream::unfold(Box::new(state), |mut state| async move {
            loop {
                if let Some(message) = state.out.pop_front() {
                    return Some((Ok(Reply::from(message)), state));
                }
                let message = state.incoming.message().await.ok().flatten()?;
                state.take(message.read().ok()?);
            }
        });
        Ok(Response::new(messages.boxed()))
    }
}

#[tokio::main]
async fn main() {
    let mut words = std::env::args().skip(1);
    let listen = words.next().expect("LISTEN").parse().expect("LISTEN is an address");
    let endpoint = words.next().expect("ENDPOINT");
    let (health, service) = tonic_health::server::health_reporter();
    health
        .set_service_status(
            "envoy.service.ext_proc.v3.ExternalProcessor",
            tonic_health::ServingStatus::Serving,
        )
        .await;
    let noop = ExternalProcessorServer::new(Noop { endpoint }).max_decoding_message_size(usize::MAX);
    let server = tonic::transport::Server::builder()
        .initial_stream_window_size(Some(256 << 10))
        .initial_connection_window_size(Some(8 << 20));
    let mut server = server;
    server.add_service(service).add_service(noop).serve(listen).await.unwrap();
}
