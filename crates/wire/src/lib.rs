//! Engine dialects: bytes to events and back. No IO, no allocation per block, nothing trusted.

mod event;
mod owned;

pub use event::{
    Batch, DecodeError, Event, ExtraKey, Hash, Layout, RejectReason, Rejected, RejectedKind, Removed, Stored, Tokens,
};
pub use owned::{OwnedEvent, OwnedExtraKey, OwnedHash, OwnedRemoved, OwnedStored};
