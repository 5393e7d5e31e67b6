//! A body that keeps something until it has been sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use kvplane_transport::edge::InFlight;

/// A response's body with what its request holds: its place, its share.
pub(crate) struct Held<T> {
    body: Body,
    busy: Option<InFlight>,
    _kept: T,
}

impl<T> Held<T> {
    pub(crate) fn new(body: Body, kept: T) -> Self {
        Self { body, busy: None, _kept: kept }
    }

    /// The same, where it is seen whether the peer takes what it is given.
    pub(crate) fn watched(body: Body, busy: Option<InFlight>, kept: T) -> Self {
        Self { body, busy, _kept: kept }
    }
}

impl<T: Unpin> HttpBody for Held<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        if let Some(busy) = &mut this.busy {
            busy.taken();
        }
        let frame = Pin::new(&mut this.body).poll_frame(context);
        if let (Some(busy), Poll::Ready(Some(Ok(_)))) = (&mut this.busy, &frame) {
            busy.given();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
