//! What comes in on the gRPC listener: calls have places, messages are whole and measured before they are
//! decoded.
//!
//! A message is handed on only once it is here, and only if what it becomes fits. Until it is answered its
//! bytes count in a budget of the process, of which one peer has a share.

use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame, SizeHint};
use kvplane_access::ApiError;
use kvplane_access::Edge;
use kvplane_access::Peer;
use kvplane_access::bounds::{self, Refused};
use kvplane_core::{ErrorCode, PublicError};
use kvplane_transport::edge::{Full, Pulse, Share};
use parking_lot::Mutex;
use tokio::time::{Sleep, sleep};
use tonic::Status;

use super::scan::{Method, Schema, Unfit};
use crate::held::Held;
use crate::hints::{self, Hints};

/// gRPC's prefix of a message: a flag and four bytes of length.
const PREFIX: usize = 5;
const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";

/// The shapes of every method's messages.
static SCHEMA: LazyLock<Schema> =
    LazyLock::new(|| Schema::of(&[kvplane_proto::DESCRIPTORS, tonic_health::pb::FILE_DESCRIPTOR_SET]));

/// How large one message of a method may be on the wire.
pub(crate) fn message_limit(path: &str, max_tokens: usize) -> usize {
    /// Tokens have up to five bytes, hashes eight; besides there are keys.
    const BYTES_PER_TOKEN: usize = 12;
    let of_query = max_tokens.saturating_mul(BYTES_PER_TOKEN).max(4 << 20);
    match path {
        "/kvplane.v1.Plane/Query" | "/kvplane.v1.Plane/Tokenize" | "/kvplane.v1.Routing/Pick" => of_query,
        // Several of the longest prompts.
        "/kvplane.v1.Plane/QueryStream" => of_query.saturating_mul(2).max(16 << 20),
        path if path.starts_with("/inferencecache.") => hints::MAX_MESSAGE,
        path if path.starts_with("/kvplane.v1.") => 1 << 20,
        _ => 64 << 10,
    }
}

/// What calls are bound by.
#[derive(Debug)]
pub(crate) struct Bounding {
    pub(crate) edge: Arc<Edge>,
    /// The longest prompt that may be asked for.
    pub(crate) max_tokens: usize,
    /// Counts messages of reports that are too large.
    pub(crate) hints: Option<Arc<Hints>>,
}

/// Bounds the calls of the gRPC listener.
pub(crate) async fn bound_calls(
    State(bounding): State<Arc<Bounding>>,
    request: Request,
    next: Next,
) -> Response {
    let edge = bounding.edge.clone();
    let peer = request.extensions().get::<Peer>().cloned();
    let key = bounds::key(peer.as_ref());
    let busy = peer.as_ref().and_then(|peer| peer.pulse.as_ref()).map(Pulse::enter);
    let call = match edge.calls.take(key, 1) {
        Ok(call) => call,
        Err(full) => {
            let (reason, whose) = match full {
                Full::Total => (Refused::TooManyCalls, "in total"),
                Full::Peer => (Refused::TooManyCallsOfPeer, "from this address"),
            };
            return refuse(&edge, reason, format!("too many calls in progress {whose}")).into_http();
        }
    };
    let watch = match (request.uri().path() == HEALTH_WATCH).then(|| edge.watches.take(key, 1)) {
        Some(Err(_)) => {
            let message = "too many health watches are open".to_owned();
            return refuse(&edge, Refused::TooManyWatches, message).into_http();
        }
        taken => taken.and_then(Result::ok),
    };
    let bytes = match edge.request_bytes.take(key, 0) {
        Ok(none_yet) => Arc::new(Mutex::new(none_yet)),
        Err(full) => return too_many_bytes(&edge, full).into_http(),
    };
    let limit = message_limit(request.uri().path(), bounding.max_tokens);
    let method = SCHEMA.method(request.uri().path());
    let request = request.map(|body| {
        Body::new(Intake {
            timer: (!is_streaming(method)).then(|| Box::pin(sleep(edge.bounds.request_time))),
            body,
            bounding: bounding.clone(),
            method,
            limit,
            bytes: bytes.clone(),
            buffer: BytesMut::new(),
            handed_over: false,
            ended: false,
        })
    });
    let response = next.run(request).await;
    // Answered, or a stream that takes its messages one by one and keeps count itself.
    drop(bytes);
    response.map(|body| Body::new(Held::watched(body, busy, (call, watch))))
}

/// Whether a caller may rest between two messages. Of methods that have no shape here that is not known.
fn is_streaming(method: Option<Method>) -> bool {
    method.is_none_or(|method| method.streaming)
}

fn refuse(edge: &Edge, reason: Refused, message: String) -> Status {
    edge.count(reason);
    ApiError(PublicError::new(ErrorCode::LimitReached, message).with_next("try again shortly")).into()
}

fn too_many_bytes(edge: &Edge, full: Full) -> Status {
    let whose = if full == Full::Peer { "from this address" } else { "in total" };
    refuse(edge, Refused::bytes(full), format!("too many bytes of requests are being received {whose}"))
}

/// The body of a call: whole messages, each measured.
struct Intake {
    body: Body,
    bounding: Arc<Bounding>,
    method: Option<Method>,
    limit: usize,
    /// What this call has of the budget.
    bytes: Arc<Mutex<Share>>,
    buffer: BytesMut,
    /// A message that the budget still counts was handed on.
    handed_over: bool,
    ended: bool,
    /// Runs while a message is incomplete; for a method that takes one, from the start.
    timer: Option<Pin<Box<Sleep>>>,
}

type Handed = Option<Result<Frame<Bytes>, Status>>;

impl Intake {
    fn fail(&mut self, status: Status) -> Poll<Handed> {
        self.ended = true;
        self.buffer = BytesMut::new();
        self.bytes.lock().clear();
        Poll::Ready(Some(Err(status)))
    }

    fn edge(&self) -> &Edge {
        &self.bounding.edge
    }

    /// The length of the first message of some bytes with its prefix, if it is known.
    fn length(&self, bytes: &[u8]) -> Result<Option<usize>, Status> {
        let Some(prefix) = bytes.first_chunk::<PREFIX>() else { return Ok(None) };
        let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
        if length > self.limit {
            if let Some(hints) = self.bounding.hints.as_ref().filter(|_| self.limit == hints::MAX_MESSAGE) {
                hints.count_oversized();
            }
            let message = format!("the message has {length} bytes, more than {} for this method", self.limit);
            self.edge().count(Refused::MessageTooLarge);
            let error = PublicError::new(ErrorCode::LimitReached, message);
            return Err(ApiError(error.with_next("send it as several messages")).into());
        }
        Ok(Some(PREFIX + length))
    }

    /// Whether a whole message may be decoded; then the budget counts what it becomes.
    fn measure(&self, message: &[u8]) -> Result<(), Status> {
        // A compressed message is refused when it is decoded: none was agreed on.
        let (Some(method), Some((0, _))) =
            (self.method, message.split_first().map(|(flag, rest)| (*flag, rest)))
        else {
            return Ok(());
        };
        let limit = self.edge().bounds.decoded_bytes;
        let size = SCHEMA.measure(method, &message[PREFIX..], limit).map_err(|unfit| {
            let (reason, error) = match unfit {
                Unfit::TooLarge(field) => {
                    let message =
                        format!("{field}: the message would take more than {limit} bytes once it is decoded");
                    let error = PublicError::new(ErrorCode::LimitReached, message);
                    (Refused::MessageTooMany, error.with_next("send it as several messages"))
                }
                Unfit::TooDeep(field) => {
                    let message = format!("{field}: messages are nested too deeply");
                    (Refused::MessageMalformed, PublicError::new(ErrorCode::InvalidArgument, message))
                }
                Unfit::Malformed => {
                    let message = "the message is not valid protobuf";
                    (Refused::MessageMalformed, PublicError::new(ErrorCode::InvalidArgument, message))
                }
            };
            self.edge().count(reason);
            Status::from(ApiError(error))
        })?;
        self.bytes.lock().grow(size).map_err(|full| too_many_bytes(self.edge(), full))
    }

    /// Hands on the first message of the buffer, if all of it is here.
    fn whole(&mut self) -> Result<Option<Bytes>, Status> {
        let Some(length) = self.length(&self.buffer)?.filter(|length| *length <= self.buffer.len()) else {
            return Ok(None);
        };
        let message = self.buffer.split_to(length).freeze();
        self.measure(&message)?;
        self.handed_over = true;
        if is_streaming(self.method) {
            self.timer = None;
        }
        Ok(Some(message))
    }

    fn take(&mut self, data: &Bytes) -> Result<(), Status> {
        let mut bytes = self.bytes.lock();
        if std::mem::take(&mut self.handed_over) {
            // What was handed on before is answered: more is asked for.
            bytes.clear();
            bytes.grow(self.buffer.len()).map_err(|full| too_many_bytes(&self.bounding.edge, full))?;
        }
        bytes.grow(data.len()).map_err(|full| too_many_bytes(&self.bounding.edge, full))?;
        drop(bytes);
        self.buffer.extend_from_slice(data);
        if self.timer.is_none() {
            self.timer = Some(Box::pin(sleep(self.edge().bounds.request_time)));
        }
        Ok(())
    }
}

impl HttpBody for Intake {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Handed> {
        let this = &mut *self;
        loop {
            if this.ended {
                return Poll::Ready(None);
            }
            match this.whole() {
                Ok(Some(message)) => return Poll::Ready(Some(Ok(Frame::data(message)))),
                Ok(None) => {}
                Err(status) => return this.fail(status),
            }
            let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) else {
                if let Some(timer) = &mut this.timer {
                    ready!(timer.as_mut().poll(context));
                    this.edge().count(Refused::RequestTimeout);
                    let message = format!(
                        "the request was not complete within {} s",
                        this.edge().bounds.request_time.as_secs_f64()
                    );
                    return this.fail(Status::deadline_exceeded(message));
                }
                return Poll::Pending;
            };
            match frame {
                None => {
                    this.ended = true;
                    let rest = std::mem::take(&mut this.buffer);
                    // Half a message, which the decoder refuses.
                    return Poll::Ready((!rest.is_empty()).then(|| Ok(Frame::data(rest.freeze()))));
                }
                Some(Err(error)) => return this.fail(Status::from_error(error.into())),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        if let Err(status) = this.take(&data) {
                            return this.fail(status);
                        }
                    }
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended || (self.buffer.is_empty() && self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
