//! One attempt: the request as this engine is to get it, and its answer.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, RETRY_AFTER,
};
use http::{Request, Response, StatusCode, Uri};
use http_body::Body as _;
use hyper::body::Incoming;
use kvplane_inference::{Format, Role, Scanner, Withhold};
use tokio::time::timeout;

use super::disaggregated::{Leg, Pair, Prefiller};
use super::{Target, Turn};
use crate::fleet::{Member, TakesIds};
use crate::headers::{self, PREFILL_RECEIPT, RANK, RECEIPT};
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
    /// It goes to the same engine, and its prompt elsewhere.
    PrefillFailed(Failure),
    /// Nobody is left.
    Failed(Failure),
}

/// An engine's answer, of which the head is here.
pub(super) struct Answer {
    arrived: Arrived,
    booking: Booking,
    place: usize,
    withhold: bool,
    sent_ids: Option<usize>,
    pair: Option<Pair>,
    /// Of the engine that prefilled.
    prefill_receipt: Option<String>,
}

/// What came of an exchange. Of a streamed answer the first piece is here, too: engines send the head before
/// they begin, and as long as nothing but the head came, another engine can still be asked.
pub(super) struct Arrived {
    pub(super) response: Response<Incoming>,
    pub(super) conn: Conn,
    first: Option<Bytes>,
}

/// How a body is sent to one engine.
pub(super) struct Shape {
    pub(super) pieces: Pieces,
    withhold: bool,
    pub(super) ids: Option<usize>,
}

impl Turn<'_> {
    /// Sends it to one endpoint; a second time where that says nothing about the endpoint.
    ///
    /// `known`: endpoints that were tried, and those that failed to prefill.
    pub(super) async fn send(
        &mut self,
        target: Target,
        prefiller: Option<Prefiller>,
        read: &Read,
        attempts: &mut Attempts,
        known: (&[usize], &mut Vec<usize>),
    ) -> Sent {
        let Target { place, mut rank, mut booking, ids: mut with_ids, .. } = target;
        let member = self.fleet.members[place].clone();
        let others = !self.candidates(Role::Both, known.0).is_empty();
        let (mut fresh, mut blamed) = (false, None);
        let (mut transferred, mut pair) = (None, None);
        let mut prefill_receipt: Option<String> = None;
        match prefiller {
            Some(prefiller) if member.upstream.kind == "sglang" => pair = Some(self.pair(prefiller, read)),
            Some(prefiller) => {
                if let Some((object, receipt)) = self.prefill(prefiller, read).await {
                    (transferred, prefill_receipt) = (Some(object), receipt);
                }
            }
            None => {}
        }
        if transferred.is_some() || pair.is_some() {
            booking.prefilled_elsewhere();
        }
        loop {
            let leg = match (&transferred, &pair) {
                (Some(object), _) => Leg::Decode(object),
                (None, Some(pair)) => Leg::Meet(pair.meeting()),
                (None, None) => Leg::Whole,
            };
            let Shape { pieces, withhold, ids } = self.shape(&member, read, with_ids, leg);
            let Some(request) = self.request(&member, rank, pieces) else {
                return Sent::Failed(Failure::Died);
            };
            let outcome = if let Some(pair) = &mut pair {
                tokio::select! {
                    outcome = self.exchange(&member, request, true) => outcome,
                    failure = pair.failed() => {
                        known.1.push(pair.place());
                        let others = !self.candidates(Role::Prefill, known.1).is_empty();
                        let step = self.next(attempts, failure, others);
                        return if step == Step::Elsewhere {
                            Sent::PrefillFailed(failure)
                        } else {
                            Sent::Failed(failure)
                        };
                    }
                }
            } else {
                self.exchange(&member, request, fresh).await
            };
            match outcome {
                Ok(arrived) => {
                    let status = arrived.response.status();
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
                    if let Some(pair) = &pair {
                        prefill_receipt = pair.receipt().map(str::to_owned);
                    }
                    let sent_ids = ids;
                    let answer =
                        Answer { arrived, booking, place, withhold, sent_ids, pair, prefill_receipt };
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

    /// An engine does not take ids.
    pub(super) fn withdraw_ids(&self, member: &Member) {
        let engine = member.upstream.endpoint.engine.as_deref().unwrap_or_default();
        member.state.set_takes_ids(TakesIds::No);
        self.shared.stats.withdrawn_ids.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(engine, "engine rejects token ids; sending text from now on");
    }

    /// What an answer says about its endpoint.
    pub(super) fn judge(
        &self,
        member: &Member,
        blamed: Option<Blame>,
        status: StatusCode,
        booking: &mut Booking,
    ) {
        let (now, options) = (self.shared.now(), &self.shared.options.health);
        let engine = member.upstream.endpoint.engine.as_deref().unwrap_or_default();
        if status.is_server_error() {
            booking.tell(|state| state.with_health(|health| health.failed(options, now)));
        } else {
            booking.tell(|state| state.with_health(crate::health::Health::succeeded));
        }
        match blamed.filter(|_| status.is_success()) {
            Some(Blame::Ids) => self.withdraw_ids(member),
            Some(Blame::Rank) => {
                booking.any_rank();
                tracing::warn!(engine, "engine rejected the picked rank and chose one itself");
            }
            None => {}
        }
    }

    /// The body as this engine is to get it.
    pub(super) fn shape(&self, member: &Member, read: &Read, with_ids: bool, leg: Leg<'_>) -> Shape {
        let Some(places) = &self.call.places else {
            return Shape { pieces: Pieces::whole(self.body.clone()), withhold: false, ids: None };
        };
        let mut splice = Splice::default();
        let withhold = if matches!(leg, Leg::Prefill) {
            splice.prefill(places);
            false
        } else {
            splice.include_usage(places)
        };
        if let Some(salt) = &self.salt
            && self.call.cache_salt.as_ref() != Some(salt)
            && self.api.takes_salt()
        {
            splice.salt(places, salt);
        }
        let (is_chat, kind) = (self.api == crate::api::Api::Chat, member.upstream.kind);
        let mut sent = read.tokens.as_ref().filter(|_| with_ids).map(|tokens| &tokens.ids[..]);
        match leg.transfer() {
            // One object says both where blocks are and what the ids are.
            Some(object) if is_chat => splice.transfer(places, object, sent),
            Some(object) => {
                splice.transfer(places, object, None);
                sent = sent.filter(|ids| splice.ids(places, is_chat, kind, ids));
            }
            None => sent = sent.filter(|ids| splice.ids(places, is_chat, kind, ids)),
        }
        if let Leg::Meet(meeting) = leg {
            splice.bootstrap(places, meeting);
        }
        let ids = sent.map(<[u32]>::len);
        if ids.is_some() {
            self.shared.stats.forwarded_ids.fetch_add(1, Ordering::Relaxed);
        }
        Shape { pieces: splice.apply(&self.body), withhold, ids }
    }

    pub(super) fn request(
        &self,
        member: &Member,
        rank: Option<u32>,
        pieces: Pieces,
    ) -> Option<Request<Outgoing>> {
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

    pub(super) async fn exchange(
        &self,
        member: &Member,
        request: Request<Outgoing>,
        fresh: bool,
    ) -> Result<Arrived, Failure> {
        let options = &self.shared.options;
        let conn = member.state.connections.get(fresh, options.connect_timeout).await?;
        match options.first_byte_timeout {
            Some(within) => timeout(within, arrive(conn, request)).await.unwrap_or(Err(Failure::Timeout)),
            None => arrive(conn, request).await,
        }
    }

    /// The answer for the client.
    pub(super) fn respond(
        &mut self,
        answer: Answer,
        attempts: u32,
        ticket: &mut Option<Ticket>,
    ) -> Response<Body> {
        let Answer { arrived, booking, place, withhold, sent_ids, pair, prefill_receipt } = answer;
        let Arrived { response, conn, first } = arrived;
        let (mut head, body) = response.into_parts();
        let state = self.fleet.members[place].state.clone();
        headers::to_client(&mut head.headers);
        if head.status == StatusCode::TOO_MANY_REQUESTS {
            // Every engine that could be asked is busy.
            head.headers.entry(RETRY_AFTER).or_insert(HeaderValue::from_static("1"));
        }
        if self.wants_receipt()
            && let Some(receipt) = booking.receipt().and_then(|name| HeaderValue::from_str(name).ok())
        {
            head.headers.insert(RECEIPT, receipt);
            let prefill = prefill_receipt.and_then(|name| HeaderValue::from_str(&name).ok());
            if let Some(receipt) = prefill {
                head.headers.insert(PREFILL_RECEIPT, receipt);
            }
        }
        let format = format(&head.headers);
        let success = head.status.is_success();
        let events = (format == Some(Format::Events)).then(|| self.api.dialect());
        let withhold = (withhold && success && events.is_some()).then(Withhold::default);
        if withhold.is_some() {
            head.headers.remove(CONTENT_LENGTH);
        }
        let mut ticket =
            ticket.take().unwrap_or_else(|| Ticket::new(self.shared.stats.clone(), kvplane_runtime::now()));
        ticket.answered(head.status.as_u16());
        if let Some(line) = &mut ticket.line {
            line.attempts = attempts;
            line.queue_us = ticket.begun.elapsed().as_micros() as u64;
            let engine = &self.fleet.members[place].upstream.endpoint.engine;
            line.engine = engine.clone().unwrap_or_default();
            booking.receipt().unwrap_or_default().clone_into(&mut line.receipt);
        }
        if let Some(spans) = &mut ticket.spans {
            let upstream = &self.fleet.members[place].upstream;
            spans.attempts = attempts;
            spans.engine = upstream.endpoint.engine.clone().unwrap_or_default();
            (spans.kind, spans.address) = (upstream.kind, upstream.endpoint.address.to_string());
            booking.receipt().unwrap_or_default().clone_into(&mut spans.receipt);
        }
        let relay = Relay::new(
            body,
            first,
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
                pair,
                _busy: self.busy.take(),
            },
        );
        Response::from_parts(head, Body::new(relay))
    }
}

/// Sends a request, and waits for the head of its answer; for the first piece of a streamed one, too.
async fn arrive(conn: Conn, request: Request<Outgoing>) -> Result<Arrived, Failure> {
    let (mut response, mut conn) = conn.send(request).await?;
    let mut first = None;
    if response.status().is_success() && format(response.headers()) == Some(Format::Events) {
        let next = poll_fn(|context| {
            conn.drive(context);
            Pin::new(response.body_mut()).poll_frame(context)
        });
        first = match next.await {
            Some(Ok(frame)) => frame.into_data().ok(),
            Some(Err(_)) => return Err(Failure::Died),
            None => None,
        };
    }
    Ok(Arrived { response, conn, first })
}

/// How an answer is to be read.
fn format(headers: &HeaderMap) -> Option<Format> {
    let coding = headers.get(CONTENT_ENCODING).map(HeaderValue::as_bytes);
    let is_plain = coding.is_none_or(|coding| coding.eq_ignore_ascii_case(b"identity"));
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    Format::of(kind).filter(|_| is_plain)
}

/// What an engine may not have understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blame {
    Ids,
    Rank,
}
