//! The request's direction of a call: a body into an HTTP/2 stream.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, SendStream};
use http_body::Body;

/// Any error, as bodies have them.
pub(super) type BoxError = Box<dyn Error + Send + Sync>;

/// Sends a body until it ends, breaks, or is not wanted any more. It takes a frame out of the body only when
/// the frame before it has left, so that a slow engine slows the client and not our memory.
#[derive(Debug)]
pub(super) struct Pump<B> {
    body: B,
    stream: SendStream<Bytes>,
    /// A frame that waits for the engine's window, and whether it is the last.
    held: Option<(Bytes, bool)>,
}

impl<B> Pump<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    pub(super) fn new(body: B, stream: SendStream<Bytes>) -> Self {
        Self { body, stream, held: None }
    }

    /// Done when there is nothing more to send, whatever the reason: the response tells how the call ended.
    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        loop {
            if self.stream.poll_reset(cx)?.is_ready() {
                return Poll::Ready(Ok(()));
            }
            if let Some((data, last)) = self.held.take() {
                while self.stream.capacity() == 0 {
                    match self.stream.poll_capacity(cx) {
                        Poll::Ready(Some(capacity)) => drop(capacity?),
                        Poll::Ready(None) => return Poll::Ready(Ok(())),
                        Poll::Pending => {
                            self.held = Some((data, last));
                            return Poll::Pending;
                        }
                    }
                }
                self.stream.send_data(data, last)?;
                if last {
                    return Poll::Ready(Ok(()));
                }
                continue;
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        let last = self.body.is_end_stream();
                        if data.is_empty() {
                            self.stream.send_data(data, last)?;
                            if last {
                                return Poll::Ready(Ok(()));
                            }
                        } else {
                            // One byte claims a turn; `send_data` asks for the rest.
                            self.stream.reserve_capacity(1);
                            self.held = Some((data, last));
                        }
                    }
                    Err(frame) => {
                        if let Ok(trailers) = frame.into_trailers() {
                            self.stream.reserve_capacity(0);
                            self.stream.send_trailers(trailers)?;
                            return Poll::Ready(Ok(()));
                        }
                    }
                },
                Some(Err(error)) => {
                    self.stream.send_reset(reason(error.into().as_ref()));
                    return Poll::Ready(Ok(()));
                }
                None => {
                    self.stream.send_data(Bytes::new(), true)?;
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl<B> Future for Pump<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // An error here is the stream's or the connection's: the response has it too, and is the one to tell.
        self.advance(cx).map(drop)
    }
}

/// The code of the reset behind an error, if there is one; else the call was given up.
fn reason(error: &(dyn Error + 'static)) -> Reason {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(reason) = error.downcast_ref::<h2::Error>().and_then(h2::Error::reason) {
            return reason;
        }
        next = error.source();
    }
    Reason::CANCEL
}
