//! One error, two forms.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use kvplane_core::PublicError;
use serde_json::{Value, json};
use tonic::{Code, Status};

/// An error on its way out.
#[derive(Debug)]
pub struct ApiError(pub PublicError);

impl From<PublicError> for ApiError {
    fn from(error: PublicError) -> Self {
        Self(error)
    }
}

impl ApiError {
    /// The one shape that errors have in JSON.
    pub fn body(&self) -> Value {
        let PublicError { code, message, field, next } = &self.0;
        let mut body = json!({"error": {
            "code": code,
            "message": message,
            "next": next,
            "blame": code.blame(),
            "retry": code.retry(),
        }});
        if let Some(field) = field {
            body["error"]["field"] = (*field).into();
        }
        body
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code.http_status());
        (status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), Json(self.body())).into_response()
    }
}

impl From<ApiError> for Status {
    fn from(error: ApiError) -> Self {
        Status::new(Code::from_i32(error.0.code.grpc_status()), error.0.in_full())
    }
}
