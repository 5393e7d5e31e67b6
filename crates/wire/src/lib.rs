//! Engine dialects: bytes to events and back. No IO, no allocation per block, nothing trusted.
//!
//! - [`Decoder`] reads a published message of any vLLM since 0.9, `SGLang` since 0.4.6, `TokenSpeed` and
//!   TensorRT-LLM's push mode;
//! - [`encode`] writes what each of their releases would have sent;
//! - [`replay`] knows the frames around a payload, live and replayed;
//! - [`trtllm`] is the JSON that `TensorRT-LLM` has drained over HTTP: cut into parts, read and written;
//! - [`smg`] is the protobuf that engines and relays of SMG's contract stream;
//! - [`engine_info`] is what engines say of themselves over gRPC;
//! - [`dynamo`] is the JSON that a Dynamo router recovers from;
//! - [`msgpack`] is the level of bytes below the first two.
//!
//! What an event means for a block's residency is not decided here.

#[cfg(any(test, feature = "checks"))]
pub mod checks;
pub mod dynamo;
pub mod encode;
pub mod engine_info;
pub mod msgpack;
pub mod replay;
pub mod smg;
pub mod trtllm;

mod assemble;
mod decode;
mod event;
mod field;
mod hash;
mod owned;

pub use decode::{Decoder, Dialect};
pub use encode::{Profile, encode_batch};
pub use event::{
    Batch, Created, DecodeError, Event, ExtraKey, Layout, MAX_NAME, Moved, RejectReason, Rejected,
    RejectedKind, Removed, Stored, Tokens,
};
pub use hash::Hash;
pub use owned::{OwnedEvent, OwnedExtraKey, OwnedHash, OwnedRemoved, OwnedStored};
