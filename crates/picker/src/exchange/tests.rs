mod any_history;

use super::*;
use crate::message::header;

pub(super) const PICKED: &str = "10.0.0.1:8000";

pub(super) fn exchange() -> Exchange {
    Exchange::new(Budget::new(1 << 20, 2 << 20))
}

pub(super) fn message(request: Incoming) -> proto::ProcessingRequest {
    proto::ProcessingRequest { request: Some(request), ..Default::default() }
}

pub(super) fn header_map(pairs: &[(&str, &str)]) -> proto::HeaderMap {
    let header = |(key, value): &(&str, &str)| proto::HeaderValue {
        key: (*key).into(),
        value: String::new(),
        raw_value: Bytes::copy_from_slice(value.as_bytes()),
    };
    proto::HeaderMap { headers: pairs.iter().map(header).collect() }
}

pub(super) fn request_headers(modes: (Mode, Mode), end_of_stream: bool) -> proto::ProcessingRequest {
    let pairs = [
        (":path", "/v1/chat/completions"),
        ("x-gateway-destination-endpoint", "6.6.6.6:6"),
        ("x-request-id", "r"),
        ("x-prefiller-host-port", "forged"),
    ];
    let headers = proto::HttpHeaders { headers: Some(header_map(&pairs)), end_of_stream };
    proto::ProcessingRequest {
        protocol_config: Some(proto::ProtocolConfiguration {
            request_body_mode: modes.0.into(),
            response_body_mode: modes.1.into(),
            send_body_without_waiting_for_header_response: false,
        }),
        ..message(Incoming::RequestHeaders(headers))
    }
}

pub(super) fn request_body(body: &[u8], end_of_stream: bool) -> proto::ProcessingRequest {
    message(Incoming::RequestBody(proto::HttpBody { body: Bytes::copy_from_slice(body), end_of_stream }))
}

pub(super) fn response_headers(content_type: &str, end_of_stream: bool) -> proto::ProcessingRequest {
    let headers = Some(header_map(&[(":status", "200"), ("content-type", content_type)]));
    message(Incoming::ResponseHeaders(proto::HttpHeaders { headers, end_of_stream }))
}

pub(super) fn response_body(body: &[u8], end_of_stream: bool) -> proto::ProcessingRequest {
    message(Incoming::ResponseBody(proto::HttpBody { body: Bytes::copy_from_slice(body), end_of_stream }))
}

pub(super) fn go() -> Verdict {
    go_with(false)
}

/// With an answer that is changed on its way, or not.
pub(super) fn go_with(changed: bool) -> Verdict {
    let renamed = Renamed { client: "asked".into(), engine: "tuned".into() };
    Verdict::Go(Box::new(Go {
        endpoints: vec![PICKED.into()],
        scores: Vec::new(),
        headers: Vec::new(),
        body: None,
        withhold_usage: changed,
        renamed: changed.then_some(renamed),
        receipt: Some("name".into()),
    }))
}

pub(super) fn taken(exchange: &mut Exchange) -> Vec<Output> {
    let mut outputs = Vec::new();
    exchange.take(&mut outputs);
    outputs
}

/// What was done, in words.
pub(super) fn words(exchange: &mut Exchange) -> Vec<String> {
    let word = |output: Output| match output {
        Output::Decide(request) => format!("decide {}", request.body.concat().len()),
        Output::FirstByte => "first byte".to_owned(),
        Output::Ended(ending) => format!("{:?}", ending.end).to_lowercase(),
        Output::Close => "close".to_owned(),
        Output::Pass(passed) => {
            let size: usize = passed.pieces().iter().map(Bytes::len).sum();
            let side = if passed.side() == Side::Request { "request" } else { "response" };
            format!("{side} body {size}{}", if passed.is_end() { " end" } else { "" })
        }
        Output::Send(message) => match message.response.unwrap() {
            Response::RequestHeaders(one) => match one.response.unwrap().header_mutation {
                Some(mutation) => format!(
                    "request headers {}",
                    String::from_utf8_lossy(&mutation.set_headers[0].header.as_ref().unwrap().raw_value)
                ),
                None => "request headers".to_owned(),
            },
            Response::ResponseHeaders(_) => "response headers".to_owned(),
            Response::RequestBody(one) => format!("request body {}", piece(one)),
            Response::ResponseBody(one) => format!("response body {}", piece(one)),
            Response::RequestTrailers(_) => "request trailers".to_owned(),
            Response::ResponseTrailers(_) => "response trailers".to_owned(),
            Response::ImmediateResponse(one) => format!("answer {}", one.status.unwrap().code),
        },
    };
    taken(exchange).into_iter().map(word).collect()
}

fn piece(body: proto::BodyResponse) -> String {
    match body.response.unwrap().body_mutation.and_then(|mutation| mutation.mutation) {
        Some(proto::body_mutation::Mutation::StreamedResponse(piece)) => {
            format!("{}{}", piece.body.len(), if piece.end_of_stream { " end" } else { "" })
        }
        Some(proto::body_mutation::Mutation::Body(body)) => format!("replaced {}", body.len()),
        _ => "as it is".to_owned(),
    }
}

const DUPLEX: (Mode, Mode) = (Mode::FullDuplexStreamed, Mode::FullDuplexStreamed);

#[test]
fn full_duplex_from_one_end_to_the_other() {
    let mut one = exchange();
    one.message(request_headers(DUPLEX, false));
    one.message(request_body(b"{27 bytes", false));
    assert!(words(&mut one).is_empty(), "nothing is answered before the body is there");
    one.message(request_body(b"", true));
    assert_eq!(words(&mut one), ["decide 9"]);
    one.decided(go());
    assert_eq!(words(&mut one), ["request headers 10.0.0.1:8000", "request body 9 end"]);
    one.message(response_headers("text/event-stream", false));
    one.message(response_body(b"data: {}\n\n", false));
    assert_eq!(words(&mut one), ["response headers", "response body 10", "first byte"]);
    one.message(response_body(b"", true));
    assert_eq!(words(&mut one), ["response body 0 end", "finished"]);
    one.closed();
    assert!(words(&mut one).is_empty());
}

#[test]
fn a_request_without_a_body_is_decided_at_once() {
    for modes in [DUPLEX, (Mode::Buffered, Mode::None), (Mode::None, Mode::None)] {
        let mut one = exchange();
        one.message(request_headers(modes, true));
        assert_eq!(words(&mut one), ["decide 0"]);
        one.decided(go());
        assert_eq!(words(&mut one), ["request headers 10.0.0.1:8000"]);
    }
}

#[test]
fn trailers_come_behind_the_body() {
    let mut one = exchange();
    one.message(request_headers(DUPLEX, false));
    one.message(request_body(&vec![7; 100_000], false));
    one.message(message(Incoming::RequestTrailers(proto::HttpTrailers::default())));
    assert_eq!(words(&mut one), ["decide 100000"]);
    one.decided(go());
    assert_eq!(
        words(&mut one),
        ["request headers 10.0.0.1:8000", "request body 62000", "request body 38000", "request trailers"]
    );
    one.message(response_headers("application/grpc", false));
    one.message(response_body(b"x", false));
    one.message(message(Incoming::ResponseTrailers(proto::HttpTrailers::default())));
    assert_eq!(words(&mut one), ["response headers", "response body 1", "response trailers", "finished"]);
}

#[test]
fn buffered_bodies_are_decided_with_the_body() {
    let mut one = exchange();
    one.message(request_headers((Mode::Buffered, Mode::Streamed), false));
    assert_eq!(words(&mut one), ["request headers"]);
    one.message(request_body(b"body", true));
    assert_eq!(words(&mut one), ["decide 4"]);
    one.decided(go());
    assert_eq!(words(&mut one), ["request body as it is"]);
    one.message(response_headers("application/json", false));
    one.message(response_body(b"{}", true));
    assert_eq!(words(&mut one), ["response headers", "response body as it is", "finished"]);

    // Envoy found the body too long, and answers by itself.
    let mut one = exchange();
    one.message(request_headers((Mode::Buffered, Mode::None), false));
    one.message(response_headers("text/plain", true));
    assert_eq!(words(&mut one), ["request headers", "response headers"]);
    one.closed();
    assert!(words(&mut one).is_empty());
}

#[test]
fn without_bodies_headers_decide_and_the_end_of_the_stream_is_the_end() {
    let mut one = exchange();
    one.message(request_headers((Mode::None, Mode::None), false));
    assert_eq!(words(&mut one), ["decide 0"]);
    one.decided(go());
    one.message(response_headers("application/json", false));
    assert_eq!(words(&mut one), ["request headers 10.0.0.1:8000", "response headers"]);
    one.closed();
    assert_eq!(words(&mut one), ["finished"]);
    // Chunks of a mode that passes them one by one.
    let mut one = exchange();
    one.message(request_headers((Mode::Streamed, Mode::Streamed), false));
    one.decided(go());
    one.message(request_body(b"x", true));
    assert_eq!(words(&mut one), ["decide 0", "request headers 10.0.0.1:8000", "request body as it is"]);
}

#[test]
fn refusals_answer_in_the_engines_place() {
    let mut one = exchange();
    one.message(request_headers(DUPLEX, false));
    one.message(request_body(b"x", true));
    one.decided(Verdict::Refuse(Refusal::no_endpoint("nobody")));
    assert_eq!(words(&mut one), ["decide 1", "answer 503", "close"]);
    one.message(request_body(b"more", true));
    one.closed();
    assert!(words(&mut one).is_empty());
}

#[test]
fn bodies_are_bounded_one_by_one_and_together() {
    let budget = Budget::new(10, 15);
    let mut one = Exchange::new(budget.clone());
    one.message(request_headers(DUPLEX, false));
    one.message(request_body(&[0; 6], false));
    one.message(request_body(&[0; 6], false));
    assert_eq!(words(&mut one), ["answer 413", "close"]);
    one.message(request_body(&[0; 6], true));
    assert!(words(&mut one).is_empty());
    let mut first = Exchange::new(budget.clone());
    let mut second = Exchange::new(budget.clone());
    for one in [&mut first, &mut second] {
        one.message(request_headers(DUPLEX, false));
        one.message(request_body(&[0; 10], false));
    }
    assert!(words(&mut first).is_empty());
    assert_eq!(words(&mut second), ["answer 429", "close"]);
    assert_eq!(budget.held(), 10);
    first.message(request_body(b"", true));
    first.decided(go());
    assert_eq!(budget.held(), 0, "what was sent back is no longer held");
}

#[test]
fn whatever_a_client_forged_is_replaced_or_taken_off() {
    let mut one = exchange();
    one.message(request_headers(DUPLEX, true));
    one.decided(go());
    let Some(Output::Send(sent)) = taken(&mut one).pop() else { panic!() };
    let Some(Response::RequestHeaders(headers)) = sent.response else { panic!() };
    let mutation = headers.response.unwrap().header_mutation.unwrap();
    assert_eq!(mutation.remove_headers, ["x-prefiller-host-port"]);
    assert_eq!(mutation.set_headers[0].append_action, 2);
    let metadata = sent.dynamic_metadata.unwrap();
    let Some(Kind::StructValue(lb)) = &metadata.fields["envoy.lb"].kind else { panic!() };
    assert_eq!(crate::message::text(Some(lb), names::DESTINATION), Some(PICKED));
}

#[test]
fn served_attempts_and_usage_are_read() {
    let mut one = exchange();
    one.message(request_headers(DUPLEX, true));
    one.decided(go());
    taken(&mut one);
    let mut headers = response_headers("application/json", false);
    let served = field(names::SERVED, Kind::StringValue("10.0.0.2:8000".into()));
    headers.metadata_context =
        Some(proto::Metadata { filter_metadata: [(names::LB.to_owned(), served)].into() });
    let mut attributes = field(names::UPSTREAM_ADDRESS, Kind::StringValue("10.0.0.9:1".into()));
    attributes.fields.extend(field(names::UPSTREAM_ATTEMPTS, Kind::NumberValue(2.0)).fields);
    headers.attributes = [("envoy.filters.http.ext_proc".to_owned(), attributes)].into();
    one.message(headers);
    one.message(response_body(br#"{"usage":{"prompt_tokens":4,"prompt_tok"#, false));
    one.message(response_body(br#"ens_details":{"cached_tokens":3}}}"#, true));
    let Some(Output::Ended(ending)) = taken(&mut one).pop() else { panic!() };
    assert_eq!((ending.end, ending.status), (End::Finished, 200));
    assert_eq!((ending.served.as_deref(), ending.attempts), (Some("10.0.0.2:8000"), Some(2)));
    assert_eq!((ending.usage.prompt, ending.usage.cached), (Some(4), Some(3)));
}

#[test]
fn the_receipt_is_named_to_who_asks() {
    let mut one = exchange();
    let mut headers = request_headers(DUPLEX, true);
    let Some(Incoming::RequestHeaders(inner)) = &mut headers.request else { panic!() };
    inner.headers = Some(header_map(&[(names::RECEIPT, "1")]));
    one.message(headers);
    one.decided(go());
    taken(&mut one);
    one.message(response_headers("application/json", true));
    let Some(Output::Send(sent)) = taken(&mut one).into_iter().next() else { panic!() };
    let Some(Response::ResponseHeaders(headers)) = sent.response else { panic!() };
    let set = headers.response.unwrap().header_mutation.unwrap().set_headers;
    let map = proto::HeaderMap { headers: set.into_iter().filter_map(|one| one.header).collect() };
    assert_eq!(header(&map, names::RECEIPT), Some("name"));
}

#[test]
fn an_envoy_that_reads_no_answers_gets_none() {
    let mut one = exchange();
    let headers = proto::ProcessingRequest { observability_mode: true, ..request_headers(DUPLEX, false) };
    one.message(headers);
    one.message(request_body(b"x", true));
    one.closed();
    assert!(words(&mut one).is_empty());
}

#[test]
fn a_verdict_that_nobody_waits_for_is_given_back() {
    for overtaken in [true, false] {
        let mut one = exchange();
        one.message(request_headers(DUPLEX, true));
        if overtaken {
            one.message(response_headers("text/plain", true));
        } else {
            one.closed();
        }
        taken(&mut one);
        one.decided(go());
        assert_eq!(words(&mut one), ["aborted"]);
    }
}

#[test]
fn what_is_held_back_comes_before_trailers() {
    for (sent, passed) in [
        (&b"data: {\"model\":\"tun"[..], 19),
        (b"data: {\"model\":\"tuned\"}", 23),
        (b"data: {\"choices\":[],\"usage\":{}}", 0),
    ] {
        let mut one = exchange();
        one.message(request_headers(DUPLEX, false));
        one.message(request_body(b"{}", true));
        taken(&mut one);
        one.decided(go_with(true));
        one.message(response_headers("text/event-stream", false));
        taken(&mut one);
        one.message(response_body(sent, false));
        assert_eq!(words(&mut one), ["first byte"], "an event is passed when it is whole");
        one.message(message(Incoming::ResponseTrailers(proto::HttpTrailers::default())));
        let mut expected =
            vec![format!("response body {passed}"), "response trailers".into(), "finished".into()];
        expected.retain(|word| word != "response body 0");
        assert_eq!(words(&mut one), expected);
    }
}

#[test]
fn answers_of_another_length_lose_theirs() {
    for (kind, changed, expected) in
        [("application/json", true, true), ("text/plain", true, false), ("application/json", false, false)]
    {
        let mut one = exchange();
        one.message(request_headers(DUPLEX, true));
        taken(&mut one);
        one.decided(go_with(changed));
        taken(&mut one);
        one.message(response_headers(kind, false));
        let Some(Output::Send(sent)) = taken(&mut one).into_iter().next() else { panic!() };
        let Some(Response::ResponseHeaders(headers)) = sent.response else { panic!() };
        let removed = headers.response.unwrap().header_mutation.map(|mutation| mutation.remove_headers);
        assert_eq!(removed.is_some_and(|names| names == ["content-length"]), expected, "{kind} {changed}");
    }
}
