//! An engine's answer on its way to the client: frame by frame, without a copy, and never faster than the
//! client takes it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use kvplane_inference::{Scanner, Usage, Withhold};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::fleet::{State, TakesIds};
use crate::refusal::{Dialect, Refusal};
use crate::stats::{Ended, Stats};
use crate::ticket::{Booking, Ticket};
use crate::turn::Pair;
use crate::upstream::Conn;

/// Why an answer was cut: the client's connection is closed with it.
#[derive(Debug, thiserror::Error)]
#[error("the engine's answer broke off")]
pub(crate) struct Broken;

/// What an answer needs besides its bytes.
pub(crate) struct Parts {
    pub(crate) conn: Conn,
    pub(crate) state: Arc<State>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) booking: Booking,
    pub(crate) ticket: Ticket,
    /// Reads the usage; absent where there is none to read.
    pub(crate) scanner: Option<Scanner>,
    /// Removes the event with the usage, where the client did not ask for it.
    pub(crate) withhold: Option<Withhold>,
    /// Its events, where it has some: an error takes their shape.
    pub(crate) events: Option<Dialect>,
    /// The status is one of success.
    pub(crate) success: bool,
    pub(crate) idle: Duration,
    /// Number of token ids that were sent in the place of text.
    pub(crate) sent_ids: Option<usize>,
    /// The same request at the engine that prefills. It ends with this one.
    pub(crate) pair: Option<Pair>,
    /// Keeps the client's connection from counting as idle.
    pub(crate) _busy: Option<kvplane_transport::edge::InFlight>,
}

/// The answer's body.
pub(crate) struct Relay {
    body: Incoming,
    /// Its first piece, where it was waited for.
    first: Option<Bytes>,
    /// Absent once the answer is over.
    open: Option<Box<Open>>,
    cut: Cut,
}

/// How far the end of a broken answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    No,
    /// The error was handed over, and is to be written: what is in a buffer when a body fails is lost.
    Write,
    /// The connection is to be cut.
    Now,
}

struct Open {
    parts: Parts,
    first: Option<Instant>,
    last: Instant,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Relay {
    pub(crate) fn new(body: Incoming, first: Option<Bytes>, parts: Parts) -> Self {
        let open = Open { parts, first: None, last: Instant::now(), timer: None };
        Self { body, first, open: Some(Box::new(open)), cut: Cut::No }
    }

    /// The engine went before the end of its answer.
    fn broken(&mut self, ended: Ended) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let Some(open) = self.open.take() else { return Poll::Ready(None) };
        let events = open.parts.events;
        open.fail(ended);
        let Some(dialect) = events else { return Poll::Ready(Some(Err(Broken))) };
        // Clients of events look for an error among them; a connection that is cut is one, too.
        self.cut = Cut::Write;
        let refusal = Refusal::new(
            http::StatusCode::BAD_GATEWAY,
            "engine_lost",
            "the engine disconnected before the end of its answer: retry the request",
        );
        let name = if dialect == Dialect::Anthropic { "event: error\n" } else { "" };
        let event = format!("\n\n{name}data: {}\n\n", refusal.body(dialect));
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(event)))))
    }
}

impl Open {
    /// Looks at a piece, and says what of it is passed on.
    fn pass(&mut self, piece: Bytes) -> Bytes {
        self.last = Instant::now();
        if self.first.is_none() {
            self.first = Some(self.last);
            let after = self.last.into_std().duration_since(self.parts.ticket.begun);
            self.parts.booking.first_byte(after);
            if self.parts.success && self.parts.events.is_some() {
                self.parts.stats.took(Some(after), None);
            }
            self.parts.ticket.first_byte(self.last.into_std());
        }
        if let Some(scanner) = &mut self.parts.scanner {
            scanner.feed(&piece);
        }
        match &mut self.parts.withhold {
            Some(withhold) => withhold.pass(piece, false),
            None => piece,
        }
    }

    fn usage(&self) -> Usage {
        self.parts.scanner.as_ref().map(Scanner::usage).unwrap_or_default()
    }

    /// Whether the engine has been silent for too long.
    fn is_silent(&mut self, context: &mut Context<'_>) -> bool {
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(self.last + self.parts.idle)));
        loop {
            if timer.as_mut().poll(context).is_pending() {
                return false;
            }
            let until = self.last + self.parts.idle;
            if until <= Instant::now() {
                return true;
            }
            timer.as_mut().reset(until);
        }
    }

    /// The answer is complete.
    fn finish(self, context: &mut Context<'_>) {
        let usage = self.usage();
        let Parts { conn, state, stats, booking, mut ticket, success, sent_ids, events, pair, .. } =
            self.parts;
        if let Some(pair) = pair {
            pair.finish();
        }
        if let (Some(first), Some(tokens), true) = (self.first, usage.output, events.is_some()) {
            stats.took(None, Some((first.elapsed(), tokens)));
        }
        if let (Some(sent), Some(seen), true) = (sent_ids, usage.prompt, success)
            && sent as u64 != seen
        {
            state.set_takes_ids(TakesIds::No);
            stats.withdrawn_ids.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(sent, seen, "engine ignores token ids; sending text from now on");
        }
        state.connections.put(conn, context);
        ticket.ended(Ended::Finished, usage);
        booking.finish(success, usage);
    }

    fn fail(mut self, ended: Ended) {
        let usage = self.usage();
        self.parts.ticket.ended(ended, usage);
        self.parts.booking.finish(false, usage);
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self.cut {
            Cut::No => {}
            Cut::Write => {
                self.cut = Cut::Now;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Cut::Now => {
                self.cut = Cut::No;
                return Poll::Ready(Some(Err(Broken)));
            }
        }
        let this = &mut *self;
        loop {
            let Some(open) = &mut this.open else { return Poll::Ready(None) };
            open.parts.conn.drive(context);
            let next = match this.first.take() {
                Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
                None => Pin::new(&mut this.body).poll_frame(context),
            };
            let frame = match next {
                Poll::Ready(frame) => frame,
                Poll::Pending if open.is_silent(context) => return this.broken(Ended::Silent),
                Poll::Pending => return Poll::Pending,
            };
            match frame {
                Some(Ok(frame)) => {
                    // Trailers are of one connection.
                    let Ok(piece) = frame.into_data() else { continue };
                    let passed = open.pass(piece);
                    // Behind an answer of a known length nobody asks for an end.
                    if this.body.is_end_stream()
                        && open.parts.withhold.is_none()
                        && let Some(open) = this.open.take()
                    {
                        open.finish(context);
                        return Poll::Ready(Some(Ok(Frame::data(passed))));
                    }
                    if !passed.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(passed))));
                    }
                }
                Some(Err(_)) => return this.broken(Ended::Broken),
                None => {
                    let rest = open.parts.withhold.as_mut().map(|one| one.pass(Bytes::new(), true));
                    if let Some(open) = this.open.take() {
                        open.finish(context);
                    }
                    let rest = rest.filter(|rest| !rest.is_empty());
                    return Poll::Ready(rest.map(|rest| Ok(Frame::data(rest))));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.open.is_none() && self.cut == Cut::No
    }

    fn size_hint(&self) -> SizeHint {
        match &self.open {
            Some(open) if open.parts.withhold.is_none() && self.first.is_none() => self.body.size_hint(),
            _ => SizeHint::default(),
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            // The client went: the connection goes with what is dropped here, and the engine sees it at once.
            open.fail(Ended::ClientGone);
        }
    }
}
