//! The bodies of a forwarded call: the client's, the engine's, and what the client gets.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, RecvStream};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;

use super::counters::{FrontCounters, InFlight, add};
use super::evidence::Tap;
use super::link::Place;
use super::pump::BoxError;
use super::upstream::UpstreamReset;

/// What a client sends. Unlike hyper's body it never ends well when the client went away: an engine must not
/// take half a request for a whole one.
#[derive(Debug)]
pub(super) struct ClientBody {
    body: Incoming,
    tap: Option<Arc<Tap>>,
}

/// What the engine answers. Dropping it ends the call.
#[derive(Debug, Default)]
pub struct UpstreamBody {
    state: State,
    /// Whether a broken connection can be reported in trailers.
    grpc: bool,
    call: Option<Call>,
}

/// What lives as long as the call.
#[derive(Debug)]
pub(super) struct Call {
    counters: Arc<FrontCounters>,
    _place: Place,
    /// The request's direction, if it is still going on. It ends with the response: then the call is over.
    _pump: Option<AbortOnDropHandle<()>>,
}

#[derive(Debug, Default)]
enum State {
    Data(RecvStream),
    Trailers(RecvStream),
    #[default]
    Done,
}

/// What a client of the front gets.
#[derive(Debug)]
pub(super) struct Reply {
    body: ReplyBody,
    tap: Option<Arc<Tap>>,
    in_flight: InFlight,
}

#[derive(Debug)]
enum ReplyBody {
    Upstream(UpstreamBody),
    Own(tonic::body::Body),
}

// === impl ClientBody ===

impl ClientBody {
    pub(super) fn new(body: Incoming, tap: Option<Arc<Tap>>) -> Self {
        Self { body, tap }
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            None if !self.body.is_end_stream() => {
                Poll::Ready(Some(Err(Box::new(h2::Error::from(Reason::CANCEL)))))
            }
            frame => {
                if let (Some(tap), Some(Ok(frame))) = (&self.tap, &frame)
                    && let Some(data) = frame.data_ref()
                {
                    tap.request(data);
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

// === impl Call ===

impl Call {
    pub(super) fn new(
        counters: Arc<FrontCounters>,
        place: Place,
        pump: Option<AbortOnDropHandle<()>>,
    ) -> Self {
        Self { counters, _place: place, _pump: pump }
    }
}

// === impl UpstreamBody ===

impl UpstreamBody {
    pub(super) fn new(headers: &HeaderMap, stream: RecvStream, call: Call) -> Self {
        // A status in the headers says that nothing follows, even if a reset came in between.
        if stream.is_end_stream() || headers.contains_key(Status::GRPC_STATUS) {
            return Self::default();
        }
        let grpc =
            headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        Self { state: State::Data(stream), grpc, call: Some(call) }
    }

    /// The engine's stream broke.
    fn broken(&mut self, error: h2::Error) -> Option<Result<Frame<Bytes>, UpstreamReset>> {
        self.state = State::Done;
        let call = self.call.take();
        if error.is_reset() {
            // The engine does not want the rest of the request; what it had to say is said.
            return (error.reason() != Some(Reason::NO_ERROR)).then_some(Err(UpstreamReset(error)));
        }
        if !self.grpc {
            return Some(Err(UpstreamReset(error)));
        }
        if let Some(call) = call {
            add(&call.counters.unavailable);
        }
        let mut trailers = HeaderMap::new();
        let status = Status::unavailable(format!("connection to the engine lost: {error}"));
        match status.add_header(&mut trailers) {
            Ok(()) => Some(Ok(Frame::trailers(trailers))),
            Err(_) => Some(Err(UpstreamReset(error))),
        }
    }

    fn end(&mut self) {
        self.state = State::Done;
        self.call = None;
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = UpstreamReset;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamReset>>> {
        let this = &mut *self;
        if let State::Data(stream) = &mut this.state {
            match ready!(stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    // Fails only for more than was received.
                    let _ = stream.flow_control().release_capacity(data.len());
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(this.broken(error)),
                None => {
                    if let State::Data(stream) = std::mem::take(&mut this.state) {
                        this.state = State::Trailers(stream);
                    }
                }
            }
        }
        let State::Trailers(stream) = &mut this.state else { return Poll::Ready(None) };
        match ready!(stream.poll_trailers(cx)) {
            Ok(trailers) => {
                this.end();
                Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
            }
            Err(error) => Poll::Ready(this.broken(error)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.state {
            State::Data(stream) => stream.is_end_stream(),
            State::Trailers(_) => false,
            State::Done => true,
        }
    }
}

// === impl Reply ===

impl Reply {
    pub(super) fn upstream(body: UpstreamBody, in_flight: InFlight, tap: Option<Arc<Tap>>) -> Self {
        Self { body: ReplyBody::Upstream(body), tap, in_flight }
    }

    pub(super) fn own(body: tonic::body::Body, in_flight: InFlight) -> Self {
        Self { body: ReplyBody::Own(body), tap: None, in_flight }
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        this.in_flight.taken();
        let frame: Option<Result<_, BoxError>> = match &mut this.body {
            ReplyBody::Upstream(body) => {
                let frame = ready!(Pin::new(body).poll_frame(cx));
                if this.tap.is_some() {
                    listen(&mut this.tap, frame.as_ref());
                }
                frame.map(|frame| frame.map_err(Into::into))
            }
            ReplyBody::Own(body) => {
                ready!(Pin::new(body).poll_frame(cx)).map(|frame| frame.map_err(Into::into))
            }
        };
        if matches!(frame, Some(Ok(_))) {
            this.in_flight.given();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            ReplyBody::Upstream(body) => body.is_end_stream(),
            ReplyBody::Own(body) => body.is_end_stream(),
        }
    }

    // Never exact, or hyper would add a `content-length` that nobody sent.
    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// Shows a frame of the engine's response to its listener.
fn listen(tap: &mut Option<Arc<Tap>>, frame: Option<&Result<Frame<Bytes>, UpstreamReset>>) {
    let Some(Ok(frame)) = frame else {
        *tap = None;
        return;
    };
    if let (Some(tap), Some(data)) = (&*tap, frame.data_ref()) {
        tap.response(data);
    }
    if let Some(trailers) = frame.trailers_ref() {
        let well = trailers.get(Status::GRPC_STATUS).is_some_and(|status| status.as_bytes() == b"0");
        if let Some(tap) = tap.take().filter(|_| well) {
            tap.finish();
        }
    }
}
