//! What is on the bus.
//!
//! ```proto
//! package kvplane.bus.v1;
//! message Frame   { bytes plane = 1; uint64 run = 2; uint64 number = 3; repeated Item items = 4;
//!                   fixed64 stream_created = 5; uint64 claims = 6; }
//! message Item    { uint32 stream = 1; uint64 generation = 2;
//!                   oneof item { bytes entry = 3; Declare declare = 4; Claim claim = 5; Head head = 6; } }
//! message Declare { string engine = 1; uint32 rank = 2; string kind = 3; string model = 4; repeated string via = 5; }
//! message Claim   { Position base = 1; Why why = 2; optional uint64 engine_sequence = 3; bytes engine_digest = 4; }
//! message Head    { Position position = 1; }
//! message Position { uint64 epoch = 1; uint64 sequence = 2; fixed64 low = 3; fixed64 high = 4; }
//! ```
//!
//! *plane* and *run* say whose frame it is; *number* is gapless from 1 for each (plane, run, shard), and a
//! frame without items is sent every [`EMPTY_EVERY`], so that the last one cannot be lost without a trace.
//! *claims* counts the claims that the plane has published there, those of this frame included: whoever
//! missed a frame knows whether it had one. *stream* is an ordinal of this run, declared before it is used.
//! An *entry* is a kvplane.v1 `SubscribeResponse` as it is encoded for gRPC.

use std::time::Duration;

use bytes::Bytes;
use kvplane_core::{Cursor, Epoch, StateDigest};
use prost::Message as _;

/// How often a frame is sent where there is nothing to say.
pub const EMPTY_EVERY: Duration = Duration::from_millis(500);

/// A frame that is larger is not read. What does not fit is fetched.
pub const MAX_FRAME: usize = 1 << 20;

/// One message of the bus.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Frame {
    /// Whose.
    #[prost(string, tag = "1")]
    pub plane: String,
    /// Which run of it.
    #[prost(uint64, tag = "2")]
    pub run: u64,
    /// From 1, without gaps.
    #[prost(uint64, tag = "3")]
    pub number: u64,
    /// What happened, in order.
    #[prost(message, repeated, tag = "4")]
    pub items: Vec<Item>,
    /// When the bus's stream was made, as the plane saw it.
    #[prost(fixed64, tag = "5")]
    pub stream_created: u64,
    /// Claims of this run in this shard so far.
    #[prost(uint64, tag = "6")]
    pub claims: u64,
}

/// Something about one stream.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Item {
    /// Its ordinal.
    #[prost(uint32, tag = "1")]
    pub stream: u32,
    /// Of which claim.
    #[prost(uint64, tag = "2")]
    pub generation: u64,
    /// What it is.
    #[prost(oneof = "Kind", tags = "3, 4, 5, 6")]
    pub kind: Option<Kind>,
}

/// What an item is.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Kind {
    /// An entry, as encoded for gRPC.
    #[prost(bytes = "bytes", tag = "3")]
    Entry(Bytes),
    /// The ordinal is this stream's.
    #[prost(message, tag = "4")]
    Declare(Declare),
    /// A generation begins.
    #[prost(message, tag = "5")]
    Claim(Claim),
    /// Where the owner is.
    #[prost(message, tag = "6")]
    Head(Position),
}

/// Which stream an ordinal is.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Declare {
    /// The engine.
    #[prost(string, tag = "1")]
    pub engine: String,
    /// Its rank.
    #[prost(uint32, tag = "2")]
    pub rank: u32,
    /// Its software.
    #[prost(string, tag = "3")]
    pub kind: String,
    /// What it serves.
    #[prost(string, tag = "4")]
    pub model: String,
    /// The planes that it came through.
    #[prost(string, repeated, tag = "5")]
    pub via: Vec<String>,
}

/// A generation begins, behind this.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Claim {
    /// The last entry of the generation before; absent: the stream begins.
    #[prost(message, optional, tag = "1")]
    pub base: Option<Position>,
    /// Why.
    #[prost(enumeration = "Why", tag = "2")]
    pub why: i32,
    /// The engine's number of the last batch.
    #[prost(uint64, optional, tag = "3")]
    pub engine_sequence: Option<u64>,
    /// Its digest, big-endian.
    #[prost(bytes = "bytes", tag = "4")]
    pub engine_digest: Bytes,
}

/// Why a generation begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum Why {
    /// The stream is new.
    Start = 0,
    /// The owner was started again.
    Restart = 1,
    /// The owner before is not heard.
    Takeover = 2,
    /// The owner before gives it away.
    Handover = 3,
}

/// A position, and the digest of the state there.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Position {
    /// The engine's life.
    #[prost(uint64, tag = "1")]
    pub epoch: u64,
    /// The entry.
    #[prost(uint64, tag = "2")]
    pub sequence: u64,
    /// The digest's lower half.
    #[prost(fixed64, tag = "3")]
    pub low: u64,
    /// Its upper half.
    #[prost(fixed64, tag = "4")]
    pub high: u64,
}

impl Position {
    /// The position of a state.
    pub fn of(cursor: Cursor, digest: StateDigest) -> Self {
        let (low, high) = digest.parts();
        Self { epoch: cursor.epoch.as_u64(), sequence: cursor.sequence, low, high }
    }

    /// Where.
    pub fn cursor(self) -> Cursor {
        Cursor { epoch: Epoch::from_raw(self.epoch), sequence: self.sequence }
    }

    /// What is held there.
    pub fn digest(self) -> StateDigest {
        StateDigest::from_parts(self.low, self.high)
    }
}

/// Why a message of the bus is no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoFrame {
    /// It is larger than any.
    TooLarge,
    /// It cannot be read.
    Malformed,
}

impl Frame {
    /// Reads a message.
    pub fn read(bytes: Bytes) -> Result<Self, NoFrame> {
        if bytes.len() > MAX_FRAME {
            return Err(NoFrame::TooLarge);
        }
        let frame = Self::decode(bytes).map_err(|_| NoFrame::Malformed)?;
        let is_whole = frame.number > 0 && !frame.plane.is_empty();
        if is_whole { Ok(frame) } else { Err(NoFrame::Malformed) }
    }

    /// As it is sent.
    pub fn write(&self) -> Bytes {
        self.encode_to_vec().into()
    }
}
