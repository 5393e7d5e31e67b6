//! Errors that leave the process: one shape, a stable code, who is to blame, whether a retry helps.

use std::borrow::Cow;

use serde::Serialize;

/// A stable code. One table maps it to HTTP and gRPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request makes no sense as it is.
    InvalidArgument,
    /// No such engine or rank.
    NotFound,
    /// What was to be added is there already, or contradicts something that is.
    Conflict,
    /// A configured number is reached.
    LimitReached,
    /// Nobody knows who asks.
    Unauthenticated,
    /// Not for this caller: another role is needed, or another place to call from.
    Forbidden,
    /// The path exists, the method does not.
    MethodNotAllowed,
    /// The cursor is not in the window.
    OutOfRange,
    /// The subscriber lost continuity and must start over.
    DataLoss,
    /// Nothing is known yet.
    Unavailable,
    /// The plane is shutting down.
    ShuttingDown,
    /// A defect of kvplane.
    Internal,
}

/// Which side has to act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// The one who asked.
    Caller,
    /// The engine behind the stream.
    Engine,
    /// kvplane itself.
    Kvplane,
}

impl ErrorCode {
    /// The code's name in JSON and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid_argument",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::LimitReached => "limit_reached",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::OutOfRange => "out_of_range",
            Self::DataLoss => "data_loss",
            Self::Unavailable => "unavailable",
            Self::ShuttingDown => "shutting_down",
            Self::Internal => "internal",
        }
    }

    /// Who has to act on it.
    pub fn blame(self) -> Blame {
        match self {
            Self::InvalidArgument
            | Self::NotFound
            | Self::Conflict
            | Self::LimitReached
            | Self::Unauthenticated
            | Self::Forbidden
            | Self::MethodNotAllowed
            | Self::OutOfRange
            | Self::DataLoss => Blame::Caller,
            Self::Unavailable => Blame::Engine,
            Self::ShuttingDown | Self::Internal => Blame::Kvplane,
        }
    }

    /// What the side that has to act can do, where nothing closer to the case is known.
    pub fn next_step(self) -> &'static str {
        match self {
            Self::InvalidArgument => "correct it and try again",
            Self::NotFound => "GET /v1/status, or `kvplane engines`, lists what there is",
            Self::Conflict => "look at what is there with `kvplane engines`, and change one of the two",
            Self::LimitReached => "ask for less or later, or raise the limit in the configuration",
            Self::Unauthenticated => {
                "send a token as `authorization: Bearer …`, or show a client certificate"
            }
            Self::Forbidden => "use a key with that role, or ask the operator of this plane for one",
            Self::MethodNotAllowed => "GET /openapi.json lists the methods of every path",
            Self::OutOfRange | Self::DataLoss => "begin again with a snapshot",
            Self::Unavailable => "ask again shortly; GET /v1/status says what each stream waits for",
            Self::ShuttingDown => "connect again in a moment",
            Self::Internal => "this is a defect of kvplane: its log says more, please report it",
        }
    }

    /// Whether the same request may succeed later.
    pub fn retry(self) -> bool {
        matches!(self, Self::LimitReached | Self::Unavailable | Self::ShuttingDown)
    }

    /// The HTTP status.
    pub fn http_status(self) -> u16 {
        match self {
            Self::InvalidArgument => 400,
            Self::Unauthenticated => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::Conflict => 409,
            Self::OutOfRange => 416,
            Self::DataLoss => 410,
            Self::LimitReached => 429,
            Self::Unavailable | Self::ShuttingDown => 503,
            Self::Internal => 500,
        }
    }

    /// The gRPC status number.
    pub fn grpc_status(self) -> i32 {
        match self {
            Self::InvalidArgument => 3,
            Self::NotFound => 5,
            Self::Conflict => 6,
            Self::Forbidden => 7,
            Self::LimitReached => 8,
            Self::MethodNotAllowed => 12,
            Self::OutOfRange => 11,
            Self::Internal => 13,
            Self::Unavailable | Self::ShuttingDown => 14,
            Self::DataLoss => 15,
            Self::Unauthenticated => 16,
        }
    }
}

/// An error as callers see it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct PublicError {
    /// What class of error it is.
    pub code: ErrorCode,
    /// What is wrong, in words; never holds tokens.
    pub message: String,
    /// The field of the request that is to blame, where it is one.
    pub field: Option<&'static str>,
    /// What can be done about it.
    pub next: Cow<'static, str>,
}

impl PublicError {
    /// Builds one.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), field: None, next: code.next_step().into() }
    }

    /// The same, where something better can be done about it than about others of its code.
    #[must_use]
    pub fn with_next(self, next: impl Into<Cow<'static, str>>) -> Self {
        Self { next: next.into(), ..self }
    }

    /// What is wrong and what to do, in one line.
    pub fn in_full(&self) -> String {
        format!("{}; {}", self.message, self.next)
    }

    /// What is wrong, and what to do where that is known of this very case: for callers who have neither HTTP
    /// nor the command line, which the steps of a code name.
    pub fn in_words(&self) -> String {
        if self.next == self.code.next_step() { self.message.clone() } else { self.in_full() }
    }

    /// A field of the request cannot be used, and why.
    pub fn field(field: &'static str, reason: impl std::fmt::Display) -> Self {
        Self { field: Some(field), ..Self::new(ErrorCode::InvalidArgument, format!("{field}: {reason}")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_that_asks_for_a_later_try_says_that_it_may_help() {
        for code in [ErrorCode::LimitReached, ErrorCode::Unavailable, ErrorCode::ShuttingDown] {
            assert!(code.retry(), "{}: {}", code.as_str(), code.next_step());
        }
    }

    #[test]
    fn an_error_in_full_says_what_is_wrong_and_what_to_do() {
        let error = PublicError::field("model", "is missing");
        assert_eq!(error.in_full(), "model: is missing; correct it and try again");
        assert_eq!(error.in_words(), "model: is missing");
        let error = error.with_next("name one");
        assert_eq!([error.in_full(), error.in_words()], ["model: is missing; name one"; 2]);
    }
}
