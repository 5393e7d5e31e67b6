//! Bodies that keep something until they have been sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
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

/// Keeps something until the last data has left the process, or the connection is closed.
///
/// A connection drops a body as soon as it has queued the last data, which may be as large as a stream's
/// state and wait for a peer that never reads. So the data itself holds what is kept.
pub(crate) fn held_until_sent<T: Send + Sync + 'static>(body: Body, kept: T) -> Body {
    let kept = Arc::new(kept);
    Body::new(body.map_frame(move |frame| {
        frame.map_data(|data| Bytes::from_owner(HeldData { data, _kept: kept.clone() }))
    }))
}

struct HeldData<T> {
    data: Bytes,
    _kept: Arc<T>,
}

impl<T> AsRef<[u8]> for HeldData<T> {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_held_goes_with_the_data_and_not_with_the_body() {
        let kept = Arc::new(());
        let mut body = held_until_sent(Body::from("state"), kept.clone());
        let frame = body.frame().await.unwrap().unwrap();
        drop(body);
        assert_eq!(Arc::strong_count(&kept), 2);
        let data = frame.into_data().unwrap();
        assert_eq!(data, "state");
        drop(data);
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
