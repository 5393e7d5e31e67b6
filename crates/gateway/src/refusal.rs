//! Answers of the gateway itself, in the shape that the client's SDK reads.

use axum::body::Body;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use serde_json::json;

/// Whose errors a client reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Dialect {
    #[default]
    OpenAi,
    Anthropic,
}

/// Why a request is not answered by an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    /// In one word, for clients and metrics.
    pub(crate) code: &'static str,
    /// What is wrong, without any text of the request.
    pub(crate) message: String,
    /// The field that is wrong.
    pub(crate) param: Option<&'static str>,
    /// Seconds after which a retry makes sense.
    pub(crate) retry_after: Option<u32>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), param: None, retry_after: None }
    }

    /// The request cannot be understood.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    }

    /// A field of it is wrong.
    pub(crate) fn field(param: &'static str, message: &str) -> Self {
        Self { param: Some(param), ..Self::invalid(format!("{param}: {message}")) }
    }

    /// No engine serves the model.
    pub(crate) fn unknown_model() -> Self {
        let message = "model: no engine serves it: GET /v1/models lists those that are served";
        Self { param: Some("model"), ..Self::new(StatusCode::NOT_FOUND, "model_not_found", message) }
    }

    /// The caller may not ask for the model.
    pub(crate) fn forbidden_model() -> Self {
        let message = "model: this key may not ask for it: GET /v1/models lists those that it may";
        Self { param: Some("model"), ..Self::new(StatusCode::FORBIDDEN, "model_forbidden", message) }
    }

    /// The body is too long.
    pub(crate) fn too_large(limit: usize) -> Self {
        let message = format!("the body has more than {limit} bytes: shorten the request");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message)
    }

    /// Everybody is busy.
    pub(crate) fn saturated(message: impl Into<String>) -> Self {
        let refusal = Self::new(StatusCode::TOO_MANY_REQUESTS, "saturated", message);
        Self { retry_after: Some(2), ..refusal }
    }

    /// Nobody can take it.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        let refusal = Self::new(StatusCode::SERVICE_UNAVAILABLE, "no_engine", message);
        Self { retry_after: Some(1), ..refusal }
    }

    fn openai_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn anthropic_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        }
    }

    /// The error alone, as JSON.
    pub(crate) fn body(&self, dialect: Dialect) -> String {
        match dialect {
            Dialect::OpenAi => json!({"error": {
                "message": self.message, "type": self.openai_type(), "param": self.param, "code": self.code,
            }}),
            Dialect::Anthropic => json!({"type": "error", "error": {
                "type": self.anthropic_type(), "message": self.message,
            }}),
        }
        .to_string()
    }

    pub(crate) fn response(&self, dialect: Dialect) -> Response<Body> {
        let mut response = Response::new(Body::from(self.body(dialect)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
