//! What must be known of a message before it is its turn to be decoded.

use std::borrow::Cow;

use kvplane_core::digest;

use super::fields::{Fault, Fields, Value};
use crate::event::DecodeError;

/// A part of a whole state. Parts have consecutive sequences, of which the last is the state's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SnapshotChunk {
    /// Which part, from 0.
    pub index: u32,
    /// How many parts there are.
    pub count: u32,
    /// Blocks in all of them.
    pub blocks: u64,
    /// Batches from before the server listened, of which it knows nothing; 0 if it knows everything.
    pub unknown_before: u64,
}

/// Where a message belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outline {
    /// Its number.
    pub sequence: u64,
    /// The data-parallel rank that it is about, where the server tells ranks apart.
    pub rank: Option<u32>,
    /// It is a part of a whole state.
    pub snapshot: Option<SnapshotChunk>,
    /// It is no batch: it carries a load record, and its number means nothing.
    pub load_only: bool,
    /// Identity of the message without its load record, which differs each time that a batch is sent.
    pub digest: u128,
}

/// Reads a message's own fields, and none of its events.
pub fn outline(message: &[u8]) -> Result<Outline, DecodeError> {
    let mut outline = Outline::default();
    let mut without_load = Cow::Borrowed(message);
    let mut kept_to = 0;
    let mut fields = Fields::of(message);
    loop {
        let start = message.len() - fields.rest().len();
        let Some((number, value)) = fields.next()? else { break };
        let end = message.len() - fields.rest().len();
        match (number, value) {
            (1, Value::Varint(sequence)) => outline.sequence = sequence,
            // Negative numbers stand for "none".
            (4, Value::Varint(rank)) => outline.rank = u32::try_from(rank).ok(),
            (7, Value::Bytes(chunk)) => outline.snapshot = Some(snapshot(chunk)?),
            (8, Value::Bytes(load)) => {
                outline.load_only = load_only(load)?;
                // The load usually stands last: then what is left needs no copy.
                if end == message.len() && matches!(without_load, Cow::Borrowed(_)) {
                    without_load = Cow::Borrowed(&message[..start]);
                } else {
                    let kept = match without_load {
                        Cow::Borrowed(_) => message[..start].to_vec(),
                        Cow::Owned(mut kept) => {
                            kept.extend_from_slice(&message[kept_to..start]);
                            kept
                        }
                    };
                    without_load = Cow::Owned(kept);
                    kept_to = end;
                }
            }
            _ => {}
        }
    }
    if let Cow::Owned(kept) = &mut without_load {
        kept.extend_from_slice(&message[kept_to..]);
    }
    outline.digest = digest(&without_load);
    Ok(outline)
}

fn snapshot(message: &[u8]) -> Result<SnapshotChunk, Fault> {
    let mut chunk = SnapshotChunk::default();
    let mut fields = Fields::of(message);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => chunk.index = value.number()?,
            2 => chunk.count = value.number()?,
            3 => chunk.blocks = value.varint()?,
            4 => chunk.unknown_before = value.varint()?,
            _ => {}
        }
    }
    Ok(chunk)
}

fn load_only(message: &[u8]) -> Result<bool, Fault> {
    let mut only = false;
    let mut fields = Fields::of(message);
    while let Some((number, value)) = fields.next()? {
        if number == 9 {
            only = value.varint()? != 0;
        }
    }
    Ok(only)
}
