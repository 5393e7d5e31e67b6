//! What can go wrong before a socket runs. Once it runs, trouble is reported to its handler.

/// A socket could not be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The address makes no sense, is taken, or cannot be reached by name.
    #[error("cannot {action} {endpoint}: {cause}")]
    Endpoint {
        /// `bind` or `connect`.
        action: &'static str,
        /// The address as given.
        endpoint: String,
        /// What libzmq said.
        cause: zmq::Error,
    },
    /// libzmq refused an operation.
    #[error("cannot {action}: {cause}")]
    Socket {
        /// What was tried.
        action: &'static str,
        /// What libzmq said.
        cause: zmq::Error,
    },
    /// A thread could not be started.
    #[error("cannot start a socket thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The service was shut down.
    #[error("the socket service is shut down")]
    Stopped,
}

impl SocketError {
    /// For `map_err`: an operation on a socket failed.
    pub(crate) fn doing(action: &'static str) -> impl FnOnce(zmq::Error) -> Self {
        move |cause| Self::Socket { action, cause }
    }

    /// True when the address is already bound by someone.
    pub fn is_address_in_use(&self) -> bool {
        matches!(self, Self::Endpoint { cause: zmq::Error::EADDRINUSE, .. })
    }
}
