//! What comes in on the HTTP listener: bodies within a time, and within a budget of the process.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::{HeaderValue, header};
use http_body::{Body as HttpBody, Frame, SizeHint};
use kvplane_access::ApiError;
use kvplane_access::Edge;
use kvplane_access::Peer;
use kvplane_access::bounds::{self, Refused};
use kvplane_core::{ErrorCode, PublicError};
use kvplane_transport::edge::{Full, Pulse, Share};
use parking_lot::Mutex;
use tokio::time::{Sleep, sleep};

use crate::held::Held;

/// Marks a connection as used while a request is under way.
pub(super) async fn mark_busy(request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<ConnectInfo<Peer>>();
    let busy = peer.and_then(|ConnectInfo(peer)| peer.pulse.as_ref()).map(Pulse::enter);
    let response = next.run(request).await;
    match busy {
        Some(busy) => response.map(|body| Body::new(Held::new(body, busy))),
        None => response,
    }
}

/// Bounds the bodies of requests.
pub(super) async fn bound_bodies(State(edge): State<Arc<Edge>>, request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let peer = request.extensions().get::<ConnectInfo<Peer>>().map(|ConnectInfo(peer)| peer);
    let share = match edge.request_bytes.take(bounds::key(peer), 0) {
        Ok(none_yet) => none_yet,
        Err(full) => return refused(&edge, Refused::bytes(full)),
    };
    let state = Arc::new(Mutex::new((share, None)));
    let metered = |body| {
        Body::new(Metered { body, state: state.clone(), timer: Box::pin(sleep(edge.bounds.request_time)) })
    };
    let response = next.run(request.map(metered)).await;
    // The handler saw a body that broke off; the answer says why.
    let failed = state.lock().1;
    match failed {
        Some(reason) => refused(&edge, reason),
        None => response,
    }
}

fn refused(edge: &Edge, reason: Refused) -> Response {
    edge.count(reason);
    let (code, message) = match reason {
        Refused::RequestTimeout => (
            ErrorCode::LimitReached,
            format!("the body was not complete within {} s", edge.bounds.request_time.as_secs_f64()),
        ),
        Refused::RequestBytesOfPeer => (
            ErrorCode::LimitReached,
            "too many bytes of requests are being received from this address".to_owned(),
        ),
        _ => (ErrorCode::LimitReached, "too many bytes of requests are being received in total".to_owned()),
    };
    again_later(PublicError::new(code, message))
}

/// A refusal that says when to try again.
pub(super) fn again_later(error: PublicError) -> Response {
    let mut response = ApiError(error.with_next("try again shortly")).into_response();
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// A body whose bytes count in the budget until the request is answered.
struct Metered {
    body: Body,
    state: Arc<Mutex<(Share, Option<Refused>)>>,
    timer: Pin<Box<Sleep>>,
}

#[derive(Debug, thiserror::Error)]
#[error("the body broke off at a bound")]
struct BrokenOff;

impl Metered {
    fn fail(&self, reason: Refused) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut state = self.state.lock();
        state.1 = Some(reason);
        state.0.clear();
        Poll::Ready(Some(Err(axum::Error::new(BrokenOff))))
    }
}

impl HttpBody for Metered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            ready!(self.timer.as_mut().poll(context));
            return self.fail(Refused::RequestTimeout);
        };
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            let grown: Result<(), Full> = self.state.lock().0.grow(data.len());
            if let Err(full) = grown {
                return self.fail(Refused::bytes(full));
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
