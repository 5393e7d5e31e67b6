//! The files that a description names, as they were when it was read.

use kvplane_access::pem;
use sha2::{Digest as _, Sha256};

use super::EngineConfig;

/// Digests of the files that are read once, when the engine is added. A reload compares them: a path that is
/// the same may hold other certificates by now.
///
/// `token_file` and `api_key_file` are not among them. They are read again with every connection and every
/// operation, so a rotated secret takes effect without an engine being removed and added again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::fleet) struct ReadOnce {
    grpc_ca: Option<[u8; 32]>,
}

impl ReadOnce {
    /// Reads them. A file that cannot be read is left to its user, who says what is wrong.
    pub(super) fn of(config: &EngineConfig) -> Self {
        let digest = |bytes: Vec<u8>| Sha256::digest(bytes).into();
        Self { grpc_ca: config.grpc_ca.as_deref().and_then(|path| pem::read(path).ok()).map(digest) }
    }
}
