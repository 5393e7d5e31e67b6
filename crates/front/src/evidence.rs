//! What the engine says about requests that pass through, as evidence for streams whose past is not known.
//!
//! ```text
//!  Generate ── marks of the streams ── copies of the request's bytes ── the last message of the response ── status OK
//!                                                                                              │
//!                                                     a thread of its own: the prompt, Stream::prove_prefix
//! ```
//!
//! A call is never delayed and never altered. Nothing is copied while no stream of the engine would accept a
//! report. What is copied is bounded for each call and for all of them; a call beyond that gives no evidence.
//! Tokens are in no log line and in no error.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kvplane_ingest::{Plane, Stream};
use kvplane_stream::RequestMark;
use kvplane_wire::smg::generate::{Completed, GenerateService, Unusable};
use parking_lot::Mutex;

use super::counters::{FrontCounters, add};

/// Bytes of one request that are looked at.
const REQUEST_MAX: usize = 8 << 20;
/// Bytes of one message of a response that are looked at.
const RESPONSE_MAX: usize = 1 << 20;
/// Bytes of all calls that are held at once.
const HELD_MAX: usize = 32 << 20;
/// gRPC's prefix of a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// Why the engine's report about a request was not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejected {
    /// The call failed, was aborted, or its client went away.
    Unfinished,
    /// The engine had nothing cached.
    NotCached,
    /// A message is compressed or does not parse.
    Unreadable,
    /// Something besides tokens may be part of the blocks' identity.
    NotPlain,
    /// More than one output was asked for.
    ManyOutputs,
    /// A message is too large.
    TooLarge,
    /// Too much is held for other calls.
    NoRoom,
    /// The engine has several ranks and the request names none, or one that is not followed.
    Rank,
    /// The engine counted another prompt than the request has.
    Mismatch,
    /// Something happened to the stream since the request was sent.
    Changed,
    /// Nothing that was reported needs it.
    Known,
}

impl Rejected {
    /// All of them.
    pub(crate) const ALL: [Self; 11] = [
        Self::Unfinished,
        Self::NotCached,
        Self::Unreadable,
        Self::NotPlain,
        Self::ManyOutputs,
        Self::TooLarge,
        Self::NoRoom,
        Self::Rank,
        Self::Mismatch,
        Self::Changed,
        Self::Known,
    ];

    /// In metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unfinished => "unfinished",
            Self::NotCached => "not_cached",
            Self::Unreadable => "unreadable",
            Self::NotPlain => "not_plain",
            Self::ManyOutputs => "many_outputs",
            Self::TooLarge => "too_large",
            Self::NoRoom => "no_room",
            Self::Rank => "rank",
            Self::Mismatch => "mismatch",
            Self::Changed => "changed",
            Self::Known => "known",
        }
    }
}

impl From<Unusable> for Rejected {
    fn from(unusable: Unusable) -> Self {
        match unusable {
            Unusable::Malformed => Self::Unreadable,
            Unusable::NotPlain => Self::NotPlain,
            Unusable::ManyOutputs => Self::ManyOutputs,
        }
    }
}

/// What all fronts of a plane may hold together.
#[derive(Debug, Default)]
pub struct Budget {
    held: AtomicUsize,
    /// One prompt is read at a time: its tokens take more room than its bytes.
    proving: Mutex<()>,
}

impl Budget {
    fn take(&self, bytes: usize) -> bool {
        let room = |held: usize| held.checked_add(bytes).filter(|held| *held <= HELD_MAX);
        self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Listens to the requests of one engine.
#[derive(Debug)]
pub struct Evidence {
    plane: Arc<Plane>,
    engine: String,
    service: GenerateService,
    path: String,
    budget: Arc<Budget>,
    counters: Arc<FrontCounters>,
}

impl Evidence {
    /// Of an engine whose reports prove something.
    pub fn new(
        plane: Arc<Plane>,
        engine: &str,
        service: &str,
        budget: Arc<Budget>,
        counters: Arc<FrontCounters>,
    ) -> Option<Self> {
        plane.engine(engine).filter(|engine| engine.spec.takes_evidence())?;
        let path = format!("/{service}/Generate");
        let engine = engine.to_owned();
        Some(Self { plane, engine, service: GenerateService::Vllm, path, budget, counters })
    }

    /// Before a call is passed on. `None` if nothing that the engine reports about it is of any use.
    pub(super) fn begin(self: &Arc<Self>, path: &str) -> Option<Arc<Tap>> {
        if path != self.path {
            return None;
        }
        let engine = self.plane.engine(&self.engine)?;
        let mark = |stream: &Arc<Stream>| stream.begin_evidence().map(|mark| (stream.clone(), mark));
        let marks: Vec<_> = engine.streams.iter().filter_map(mark).collect();
        let sole = engine.streams.len() == 1;
        (!marks.is_empty()).then(|| {
            Arc::new(Tap { evidence: self.clone(), marks, sole, held: Mutex::new(Some(Held::default())) })
        })
    }
}

/// Listens to one call.
#[derive(Debug)]
pub(super) struct Tap {
    evidence: Arc<Evidence>,
    /// The streams that would accept a report, as they were before the call was passed on.
    marks: Vec<(Arc<Stream>, RequestMark)>,
    /// The engine has one rank.
    sole: bool,
    /// `None` once it is known what becomes of it.
    held: Mutex<Option<Held>>,
}

/// What is held of a call.
#[derive(Debug, Default)]
struct Held {
    request: Reading,
    /// The request's only message, once it is whole.
    prompt: Option<Vec<u8>>,
    response: Reading,
    completed: Option<Completed>,
    /// Bytes of the budget.
    bytes: usize,
}

/// A message that is being read.
#[derive(Debug, Default)]
struct Reading {
    prefix: [u8; PREFIX],
    prefix_len: usize,
    /// Bytes that the message still lacks.
    lacks: usize,
    message: Vec<u8>,
}

impl Reading {
    /// Takes from `data` up to the end of one message. Says how many bytes that were, and the message if it
    /// is whole.
    fn take(&mut self, data: &[u8], max: usize) -> Result<(usize, Option<Vec<u8>>), Rejected> {
        let mut taken = 0;
        if self.prefix_len < PREFIX {
            taken = data.len().min(PREFIX - self.prefix_len);
            self.prefix[self.prefix_len..][..taken].copy_from_slice(&data[..taken]);
            self.prefix_len += taken;
            if self.prefix_len < PREFIX {
                return Ok((taken, None));
            }
            let [compressed, length @ ..] = self.prefix;
            if compressed != 0 {
                return Err(Rejected::Unreadable);
            }
            self.lacks = u32::from_be_bytes(length) as usize;
            if self.lacks > max {
                return Err(Rejected::TooLarge);
            }
        }
        let part = &data[taken..][..self.lacks.min(data.len() - taken)];
        self.message.extend_from_slice(part);
        self.lacks -= part.len();
        taken += part.len();
        if self.lacks > 0 {
            return Ok((taken, None));
        }
        self.prefix_len = 0;
        Ok((taken, Some(std::mem::take(&mut self.message))))
    }
}

impl Tap {
    /// Bytes of the request, in their order.
    pub(super) fn request(&self, data: &[u8]) {
        self.listen(|held, evidence| held.take_request(data, evidence));
    }

    /// Bytes of the response, in their order.
    pub(super) fn response(&self, data: &[u8]) {
        self.listen(|held, evidence| held.take_response(data, evidence));
    }

    /// The engine ended the call with status OK.
    pub(super) fn finish(self: Arc<Self>) {
        let Some(mut held) = self.held.lock().take() else { return };
        match held.ready() {
            Ok((prompt, completed)) => {
                // Reading a long prompt and hashing its blocks takes milliseconds, in which the front passes
                // on other calls.
                tokio::task::spawn_blocking(move || {
                    let proven = self.prove(&prompt, completed);
                    self.settle(&held, proven);
                });
            }
            Err(rejected) => self.settle(&held, Err(rejected)),
        }
    }

    fn listen(&self, listen: impl FnOnce(&mut Held, &Evidence) -> Result<(), Rejected>) {
        let mut place = self.held.lock();
        let Some(held) = place.as_mut() else { return };
        if let Err(rejected) = listen(held, &self.evidence)
            && let Some(held) = place.take()
        {
            self.settle(&held, Err(rejected));
        }
    }

    fn prove(&self, prompt: &[u8], completed: Completed) -> Result<usize, Rejected> {
        let _one_at_a_time = self.evidence.budget.proving.lock();
        let prompt = self.evidence.service.plain_prompt(prompt)?;
        let cached = completed.cached_tokens;
        if prompt.tokens.len() != completed.prompt_tokens as usize || cached > completed.prompt_tokens {
            return Err(Rejected::Mismatch);
        }
        let asked = |(stream, _): &&(Arc<Stream>, RequestMark)| match prompt.rank {
            Some(rank) => stream.id().rank == rank,
            None => self.sole,
        };
        let (stream, mark) = self.marks.iter().find(asked).ok_or(Rejected::Rank)?;
        match stream.prove_prefix(*mark, &prompt.tokens, cached.into()) {
            0 if stream.begin_evidence() == Some(*mark) => Err(Rejected::Known),
            0 => Err(Rejected::Changed),
            blocks => Ok(blocks),
        }
    }

    fn settle(&self, held: &Held, proven: Result<usize, Rejected>) {
        let Evidence { budget, counters, .. } = &*self.evidence;
        budget.give_back(held.bytes);
        match proven {
            Ok(blocks) => {
                add(&counters.evidence_accepted);
                counters.evidence_blocks.fetch_add(blocks as u64, Ordering::Relaxed);
            }
            Err(rejected) => add(&counters.evidence_rejected[rejected as usize]),
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        if let Some(held) = self.held.get_mut().take() {
            self.settle(&held, Err(Rejected::Unfinished));
        }
    }
}

impl Held {
    fn take_request(&mut self, mut data: &[u8], evidence: &Evidence) -> Result<(), Rejected> {
        while !data.is_empty() {
            if self.prompt.is_some() {
                return Err(Rejected::Unreadable); // more than the one message of the call
            }
            let taken;
            (taken, self.prompt) = self.request.take(data, REQUEST_MAX)?;
            self.hold(taken, evidence)?;
            data = &data[taken..];
        }
        Ok(())
    }

    fn take_response(&mut self, mut data: &[u8], evidence: &Evidence) -> Result<(), Rejected> {
        while !data.is_empty() {
            let (taken, message) = self.response.take(data, RESPONSE_MAX)?;
            data = &data[taken..];
            self.hold(taken, evidence)?;
            let Some(message) = message else { continue };
            // The message, with its prefix: nothing of it is kept.
            let read = message.len() + PREFIX;
            self.bytes -= read;
            evidence.budget.give_back(read);
            let Some(completed) = evidence.service.completed(&message)? else { continue };
            if completed.index != 0 || self.completed.is_some() {
                return Err(Rejected::ManyOutputs);
            }
            self.completed = Some(completed);
        }
        Ok(())
    }

    fn hold(&mut self, bytes: usize, evidence: &Evidence) -> Result<(), Rejected> {
        if !evidence.budget.take(bytes) {
            return Err(Rejected::NoRoom);
        }
        self.bytes += bytes;
        Ok(())
    }

    /// What there is to prove.
    fn ready(&mut self) -> Result<(Vec<u8>, Completed), Rejected> {
        let completed = self.completed.filter(|completed| completed.served).ok_or(Rejected::Unfinished)?;
        if completed.cached_tokens == 0 {
            return Err(Rejected::NotCached);
        }
        Ok((self.prompt.take().ok_or(Rejected::Unreadable)?, completed))
    }
}

#[cfg(test)]
mod tests;
