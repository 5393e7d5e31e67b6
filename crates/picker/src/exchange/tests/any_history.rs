//! Any order of messages, verdicts and ends, beside what Envoy is promised.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// A well-behaved Envoy: what it sends, and in which pieces.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "each is a case of its own")]
struct Plan {
    request: Vec<Vec<u8>>,
    request_trailers: bool,
    response: Vec<Vec<u8>>,
    response_trailers: bool,
    modes: (Mode, Mode),
    events: bool,
    /// It disconnects after this many messages.
    gone_after: usize,
    refused: bool,
    /// The answer's events are withheld and its model renamed, where they are there.
    changed: bool,
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        4 => Just(Mode::FullDuplexStreamed),
        1 => Just(Mode::Buffered),
        1 => Just(Mode::BufferedPartial),
        1 => Just(Mode::Streamed),
        1 => Just(Mode::None),
        1 => Just(Mode::Grpc),
    ]
}

fn chunks() -> impl Strategy<Value = Vec<Vec<u8>>> {
    vec(prop_oneof![3 => vec(any::<u8>(), 0..40), 1 => Just(vec![9; 70_000])], 0..5)
}

fn plan() -> impl Strategy<Value = Plan> {
    let sides = (chunks(), any::<bool>(), chunks(), any::<bool>(), any::<bool>());
    (sides, (mode(), mode()), any::<bool>(), 0usize..30, prop::bool::weighted(0.2)).prop_map(
        |(
            (request, request_trailers, response, response_trailers, changed),
            modes,
            events,
            gone_after,
            refused,
        )| {
            Plan {
                request,
                request_trailers,
                response,
                response_trailers,
                modes,
                events,
                gone_after,
                refused,
                changed,
            }
        },
    )
}

/// All messages of a request, by how bodies are sent.
fn request(plan: &Plan) -> Vec<proto::ProcessingRequest> {
    let mut all = vec![request_headers(plan.modes, false)];
    match plan.modes.0 {
        Mode::None => {}
        Mode::Buffered | Mode::BufferedPartial => all.push(request_body(&plan.request.concat(), true)),
        _ => {
            all.extend(plan.request.iter().map(|chunk| request_body(chunk, false)));
            if plan.request_trailers {
                all.push(message(Incoming::RequestTrailers(proto::HttpTrailers::default())));
            } else {
                all.push(request_body(b"", true));
            }
        }
    }
    all
}

fn response(plan: &Plan) -> Vec<proto::ProcessingRequest> {
    let kind = if plan.events { "text/event-stream" } else { "application/json" };
    let mut all = vec![response_headers(kind, false)];
    match plan.modes.1 {
        Mode::None => {}
        Mode::Buffered | Mode::BufferedPartial => all.push(response_body(&plan.response.concat(), true)),
        _ => {
            all.extend(plan.response.iter().map(|chunk| response_body(chunk, false)));
            if plan.response_trailers {
                all.push(message(Incoming::ResponseTrailers(proto::HttpTrailers::default())));
            } else {
                all.push(response_body(b"", true));
            }
        }
    }
    all
}

/// What the picker said.
#[derive(Default)]
struct Said {
    request: Vec<u8>,
    response: Vec<u8>,
    request_ends: usize,
    response_ends: usize,
    kinds: Vec<u8>,
    endings: Vec<End>,
    decisions: usize,
    refusals: usize,
}

impl Said {
    fn hear(&mut self, one: &mut Exchange) {
        for output in taken(one) {
            match output {
                Output::Decide(_) => self.decisions += 1,
                Output::Ended(ending) => self.endings.push(ending.end),
                Output::FirstByte | Output::Close => {}
                Output::Send(sent) => self.message(*sent),
                Output::Pass(passed) => self.passed(&passed),
            }
        }
    }

    fn passed(&mut self, passed: &Passed) {
        let bytes = passed.pieces().concat();
        assert!(bytes.len() <= crate::message::MAX_PIECE);
        let (kind, into, ends) = match passed.side() {
            Side::Request => (2, &mut self.request, &mut self.request_ends),
            Side::Response => (5, &mut self.response, &mut self.response_ends),
        };
        self.kinds.push(kind);
        into.extend_from_slice(&bytes);
        *ends += usize::from(passed.is_end());
    }

    fn message(&mut self, sent: proto::ProcessingResponse) {
        match sent.response.unwrap() {
            Response::RequestHeaders(_) => self.kinds.push(1),
            Response::RequestBody(body) => {
                self.kinds.push(2);
                let ends = piece(body, &mut self.request);
                self.request_ends += usize::from(ends);
            }
            Response::RequestTrailers(_) => self.kinds.push(3),
            Response::ResponseHeaders(_) => self.kinds.push(4),
            Response::ResponseBody(body) => {
                self.kinds.push(5);
                let ends = piece(body, &mut self.response);
                self.response_ends += usize::from(ends);
            }
            Response::ResponseTrailers(_) => self.kinds.push(6),
            Response::ImmediateResponse(_) => self.refusals += 1,
        }
    }
}

fn piece(body: proto::BodyResponse, into: &mut Vec<u8>) -> bool {
    let mutation = body.response.unwrap().body_mutation.and_then(|mutation| mutation.mutation);
    let Some(proto::body_mutation::Mutation::StreamedResponse(piece)) = mutation else { return false };
    assert!(piece.body.len() <= crate::message::MAX_PIECE);
    into.extend_from_slice(&piece.body);
    piece.end_of_stream
}

proptest! {
    #[test]
    fn what_envoy_is_promised_holds(plan in plan()) {
        let budget = Budget::new(1 << 20, 1 << 20);
        let mut one = Exchange::new(budget.clone());
        let mut said = Said::default();
        let (mut sent, mut decided) = (0, 0);
        let whole = 'whole: {
            for message in request(&plan) {
                if sent == plan.gone_after {
                    break 'whole false;
                }
                sent += 1;
                one.message(message);
                said.hear(&mut one);
                if said.decisions > decided {
                    decided = said.decisions;
                    let verdict = if plan.refused { Verdict::Refuse(Refusal::not_cached()) } else { go_with(plan.changed) };
                    one.decided(verdict);
                    said.hear(&mut one);
                }
            }
            prop_assert_eq!(said.decisions, 1, "every request is decided once");
            if plan.refused {
                break 'whole false;
            }
            for message in response(&plan) {
                if sent == plan.gone_after {
                    break 'whole false;
                }
                sent += 1;
                one.message(message);
                said.hear(&mut one);
            }
            true
        };
        one.closed();
        said.hear(&mut one);
        drop(one);
        prop_assert_eq!(budget.held(), 0);
        let picks = usize::from(decided == 1 && !plan.refused);
        prop_assert_eq!(said.endings.len(), picks, "what was picked ends once");
        prop_assert_eq!(said.refusals, usize::from(decided == 1 && plan.refused));
        prop_assert!(said.kinds.is_sorted(), "headers, body, trailers: {:?}", said.kinds);
        if whole {
            prop_assert_eq!(said.endings[0], End::Finished);
            if plan.modes.0 == Mode::FullDuplexStreamed {
                prop_assert_eq!(&said.request, &plan.request.concat());
                prop_assert_eq!(said.request_ends, usize::from(!plan.request_trailers));
            }
            if plan.modes.1 == Mode::FullDuplexStreamed {
                prop_assert_eq!(&said.response, &plan.response.concat());
                prop_assert_eq!(said.response_ends, usize::from(!plan.response_trailers));
            }
        }
    }

    #[test]
    fn no_order_of_messages_breaks_it(order in vec((0u8..9, vec(any::<u8>(), 0..20), any::<bool>()), 0..40), modes in (mode(), mode())) {
        let budget = Budget::new(100, 150);
        let mut one = Exchange::new(budget.clone());
        let mut said = Said::default();
        let mut verdicts = 0;
        for (kind, body, end) in order {
            match kind {
                0 => one.message(request_headers(modes, end)),
                1 => one.message(request_body(&body, end)),
                2 => one.message(message(Incoming::RequestTrailers(proto::HttpTrailers::default()))),
                3 => one.message(response_headers("text/event-stream", end)),
                4 => one.message(response_body(&body, end)),
                5 => one.message(message(Incoming::ResponseTrailers(proto::HttpTrailers::default()))),
                6 => one.message(proto::ProcessingRequest::default()),
                7 => one.closed(),
                _ => {
                    if said.decisions > verdicts {
                        verdicts += 1;
                        one.decided(go());
                    }
                }
            }
            said.hear(&mut one);
        }
        one.closed();
        said.hear(&mut one);
        drop(one);
        prop_assert!(said.decisions <= 1);
        prop_assert_eq!(said.endings.len(), verdicts);
        prop_assert_eq!(budget.held(), 0);
    }
}
