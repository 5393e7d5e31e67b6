//! Why the fleet cannot be changed.

use std::io;
use std::net::SocketAddr;

use kvplane_access::Exposed;
use kvplane_core::{ErrorCode, PublicError};
use kvplane_discovery::AddressError;
use kvplane_front::FrontError;
use kvplane_ingest::{AddError, UnknownMember};
use kvplane_republish::RepublishError;

/// What is wrong with an engine's description.
#[derive(Debug, thiserror::Error)]
pub enum EngineConfigError {
    /// A key has a value that cannot be.
    #[error("{key}: {message}")]
    Value {
        /// Which key.
        key: &'static str,
        /// What is wrong.
        message: String,
    },
    /// A file that a key names cannot be used. It may be, a moment later.
    #[error("{key}: {message}")]
    File {
        /// Which key.
        key: &'static str,
        /// What is wrong with it.
        message: String,
    },
    /// An address that cannot be used.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A front that cannot be.
    #[error("front: {0}")]
    Front(#[from] FrontError),
    /// A republish address that cannot be used.
    #[error(transparent)]
    Republish(#[from] RepublishError),
}

impl EngineConfigError {
    /// A file that `key` names cannot be used.
    pub(super) fn file(key: &'static str, error: &impl ToString) -> Self {
        Self::File { key, message: error.to_string() }
    }

    /// Whether the description is right, and a file that it names cannot be used.
    pub fn is_of_a_file(&self) -> bool {
        matches!(self, Self::File { .. } | Self::Front(FrontError::Ca { .. }))
    }
}

/// Why an engine cannot be added or removed. When this is returned, nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The description is wrong.
    #[error(transparent)]
    Config(#[from] EngineConfigError),
    /// The plane cannot take it.
    #[error(transparent)]
    Plane(#[from] AddError),
    /// It cannot be published again.
    #[error(transparent)]
    Republish(#[from] RepublishError),
    /// Its front cannot listen.
    #[error("front: cannot listen on {address}: {error}")]
    Front {
        /// Where.
        address: SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// Something of it would be open to everybody.
    #[error(transparent)]
    Exposed(#[from] Exposed),
    /// There is no such engine.
    #[error(transparent)]
    Unknown(#[from] UnknownMember),
    /// An address that cannot be used.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A value that cannot be.
    #[error("{0}")]
    Invalid(&'static str),
    /// It contradicts what is there.
    #[error("{0}")]
    Conflict(String),
    /// The change was given up half way.
    #[error("the change was applied in part; `kvplane engines list` shows the engines")]
    BrokeOff,
}

impl FleetError {
    /// Whether the one who asked is wrong, rather than the machine.
    pub fn is_mistake(&self) -> bool {
        match self {
            Self::Plane(error) => error.is_mistake(),
            Self::Republish(error) => matches!(error, RepublishError::Address { .. }),
            Self::Front { .. } | Self::BrokeOff => false,
            _ => true,
        }
    }

    fn code(&self) -> ErrorCode {
        match self {
            Self::Plane(
                AddError::DuplicateId(_) | AddError::DuplicateRank { .. } | AddError::SharedTopic { .. },
            )
            | Self::Conflict(_) => ErrorCode::Conflict,
            Self::Plane(AddError::TooMany(_)) => ErrorCode::LimitReached,
            Self::Plane(AddError::Unknown(_)) | Self::Unknown(_) => ErrorCode::NotFound,
            Self::Plane(AddError::Socket { error, .. })
            | Self::Republish(RepublishError::Socket { error, .. })
                if error.is_address_in_use() =>
            {
                ErrorCode::Conflict
            }
            Self::Front { error, .. } if error.kind() == io::ErrorKind::AddrInUse => ErrorCode::Conflict,
            // An address that the machine does not have, or a name that it does not know.
            Self::Plane(AddError::Socket { .. }) | Self::Republish(RepublishError::Socket { .. }) => {
                ErrorCode::InvalidArgument
            }
            Self::Front { .. } => ErrorCode::InvalidArgument,
            error if error.is_mistake() => ErrorCode::InvalidArgument,
            _ => ErrorCode::Internal,
        }
    }
}

impl From<FleetError> for PublicError {
    fn from(error: FleetError) -> Self {
        let code = error.code();
        let next = match &error {
            FleetError::Plane(AddError::DuplicateId(_)) => {
                "choose another id, or remove the engine that has it with `kvplane engines remove`"
            }
            FleetError::Plane(AddError::TooMany(_)) => {
                "remove one with `kvplane engines remove`, or raise members.max_engines in the configuration"
            }
            FleetError::Plane(AddError::Socket { .. })
            | FleetError::Republish(RepublishError::Socket { .. })
            | FleetError::Front { .. } => {
                if code == ErrorCode::Conflict {
                    "choose another port, or stop the process that has this one"
                } else {
                    "choose an address that this machine has"
                }
            }
            _ => code.next_step(),
        };
        Self::new(code, error.to_string()).with_next(next)
    }
}
