//! Answers over gRPC.

use kvplane_proto::engines::{trtllm, vllm};
use kvplane_proto::smg::FlushCacheResponse;
use kvplane_transport::grpc::NoConnection;
use prost::Message as _;
use tonic::{Code, Status};

use super::{json, yes};
use crate::answer::{Meaning, Read, quote};
use crate::backend::Service;
use crate::support::{Call, Reads, Way};

/// What a message or a status means.
pub(crate) fn read_grpc(service: Service, way: &Way, answer: Result<&[u8], &Status>) -> Read {
    match answer {
        Ok(message) => read_message(service, way, message),
        Err(status) => read_status(way, status),
    }
}

fn read_message(service: Service, way: &Way, message: &[u8]) -> Read {
    let read = match way.reads {
        Reads::Success => read_success(way, message),
        Reads::Healthy => vllm::HealthCheckResponse::decode(message)
            .ok()
            .map(|health| read_health(way, health.healthy, &health.message)),
        Reads::HealthStatus => trtllm::HealthCheckResponse::decode(message)
            .ok()
            .map(|health| read_health(way, health.status == "OK", &health.status)),
        Reads::Message => read_detail(service, way, message),
        Reads::Reset | Reads::Flushed | Reads::Done | Reads::Json | Reads::Health => None,
    };
    read.unwrap_or_else(|| Read::open(Meaning::Unknown, "the answer is not the expected message"))
}

/// `FlushCacheResponse` and `ProfileResponse` have the same fields.
fn read_success(way: &Way, message: &[u8]) -> Option<Read> {
    let FlushCacheResponse { success, message } = FlushCacheResponse::decode(message).ok()?;
    let said = match quote(&message) {
        text if text.is_empty() => String::new(),
        text => format!(": {text}"),
    };
    Some(if success {
        yes(way.covers, format!("the engine reports success{said}"))
    } else {
        Read::closed(Meaning::Refused, format!("the engine reports failure{said}"))
    })
}

fn read_health(way: &Way, healthy: bool, message: &str) -> Read {
    if healthy {
        yes(way.covers, "the engine is healthy")
    } else {
        Read::closed(Meaning::Failed, format!("the engine is unhealthy: {}", quote(message)))
    }
}

fn read_detail(service: Service, way: &Way, message: &[u8]) -> Option<Read> {
    let Call::Rpc(method) = way.call else { return None };
    let detail = json::of_response(service.name(), method, message)?;
    Some(yes(way.covers, "the engine answers").with(detail))
}

/// What a status means.
fn read_status(way: &Way, status: &Status) -> Read {
    let said = match quote(status.message()) {
        text if text.is_empty() => format!("the engine answers {}", code_name(status.code())),
        text => format!("the engine answers {}: {text}", code_name(status.code())),
    };
    match status.code() {
        Code::Unimplemented => {
            let why = format!("{} answers UNIMPLEMENTED: {}", way.call, way.missing);
            Read::closed(Meaning::Unsupported, why)
        }
        Code::DeadlineExceeded => Read::open(Meaning::Timeout, format!("{said}; it may still complete")),
        Code::ResourceExhausted | Code::FailedPrecondition | Code::Aborted => {
            Read::closed(Meaning::Refused, said)
        }
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::Unauthenticated => Read::closed(Meaning::Failed, said),
        // tonic itself says this of a message that is larger than it may be; engines do not use it here.
        Code::OutOfRange | Code::Ok | Code::Cancelled => Read::open(Meaning::Unknown, said),
        Code::Unavailable | Code::Internal | Code::Unknown | Code::DataLoss => {
            Read::open(Meaning::Failed, said)
        }
    }
}

fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// What it means that there is no connection.
pub(crate) fn read_no_connection(error: &NoConnection) -> Read {
    Read::closed(Meaning::Failed, quote(&error.to_string()))
}
