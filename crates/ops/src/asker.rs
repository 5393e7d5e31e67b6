//! Asking one backend: its ways in turn, and a busy one again, within a deadline that always holds.

use std::time::Duration;

use http::StatusCode;
use kvplane_transport::{HttpClient, HttpQuestion, Sent, grpc};
use serde_json::Value;
use tokio::time::Instant;

use crate::answer::{Answer, Meaning, Read};
use crate::backend::{Backend, Version};
use crate::forms;
use crate::request::{self, Ask, Request, plan};
use crate::support::{Speaker, release_pages};
use crate::verb::Verb;

/// What an answer may weigh. `SGLang` says everything about itself: some hundred kilobytes.
const MAX_ANSWER: usize = 1 << 20;
/// How long until a busy engine that cannot wait by itself is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// How long an engine may take to tell its release, if half of the time that is left is not less: the
/// question itself needs time too.
const TELL_RELEASE: Duration = Duration::from_secs(5);
/// A build without a tag calls itself 0.0.0 or 0.1: no engine of such a release can be asked anything.
const FIRST_RELEASE: Version = Version(0, 2, 0);

/// Bounds of asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Backends that are asked at the same time.
    pub in_flight: usize,
    /// How long a connection may take to be made.
    pub connect: Duration,
    /// How long one backend may take in all.
    pub deadline: Duration,
}

impl Limits {
    /// The usual ones: 32 backends, 2 s for a connection, and what the verb needs.
    pub fn of(verb: &Verb) -> Self {
        Self { in_flight: 32, connect: Duration::from_secs(2), deadline: verb.usual_deadline() }
    }
}

/// How a backend would be asked, in words; or why it would not be. Sends nothing.
pub fn dry_run(backend: &Backend, verb: &Verb) -> Result<String, String> {
    let asks = plan(backend, verb)?;
    let mut calls: Vec<_> = asks.iter().map(|ask| ask.way.call.to_string()).collect();
    // A relay is asked for the same under several names.
    calls.dedup();
    Ok(calls.join(", else "))
}

/// Asks one backend. Always ends within the deadline, whatever the backend does. `sent` is marked before
/// anything leaves, and shows a caller that drops this whether the engine may act on it.
pub async fn ask(backend: &Backend, verb: &Verb, limits: &Limits, sent: &Sent) -> Answer {
    ask_and_tell(backend, verb, limits, sent, &|| {}).await
}

/// The same. Calls `again` whenever something was asked already and the question follows, or follows once
/// more: what was seen of the engine until then came before it.
pub(crate) async fn ask_and_tell(
    backend: &Backend,
    verb: &Verb,
    limits: &Limits,
    sent: &Sent,
    again: &(dyn Fn() + Send + Sync),
) -> Answer {
    let asks = match plan(backend, verb) {
        Ok(asks) => asks,
        Err(why) => {
            let read = Read::closed(Meaning::Unsupported, why);
            return answer(read, None, false);
        }
    };
    let deadline = Instant::now() + limits.deadline;
    let version = backend.version;
    let mut asker = Asker { backend, limits, sent, again, deadline, version, has_asked: false, last: None };
    // Beside the deadlines of its parts: nothing in here may take longer, not even what is in error.
    let read = tokio::time::timeout_at(deadline, asker.in_turn(asks, verb)).await;
    let read = read.unwrap_or_else(|_| {
        let why = if sent.get() { "no answer in time" } else { "no connection in time" };
        Read { open: verb.name().changes(), ..Read::closed(Meaning::Timeout, why) }
    });
    answer(read, asker.last, sent.get())
}

fn answer(read: Read, last: Option<Ask>, sent: bool) -> Answer {
    let Read { meaning, mut why, open, detail } = read;
    let accepted = matches!(meaning, Meaning::Accepted { .. });
    if let Some(note) = last.as_ref().and_then(|ask| ask.note).filter(|_| accepted) {
        why = format!("{why} ({note})");
    }
    let asked = last.map(|ask| ask.way.call.to_string());
    Answer { meaning, why, asked, sent, open: open && sent, detail }
}

/// The release that a page tells.
fn release(page: &[u8]) -> Option<Version> {
    let page: Value = serde_json::from_slice(page).ok()?;
    let version: Version = page.get("version")?.as_str()?.parse().ok()?;
    (version >= FIRST_RELEASE).then_some(version)
}

struct Asker<'a> {
    backend: &'a Backend,
    limits: &'a Limits,
    sent: &'a Sent,
    /// Called when an attempt begins that is not the first request to the engine.
    again: &'a (dyn Fn() + Send + Sync),
    deadline: Instant,
    /// The engine's release, as far as it is known.
    version: Option<Version>,
    has_asked: bool,
    /// What was asked last.
    last: Option<Ask>,
}

impl Asker<'_> {
    /// Asks in every way until one exists.
    async fn in_turn(&mut self, asks: Vec<Ask>, verb: &Verb) -> Read {
        let mut reasons: Vec<String> = Vec::new();
        for mut ask in asks {
            if ask.by_release {
                self.learn_version().await;
                match request::ask(ask.speaker, ask.way, verb, self.version) {
                    Ok(fit) => ask = fit,
                    Err(why) => {
                        reasons.push(match self.version {
                            Some(version) => format!("{why} (its release is {version})"),
                            None => why,
                        });
                        continue;
                    }
                }
            }
            self.last = Some(ask.clone());
            let mut read = self.until_idle(&ask, verb).await;
            // What a question changes nothing by cannot be open.
            read.open &= verb.name().changes();
            if read.meaning != Meaning::Unsupported {
                return read;
            }
            if !reasons.contains(&read.why) {
                reasons.push(read.why);
            }
        }
        Read::closed(Meaning::Unsupported, reasons.join("; "))
    }

    /// Asks an engine that is busy again, as long as the verb says.
    async fn until_idle(&mut self, ask: &Ask, verb: &Verb) -> Read {
        let wait = match verb {
            Verb::Flush(flush) if !ask.waits => flush.timeout,
            _ => Duration::ZERO,
        };
        let give_up = Instant::now() + wait;
        loop {
            let read = self.once(ask).await;
            let again = Instant::now() + ASK_AGAIN;
            if read.meaning != Meaning::Refused || again > give_up.min(self.deadline) {
                return read;
            }
            tokio::time::sleep_until(again).await;
        }
    }

    /// Asks the engine for its release, if that is not known. Changes nothing there, so it does not count as
    /// sent.
    async fn learn_version(&mut self) {
        let (None, Some(base)) = (self.version, self.backend.http.as_deref()) else { return };
        let now = Instant::now();
        let until = now + TELL_RELEASE.min(self.deadline.saturating_duration_since(now) / 2);
        for path in release_pages(self.backend.kind) {
            self.has_asked = true;
            let authorization = self.backend.authorization.clone();
            let question = HttpQuestion { authorization, ..HttpQuestion::get(base, path) };
            let client = HttpClient::with_connect_timeout(self.limits.connect);
            let left = until.saturating_duration_since(Instant::now());
            match client.ask(question, MAX_ANSWER, left, &Sent::default()).await {
                Ok((StatusCode::OK, page)) => self.version = release(&page),
                Ok(_) => {}
                // A server that does not answer here is not asked again.
                Err(_) => return,
            }
            if self.version.is_some() {
                return;
            }
        }
    }

    async fn once(&mut self, ask: &Ask) -> Read {
        if std::mem::replace(&mut self.has_asked, true) {
            (self.again)();
        }
        let left = self.deadline.saturating_duration_since(Instant::now());
        match &ask.request {
            Request::Http { method, path, json, header } => {
                let base = self.backend.http.as_deref().unwrap_or_default();
                let question = HttpQuestion {
                    method: method.clone(),
                    base,
                    path,
                    json: json.clone(),
                    authorization: self.backend.authorization.clone(),
                    header: header.clone(),
                };
                let client = HttpClient::with_connect_timeout(self.limits.connect);
                match client.ask(question, MAX_ANSWER, left, self.sent).await {
                    Ok((status, body)) => forms::read_http(ask.way, status, &body),
                    Err(error) => forms::read_no_http(error),
                }
            }
            Request::Grpc { path, message } => self.call(ask, path, message, left).await,
        }
    }

    async fn call(&self, ask: &Ask, path: &str, message: &bytes::Bytes, left: Duration) -> Read {
        let (Speaker::Grpc(service), Some(server)) = (ask.speaker, &self.backend.grpc) else {
            return Read::closed(Meaning::Unsupported, "the engine has no gRPC server");
        };
        let within = self.limits.connect.min(left);
        let channel = match grpc::connect(&server.url, server.ca.as_deref(), within).await {
            Ok(channel) => channel,
            Err(error) => return forms::read_no_connection(&error),
        };
        // Without a time in its head: tonic would end the call itself then, as if the engine had cancelled
        // it. That we have gone, the engine sees by the reset of the call.
        let request = tonic::Request::new(message.clone());
        self.sent.mark();
        let answer = grpc::unary(channel, path, request, MAX_ANSWER).await;
        forms::read_grpc(service, ask.way, answer.as_deref())
    }
}
