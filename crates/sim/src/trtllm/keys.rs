//! What makes equal tokens different blocks in a tree.

use kvplane_wire::OwnedExtraKey;
use kvplane_wire::trtllm::encode::TrtMmKey;

use crate::keys::Keys;

/// What a block is besides its tokens: its adapter, the items that it has a part of, and the salt. Events
/// have no adapter.
pub(super) fn block_keys(keys: &Keys, start: usize, length: usize) -> Vec<OwnedExtraKey> {
    let text = |text: &String| OwnedExtraKey::Text(text.clone());
    let items = keys.items_of_block(start, start + length);
    keys.lora.iter().map(text).chain(items).chain(keys.salt.iter().map(text)).collect()
}

/// The items among a block's keys, as events have them.
pub(super) fn items(keys: &[OwnedExtraKey]) -> Vec<TrtMmKey> {
    let item = |key: &OwnedExtraKey| match key {
        OwnedExtraKey::Multimodal(id, offset) => {
            Some(TrtMmKey { hash: id.clone(), start_offset: offset.unsigned_abs(), uuid: None })
        }
        _ => None,
    };
    keys.iter().filter_map(item).collect()
}
