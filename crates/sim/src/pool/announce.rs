//! What a pool tells of its device: events as vLLM's block pool makes them, and TensorRT-LLM's.

use std::ops::Range;

use kvplane_wire::{OwnedEvent, OwnedRemoved, OwnedStored};

use super::Table;
use super::blocks::Name;
use super::group::Group;
use super::{Habits, PoolConfig};

/// The medium of the device.
const DEVICE: &str = "GPU";

/// A copy went away.
pub(super) fn removed(config: &PoolConfig, (group, digest): Name) -> OwnedEvent {
    OwnedEvent::Removed(OwnedRemoved {
        block_hashes: vec![digest.in_form(config.hash_form)],
        medium: Some(DEVICE.to_owned()),
        group: Some(group as u32),
        ..OwnedRemoved::default()
    })
}

/// A span of a request's blocks was computed, of which a group keeps some: tokens and parent are those of the
/// whole span, hashes only of what is kept. Where in the span that is, nothing says.
pub(super) fn stored(
    config: &PoolConfig,
    (number, group): (usize, &Group),
    table: &Table,
    span: Range<usize>,
    kept: &[usize],
) -> OwnedEvent {
    let size = group.size;
    let hash = |block: usize| table.digests[group.hash_of(block)].in_form(config.hash_form);
    let extra = |block: &usize| {
        let (start, end) = (block * size, (block + 1) * size);
        let keys = match config.habits {
            Habits::Vllm => table.keys.of_block(start, end),
            Habits::Trtllm => table.keys.items_of_block(start, end),
        };
        Some(keys).filter(|keys| !keys.is_empty())
    };
    let tells_keys = config.habits == Habits::Vllm || !table.keys.images.is_empty();
    OwnedEvent::Stored(OwnedStored {
        block_hashes: kept.iter().map(|block| hash(*block)).collect(),
        parent: span.start.checked_sub(1).map(hash),
        token_ids: table.tokens[span.start * size..span.end * size].to_vec(),
        block_size: size as u32,
        extra_keys: (!kept.is_empty() && tells_keys).then(|| kept.iter().map(extra).collect()),
        ..about(config, (number, group), table)
    })
}

/// The beginning of a block was computed: it is published as a block of the finest size, behind the hash before.
pub(super) fn partly_stored(
    config: &PoolConfig,
    (number, group): (usize, &Group),
    table: &Table,
    fine: usize,
) -> OwnedEvent {
    let last = table.tokens.len() / fine - 1;
    let hash = |position: usize| table.digests[position].in_form(config.hash_form);
    let (start, end) = (last * fine, (last + 1) * fine);
    let keys = Some(table.keys.of_block(start, end)).filter(|keys| !keys.is_empty());
    OwnedEvent::Stored(OwnedStored {
        block_hashes: vec![hash(last)],
        parent: last.checked_sub(1).map(hash),
        token_ids: table.tokens[start..end].to_vec(),
        block_size: fine as u32,
        extra_keys: Some(vec![keys]),
        ..about(config, (number, group), table)
    })
}

/// What every store of a request's blocks in a group has.
fn about(config: &PoolConfig, (number, group): (usize, &Group), table: &Table) -> OwnedStored {
    let lora = table.keys.lora.as_ref().filter(|_| config.habits == Habits::Vllm);
    OwnedStored {
        lora_id: lora.map(|_| 1),
        lora_name: lora.cloned(),
        medium: Some(DEVICE.to_owned()),
        group: Some(number as u32),
        spec_kind: Some(group.spec_kind().to_owned()),
        sliding_window: group.window(),
        ..OwnedStored::default()
    }
}
