//! What can go wrong, and who is to blame.

use kvplane_core::{Cursor, StateDigest, StreamId};

/// Why a message was not applied. A replica that returned one, [`ReplicaError::Foreign`] apart, is void until
/// the next reset: it never guesses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicaError {
    /// The message is of another stream. The replica is untouched.
    #[error("a message of stream {got} came to the replica of {expected}")]
    Foreign {
        /// Whose replica this is.
        expected: StreamId,
        /// Whose message it was.
        got: StreamId,
    },
    /// A batch or a part of a snapshot came, and no reset before it.
    #[error("a message came before the reset that begins a stream")]
    NotStarted,
    /// A batch does not follow the one before it, or comes in the middle of a snapshot.
    #[error("epoch {}, sequence {} does not follow epoch {}, sequence {}", got.epoch, got.sequence, after.epoch, after.sequence)]
    OutOfOrder {
        /// Where the replica stood.
        after: Cursor,
        /// Where the message belongs.
        got: Cursor,
    },
    /// Parts of a snapshot are missing, come twice, or belong to another one.
    #[error("chunk {got} of a snapshot came where chunk {expected} was due")]
    Chunk {
        /// What was due.
        expected: u32,
        /// What came.
        got: u32,
    },
    /// The stream was removed from the plane: there is nothing to be a replica of.
    #[error("the stream was removed from the plane")]
    Gone,
    /// The message says something that cannot be.
    #[error("malformed message: {0}")]
    Malformed(&'static str),
    /// The plane holds something else than the replica.
    #[error("digest mismatch at epoch {}, sequence {}: the plane has {theirs}, the replica {ours}", at.epoch, at.sequence)]
    DigestMismatch {
        /// Where.
        at: Cursor,
        /// The plane's digest.
        theirs: StateDigest,
        /// The replica's.
        ours: StateDigest,
    },
}

/// Why there is no client.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The plane wants another token, or another role.
    #[error("the kvplane at {url} refuses: {reason}")]
    Refused {
        /// The address.
        url: String,
        /// What it says.
        reason: String,
    },
    /// The certificates cannot be used.
    #[error("TLS with {url} cannot be set up: {reason}")]
    Tls {
        /// The address.
        url: String,
        /// What is wrong.
        reason: String,
    },
    /// Not an address: the caller's mistake.
    #[error("{url:?} is not an address like http://127.0.0.1:50090")]
    Address {
        /// What was given.
        url: String,
    },
    /// Nobody answers there, or not a kvplane. Trying again may help.
    #[error("no kvplane answers at {url}: {reason}")]
    Unreachable {
        /// Where.
        url: String,
        /// What was heard instead.
        reason: String,
    },
}
