//! What can go wrong before a socket runs. Once it runs, trouble is reported to its handler.

use std::io;

/// A socket could not be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The address makes no sense, or is taken.
    #[error("cannot {action} {endpoint}: {cause}")]
    Endpoint {
        /// `bind` or `connect`.
        action: &'static str,
        /// The address as given.
        endpoint: String,
        /// What is wrong.
        cause: EndpointCause,
    },
    /// A thread, or what it sleeps on, could not be made.
    #[error("cannot start a socket thread: {0}")]
    Thread(#[from] io::Error),
    /// The service was shut down.
    #[error("the socket service is shut down")]
    Stopped,
}

/// Why an address cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EndpointCause {
    /// It is not an address of a form that is supported.
    #[error("{0}")]
    Invalid(&'static str),
    /// The system refused it.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl SocketError {
    /// For `map_err`: an address cannot be used.
    pub(crate) fn endpoint<C: Into<EndpointCause>>(
        action: &'static str,
        endpoint: &str,
    ) -> impl FnOnce(C) -> Self {
        move |cause| Self::Endpoint { action, endpoint: endpoint.to_owned(), cause: cause.into() }
    }

    /// True when the address is already bound by someone.
    pub fn is_address_in_use(&self) -> bool {
        let Self::Endpoint { cause, .. } = self else { return false };
        match cause {
            EndpointCause::Io(cause) => cause.kind() == io::ErrorKind::AddrInUse,
            EndpointCause::Invalid(_) => false,
        }
    }
}
