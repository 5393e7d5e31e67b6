//! Engine dialects: bytes to events and back. No IO, no allocation per block, nothing trusted.

pub mod msgpack;

mod decode;
mod event;
mod owned;

pub use decode::Decoder;
pub use event::{
    Batch, DecodeError, Event, ExtraKey, Hash, Layout, RejectReason, Rejected, RejectedKind, Removed, Stored,
    Tokens,
};
pub use owned::{OwnedEvent, OwnedExtraKey, OwnedHash, OwnedRemoved, OwnedStored};
