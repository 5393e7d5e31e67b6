//! Answers that Envoy gives in the place of an engine.

use bytes::Bytes;
use kvplane_proto::envoy as proto;
use proto::processing_response::Response;

use crate::message::{plain, set};
use crate::names;

/// Why a request is not sent on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status.
    pub status: u16,
    /// `error.type` of the body, and Envoy's `response_code_details`.
    pub kind: &'static str,
    /// What is wrong, without any text of the request.
    pub message: String,
    /// llm-d's word for it.
    pub dropped: Option<&'static str>,
    /// Seconds after which a retry makes sense.
    pub retry_after: Option<u32>,
}

impl From<kvplane_inference::Unreadable> for Refusal {
    fn from(unreadable: kvplane_inference::Unreadable) -> Self {
        Self::invalid(unreadable.to_string())
    }
}

impl Refusal {
    /// The request cannot be understood.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(400, "invalid_request_error", message)
    }

    /// The body is too long.
    pub(crate) fn too_large(limit: usize) -> Self {
        Self::new(413, "request_too_large", format!("the body has more than {limit} bytes"))
    }

    /// Nobody may be picked.
    pub(crate) fn no_endpoint(message: impl Into<String>) -> Self {
        let refusal = Self::new(503, "no_endpoint", message);
        Self { dropped: Some("rejected-no-endpoints"), retry_after: Some(1), ..refusal }
    }

    /// Everybody is busy, and the request may wait.
    pub(crate) fn saturated(message: impl Into<String>) -> Self {
        let refusal = Self::new(429, "saturated", message);
        Self { dropped: Some("rejected-saturated"), retry_after: Some(2), ..refusal }
    }

    /// `prefer: if-available`, and it is not.
    pub(crate) fn not_cached() -> Self {
        Self::new(412, "not_cached", "no endpoint holds a part of this prompt")
    }

    fn new(status: u16, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), dropped: None, retry_after: None }
    }

    /// As it is sent to Envoy.
    pub(crate) fn response(&self) -> proto::ProcessingResponse {
        let body = serde_json::json!({
            "error": { "message": self.message, "type": self.kind, "code": self.status },
        });
        let mut headers = vec![set("content-type", "application/json")];
        headers.extend(self.dropped.map(|reason| set(names::DROPPED, reason)));
        headers.extend(self.retry_after.map(|seconds| set("retry-after", seconds.to_string())));
        plain(Response::ImmediateResponse(proto::ImmediateResponse {
            status: Some(proto::HttpStatus { code: i32::from(self.status) }),
            headers: Some(proto::HeaderMutation { set_headers: headers, remove_headers: Vec::new() }),
            body: Bytes::from(body.to_string()),
            details: self.kind.to_owned(),
        }))
    }
}
