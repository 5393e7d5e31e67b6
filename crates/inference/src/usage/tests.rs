use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use bytes::Bytes;

use super::checks::usage_of_pieces;
use super::{Format, Scanner, Usage, Withhold};

fn scanned(format: Format, body: &str) -> Usage {
    let mut scanner = Scanner::new(format);
    scanner.feed(body.as_bytes());
    scanner.usage()
}

fn usage(prompt: u64, cached: u64, output: u64) -> Usage {
    Usage { prompt: Some(prompt), cached: Some(cached), output: Some(output) }
}

#[test]
fn a_completion() {
    let body = json!({
        "id": "x", "choices": [{"message": {"content": "\"usage\":{\"prompt_tokens\":1}", "usage": {"prompt_tokens": 2}}}],
        "usage": {"prompt_tokens": 295, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 288}},
    });
    assert_eq!(scanned(Format::Json, &body.to_string()), usage(295, 288, 3));
    let pretty = serde_json::to_string_pretty(&body).unwrap();
    assert_eq!(scanned(Format::Json, &pretty), usage(295, 288, 3));
}

#[test]
fn a_stream_of_chunks() {
    let body = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n\
                : comment\n\n\
                event: x\r\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":40,\"completion_tokens\":2,\r\ndata: \"prompt_tokens_details\":{\"cached_tokens\":32}}}\r\n\r\n\
                data: [DONE]\n\n";
    assert_eq!(scanned(Format::Events, body), usage(40, 32, 2));
}

#[test]
fn usage_of_other_apis() {
    let body = "event: message_start\n\
        data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":8,\"cache_read_input_tokens\":32}}}\n\n\
        event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":5}}\n\n";
    let expected = Usage { prompt: None, cached: Some(32), output: Some(5) };
    assert_eq!(scanned(Format::Events, body), expected, "Anthropic's prompt is without what was cached");
    let body = "data: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":40,\
        \"input_tokens_details\":{\"cached_tokens\":32},\"output_tokens\":5}}}\n\n";
    assert_eq!(scanned(Format::Events, body), usage(40, 32, 5));
}

#[test]
fn what_is_not_a_usage_is_not_read() {
    for body in [
        r#"{"x":{"usage":{"prompt_tokens":1}}}"#,
        r#"[{"usage":{"prompt_tokens":1}}]"#,
        r#"{"a":"usage","b":{"prompt_tokens":1}}"#,
        r#"{"message":[{"usage":{"prompt_tokens":1}}]}"#,
        r#"{"usages":{"prompt_tokens":1},"usage_of_this":{"prompt_tokens":1}}"#,
        r#"{"usage":[{"prompt_tokens":1}]}"#,
        r#"{"usage":"{\"prompt_tokens\":1}"}"#,
        r#"{"usage":{"prompt_tokens":"many"}}"#,
        r#"{"usage":{"prompt_tokens":-1}}"#,
        "}}}]]]{{{[[[\"usage\":{",
    ] {
        assert_eq!(scanned(Format::Json, body), Usage::default(), "{body}");
    }
    let long = format!(r#"{{"usage":{{"x":"{}","prompt_tokens":1}},"y":2}}"#, "x".repeat(5_000));
    assert_eq!(scanned(Format::Json, &long), Usage::default());
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0u64..1 << 40).prop_map(Value::from),
        "[a-z\"\\\\{}\\[\\]:,é ]{0,12}".prop_map(Value::from),
    ];
    let key = prop_oneof![
        Just("usage".to_owned()),
        Just("message".to_owned()),
        Just("response".to_owned()),
        Just("prompt_tokens".to_owned()),
        Just("prompt_tokens_details".to_owned()),
        Just("cached_tokens".to_owned()),
        "[a-z\"\\\\]{0,14}",
    ];
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((key.clone(), inner), 0..5).prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_document_in_any_pieces(document in json_value(), cuts in vec(0usize..9, 0..60), pretty: bool) {
        let body = if pretty { serde_json::to_string_pretty(&document) } else { serde_json::to_string(&document) };
        usage_of_pieces(false, body.unwrap().as_bytes(), &cuts);
    }

    #[test]
    fn any_events_in_any_pieces(documents in vec(json_value(), 0..5), cuts in vec(0usize..9, 0..60), crlf: bool) {
        let end = if crlf { "\r\n" } else { "\n" };
        let body: String = documents.iter().map(|document| format!("data: {document}{end}{end}")).collect();
        usage_of_pieces(true, body.as_bytes(), &cuts);
        let mut expected = Usage::default();
        for document in &documents {
            let mut scanner = Scanner::new(Format::Json);
            scanner.feed(document.to_string().as_bytes());
            expected.update(scanner.usage());
        }
        prop_assert_eq!(scanned(Format::Events, &body), expected);
    }

    #[test]
    fn any_bytes(bytes in vec(any::<u8>(), 0..300), cuts in vec(0usize..9, 0..60), events: bool) {
        usage_of_pieces(events, &bytes, &cuts);
    }

    #[test]
    fn events_are_withheld_whole_and_nothing_else(kinds in vec(0u8..4, 0..8), cuts in vec(1usize..40, 0..60), crlf: bool) {
        let end = if crlf { "\r\n" } else { "\n" };
        let event = |kind: u8| match kind {
            0 => format!("data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":1}}}}{end}{end}"),
            1 => format!("data: {{\"choices\":[{{\"delta\":{{}}}}],\"usage\":{{\"prompt_tokens\":1}}}}{end}{end}"),
            2 => format!("data: {{\"choices\":[],\"usage\":null}}{end}{end}"),
            _ => format!(": {}{end}{end}", "x".repeat(70_000)),
        };
        let body: String = kinds.iter().map(|kind| event(*kind)).collect();
        let expected: String = kinds.iter().filter(|kind| **kind != 0).map(|kind| event(*kind)).collect();
        let (mut filter, mut out, mut from) = (Withhold::default(), Vec::new(), 0);
        for cut in cuts {
            let to = (from + cut).min(body.len());
            out.extend_from_slice(&filter.pass(Bytes::copy_from_slice(&body.as_bytes()[from..to]), false));
            from = to;
        }
        out.extend_from_slice(&filter.pass(Bytes::copy_from_slice(&body.as_bytes()[from..]), true));
        prop_assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}

#[test]
fn an_event_passes_with_its_end() {
    let mut filter = Withhold::default();
    assert_eq!(&filter.pass(Bytes::from_static(b"data: {\"choices\":[{}]}\n"), false)[..], b"");
    assert_eq!(&filter.pass(Bytes::from_static(b"\n"), false)[..], b"data: {\"choices\":[{}]}\n\n");
    assert_eq!(
        &filter.pass(Bytes::from_static(b"data: {\"choices\":[],\"usage\":{}}\n\ndata: [DONE]\n\n"), false)[..],
        b"data: [DONE]\n\n"
    );
}
