//! `TensorRT-LLM`'s events: the JSON that `POST /kv_cache_events` drains.
//!
//! ```text
//! body   = [event, ...]                     everything since the last drain, of all ranks
//! event  = {"event_id": n, "data": {"type": kind, ...}, "window_size": n,
//!           "attention_dp_rank"?: n, "hash_algo"?: text, "layer_group_id"?: n}
//! kind   = created   num_blocks_per_cache_level [n, ...]
//!        | stored    parent_hash hash|null, blocks [{block_hash, tokens, cache_level, priority, mm_keys, cache_salt}]
//!        | removed   block_hashes [hash, ...]
//!        | updated   block_hash, cache_level diff|null, priority diff|null
//! token  = {"type": "unique_token", "token_id": n|hex, "token_extra_id": n}
//! hash   = an unsigned number of 64 bits | hexadecimal digits of a digest
//! ```
//!
//! - [`split`] cuts a body into [`Part`]s, each a run of consecutive ids of one rank, without reading what
//!   is in the events;
//! - [`Decoder::decode_as`](crate::Decoder::decode_as) reads a part's payload;
//! - [`encode`] writes what a server would.

pub mod encode;

mod block;
mod decode;
mod field;
mod json;
mod split;
mod texts;
mod token;

#[cfg(test)]
mod tests;

pub use self::split::{Drained, MAX_BODY_BYTES, PART_EVENTS, Part, SplitError, split};

pub(crate) use self::decode::read;
pub(crate) use self::texts::Texts;
