//! What TensorRT-LLM says of images and other items in a prompt.
//!
//! It has two ways: `mm_keys`, a list of items per block, and texts in the place of token ids, each the
//! digest of the item that covers the position. Both become extra keys of their block, so that blocks with
//! equal tokens and different images are different blocks. A text's position keeps id 0.

use std::ops::Range;

use crate::event::{ExtraKey, RejectReason, Stored, bounded};
use crate::hash::is_hex_digest;
use crate::msgpack::{Fault, Reader};

use super::Sink;
use super::draft::{Trouble, unfit};

/// A text among the token ids: its position, and the digest.
pub(super) type Text<'f> = (usize, &'f str);

/// Token ids of which some are texts; the range of the texts. Reads again from the first, because texts are
/// rare and lists without any must not pay for them.
#[cold]
pub(super) fn mixed_tokens<'f>(
    reader: &mut Reader<'f>,
    count: usize,
    sink: &mut Sink<'_, 'f>,
) -> Result<Range<usize>, Trouble> {
    let bad_token = |fault| unfit(fault, RejectReason::BadToken);
    let start = sink.texts.len();
    for position in 0..count {
        match reader.text() {
            Ok(digest) if is_hex_digest(digest) => {
                let digest = std::str::from_utf8(digest).map_err(|_| bad_token(Fault::Mismatch))?;
                sink.texts.push((position, digest));
                sink.scratch.tokens.push(0);
            }
            Ok(_) => return Err(bad_token(Fault::Mismatch)),
            Err(Fault::Mismatch) => {
                let id = reader.integer().map_err(bad_token)?.as_u32();
                sink.scratch.tokens.push(id.ok_or_else(|| bad_token(Fault::Mismatch))?);
            }
            Err(fault) => return Err(bad_token(fault)),
        }
    }
    Ok(start..sink.texts.len())
}

/// A list of items per block; the ranges of their keys, and how many keys of their maps are not known.
pub(super) fn items<'f>(
    reader: &mut Reader<'f>,
    sink: &mut Sink<'_, 'f>,
) -> Result<(Option<Range<usize>>, u32), Trouble> {
    if reader.take_nil() {
        return Ok((None, 0));
    }
    let start = sink.scratch.extra_ranges.len();
    let mut unknown = 0;
    for _ in 0..reader.array_len()? {
        let first = sink.extra_keys.len();
        if !reader.take_nil() {
            for _ in 0..reader.array_len()? {
                sink.extra_keys.push(item(reader, &mut unknown)?);
            }
        }
        sink.scratch.extra_ranges.push(first..sink.extra_keys.len());
    }
    Ok((Some(start..sink.scratch.extra_ranges.len()), unknown))
}

/// One item. The user's own name for it (`uuid`) is passed over: the digest tells items apart.
fn item<'f>(reader: &mut Reader<'f>, unknown: &mut u32) -> Result<ExtraKey<'f>, Trouble> {
    let (mut id, mut offset) = (None, None);
    for _ in 0..reader.map_len()? {
        match reader.text()? {
            b"hash" => id = std::str::from_utf8(reader.text()?).ok(),
            b"start_offset" => offset = reader.integer()?.as_i64(),
            name => {
                if !matches!(name, b"type" | b"uuid") {
                    *unknown = unknown.saturating_add(1);
                }
                reader.skip_value()?;
            }
        }
    }
    match (id, offset) {
        (Some(id), Some(offset)) => {
            Ok(ExtraKey::Multimodal { id: bounded(id).map_err(Trouble::Unfit)?, offset })
        }
        _ => Err(Trouble::Unfit(RejectReason::BadType)),
    }
}

/// Makes extra keys of a store's texts and items, behind those that it has. The order is that in which the
/// drained JSON gives them: a block is the same by either way.
pub(super) fn add_keys<'f>(
    stored: &mut Stored<'f>,
    items: Option<Range<usize>>,
    texts: Range<usize>,
    sink: &mut Sink<'_, 'f>,
) -> Result<(), RejectReason> {
    let blocks = stored.hashes.len();
    let size = stored.block_size as usize;
    if texts.is_empty() && items.as_ref().is_some_and(Range::is_empty) && stored.extra_keys.is_none() {
        // An empty list names no keys, as `extra_keys` does when it is empty.
        stored.extra_keys = items;
        return Ok(());
    }
    let (own, items) = (stored.extra_keys.take().unwrap_or_default(), items.unwrap_or_default());
    if [&own, &items].into_iter().any(|list| !list.is_empty() && list.len() != blocks) {
        return Err(RejectReason::BadType);
    }
    // Of a store with holes nobody can say which block a text is in.
    if !texts.is_empty() && blocks * size != stored.tokens.len() {
        return Err(RejectReason::BadToken);
    }
    let start = sink.scratch.extra_ranges.len();
    let mut texts = texts.peekable();
    for block in 0..blocks {
        let first = sink.extra_keys.len();
        sink.copy_keys(&own, block);
        let mut before: Option<Text<'f>> = None;
        while let Some(index) = texts.next_if(|&index| sink.texts[index].0 < (block + 1) * size) {
            let (position, id) = sink.texts[index];
            // An item covers a run of positions: its first one in the block stands for all.
            let goes_on = before.is_some_and(|(at, same)| at + 1 == position && same == id);
            if !goes_on {
                sink.extra_keys.push(ExtraKey::Multimodal { id, offset: (position - block * size) as i64 });
            }
            before = Some((position, id));
        }
        sink.copy_keys(&items, block);
        sink.scratch.extra_ranges.push(first..sink.extra_keys.len());
    }
    stored.extra_keys = Some(start..sink.scratch.extra_ranges.len());
    Ok(())
}

impl Sink<'_, '_> {
    /// Adds the keys of a block again, from a list of ranges that has one per block or none.
    fn copy_keys(&mut self, list: &Range<usize>, block: usize) {
        let keys = self.scratch.extra_ranges[list.clone()].get(block).cloned().unwrap_or_default();
        self.extra_keys.extend_from_within(keys);
    }
}
