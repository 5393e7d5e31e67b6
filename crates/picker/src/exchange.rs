//! One HTTP request, from its headers to the end of its answer, without IO.
//!
//! ```text
//!            headers          end of the body         Verdict::Go              response
//! Start ────────────> Collecting ────────> Deciding ────────────> Sent ────────────────> Over
//!   │ no body, or none is sent      ^         │ Verdict::Refuse
//!   └───────────────────────────────┘         └──────────────────> Over (an answer in the engine's place)
//! ```
//!
//! What Envoy waits for depends on how it was told to send bodies:
//!
//! | request body | when the pick is asked for | where it is told |
//! |---|---|---|
//! | full duplex | at the end of the body | with the headers; the body is sent back behind them |
//! | buffered | at the body; the headers are answered at once | with the body |
//! | streamed, none, or no body at all | at the headers | with the headers |
//!
//! A stream is never left without an answer: closing one before made Envoy send an empty body, with status 200.

mod budget;
mod head;
mod response;

use bytes::Bytes;
use kvplane_proto::envoy as proto;
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use proto::BodySendMode as Mode;
use proto::processing_request::Request as Incoming;
use proto::processing_response::Response;

use crate::message::{Side, field, plain, set};
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
    /// What each was worth, where that is told.
    pub(crate) scores: Vec<(String, f64)>,
    /// Headers for the engine.
    pub(crate) headers: Vec<(&'static str, String)>,
    /// The body, where it is another one.
    pub(crate) body: Option<Vec<Bytes>>,
    /// The event with the usage was not asked for by the client.
    pub(crate) withhold_usage: bool,
    /// The name of the receipt, for clients that ask for it.
    pub(crate) receipt: Option<String>,
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

/// Where the verdict is told.
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

    /// What there is to do since the last time.
    pub(crate) fn take(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.out)
    }

    /// A message from Envoy.
    pub(crate) fn message(&mut self, message: proto::ProcessingRequest) {
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
                let set_headers = self.receipt.as_deref().filter(|_| self.wants_receipt);
                let set_headers: Vec<_> =
                    set_headers.map(|name| set(names::RECEIPT, name.to_owned())).into_iter().collect();
                let mutation = proto::HeaderMutation { set_headers, remove_headers: Vec::new() };
                let mutation = Some(mutation).filter(|mutation| !mutation.set_headers.is_empty());
                let response = proto::CommonResponse { header_mutation: mutation, ..Default::default() };
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
                self.send(plain(Response::ResponseTrailers(proto::TrailersResponse::default())));
                self.progress(true);
            }
        }
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
                self.answer.withhold(go.withhold_usage);
                self.receipt.clone_from(&go.receipt);
                self.go(*go, place);
            }
        }
    }

    fn send(&mut self, message: proto::ProcessingResponse) {
        self.out.push(Output::Send(Box::new(message)));
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
        let head = Head::read(&map, metadata);
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
            self.send(Side::Request.unchanged());
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
                    let mutation = proto::body_mutation::Mutation::Body(Bytes::from(body.concat()));
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
        let out = &mut self.out;
        let mut send = |message| out.push(Output::Send(Box::new(message)));
        let last = chunks.len().saturating_sub(1);
        if chunks.is_empty() && !trailers {
            Side::Request.pieces(Bytes::new(), true, &mut send);
        }
        for (at, chunk) in chunks.into_iter().enumerate() {
            Side::Request.pieces(chunk, at == last && !trailers, &mut send);
        }
        if trailers {
            send(plain(Response::RequestTrailers(proto::TrailersResponse::default())));
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
            // Sent on before it is looked at.
            let passed = self.answer.pass(&body, end);
            if end || !passed.is_empty() {
                let out = &mut self.out;
                Side::Response.pieces(passed, end, &mut |message| out.push(Output::Send(Box::new(message))));
            }
        } else {
            self.send(Side::Response.unchanged());
        }
        if self.answer.chunk(&body) {
            self.out.push(Output::FirstByte);
        }
        self.progress(end);
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
