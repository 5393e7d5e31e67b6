//! Prefill on one engine, decode on another.
//!
//! ```text
//!  vLLM (NIXL and alike)                         SGLang
//!  1. prefill: one token, do_remote_decode       both at once, with bootstrap_host, _port and a _room of their own;
//!  2. decode: with the kv_transfer_params        the answer is the one of the engine that decodes
//!     of that answer
//! ```
//!
//! A vLLM that decodes computes the prompt itself where it holds nearly all of it, and where nobody could prefill.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Request, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;
use kvplane_inference::{Allowed, Chosen, Format, PickError, Role, Scanner};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::send::Arrived;
use super::{Target, Turn};
use crate::api::Api;
use crate::fleet::Member;
use crate::gateway::Shared;
use crate::refusal::Refusal;
use crate::retry::Failure;
use crate::scan::scan;
use crate::splice::Meeting;
use crate::stats::Prefilled;
use crate::ticket::Booking;
use crate::tokenize::Read;
use crate::upstream::{Conn, Outgoing};

/// An answer of an engine that prefills; the numbers of a long prompt's blocks are in it.
const MAX_ANSWER: usize = 16 << 20;

/// The instruction to a vLLM that prefills for another engine.
const REMOTE_DECODE: &str = r#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#;

/// What of a request an engine is sent.
#[derive(Debug, Clone, Copy)]
pub(super) enum Leg<'l> {
    /// All of it.
    Whole,
    /// Its prompt, for somebody else.
    Prefill,
    /// What comes behind the prompt, with where its blocks are.
    Decode(&'l str),
    /// All of it, and where it meets the other engine.
    Meet(&'l Meeting),
}

impl Leg<'_> {
    /// What vLLM is told about blocks.
    pub(super) fn transfer(&self) -> Option<&str> {
        match self {
            Self::Prefill => Some(REMOTE_DECODE),
            Self::Decode(object) => Some(object),
            Self::Whole | Self::Meet(_) => None,
        }
    }
}

/// Who prefills for an engine that decodes.
pub(super) struct Prefiller {
    place: usize,
    rank: Option<u32>,
    booking: Booking,
    ids: bool,
}

/// The same request at the engine that prefills, beside the one that decodes.
pub(crate) struct Pair {
    place: usize,
    meeting: Meeting,
    receipt: Option<String>,
    failed: oneshot::Receiver<Failure>,
    task: Option<JoinHandle<()>>,
}

impl Pair {
    pub(super) fn meeting(&self) -> &Meeting {
        &self.meeting
    }

    pub(super) fn place(&self) -> usize {
        self.place
    }

    pub(super) fn receipt(&self) -> Option<&str> {
        self.receipt.as_deref()
    }

    /// Returns once the prompt cannot be computed any more.
    pub(super) async fn failed(&mut self) -> Failure {
        match (&mut self.failed).await {
            Ok(failure) => failure,
            // It was computed.
            Err(_) => std::future::pending().await,
        }
    }

    /// The answer is complete: what is left of the other one may come to its end.
    pub(crate) fn finish(mut self) {
        drop(self.task.take());
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Turn<'_> {
    /// Who prefills, if the engine that was picked only decodes. `skip`: those that failed to.
    pub(super) fn prefiller(
        &self,
        read: &Read,
        target: &Target,
        skip: &[usize],
    ) -> Result<Option<Prefiller>, Refusal> {
        let decodes = &self.fleet.members[target.place].upstream;
        let Some(places) = self.call.places.as_ref().filter(|_| decodes.endpoint.role == Some(Role::Decode))
        else {
            return Ok(None);
        };
        let generates = matches!(self.api, Api::Chat | Api::Completions);
        let stats = &self.shared.stats;
        let wanted = match decodes.kind {
            // It has no way to do it itself.
            "sglang" => generates,
            "vllm" => generates && !self.call.several && self.is_worth_it(read, target.cached),
            _ => false,
        };
        if !wanted {
            stats.prefilled(Prefilled::InPlace);
            return Ok(None);
        }
        for (given, name) in
            [(places.transfer.is_some(), "kv_transfer_params"), (places.bootstrap, "bootstrap_room")]
        {
            if given {
                return Err(Refusal::field(name, "engines are told it by the gateway: leave it out"));
            }
        }
        let mut candidates = self.candidates(Role::Prefill, skip);
        candidates.retain(|place| self.fleet.members[*place].upstream.kind == decodes.kind);
        if candidates.is_empty() {
            stats.prefilled(Prefilled::Failed);
            return if decodes.kind == "sglang" {
                Err(Refusal::unavailable("no engine takes prompts for those that decode"))
            } else {
                Ok(None)
            };
        }
        let allowed = Allowed::Some(candidates);
        let (place, rank, receipt) = match (self.ask(read.known(), &allowed, Role::Prefill), &allowed) {
            (Ok(Chosen { endpoints, receipt }), _) if !endpoints.is_empty() => {
                (endpoints[0].place, endpoints[0].rank, Some(receipt))
            }
            (Err(PickError::Saturated(why)), _) if decodes.kind == "sglang" => {
                return Err(Refusal::saturated(why));
            }
            (Err(PickError::Saturated(_)), _) => {
                stats.prefilled(Prefilled::InPlace);
                return Ok(None);
            }
            (_, Allowed::Some(candidates)) => {
                let turn = self.shared.turn.fetch_add(1, Ordering::Relaxed);
                (candidates[turn % candidates.len()], None, None)
            }
            (_, Allowed::All) => return Ok(None),
        };
        let member = &self.fleet.members[place];
        member.state.with_health(|health| health.sent(self.shared.now()));
        let address = member.upstream.endpoint.address.to_string();
        let booking = Booking::new(self.shared.plane.clone(), member.state.clone(), receipt, address);
        Ok(Some(Prefiller { place, rank, booking, ids: self.sends_ids(read, member) }))
    }

    /// Whether enough of the prompt is to be computed. Where that is not known, it is taken to be.
    fn is_worth_it(&self, read: &Read, cached: u64) -> bool {
        let from = self.shared.options.prefill_from;
        let uncached = read.tokens.as_ref().map(|tokens| (tokens.ids.len() as u64).saturating_sub(cached));
        from > 0 && uncached.is_none_or(|uncached| uncached >= from)
    }

    /// Has vLLM compute the prompt. What it says for the engine that decodes, and the receipt; `None`: that
    /// one computes it.
    pub(super) async fn prefill(&self, one: Prefiller, read: &Read) -> Option<(String, Option<String>)> {
        let Prefiller { place, mut rank, mut booking, mut ids } = one;
        let member = self.fleet.members[place].clone();
        let receipt = booking.receipt().map(str::to_owned);
        let (begun, mut fresh, mut ids_refused) = (kvplane_runtime::now(), false, false);
        loop {
            let shape = self.shape(&member, read, ids, Leg::Prefill);
            let outcome = match self.request(&member, rank, shape.pieces) {
                Some(request) => self.exchange(&member, request, fresh).await,
                None => Err(Failure::Died),
            };
            let Arrived { response, mut conn, .. } = match outcome {
                Err(Failure::Stale) if !fresh => {
                    fresh = true;
                    continue;
                }
                Err(failure) => {
                    self.blame(&mut booking, failure);
                    return self.in_place(&member, failure.as_str());
                }
                Ok(answered) => answered,
            };
            let status = response.status();
            let refused = matches!(status, StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY);
            if refused && (ids || rank.is_some()) {
                // The client did not ask for either.
                if ids {
                    (ids, ids_refused) = (false, true);
                } else {
                    rank = None;
                    booking.any_rank();
                }
                continue;
            }
            self.judge(&member, None, status, &mut booking);
            let body = collect(&mut conn, response.into_body(), self.shared.options.idle_timeout).await;
            let Some(body) = body.filter(|_| status.is_success()) else {
                return self.in_place(&member, "status");
            };
            give_back(&member, conn).await;
            if ids_refused {
                self.withdraw_ids(&member);
            }
            let mut scanner = Scanner::new(Format::Json);
            scanner.feed(&body);
            booking.first_byte(begun.elapsed());
            booking.finish(true, scanner.usage());
            let object =
                scan(&body).ok().and_then(|answer| answer.get("kv_transfer_params").map(str::to_owned));
            return match object.filter(|object| object.starts_with('{')) {
                Some(object) => {
                    self.shared.stats.prefilled(Prefilled::Apart);
                    Some((object, receipt))
                }
                None => self.in_place(&member, "no_kv_transfer_params"),
            };
        }
    }

    /// The engine that decodes computes the prompt itself.
    fn in_place<T>(&self, member: &Member, reason: &'static str) -> Option<T> {
        let engine = member.upstream.endpoint.engine.as_deref().unwrap_or_default();
        self.shared.stats.prefilled(Prefilled::Failed);
        tracing::warn!(engine, reason, "prefill failed: the decode engine computes the prompt");
        None
    }

    fn blame(&self, booking: &mut Booking, failure: Failure) {
        let (now, options) = (self.shared.now(), &self.shared.options.health);
        if failure.is_fault() {
            booking.tell(|state| state.with_health(|health| health.failed(options, now)));
        }
    }

    /// Has an `SGLang` compute the prompt, beside the one that decodes.
    pub(super) fn pair(&self, one: Prefiller, read: &Read) -> Pair {
        let Prefiller { place, rank, booking, ids } = one;
        let member = self.fleet.members[place].clone();
        let host = member.upstream.host.to_str().unwrap_or_default();
        let host = kvplane_transport::host_and_port(host).map_or(host, |(host, _)| host);
        let meeting =
            Meeting { host: host.to_owned(), port: member.upstream.bootstrap_port, room: self.shared.room() };
        let receipt = booking.receipt().map(str::to_owned);
        let shape = self.shape(&member, read, ids, Leg::Meet(&meeting));
        let (tell, failed) = oneshot::channel();
        let task = self.request(&member, rank, shape.pieces).map(|request| {
            let shared = Arc::clone(self.shared);
            kvplane_runtime::spawn("prefill for another engine", async move {
                if let Err(failure) = beside(&shared, &member, request, booking).await {
                    shared.stats.prefilled(Prefilled::Failed);
                    let engine = member.upstream.endpoint.engine.as_deref().unwrap_or_default();
                    tracing::warn!(engine, reason = failure.as_str(), "prefill failed");
                    let _ = tell.send(failure);
                } else {
                    shared.stats.prefilled(Prefilled::Apart);
                }
            })
        });
        Pair { place, meeting, receipt, failed, task }
    }
}

/// Sends a request, and reads its answer for the usage alone.
async fn beside(
    shared: &Shared,
    member: &Member,
    request: Request<Outgoing>,
    mut booking: Booking,
) -> Result<(), Failure> {
    let options = &shared.options;
    let (now, health) = (shared.now(), &options.health);
    let sent = async {
        // Nobody repeats it on another connection: the other engine waits for this one.
        let conn = member.state.connections.get(true, options.connect_timeout).await?;
        conn.send(request).await
    };
    let (response, mut conn) = match sent.await {
        Ok(answered) => answered,
        Err(failure) => {
            booking.tell(|state| state.with_health(|one| one.failed(health, now)));
            return Err(failure);
        }
    };
    let status = response.status();
    if status.is_server_error() {
        booking.tell(|state| state.with_health(|one| one.failed(health, now)));
    } else {
        booking.tell(|state| state.with_health(crate::health::Health::succeeded));
    }
    if !status.is_success() {
        return Err(Failure::Status(status.as_u16()));
    }
    let (head, body) = response.into_parts();
    let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let mut scanner = Format::of(kind).map(Scanner::new);
    let read = each(&mut conn, body, options.idle_timeout, |piece| {
        if let Some(scanner) = &mut scanner {
            scanner.feed(&piece);
        }
        true
    });
    if !read.await {
        return Err(Failure::Died);
    }
    give_back(member, conn).await;
    booking.first_byte(shared.now().saturating_sub(now));
    booking.finish(true, scanner.as_ref().map(Scanner::usage).unwrap_or_default());
    Ok(())
}

/// A whole body, unless it is too long, breaks off, or stands still.
async fn collect(conn: &mut Conn, body: Incoming, idle: Duration) -> Option<Bytes> {
    let mut whole = Vec::new();
    let read = each(conn, body, idle, |piece| {
        let fits = whole.len() + piece.len() <= MAX_ANSWER;
        if fits {
            whole.extend_from_slice(&piece);
        }
        fits
    });
    read.await.then(|| Bytes::from(whole))
}

/// Every piece of a body. Whether it came to its end, and every piece was taken.
async fn each(
    conn: &mut Conn,
    mut body: Incoming,
    idle: Duration,
    mut take: impl FnMut(Bytes) -> bool,
) -> bool {
    loop {
        let next = poll_fn(|context| {
            conn.drive(context);
            Pin::new(&mut body).poll_frame(context)
        });
        match timeout(idle, next).await {
            Ok(None) => return true,
            Ok(Some(Ok(frame))) => {
                if let Ok(piece) = frame.into_data()
                    && !take(piece)
                {
                    return false;
                }
            }
            Ok(Some(Err(_))) | Err(_) => return false,
        }
    }
}

/// Keeps a connection for the next request.
async fn give_back(member: &Member, conn: Conn) {
    let mut conn = Some(conn);
    poll_fn(|context| {
        if let Some(conn) = conn.take() {
            member.state.connections.put(conn, context);
        }
        Poll::Ready(())
    })
    .await;
}
