//! Whom a server sees, and how it is recognised.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use kvplane_ingest::{TokenFileError, read_token};
use kvplane_proto::Bearer;
use parking_lot::RwLock;

/// Whom a server sees, and how it is recognised. Never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Certificates (PEM) to trust, instead of the public ones.
    pub ca: Option<Vec<u8>>,
    /// A certificate to show, and its private key (PEM).
    pub certificate: Option<(Vec<u8>, Vec<u8>)>,
    /// The token to send.
    pub token: Token,
}

/// The token that a server wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token {
    /// This one, or none.
    Given(Bearer),
    /// The one in this file: read with every connection, and again when the server turns it away.
    File(PathBuf),
}

/// The token as it was last read.
#[derive(Debug, Clone)]
pub(super) struct Held {
    from: Token,
    now: Arc<RwLock<Bearer>>,
}

impl Credentials {
    /// Whether there is anything that only TLS can carry.
    pub(super) fn need_tls(&self) -> bool {
        self.ca.is_some() || self.certificate.is_some()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("token", &self.token).finish_non_exhaustive()
    }
}

impl Default for Token {
    fn default() -> Self {
        Self::Given(Bearer::default())
    }
}

impl Token {
    fn read(&self) -> Result<Bearer, TokenFileError> {
        match self {
            Self::Given(bearer) => Ok(bearer.clone()),
            Self::File(path) => {
                let token = read_token(path)?;
                Bearer::new(&token).map_err(|_| TokenFileError::Unfit(path.clone()))
            }
        }
    }
}

impl Held {
    pub(super) fn read(from: &Token) -> Result<Self, TokenFileError> {
        let now = Arc::new(RwLock::new(from.read()?));
        Ok(Self { from: from.clone(), now })
    }

    /// The token to send.
    pub(super) fn bearer(&self) -> Bearer {
        self.now.read().clone()
    }

    /// The server turns it away: the next call has what is in the file by then.
    pub(super) fn read_again(&self) -> Result<(), TokenFileError> {
        let read = self.from.read()?;
        *self.now.write() = read;
        Ok(())
    }
}
