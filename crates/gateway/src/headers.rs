//! Headers on their way through: what stays with the gateway, and what a request may not say.

use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, COOKIE, EXPECT, HOST,
    HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SET_COOKIE, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{Method, StatusCode};

use crate::refusal::Refusal;

pub(crate) const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub(crate) const RECEIPT: HeaderName = HeaderName::from_static("x-kvplane-receipt");
pub(crate) const PREFILL_RECEIPT: HeaderName = HeaderName::from_static("x-kvplane-prefill-receipt");
pub(crate) const RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");
pub(crate) const SESSION: HeaderName = HeaderName::from_static("x-session-id");

/// Of one connection, not of the request. The framing of each is made anew on either side.
const HOP_BY_HOP: [HeaderName; 11] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    CONTENT_LENGTH,
    EXPECT,
];

/// For the gateway: keys of callers, and what only it says to engines.
const OURS: [HeaderName; 9] = [
    HOST,
    AUTHORIZATION,
    API_KEY,
    HeaderName::from_static("api-key"),
    COOKIE,
    // Usage is read from answers as they pass.
    ACCEPT_ENCODING,
    RANK,
    RECEIPT,
    CONTENT_ENCODING,
];

/// Longest request id that is kept.
const MAX_ID: usize = 128;

/// Refuses what two readers of HTTP would take for different requests, and what nobody here understands.
pub(crate) fn check(method: &Method, headers: &HeaderMap) -> Result<(), Refusal> {
    if matches!(*method, Method::CONNECT | Method::TRACE) {
        let message = "the method is not served: use those of the API";
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message));
    }
    if headers.contains_key(TRANSFER_ENCODING) && headers.contains_key(CONTENT_LENGTH) {
        return Err(Refusal::invalid(
            "content-length and transfer-encoding exclude each other: leave one out",
        ));
    }
    for single in [HOST, CONTENT_LENGTH, AUTHORIZATION, API_KEY] {
        if headers.get_all(&single).iter().nth(1).is_some() {
            return Err(Refusal::invalid(format!("{single} comes twice: leave one out")));
        }
    }
    let encodings = headers.get_all(CONTENT_ENCODING).iter();
    if encodings.into_iter().any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        let message = "content-encoding is not supported: send the body as it is";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding", message));
    }
    Ok(())
}

/// Refuses paths that two servers would take for different ones: what decides about a caller's role is what
/// the engine serves.
pub(crate) fn check_path(path: &str) -> Result<(), Refusal> {
    let wrong = || {
        Refusal::invalid("the path can be read in two ways: send it without escapes, \"..\" and empty parts")
    };
    let Some(rest) = path.strip_prefix('/') else { return Err(wrong()) };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.split('/').any(|part| matches!(part, "" | "." | "..")) && !rest.is_empty() {
        return Err(wrong());
    }
    let mut bytes = rest.bytes();
    while let Some(byte) = bytes.next() {
        if matches!(byte, b'\\' | b';') {
            return Err(wrong());
        }
        if byte == b'%' {
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
            let (Some(high), Some(low)) = (digit(bytes.next()), digit(bytes.next())) else {
                return Err(wrong());
            };
            let escaped = (high * 16 + low) as u8;
            // What needs no escape, parts paths, or begins another escape.
            if escaped.is_ascii_alphanumeric() || escaped < 0x20 || b"-._~/\\%;".contains(&escaped) {
                return Err(wrong());
            }
        }
    }
    Ok(())
}

/// Headers of a request as the engine gets them.
pub(crate) fn to_engine(mut headers: HeaderMap) -> HeaderMap {
    strip(&mut headers);
    for name in OURS {
        headers.remove(name);
    }
    let ours = |name: &HeaderName| {
        ["x-kvplane-", "x-gateway-", "x-llm-d-"].iter().any(|prefix| name.as_str().starts_with(prefix))
    };
    let others: Vec<HeaderName> = headers.keys().filter(|name| ours(name)).cloned().collect();
    for name in others {
        headers.remove(name);
    }
    headers
}

/// Headers of an answer as the client gets them. Its length stays, for its body is the same.
pub(crate) fn to_client(headers: &mut HeaderMap) {
    let length = headers.get(CONTENT_LENGTH).cloned();
    strip(headers);
    headers.remove(SET_COOKIE);
    if let Some(length) = length {
        headers.insert(CONTENT_LENGTH, length);
    }
}

/// Removes what is of one connection.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// The client's id of the request, or one that is made.
pub(crate) fn request_id(headers: &HeaderMap, made: impl FnOnce() -> String) -> HeaderValue {
    let given = headers
        .get(REQUEST_ID)
        .filter(|id| (1..=MAX_ID).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic));
    given.cloned().unwrap_or_else(|| {
        HeaderValue::try_from(made()).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn requests_that_can_be_read_in_two_ways_are_refused() {
        for (pairs, status) in [
            (&[("content-length", "1"), ("transfer-encoding", "chunked")][..], 400),
            (&[("host", "a"), ("host", "b")], 400),
            (&[("authorization", "Bearer a"), ("authorization", "Bearer b")], 400),
            (&[("content-encoding", "gzip")], 415),
            (&[("content-encoding", "identity"), ("content-encoding", "br")], 415),
        ] {
            let mut map = HeaderMap::new();
            for (name, value) in pairs {
                map.append(*name, HeaderValue::from_static(value));
            }
            assert_eq!(check(&Method::POST, &map).unwrap_err().status.as_u16(), status, "{pairs:?}");
        }
        assert!(check(&Method::CONNECT, &HeaderMap::new()).is_err());
        assert!(check(&Method::POST, &headers(&[("content-encoding", "Identity"), ("host", "a")])).is_ok());
    }

    #[test]
    fn paths_that_can_be_read_in_two_ways_are_refused() {
        for path in [
            "/v1/load%5Flora_adapter",
            "/v1/%6coad_lora_adapter",
            "/v1/../sleep",
            "/v1/%2e%2e/sleep",
            "/v1/..",
            "/v1/./x",
            "/v1//x",
            "//v1/x",
            "/v1%2fx",
            "/v1/x%5cy",
            "/v1/x\\y",
            "/v1/x;y",
            "/v1/x%3by",
            "/v1/%252e",
            "/v1/%",
            "/v1/%0a",
            "",
            "*",
        ] {
            assert!(check_path(path).is_err(), "{path}");
        }
        for path in
            ["/", "/v1/chat/completions", "/v1/models/", "/v1/responses/resp_1", "/v1/x%20y", "/v1/%C3%A4"]
        {
            assert!(check_path(path).is_ok(), "{path}");
        }
    }

    #[test]
    fn keys_and_hops_stay_here() {
        let sent = to_engine(headers(&[
            ("authorization", "Bearer secret"),
            ("x-api-key", "secret"),
            ("cookie", "secret"),
            ("connection", "x-hop, close"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("x-data-parallel-rank", "7"),
            ("x-kvplane-receipt", "1"),
            ("x-gateway-destination-endpoint", "10.0.0.1:1"),
            ("traceparent", "00-1-2-01"),
            ("x-request-id", "r"),
            ("x-session-id", "s"),
            ("content-type", "application/json"),
        ]));
        let mut left: Vec<&str> = sent.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["content-type", "traceparent", "x-request-id", "x-session-id"]);
    }

    #[test]
    fn answers_keep_their_length_alone() {
        let mut map = headers(&[
            ("content-length", "7"),
            ("connection", "keep-alive"),
            ("keep-alive", "5"),
            ("x", "y"),
        ]);
        to_client(&mut map);
        assert_eq!(map, headers(&[("x", "y"), ("content-length", "7")]));
    }

    #[test]
    fn request_ids() {
        let id = |value: &str| {
            let map = HeaderMap::from_iter([(REQUEST_ID, HeaderValue::from_str(value).unwrap())]);
            request_id(&map, || "made".to_owned())
        };
        assert_eq!(
            (id("abc"), id("a b"), id(&"x".repeat(200))),
            ("abc".try_into().unwrap(), "made".try_into().unwrap(), "made".try_into().unwrap())
        );
    }
}
