//! Engine dialects: bytes to events and back. No IO, no allocation per block, nothing trusted.

#[cfg(any(test, feature = "checks"))]
pub mod checks;
pub mod dynamo;
pub mod encode;
pub mod msgpack;
pub mod replay;

mod decode;
mod event;
mod owned;

pub use decode::Decoder;
pub use encode::{Profile, encode_batch};
pub use event::{
    Batch, DecodeError, Event, ExtraKey, Hash, Layout, RejectReason, Rejected, RejectedKind, Removed, Stored,
    Tokens,
};
pub use owned::{OwnedEvent, OwnedExtraKey, OwnedHash, OwnedRemoved, OwnedStored};
