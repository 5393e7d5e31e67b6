//! A request's body, read once: what routes it, and where its bytes may be changed.

use std::ops::Range;

use bytes::Bytes;
use serde::Deserialize;

use crate::api::Api;
use crate::refusal::Refusal;
use crate::scan::{Scanned, scan};

/// Longest name of a model, and longest salt.
const MAX_NAME: usize = 1_024;

/// How many tokens may be generated, by every name that it has.
const LENGTHS: [&str; 3] = ["max_completion_tokens", "max_tokens", "max_output_tokens"];
/// Where `SGLang`'s engines meet.
const BOOTSTRAP: [&str; 3] = ["bootstrap_host", "bootstrap_port", "bootstrap_room"];

/// What is known of a request.
#[derive(Debug, Default)]
pub(crate) struct Call {
    /// The model as the client calls it; absent where the API does without.
    pub(crate) model: Option<String>,
    /// The answer comes as events.
    pub(crate) stream: bool,
    /// Tokens that may be generated.
    pub(crate) output: u64,
    pub(crate) cache_salt: Option<String>,
    /// More than one answer is asked for.
    pub(crate) several: bool,
    /// Where bytes can be changed; absent where the body is no object.
    pub(crate) places: Option<Places>,
}

/// Where fields are, in the body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Places {
    /// Behind the first brace.
    pub(crate) inside: usize,
    pub(crate) cache_salt: Option<Range<usize>>,
    pub(crate) prompt: Option<Range<usize>>,
    /// `kv_transfer_params`: what engines tell one another about blocks.
    pub(crate) transfer: Option<Range<usize>>,
    /// The same by `SGLang`'s names.
    pub(crate) bootstrap: bool,
    pub(crate) stream: Option<Range<usize>>,
    pub(crate) stream_options: Option<Range<usize>>,
    /// How many tokens may be generated, and have to be, under every name.
    pub(crate) lengths: Vec<Range<usize>>,
    pub(crate) usage: UsageAsked,
}

/// Whether the client asked for the usage of a streamed answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum UsageAsked {
    /// Included anyway: the answer is not streamed, or the API always has it.
    #[default]
    Anyway,
    Yes,
    /// There are no `stream_options`.
    NoOptions,
    /// There are, as `null`, here.
    Null(Range<usize>),
    /// There are, without `include_usage`: one can be put in here. `true`: they have no other field.
    Without(usize, bool),
    /// `include_usage` is something else, here.
    No(Range<usize>),
}

/// Reads a body.
pub(crate) fn read(api: Api, body: &Bytes) -> Result<Call, Refusal> {
    let scanned = match scan(body) {
        Ok(scanned) => scanned,
        Err(fault) if api.names_model() || is_object(body) => {
            return Err(Refusal::invalid(fault.to_string()));
        }
        // Something else than JSON, for an API that is not known here.
        Err(_) => return Ok(Call::default()),
    };
    let model = text(&scanned, "model")?.filter(|model| !model.is_empty());
    if api.names_model() && model.is_none() {
        return Err(Refusal::field("model", "is missing"));
    }
    let stream = parse::<bool>(&scanned, "stream", "is not true or false")?.unwrap_or(false);
    let mut output = None;
    for name in LENGTHS {
        // What is wrong with it, the engine says.
        output = output.or_else(|| scanned.get(name).and_then(|value| value.parse::<u64>().ok()));
    }
    let usage = if stream && api.has_stream_options() { usage_asked(&scanned)? } else { UsageAsked::Anyway };
    let places = Places {
        inside: scanned.inside(),
        cache_salt: scanned.span("cache_salt"),
        prompt: scanned.span("prompt"),
        transfer: scanned.span("kv_transfer_params"),
        bootstrap: BOOTSTRAP.iter().any(|name| scanned.get(name).is_some()),
        stream: scanned.span("stream"),
        stream_options: scanned.span("stream_options"),
        lengths: LENGTHS.iter().chain(&["min_tokens"]).filter_map(|name| scanned.span(name)).collect(),
        usage,
    };
    let cache_salt = text(&scanned, "cache_salt")?.filter(|salt| !salt.is_empty());
    let several = scanned.get("n").is_some_and(|n| !matches!(n, "1" | "null"));
    Ok(Call { model, stream, output: output.unwrap_or(0), cache_salt, several, places: Some(places) })
}

fn is_object(body: &[u8]) -> bool {
    body.trim_ascii_start().first() == Some(&b'{')
}

fn text(scanned: &Scanned<'_>, name: &'static str) -> Result<Option<String>, Refusal> {
    let value = parse::<String>(scanned, name, "is not text")?;
    if value.as_ref().is_some_and(|value| value.len() > MAX_NAME) {
        return Err(Refusal::field(name, "is longer than 1024 bytes"));
    }
    Ok(value)
}

fn parse<'b, T: Deserialize<'b>>(
    scanned: &Scanned<'b>,
    name: &'static str,
    wrong: &str,
) -> Result<Option<T>, Refusal> {
    let Some(value) = scanned.get(name) else { return Ok(None) };
    serde_json::from_str(value).map_err(|_| Refusal::field(name, wrong))
}

fn usage_asked(scanned: &Scanned<'_>) -> Result<UsageAsked, Refusal> {
    let (Some(span), Some(value)) = (scanned.span("stream_options"), scanned.get("stream_options")) else {
        return Ok(UsageAsked::NoOptions);
    };
    if value == "null" {
        return Ok(UsageAsked::Null(span));
    }
    let options = scan(value.as_bytes()).map_err(|_| Refusal::field("stream_options", "is not an object"))?;
    let moved = |range: Range<usize>| span.start + range.start..span.start + range.end;
    Ok(match (options.get("include_usage"), options.span("include_usage")) {
        (Some("true"), _) => UsageAsked::Yes,
        (Some(_), Some(here)) => UsageAsked::No(moved(here)),
        _ => UsageAsked::Without(span.start + options.inside(), options.is_empty()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(api: Api, body: &str) -> Result<Call, Refusal> {
        read(api, &Bytes::copy_from_slice(body.as_bytes()))
    }

    #[test]
    fn what_routes_a_request() {
        let call = call(
            Api::Chat,
            r#"{"model":"m","stream":true,"max_tokens":7,"messages":[],"cache_salt":"s","stream_options":{"x":1}}"#,
        )
        .unwrap();
        assert_eq!((call.model.as_deref(), call.stream, call.output), (Some("m"), true, 7));
        assert_eq!(call.cache_salt.as_deref(), Some("s"));
        assert!(matches!(call.places.unwrap().usage, UsageAsked::Without(_, false)));
    }

    #[test]
    fn what_is_wrong_names_its_field_and_quotes_nothing() {
        for (body, param) in [
            (r#"{"messages":[]}"#, Some("model")),
            (r#"{"model":7}"#, Some("model")),
            (r#"{"model":"secret","stream":"secret"}"#, Some("stream")),
            (r#"{"model":"m","stream":true,"stream_options":"secret"}"#, Some("stream_options")),
            (r#"{"model":"m","cache_salt":["secret"]}"#, Some("cache_salt")),
            (r#"{"model":"m","model":"secret"}"#, None),
            ("secret", None),
        ] {
            let refusal = call(Api::Chat, body).unwrap_err();
            assert_eq!((refusal.status.as_u16(), refusal.param), (400, param), "{body}");
            assert!(!refusal.message.contains("secret"), "{}", refusal.message);
        }
    }

    #[test]
    fn other_bodies_pass() {
        assert_eq!(call(Api::Inference, "\u{0}binary").unwrap().model, None);
        assert_eq!(call(Api::Inference, r#"{"model":"m"}"#).unwrap().model.as_deref(), Some("m"));
        assert_eq!(call(Api::Tokenize, r#"{"prompt":"x"}"#).unwrap().model, None);
        // It would be an object.
        assert!(call(Api::Inference, r#"{"model":"m""#).is_err());
    }
}
