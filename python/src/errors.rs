//! What goes wrong, as the exceptions of `kvplane.errors`.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use kvplane_core::{ErrorCode, PublicError};
use kvplane_embed::ListenError;
use kvplane_ingest::NotHandedOver;
use kvplane_stream::NotTaken;
use kvplane_wire::{DecodeError as Undecodable, RejectReason};
use pyo3::prelude::*;

/// The classes themselves are written in Python, where their users read them.
mod classes {
    pyo3::import_exception!(kvplane.errors, Error);
    pyo3::import_exception!(kvplane.errors, ArgumentError);
    pyo3::import_exception!(kvplane.errors, ArgumentTypeError);
    pyo3::import_exception!(kvplane.errors, DecodeError);
    pyo3::import_exception!(kvplane.errors, OrderError);
    pyo3::import_exception!(kvplane.errors, ClosedError);
    pyo3::import_exception!(kvplane.errors, InternalError);
    pyo3::import_exception!(kvplane.errors, ListenError);
}

/// An argument, or an element of it. Its name is put together only for a message.
#[derive(Clone, Copy)]
pub(crate) struct Argument<'n> {
    /// What it is a part of: `""`, or `events[3].`.
    pub(crate) within: &'n str,
    pub(crate) name: &'n str,
    pub(crate) at: Option<usize>,
}

impl<'n> Argument<'n> {
    pub(crate) fn new(name: &'n str) -> Self {
        Self { within: "", name, at: None }
    }

    /// One of its elements.
    pub(crate) fn element(self, at: usize) -> Self {
        Self { at: Some(at), ..self }
    }
}

impl fmt::Display for Argument<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.within, self.name)?;
        self.at.map_or(Ok(()), |at| write!(f, "[{at}]"))
    }
}

/// An argument has a value that it cannot have.
pub(crate) fn bad_value(argument: Argument<'_>, reason: impl fmt::Display) -> PyErr {
    classes::ArgumentError::new_err((format!("{argument}: {reason}"), argument.to_string()))
}

/// An argument has a type that it cannot have: it must be what `wanted` says.
pub(crate) fn bad_type(argument: Argument<'_>, wanted: &str, found: &Bound<'_, PyAny>) -> PyErr {
    let found = found.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
    let message = format!("{argument}: must be {wanted}, not {found}");
    classes::ArgumentTypeError::new_err((message, argument.to_string()))
}

/// A keyword that nothing has.
pub(crate) fn unknown_keyword(argument: Argument<'_>) -> PyErr {
    classes::ArgumentTypeError::new_err((format!("{argument}: there is no such field"), argument.to_string()))
}

/// A frame cannot be decoded.
pub(crate) fn undecodable(reason: Undecodable) -> PyErr {
    classes::DecodeError::new_err((format!("payload: {reason}"), reason.as_str()))
}

/// Whatever else the other rooms refuse.
#[expect(clippy::needless_pass_by_value, reason = "it is what map_err hands over")]
pub(crate) fn public(error: PublicError) -> PyErr {
    let (code, message) = (error.code, error.in_words());
    match (code, error.field) {
        (ErrorCode::InvalidArgument, Some(field)) => classes::ArgumentError::new_err((message, field)),
        (ErrorCode::ShuttingDown, _) => classes::ClosedError::new_err(message),
        (ErrorCode::Internal, _) => classes::InternalError::new_err(message),
        _ => classes::Error::new_err((message, code.as_str())),
    }
}

/// The object was made before a fork, and this is after it.
pub(crate) fn elsewhere() -> PyErr {
    classes::ClosedError::new_err("made in another process: it does not come along into a fork")
}

/// Nobody can be served there.
pub(crate) fn no_server(error: &ListenError) -> PyErr {
    let reason = error.reason();
    let system = reason.raw_os_error();
    classes::ListenError::new_err((error.to_string(), system, reason.to_string()))
}

/// A batch was not recorded.
pub(crate) fn not_recorded(error: NotHandedOver) -> PyErr {
    match error {
        NotHandedOver::NotTaken(NotTaken::Undecodable(reason)) => undecodable(reason),
        NotHandedOver::NotTaken(NotTaken::Unfit(reason)) => unfit("", reason),
        NotHandedOver::NotTaken(passed @ (NotTaken::Passed { .. } | NotTaken::NoNumber)) => {
            classes::OrderError::new_err(passed.to_string())
        }
        NotHandedOver::Closed => classes::ClosedError::new_err("the recorder was shut down"),
        NotHandedOver::Defect | NotHandedOver::NotTaken(NotTaken::Foreign) => {
            classes::InternalError::new_err(error.to_string())
        }
    }
}

/// The parts of an event do not go together.
pub(crate) fn unfit(within: &str, reason: RejectReason) -> PyErr {
    let (name, why) = match reason {
        RejectReason::BadBlockSize => ("block_size", "must be at least 1 where there are tokens"),
        RejectReason::TooFewTokens => ("token_ids", "fewer than the blocks have"),
        RejectReason::BadType => ("extra_keys", "must be as many as blocks"),
        RejectReason::NameTooLong => ("extra_keys", "a name, salt or key is longer than 1024 bytes"),
        RejectReason::BadToken => ("token_ids", "not a token"),
        RejectReason::BadHash | RejectReason::NoKind | RejectReason::MissingField => {
            ("block_hashes", "not a hash")
        }
    };
    bad_value(Argument { within, name, at: None }, why)
}

/// Does `work` without the interpreter's lock. A panic ends here, as an exception.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    let done = py.detach(|| catch_unwind(AssertUnwindSafe(work)));
    done.map_err(|_| classes::InternalError::new_err("a defect of kvplane; what it was doing is void"))
}

/// Does `work` without the interpreter's lock where an object of Python goes, which may be large. At the end
/// of the interpreter nobody waits for the lock any more.
pub(crate) fn aside(work: impl FnOnce() + Send) {
    let mut work = Some(work);
    let mut run = || {
        if let Some(work) = work.take() {
            // An object that goes can tell nobody of a defect.
            let _ = catch_unwind(AssertUnwindSafe(work));
        }
    };
    Python::try_attach(|py| py.detach(&mut run));
    run();
}
