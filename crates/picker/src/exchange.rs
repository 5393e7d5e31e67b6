//! One HTTP request, from its headers to the end of its answer, without IO.
//!
//! ```text
//!            headers          end of the body         Verdict::Go              response
//! Start ────────────> Collecting ────────> Deciding ────────────> Sent ────────────────> Over
//!   │ no body, or none is sent      ^         │ Verdict::Refuse
//!   └───────────────────────────────┘         └──────────────────> Over (an answer in the engine's place)
//! ```
//!
//! What Envoy waits for depends on how it is configured to send bodies:
//!
//! | request body | when the pick is asked for | where it is sent |
//! |---|---|---|
//! | full duplex | at the end of the body | with the headers; the body is sent back behind them |
//! | buffered | at the body; the headers are answered at once | with the body |
//! | streamed, none, or no body at all | at the headers | with the headers |
//!
//! A stream is never left without an answer: closing one before made Envoy send an empty body, with status
//! 200.

mod budget;
mod head;
mod response;

use bytes::Bytes;
use kvplane_proto::{Passed, Received, Side, envoy as proto};
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use proto::BodySendMode as Mode;
use proto::processing_request::Request as Incoming;
use proto::processing_response::Response;

use crate::message::{MAX_PIECE, field, plain, replaced, set, unchanged};
use crate::names;
use crate::refusal::Refusal;
pub(crate) use budget::Budget;
use budget::Held;
pub(crate) use head::Head;
use response::Answer;
pub(crate) use response::{End, Ending};

/// A request that is to be decided about.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) head: Head,
    /// The body, as it came. Empty where there is none.
    pub(crate) body: Vec<Bytes>,
    /// The body is whole.
    pub(crate) whole: bool,
}

/// What was decided.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Go {
    /// Addresses, the best first.
    pub(crate) endpoints: Vec<String>,
    /// What each was worth, where that is reported.
    pub(crate) scores: Vec<(String, f64)>,
    /// Headers for the engine.
    pub(crate) headers: Vec<(&'static str, String)>,
    /// The body, where it is another one.
    pub(crate) body: Option<Vec<Bytes>>,
    /// The event with the usage was not asked for by the client.
    pub(crate) withhold_usage: bool,
    /// The answer names the model that the client asked for.
    pub(crate) renamed: Option<Renamed>,
    /// The name of the receipt, for clients that ask for it.
    pub(crate) receipt: Option<String>,
}

/// Another model was asked for than the client did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Renamed {
    /// As the client calls it.
    pub(crate) client: String,
    /// As the engine is asked for it.
    pub(crate) engine: String,
}

/// Where the request goes, or why it does not.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Verdict {
    Go(Box<Go>),
    Refuse(Refusal),
}

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Output {
    Send(Box<proto::ProcessingResponse>),
    /// Send bytes of a body back.
    Pass(Passed),
    /// Decide, and hand in the verdict.
    Decide(Box<Request>),
    /// The first byte of a streamed answer came.
    FirstByte,
    /// What was picked is over. Once for every verdict that says where to go.
    Ended(Ending),
    /// Nothing more will be said: the stream may end.
    Close,
}

#[derive(Debug)]
enum Phase {
    Start,
    /// Waits for the body, or its end.
    Collecting {
        head: Head,
        body: Vec<Bytes>,
        held: Held,
    },
    /// Waits for the verdict.
    Deciding(Place),
    /// The request was sent on.
    Sent,
    /// It was answered in the engine's place, or Envoy did so itself.
    Over,
}

/// Where the verdict is sent.
#[derive(Debug)]
enum Place {
    /// With the headers, and with the body behind them.
    Headers { body: Option<Returned> },
    /// With the body, which is counted until then.
    Body { _held: Held },
}

/// A body that has to be sent back.
#[derive(Debug)]
struct Returned {
    chunks: Vec<Bytes>,
    /// Trailers follow it.
    trailers: bool,
    /// Counted until it was sent back.
    _held: Held,
}

/// The state of one request.
#[derive(Debug)]
pub(crate) struct Exchange {
    phase: Phase,
    request_mode: Mode,
    response_mode: Mode,
    /// Envoy reads no answers.
    silent: bool,
    answer: Answer,
    /// Headers of the client that are not for the engine.
    stripped: Vec<String>,
    /// The client wants to know the receipt's name.
    wants_receipt: bool,
    receipt: Option<String>,
    budget: Budget,
    out: Vec<Output>,
}

impl Exchange {
    pub(crate) fn new(budget: Budget) -> Self {
        Self {
            phase: Phase::Start,
            // What an Envoy does that does not say how it sends bodies.
            request_mode: Mode::Buffered,
            response_mode: Mode::Buffered,
            silent: false,
            answer: Answer::default(),
            stripped: Vec::new(),
            wants_receipt: false,
            receipt: None,
            budget,
            out: Vec::new(),
        }
    }

    /// What there is to do since the last time, in the order in which it came up.
    pub(crate) fn take(&mut self, into: &mut Vec<Output>) {
        into.append(&mut self.out);
    }

    /// A message from Envoy. What is not a message is refused, or passed over where it no longer matters.
    pub(crate) fn message(&mut self, received: impl Into<Received>) {
        let received = received.into();
        // Who answered is in the metadata of every message, and is read once.
        let is_wanted = match received.message.request {
            Some(Incoming::RequestBody(_)) => false,
            Some(Incoming::ResponseBody(_)) => self.answer.wants_place(),
            _ => true,
        };
        let message = if is_wanted {
            match received.read() {
                Ok(message) => message,
                Err(_) => return self.broken(),
            }
        } else {
            received.message
        };
        let proto::ProcessingRequest {
            request,
            metadata_context,
            attributes,
            observability_mode,
            protocol_config,
        } = message;
        if let Some(config) = protocol_config {
            (self.request_mode, self.response_mode) =
                (config.request_body_mode(), config.response_body_mode());
        }
        self.silent |= observability_mode;
        let Some(request) = request.filter(|_| !self.silent) else { return };
        match request {
            Incoming::RequestHeaders(headers) => self.headers(headers, metadata_context.as_ref()),
            Incoming::RequestBody(body) => self.body(body),
            Incoming::RequestTrailers(_) => self.trailers(),
            Incoming::ResponseHeaders(headers) => {
                self.overtaken();
                self.answer.place(metadata_context.as_ref(), &attributes);
                self.answer.headers(&headers);
                let header_mutation = self.answer_headers();
                let response = proto::CommonResponse { header_mutation, ..Default::default() };
                self.send(plain(Response::ResponseHeaders(proto::HeadersResponse {
                    response: Some(response),
                })));
                self.progress(headers.end_of_stream);
            }
            Incoming::ResponseBody(body) => {
                self.answer.place(metadata_context.as_ref(), &attributes);
                self.response_body(body);
            }
            Incoming::ResponseTrailers(_) => {
                if self.response_mode == Mode::FullDuplexStreamed {
                    self.pass_answer(&Bytes::new(), true, false);
                }
                self.send(plain(Response::ResponseTrailers(proto::TrailersResponse::default())));
                self.progress(true);
            }
        }
    }

    /// The request was sent on, and its answer passes: nothing is asked for any more.
    pub(crate) fn is_sent(&self) -> bool {
        matches!(self.phase, Phase::Sent)
    }

    /// Nobody waits for a pick any more.
    pub(crate) fn is_decided(&self) -> bool {
        matches!(self.phase, Phase::Sent | Phase::Over)
    }

    /// The stream is over: nothing more comes from Envoy.
    pub(crate) fn closed(&mut self) {
        // Without bodies this is all that is seen of an answer's end.
        let complete = self.response_mode == Mode::None && self.answer.has_begun();
        self.end(if complete { End::Finished } else { End::Aborted });
        self.phase = Phase::Over;
    }

    /// The verdict that was asked for.
    pub(crate) fn decided(&mut self, verdict: Verdict) {
        let Phase::Deciding(place) = std::mem::replace(&mut self.phase, Phase::Over) else {
            // Envoy did not wait: what was picked is not needed.
            if let Verdict::Go(_) = verdict {
                self.answer.picked();
                self.end(End::Aborted);
            }
            return;
        };
        match verdict {
            Verdict::Refuse(refusal) => self.refuse(&refusal),
            Verdict::Go(go) => {
                self.phase = Phase::Sent;
                self.answer.picked();
                self.answer.change(go.withhold_usage, go.renamed.clone());
                self.receipt.clone_from(&go.receipt);
                self.go(*go, place);
            }
        }
    }

    fn send(&mut self, message: proto::ProcessingResponse) {
        self.out.push(Output::Send(Box::new(message)));
    }

    /// Sends bytes of a body back, in messages that every Envoy takes; more of the same body may follow in
    /// the last of them. An end without bytes is a message, too.
    fn pass(&mut self, side: Side, mut body: Bytes, end_of_stream: bool) {
        if body.is_empty() && !end_of_stream {
            return;
        }
        loop {
            let room = match self.out.last() {
                Some(Output::Pass(last)) if last.side() == side => last.room(MAX_PIECE),
                _ => 0,
            };
            if room == 0 {
                self.out.push(Output::Pass(Passed::new(side)));
            }
            let room = if room == 0 { MAX_PIECE } else { room };
            let Some(Output::Pass(last)) = self.out.last_mut() else { return };
            last.push(body.split_to(body.len().min(room)));
            if body.is_empty() {
                if end_of_stream {
                    last.end();
                }
                return;
            }
        }
    }

    /// Envoy sent something that is no message of its protocol.
    fn broken(&mut self) {
        match self.phase {
            Phase::Sent | Phase::Over => {}
            _ => self.refuse(&Refusal::invalid("Envoy sent metadata that cannot be read")),
        }
    }

    /// What changes in the answer's headers.
    fn answer_headers(&self) -> Option<proto::HeaderMutation> {
        let receipt = self.receipt.as_deref().filter(|_| self.wants_receipt);
        let set_headers: Vec<_> =
            receipt.map(|name| set(names::RECEIPT, name.to_owned())).into_iter().collect();
        let other_length = self.answer.changes() && self.response_mode != Mode::None;
        let remove_headers: Vec<_> =
            other_length.then(|| names::CONTENT_LENGTH.to_owned()).into_iter().collect();
        let mutation = proto::HeaderMutation { set_headers, remove_headers };
        Some(mutation).filter(|one| !one.set_headers.is_empty() || !one.remove_headers.is_empty())
    }

    fn refuse(&mut self, refusal: &Refusal) {
        self.phase = Phase::Over;
        self.send(refusal.response());
        self.out.push(Output::Close);
    }

    fn end(&mut self, end: End) {
        if let Some(ending) = self.answer.end(end) {
            self.out.push(Output::Ended(ending));
        }
    }

    fn headers(&mut self, headers: proto::HttpHeaders, metadata: Option<&proto::Metadata>) {
        if !matches!(self.phase, Phase::Start) {
            return;
        }
        let map = headers.headers.unwrap_or_default();
        let names = map.headers.iter().map(|header| &header.key).filter(|name| names::is_stripped(name));
        self.stripped = names.cloned().collect();
        let head = Head { answer_passes: self.response_mode != Mode::None, ..Head::read(&map, metadata) };
        self.wants_receipt = head.wants_receipt;
        let has_body = !headers.end_of_stream;
        match self.request_mode {
            Mode::FullDuplexStreamed if has_body => {
                self.phase = Phase::Collecting { head, body: Vec::new(), held: self.budget.hold() };
            }
            Mode::Buffered | Mode::BufferedPartial if has_body => {
                self.phase = Phase::Collecting { head, body: Vec::new(), held: self.budget.hold() };
                self.send(plain(Response::RequestHeaders(proto::HeadersResponse {
                    response: Some(proto::CommonResponse::default()),
                })));
            }
            _ => {
                self.phase = Phase::Deciding(Place::Headers { body: None });
                let request = Request { head, body: Vec::new(), whole: !has_body };
                self.out.push(Output::Decide(Box::new(request)));
            }
        }
    }

    fn body(&mut self, chunk: proto::HttpBody) {
        let end = chunk.end_of_stream;
        if let Phase::Collecting { body, held, .. } = &mut self.phase {
            if let Err(refusal) = held.add(chunk.body.len()) {
                return self.refuse(&refusal);
            }
            if !chunk.body.is_empty() {
                body.push(chunk.body);
            }
            let buffered = self.request_mode != Mode::FullDuplexStreamed;
            if end || buffered {
                self.collected(end, false);
            }
            return;
        }
        // Chunks that nobody collects, behind a pick by the headers alone, pass.
        if self.request_mode != Mode::FullDuplexStreamed && !matches!(self.phase, Phase::Over) {
            self.send(unchanged(Side::Request));
        }
    }

    fn trailers(&mut self) {
        match self.phase {
            Phase::Collecting { .. } if self.request_mode == Mode::FullDuplexStreamed => {
                self.collected(true, true);
            }
            Phase::Over => {}
            _ => self.send(plain(Response::RequestTrailers(proto::TrailersResponse::default()))),
        }
    }

    /// The body is there.
    fn collected(&mut self, whole: bool, trailers: bool) {
        let Phase::Collecting { head, body, held } = std::mem::replace(&mut self.phase, Phase::Over) else {
            return;
        };
        let place = if self.request_mode == Mode::FullDuplexStreamed {
            Place::Headers { body: Some(Returned { chunks: body.clone(), trailers, _held: held }) }
        } else {
            Place::Body { _held: held }
        };
        self.phase = Phase::Deciding(place);
        self.out.push(Output::Decide(Box::new(Request { head, body, whole })));
    }

    fn go(&mut self, go: Go, place: Place) {
        let metadata = metadata(&go);
        let mut common =
            proto::CommonResponse { header_mutation: Some(self.mutation(&go)), ..Default::default() };
        match place {
            Place::Headers { body } => {
                common.clear_route_cache = true;
                let headers = proto::HeadersResponse { response: Some(common) };
                let response = Some(Response::RequestHeaders(headers));
                self.send(proto::ProcessingResponse { response, dynamic_metadata: Some(metadata) });
                if let Some(Returned { chunks, trailers, .. }) = body {
                    self.give_back(go.body.unwrap_or(chunks), trailers);
                }
            }
            Place::Body { .. } => {
                if let Some(body) = go.body {
                    let body = Bytes::from(body.concat());
                    // Envoy compares, and answers with 500 where the length is another one.
                    let length = set(names::CONTENT_LENGTH, body.len().to_string());
                    common.header_mutation.get_or_insert_default().set_headers.push(length);
                    let mutation = proto::body_mutation::Mutation::Body(body);
                    common.body_mutation = Some(proto::BodyMutation { mutation: Some(mutation) });
                }
                common.clear_route_cache = true;
                let response = Some(Response::RequestBody(proto::BodyResponse { response: Some(common) }));
                self.send(proto::ProcessingResponse { response, dynamic_metadata: Some(metadata) });
            }
        }
    }

    /// Sends a collected body back: forgetting it means an empty one at the engine.
    fn give_back(&mut self, chunks: Vec<Bytes>, trailers: bool) {
        for chunk in chunks {
            self.pass(Side::Request, chunk, false);
        }
        if trailers {
            self.send(plain(Response::RequestTrailers(proto::TrailersResponse::default())));
        } else {
            self.pass(Side::Request, Bytes::new(), true);
        }
    }

    fn mutation(&mut self, go: &Go) -> proto::HeaderMutation {
        let mut set_headers = vec![set(names::DESTINATION, go.endpoints.join(","))];
        set_headers.extend(go.headers.iter().map(|(name, value)| set(name, value.clone())));
        let is_set =
            |name: &String| name == names::DESTINATION || go.headers.iter().any(|(known, _)| known == name);
        let mut remove_headers = std::mem::take(&mut self.stripped);
        remove_headers.retain(|name| !is_set(name));
        proto::HeaderMutation { set_headers, remove_headers }
    }

    /// An answer came before the request was sent on: Envoy's own.
    fn overtaken(&mut self) {
        if matches!(self.phase, Phase::Start | Phase::Collecting { .. } | Phase::Deciding(_)) {
            self.phase = Phase::Over;
        }
    }

    fn response_body(&mut self, chunk: proto::HttpBody) {
        let (end, body) = (chunk.end_of_stream, chunk.body);
        if self.response_mode == Mode::FullDuplexStreamed {
            self.pass_answer(&body, end, end);
        } else if self.answer.changes() {
            let passed = self.answer.pass(&body, end).concat();
            self.send(replaced(Side::Response, passed));
        } else {
            self.send(unchanged(Side::Response));
        }
        if self.answer.chunk(&body) {
            self.out.push(Output::FirstByte);
        }
        self.progress(end);
    }

    /// Sends a chunk on: `last` is the last one, `end` says so to Envoy, unless trailers follow.
    fn pass_answer(&mut self, chunk: &Bytes, last: bool, end: bool) {
        if self.answer.changes() {
            for piece in self.answer.pass(chunk, last) {
                self.pass(Side::Response, piece, false);
            }
            self.pass(Side::Response, Bytes::new(), end);
        } else {
            self.pass(Side::Response, chunk.clone(), end);
        }
    }

    fn progress(&mut self, end: bool) {
        if end {
            self.end(End::Finished);
            self.phase = Phase::Over;
        }
    }
}

/// The destination in the load balancer's namespace, and what endpoints were worth.
fn metadata(go: &Go) -> Struct {
    let mut fields = field(names::DESTINATION, Kind::StringValue(go.endpoints.join(",")));
    if !go.scores.is_empty() {
        let number = |score: f64| Value { kind: Some(Kind::NumberValue(score)) };
        let scores = go.scores.iter().map(|(endpoint, score)| (endpoint.clone(), number(*score)));
        let scores = Kind::StructValue(Struct { fields: scores.collect() });
        fields.fields.extend(field(names::SCORES, scores).fields);
    }
    field(names::LB, Kind::StructValue(fields))
}

#[cfg(test)]
mod tests;
