//! One attempt: the request as this engine is to get it, and its answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue};
use http::{Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use kvplane_inference::{Format, Scanner, Withhold};
use tokio::time::timeout;

use super::{Target, Turn};
use crate::fleet::{Member, TakesIds};
use crate::headers::{self, RANK, RECEIPT};
use crate::relay::{Parts, Relay};
use crate::retry::{Attempts, Failure, Step};
use crate::splice::{Pieces, Splice};
use crate::ticket::{Booking, Ticket};
use crate::tokenize::Read;
use crate::upstream::{Conn, Outgoing};

/// What came of an attempt.
pub(super) enum Sent {
    Answered(Box<Answer>),
    /// It goes elsewhere.
    Retry(Failure),
    /// Nobody is left.
    Failed(Failure),
}

/// An engine's answer, of which the head is here.
pub(super) struct Answer {
    response: Response<Incoming>,
    conn: Conn,
    booking: Booking,
    place: usize,
    withhold: bool,
    sent_ids: Option<usize>,
}

/// How a body is sent to one engine.
struct Shape {
    pieces: Pieces,
    withhold: bool,
    ids: Option<usize>,
}

impl Turn<'_> {
    /// Sends it to one endpoint; a second time where that says nothing about the endpoint.
    pub(super) async fn send(
        &mut self,
        target: Target,
        read: &Read,
        attempts: &mut Attempts,
        others: bool,
    ) -> Sent {
        let Target { place, mut rank, mut booking, ids: mut with_ids, .. } = target;
        let member = self.fleet.members[place].clone();
        let (mut fresh, mut blamed) = (false, None);
        loop {
            let Shape { pieces, withhold, ids } = self.shape(&member, read, with_ids);
            let outcome = match self.request(&member, rank, pieces) {
                Some(request) => self.exchange(&member, request, fresh).await,
                None => Err(Failure::Died),
            };
            match outcome {
                Ok((response, conn)) => {
                    let status = response.status();
                    // The client did not ask for ids or a rank: what an engine says of them is not for it.
                    if matches!(status, StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY)
                        && (ids.is_some() || rank.is_some())
                        && blamed.is_none()
                    {
                        blamed = Some(if ids.is_some() { Blame::Ids } else { Blame::Rank });
                        self.shared.stats.retried("not_understood");
                        if ids.is_some() {
                            with_ids = false;
                        } else {
                            rank = None;
                        }
                        continue;
                    }
                    self.judge(&member, blamed, status, &mut booking);
                    if Self::is_retried(status) {
                        let failure = Failure::Status(status.as_u16());
                        if self.next(attempts, failure, others) == Step::Elsewhere {
                            return Sent::Retry(failure);
                        }
                    }
                    let answer = Answer { response, conn, booking, place, withhold, sent_ids: ids };
                    return Sent::Answered(Box::new(answer));
                }
                Err(failure) => {
                    let step = self.next(attempts, failure, others);
                    if step == Step::SameAgain {
                        self.shared.stats.retried(failure.as_str());
                        fresh = true;
                        continue;
                    }
                    let (now, options) = (self.shared.now(), &self.shared.options.health);
                    if failure.is_fault() {
                        booking.tell(|state| state.with_health(|health| health.failed(options, now)));
                    }
                    return if step == Step::Elsewhere {
                        Sent::Retry(failure)
                    } else {
                        Sent::Failed(failure)
                    };
                }
            }
        }
    }

    /// What an answer says about its endpoint.
    fn judge(&self, member: &Member, blamed: Option<Blame>, status: StatusCode, booking: &mut Booking) {
        let (now, options) = (self.shared.now(), &self.shared.options.health);
        let engine = member.upstream.endpoint.engine.as_deref().unwrap_or_default();
        if status.is_server_error() {
            booking.tell(|state| state.with_health(|health| health.failed(options, now)));
        } else {
            booking.tell(|state| state.with_health(crate::health::Health::succeeded));
        }
        match blamed.filter(|_| status.is_success()) {
            Some(Blame::Ids) => {
                member.state.set_takes_ids(TakesIds::No);
                self.shared.stats.withdrawn_ids.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(engine, "the engine refuses token ids: it is sent text from now on");
            }
            Some(Blame::Rank) => {
                booking.any_rank();
                tracing::warn!(engine, "the engine refuses the rank that was picked: it chose one itself");
            }
            None => {}
        }
    }

    /// The body as this engine is to get it.
    fn shape(&self, member: &Member, read: &Read, with_ids: bool) -> Shape {
        let Some(places) = &self.call.places else {
            return Shape { pieces: Pieces::whole(self.body.clone()), withhold: false, ids: None };
        };
        let mut splice = Splice::default();
        let withhold = splice.include_usage(places);
        if let Some(salt) = &self.salt
            && self.call.cache_salt.as_ref() != Some(salt)
            && self.api.takes_salt()
        {
            splice.salt(places, salt);
        }
        let mut ids = None;
        if with_ids
            && let Some(tokens) = &read.tokens
            && splice.ids(places, self.api == crate::api::Api::Chat, member.upstream.kind, &tokens.ids)
        {
            ids = Some(tokens.ids.len());
            self.shared.stats.forwarded_ids.fetch_add(1, Ordering::Relaxed);
        }
        Shape { pieces: splice.apply(&self.body), withhold, ids }
    }

    fn request(&self, member: &Member, rank: Option<u32>, pieces: Pieces) -> Option<Request<Outgoing>> {
        let mut request = Request::new(Outgoing::from(pieces));
        *request.method_mut() = self.head.method.clone();
        // The path alone: the engine is not a proxy.
        *request.uri_mut() = Uri::from(self.head.uri.path_and_query()?.clone());
        let mut headers = headers::to_engine(self.head.headers.clone());
        headers.insert(HOST, member.upstream.host.clone());
        if let Some(key) = &member.upstream.authorization {
            headers.insert(AUTHORIZATION, key.clone());
        }
        if let Some(rank) = rank {
            headers.insert(RANK, HeaderValue::from(rank));
        }
        *request.headers_mut() = headers;
        Some(request)
    }

    async fn exchange(
        &self,
        member: &Member,
        request: Request<Outgoing>,
        fresh: bool,
    ) -> Result<(Response<Incoming>, Conn), Failure> {
        let options = &self.shared.options;
        let conn = member.state.connections.get(fresh, options.connect_timeout).await?;
        match options.first_byte_timeout {
            Some(within) => timeout(within, conn.send(request)).await.unwrap_or(Err(Failure::Timeout)),
            None => conn.send(request).await,
        }
    }

    /// The answer for the client.
    pub(super) fn respond(
        &mut self,
        answer: Answer,
        attempts: u32,
        ticket: &mut Option<Ticket>,
    ) -> Response<Body> {
        let Answer { response, conn, booking, place, withhold, sent_ids } = answer;
        let (mut head, body) = response.into_parts();
        let state = self.fleet.members[place].state.clone();
        headers::to_client(&mut head.headers);
        if self.wants_receipt()
            && let Some(receipt) = booking.receipt().and_then(|name| HeaderValue::from_str(name).ok())
        {
            head.headers.insert(RECEIPT, receipt);
        }
        let coding = head.headers.get(CONTENT_ENCODING).map(HeaderValue::as_bytes);
        let is_plain = coding.is_none_or(|coding| coding.eq_ignore_ascii_case(b"identity"));
        let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let format = Format::of(kind).filter(|_| is_plain);
        let success = head.status.is_success();
        let events = (format == Some(Format::Events)).then(|| self.api.dialect());
        let withhold = (withhold && success && events.is_some()).then(Withhold::default);
        if withhold.is_some() {
            head.headers.remove(CONTENT_LENGTH);
        }
        let mut ticket =
            ticket.take().unwrap_or_else(|| Ticket::new(self.shared.stats.clone(), kvplane_runtime::now()));
        if let Some(line) = &mut ticket.line {
            line.status = head.status.as_u16();
            line.attempts = attempts;
            line.queue_us = ticket.begun.elapsed().as_micros() as u64;
            let engine = &self.fleet.members[place].upstream.endpoint.engine;
            line.engine = engine.clone().unwrap_or_default();
            booking.receipt().unwrap_or_default().clone_into(&mut line.receipt);
        }
        let relay = Relay::new(
            body,
            Parts {
                conn,
                state,
                stats: Arc::clone(&self.shared.stats),
                booking,
                ticket,
                scanner: format.filter(|_| success).map(Scanner::new),
                withhold,
                events: events.filter(|_| success),
                success,
                idle: self.shared.options.idle_timeout,
                sent_ids,
                _busy: self.busy.take(),
            },
        );
        Response::from_parts(head, Body::new(relay))
    }
}

/// What an engine may not have understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blame {
    Ids,
    Rank,
}
