//! Answers over HTTP.

use http::StatusCode;
use kvplane_transport::NoAnswer;
use serde_json::Value;

use super::yes;
use crate::answer::{Covers, Meaning, Read, quote};
use crate::support::{Reads, Way};

/// What a status and a body mean.
pub(crate) fn read_http(way: &Way, status: StatusCode, body: &[u8]) -> Read {
    match status {
        StatusCode::OK | StatusCode::NO_CONTENT => read_success(way, body),
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => Read::closed(
            Meaning::Unsupported,
            format!("{} answers {}: {}", way.call, status.as_u16(), way.missing),
        ),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Read::closed(Meaning::Failed, format!("the engine requires a key ({})", status.as_u16()))
        }
        StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => {
            Read::open(Meaning::Timeout, said(status, body))
        }
        StatusCode::BAD_REQUEST if way.reads == Reads::Flushed => {
            Read::closed(Meaning::Refused, format!("the engine is not idle: {}", said(status, body)))
        }
        StatusCode::SERVICE_UNAVAILABLE if way.reads == Reads::Health => {
            Read::closed(Meaning::Failed, format!("the engine is unhealthy: {}", said(status, body)))
        }
        StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            Read::closed(Meaning::Refused, said(status, body))
        }
        status if status.is_client_error() => Read::closed(Meaning::Failed, said(status, body)),
        // It began, and went wrong somewhere.
        status if status.is_server_error() => Read::open(Meaning::Failed, said(status, body)),
        status if status.is_redirection() => {
            Read::closed(Meaning::Failed, format!("the engine redirects ({})", status.as_u16()))
        }
        status => Read::open(Meaning::Unknown, said(status, body)),
    }
}

fn read_success(way: &Way, body: &[u8]) -> Read {
    match way.reads {
        Reads::Reset => read_reset(way.covers, body),
        Reads::Flushed => yes(way.covers, "the engine reports that its cache is flushed"),
        Reads::Done => yes(way.covers, "the engine reports success"),
        Reads::Health => yes(way.covers, "the engine is healthy"),
        Reads::Json => match serde_json::from_slice::<Value>(body) {
            Ok(detail) => yes(way.covers, "the engine answers").with(detail),
            Err(_) => Read::closed(Meaning::Unknown, "the answer is not JSON"),
        },
        Reads::Success | Reads::Message | Reads::Healthy | Reads::HealthStatus => {
            Read::open(Meaning::Unknown, "an HTTP answer to a gRPC call")
        }
    }
}

/// vLLM: up to 0.25 it answers 200 with nothing, whatever happened.
fn read_reset(covers: Covers, body: &[u8]) -> Read {
    if body.trim_ascii().is_empty() {
        let why = "the engine answers 200 with an empty body; releases up to 0.25 do so in any case";
        return Read::open(Meaning::Accepted { proves: false, covers }, why);
    }
    let success = serde_json::from_slice::<Value>(body).ok().and_then(|body| body.get("success")?.as_bool());
    match success {
        Some(true) => yes(covers, "the engine reports that its cache is reset"),
        Some(false) => {
            Read::closed(Meaning::Refused, "the engine did not reset its cache: requests hold blocks of it")
        }
        None => {
            Read::open(Meaning::Unknown, "the answer is 200, and does not say whether the cache was reset")
        }
    }
}

/// A status, and what the engine says about it.
fn said(status: StatusCode, body: &[u8]) -> String {
    match quote(&String::from_utf8_lossy(body)) {
        text if text.is_empty() => format!("the engine answers {}", status.as_u16()),
        text => format!("the engine answers {}: {text}", status.as_u16()),
    }
}

/// What it means that there is no answer.
pub(crate) fn read_no_http(error: NoAnswer) -> Read {
    match error {
        NoAnswer::Address | NoAnswer::Tls | NoAnswer::Unreachable(_) => {
            Read::closed(Meaning::Failed, error.to_string())
        }
        NoAnswer::Timeout => Read::open(Meaning::Timeout, error.to_string()),
        NoAnswer::Lost => Read::open(Meaning::Failed, error.to_string()),
        NoAnswer::Body | NoAnswer::TooLarge => Read::open(Meaning::Unknown, error.to_string()),
    }
}
