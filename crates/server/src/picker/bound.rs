//! What comes in at the picker: a stream has a place, its connection is in use while it lasts, and messages
//! that are not whole count in a budget.
//!
//! Whole messages are the picker's own: it counts the bodies that it holds. Bytes are counted as they pass and
//! copied nowhere: a chunk of every body comes through here.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use kvplane_access::bounds::{self, Refused, all_but_an_eighth};
use kvplane_access::{ApiError, Edge, Peer};
use kvplane_core::{ErrorCode, PublicError};
use kvplane_picker::PacedInfo;
use kvplane_transport::edge::{Full, Pulse, Share, Shares};
use tokio::time::{Sleep, sleep};
use tonic::Status;

use crate::held::Held;

/// gRPC's prefix of a message: a flag and four bytes of length.
const PREFIX: usize = 5;

/// What streams are bound by.
#[derive(Debug)]
pub(super) struct Bounding {
    /// Where refusals are counted.
    edge: Arc<Edge>,
    streams: Arc<Shares>,
    /// Bytes of messages that are not whole.
    unfinished: Arc<Shares>,
}

impl Bounding {
    /// `bytes`: of bodies that the picker may hold; as many may be on their way to it.
    pub(super) fn new(edge: Arc<Edge>, bytes: usize) -> Self {
        let streams = edge.bounds.picker_streams;
        Self {
            streams: Shares::new(streams, all_but_an_eighth(streams)),
            unfinished: Shares::new(bytes, all_but_an_eighth(bytes)),
            edge,
        }
    }
}

/// Bounds the streams of a listener of the picker.
pub(super) async fn bound_streams(
    State(bounding): State<Arc<Bounding>>,
    request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<PacedInfo>().and_then(PacedInfo::below::<Peer>).cloned();
    let key = bounds::key(peer.as_ref());
    let busy = peer.as_ref().and_then(|peer| peer.pulse.as_ref()).map(Pulse::enter);
    let taken = bounding.streams.take(key, 1).map_err(|full| match full {
        Full::Total => (Refused::TooManyCalls, "too many streams are open in total"),
        Full::Peer => (Refused::TooManyCallsOfPeer, "too many streams are open from this address"),
    });
    let (place, share) = match taken.and_then(|place| {
        let none_yet = bounding.unfinished.take(key, 0).map_err(too_many_bytes)?;
        Ok((place, none_yet))
    }) {
        Ok(taken) => taken,
        Err((reason, words)) => return refuse(&bounding.edge, reason, words).into_http(),
    };
    let request = request.map(|body| {
        Body::new(Unfinished {
            body,
            edge: bounding.edge.clone(),
            share,
            framing: Framing::default(),
            timer: None,
            ended: false,
        })
    });
    next.run(request).await.map(|body| Body::new(Held::watched(body, busy, place)))
}

fn too_many_bytes(full: Full) -> (Refused, &'static str) {
    let words = match full {
        Full::Total => "too many bytes of unfinished messages are held in total",
        Full::Peer => "too many bytes of unfinished messages are held from this address",
    };
    (Refused::bytes(full), words)
}

fn refuse(edge: &Edge, reason: Refused, words: &str) -> Status {
    edge.count(reason);
    ApiError(PublicError::new(ErrorCode::LimitReached, words).with_next("try again shortly")).into()
}

/// Where in a sequence of messages we are.
#[derive(Debug, Default)]
struct Framing {
    prefix: [u8; PREFIX],
    /// Bytes of the prefix that are known.
    have: usize,
    /// Bytes of the message that are to come.
    left: usize,
    /// Bytes of the message that came, its prefix included.
    open: usize,
}

impl Framing {
    /// Goes on; whether a message ended.
    fn follow(&mut self, mut bytes: &[u8]) -> bool {
        let mut ended = false;
        while !bytes.is_empty() {
            let part = if self.have < PREFIX {
                let part = (PREFIX - self.have).min(bytes.len());
                self.prefix[self.have..self.have + part].copy_from_slice(&bytes[..part]);
                self.have += part;
                let [_, length @ ..] = self.prefix;
                self.left = u32::from_be_bytes(length) as usize;
                part
            } else {
                let part = self.left.min(bytes.len());
                self.left -= part;
                part
            };
            self.open += part;
            bytes = &bytes[part..];
            if self.have == PREFIX && self.left == 0 {
                (self.have, self.open, ended) = (0, 0, true);
            }
        }
        ended
    }
}

/// The messages of a stream, on their way in.
struct Unfinished {
    body: Body,
    edge: Arc<Edge>,
    share: Share,
    framing: Framing,
    /// Runs while a message is not whole.
    timer: Option<Pin<Box<Sleep>>>,
    ended: bool,
}

impl Unfinished {
    fn take(&mut self, data: &[u8]) -> Result<(), Full> {
        let ended = self.framing.follow(data);
        if ended {
            self.share.clear();
            self.timer = None;
        }
        let open = self.framing.open;
        if open > 0 {
            self.share.grow(open - self.share.amount())?;
            self.timer.get_or_insert_with(|| Box::pin(sleep(self.edge.bounds.request_time)));
        }
        Ok(())
    }

    fn fail(&mut self, status: Status) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.ended = true;
        self.share.clear();
        Poll::Ready(Some(Err(status)))
    }
}

impl HttpBody for Unfinished {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) else {
            let Some(timer) = &mut this.timer else { return Poll::Pending };
            ready!(timer.as_mut().poll(context));
            this.edge.count(Refused::RequestTimeout);
            let seconds = this.edge.bounds.request_time.as_secs_f64();
            return this
                .fail(Status::deadline_exceeded(format!("a message was not whole within {seconds} s")));
        };
        match frame {
            Some(Ok(frame)) => {
                let taken = frame.data_ref().map_or(Ok(()), |data| this.take(data));
                if let Err(full) = taken {
                    let (reason, words) = too_many_bytes(full);
                    let status = refuse(&this.edge, reason, words);
                    return this.fail(status);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => this.fail(Status::from_error(error.into())),
            None => {
                this.ended = true;
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However messages are cut into pieces: what is open is what came of the message that has not ended.
    #[test]
    fn open_is_what_came_of_the_last_message() {
        let (mut bytes, mut ends) = (Vec::new(), vec![0]);
        for length in [3_u32, 0, 0, 40, 1, 300, 7] {
            bytes.push(0);
            bytes.extend(length.to_be_bytes());
            bytes.extend(vec![7; length as usize]);
            ends.push(bytes.len());
        }
        for piece in 1..bytes.len() {
            let (mut framing, mut at) = (Framing::default(), 0);
            for part in bytes.chunks(piece) {
                let ended = framing.follow(part);
                let last = ends.iter().rev().find(|end| **end <= at + part.len()).unwrap();
                assert_eq!((framing.open, ended), (at + part.len() - last, *last > at), "{piece}");
                at += part.len();
            }
        }
    }
}
