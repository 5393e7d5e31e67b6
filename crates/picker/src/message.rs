//! Messages of external processing, read and written.

use bytes::Bytes;
use kvplane_proto::{Side, envoy as proto};
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use proto::header_value_option::HeaderAppendAction;
use proto::processing_response::Response;

/// The longest piece of a body in one message: what every Envoy takes.
pub(crate) const MAX_PIECE: usize = 62_000;

/// The value of a header. Keys come in lower case.
pub(crate) fn header<'a>(headers: &'a proto::HeaderMap, name: &str) -> Option<&'a str> {
    headers.headers.iter().find(|header| header.key == name).and_then(value)
}

fn value(header: &proto::HeaderValue) -> Option<&str> {
    if header.raw_value.is_empty() {
        Some(&header.value)
    } else {
        std::str::from_utf8(&header.raw_value).ok()
    }
}

/// A header that takes the place of all of its name.
pub(crate) fn set(name: &str, value: impl Into<Bytes>) -> proto::HeaderValueOption {
    proto::HeaderValueOption {
        header: Some(proto::HeaderValue {
            key: name.to_owned(),
            value: String::new(),
            raw_value: value.into(),
        }),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
    }
}

/// A message without metadata.
pub(crate) fn plain(response: Response) -> proto::ProcessingResponse {
    proto::ProcessingResponse { response: Some(response), dynamic_metadata: None }
}

fn body(side: Side, body_mutation: Option<proto::BodyMutation>) -> proto::ProcessingResponse {
    let response = proto::CommonResponse { body_mutation, ..Default::default() };
    let body = proto::BodyResponse { response: Some(response) };
    plain(match side {
        Side::Request => Response::RequestBody(body),
        Side::Response => Response::ResponseBody(body),
    })
}

/// Lets a chunk pass as it came.
pub(crate) fn unchanged(side: Side) -> proto::ProcessingResponse {
    body(side, None)
}

/// Puts other bytes in a chunk's place, where Envoy waits for them.
pub(crate) fn replaced(side: Side, bytes: impl Into<Bytes>) -> proto::ProcessingResponse {
    let mutation = Some(proto::body_mutation::Mutation::Body(bytes.into()));
    body(side, Some(proto::BodyMutation { mutation }))
}

/// A text of a namespace's metadata.
pub(crate) fn text<'a>(fields: Option<&'a Struct>, key: &str) -> Option<&'a str> {
    match fields?.fields.get(key)?.kind.as_ref()? {
        Kind::StringValue(text) => Some(text),
        _ => None,
    }
}

/// A number of a namespace's metadata.
pub(crate) fn number(fields: Option<&Struct>, key: &str) -> Option<f64> {
    match fields?.fields.get(key)?.kind.as_ref()? {
        Kind::NumberValue(number) => Some(*number),
        Kind::StringValue(text) => text.parse().ok(),
        _ => None,
    }
}

/// A list of texts, or one text with commas. Of a list with something else in it, the texts.
pub(crate) fn texts(value: &Value) -> Vec<String> {
    let split = |text: &str| -> Vec<String> {
        text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
    };
    match value.kind.as_ref() {
        Some(Kind::StringValue(text)) => split(text),
        Some(Kind::ListValue(ListValue { values })) => values.iter().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

/// A struct of one field.
pub(crate) fn field(key: &str, kind: Kind) -> Struct {
    Struct { fields: [(key.to_owned(), Value { kind: Some(kind) })].into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_values_are_read_first() {
        let named = |key: &str, value: &str, raw: &'static [u8]| proto::HeaderValue {
            key: key.into(),
            value: value.into(),
            raw_value: Bytes::from_static(raw),
        };
        let headers = proto::HeaderMap {
            headers: vec![named("a", "old", b"new"), named("b", "old", b""), named("c", "", b"\xff")],
        };
        assert_eq!(header(&headers, "a"), Some("new"));
        assert_eq!(header(&headers, "b"), Some("old"));
        assert_eq!(header(&headers, "c"), None);
        assert_eq!(header(&headers, "d"), None);
    }

    #[test]
    fn subsets_are_lists_or_texts_with_commas() {
        let text = |text: &str| Value { kind: Some(Kind::StringValue(text.into())) };
        let list = |values: Vec<Value>| Value { kind: Some(Kind::ListValue(ListValue { values })) };
        assert_eq!(texts(&text("a:1, b:2,,")), ["a:1", "b:2"]);
        assert_eq!(
            texts(&list(vec![text("a:1"), text("b:2,c:3"), Value { kind: None }])),
            ["a:1", "b:2", "c:3"]
        );
        assert!(texts(&text("")).is_empty());
    }
}
