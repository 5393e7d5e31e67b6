//! From entries and snapshots to the batches of a vLLM.
//!
//! Hashes go out as 64-bit integers, whatever the engine sent: one form for stores, parents and removals.

use std::sync::Arc;

use bytes::Bytes;
use kvplane_core::{Tier, dynamo_salt, dynamo_salt_key};
use kvplane_stream::{
    Attributes, BlockImage, Change, Entry, ExtraKeys, Group, Layout, Parent, Place, Protocol, Snapshot,
    StoreCause, StoredBlock, StoredChange, Tokens, Transition,
};
use kvplane_wire::encode::encode_republished;
use kvplane_wire::{OwnedEvent, OwnedExtraKey, OwnedHash, OwnedRemoved, OwnedStored};

/// Blocks in one batch of a snapshot.
pub(super) const BATCH_BLOCKS: usize = 512;

/// An entry with every copy: encoded once, the same bytes for live and replay.
pub(super) fn entry(rank: u32, entry: &Entry) -> Bytes {
    entry.encoded(Protocol::Vllm, |entry| {
        let mut events = Vec::new();
        for change in &entry.changes {
            push_change(change, &mut events);
        }
        // A new life opens with a clear.
        if entry.changes.is_empty() && entry.transitions == [Transition::Cleared] {
            events.push(OwnedEvent::Cleared);
        }
        encode_republished(entry.timestamp, rank, &events).into()
    })
}

fn push_change(change: &Change, events: &mut Vec<OwnedEvent>) {
    match change {
        Change::Stored(stored) if stored.cause == StoreCause::Announced => {
            events.push(OwnedEvent::Stored(announced(stored)));
        }
        // It was announced when it came.
        Change::Stored(attached) if attached.cause == StoreCause::Attached => {}
        Change::Stored(proven) => {
            let mut runs = Runs::default();
            for block in &proven.blocks {
                let (Some(parent), Some(tokens)) = (block.parent(), block.tokens()) else { continue };
                let keys = block.extra_keys();
                let link = Link { hash: block.hash, parent, tokens, keys, block_size: proven.block_size };
                runs.add(&proven.place, &proven.attributes, 1, &link);
            }
            events.extend(runs.finish());
        }
        Change::Removed { place, blocks } => {
            events.push(removed(place, blocks.iter().map(|block| block.hash)));
        }
        Change::Cleared { places, elsewhere } => {
            // vLLM's clear is the device's; what else was emptied is removed block by block.
            if places.is_empty()
                || places.iter().any(|place| place.tier == Tier::Device && place.ownership.is_none())
            {
                events.push(OwnedEvent::Cleared);
            }
            events.extend(elsewhere.iter().map(|(place, hashes)| removed(place, hashes.iter().copied())));
        }
        Change::Dropped { elsewhere, .. } => {
            events.push(OwnedEvent::Cleared);
            events.extend(elsewhere.iter().map(|(place, hashes)| removed(place, hashes.iter().copied())));
        }
    }
}

fn announced(change: &StoredChange) -> OwnedStored {
    let tokens = match (change.layout, &change.span) {
        (Layout::Sparse, Some(span)) => span.to_vec(),
        _ => change.blocks.iter().filter_map(StoredBlock::tokens).flat_map(Tokens::iter).collect(),
    };
    let keys: Vec<_> = change
        .blocks
        .iter()
        .map(|block| {
            let is_first = block.parent() == Some(Parent::Root);
            first_keys(is_first, block.extra_keys(), &change.attributes)
        })
        .collect();
    OwnedStored {
        block_hashes: change.blocks.iter().map(|block| OwnedHash::Unsigned(block.hash)).collect(),
        parent: change.parent.map(OwnedHash::Unsigned),
        token_ids: if change.layout == Layout::HashOnly { Vec::new() } else { tokens },
        block_size: change.block_size,
        // Also where there are none: a store that does not name them is taken for one that leaves them out.
        extra_keys: (change.layout != Layout::HashOnly).then_some(keys),
        session_id: change.session_id.as_ref().map(ToString::to_string),
        ..frame(&change.place, &change.attributes)
    }
}

/// What a store says of its place and namespace.
fn frame(place: &Place, attributes: &Attributes) -> OwnedStored {
    let text = |text: &Option<Box<str>>| text.as_deref().map(str::to_owned);
    OwnedStored {
        lora_id: attributes.lora_id,
        lora_name: text(&attributes.lora_name),
        cache_salt: text(&attributes.cache_salt),
        bigrams: attributes.bigrams,
        medium: text(&place.medium),
        group: place.group,
        spec_kind: text(&place.spec_kind),
        sliding_window: place.sliding_window,
        locality: text(&place.locality),
        ownership: text(&place.ownership),
        ..OwnedStored::default()
    }
}

fn removed(place: &Place, hashes: impl Iterator<Item = u64>) -> OwnedEvent {
    let text = |text: &Option<Box<str>>| text.as_deref().map(str::to_owned);
    OwnedEvent::Removed(OwnedRemoved {
        block_hashes: hashes.map(OwnedHash::Unsigned).collect(),
        medium: text(&place.medium),
        group: place.group,
        locality: text(&place.locality),
        ownership: text(&place.ownership),
    })
}

/// The stores of every copy of every block, parents first. A hole that others build on is stored and then
/// removed.
pub(super) fn copies(snapshot: &Snapshot) -> Vec<OwnedEvent> {
    let main = snapshot.image.places.iter().find(|place| place.tier == Tier::Device && place.is_main());
    let mut runs = Runs::default();
    let mut holes = Vec::new();
    for at in snapshot.parents_first() {
        let block = &snapshot.image.blocks[at as usize];
        match (block.holdings.is_empty(), main) {
            (false, _) => {
                for holding in &block.holdings {
                    let place = &snapshot.image.places[usize::from(holding.place)];
                    add_image(&mut runs, snapshot, (block, place), holding.copies);
                }
            }
            (true, Some(main)) => {
                add_image(&mut runs, snapshot, (block, main), 1);
                holes.push(block.hash);
            }
            (true, None) => {}
        }
    }
    let several = snapshot.groups.len() > 1;
    let groups = snapshot.groups.iter().filter(|_| several);
    let mut events: Vec<OwnedEvent> = groups.map(|group| describe(group, main)).collect();
    events.extend(runs.finish());
    if let (false, Some(main)) = (holes.is_empty(), main) {
        events.push(removed(main, holes.into_iter()));
    }
    events
}

/// A whole state as batches: first a clear, by itself where there may be several, since what a vLLM tells of
/// its colder tiers beside a clear may be older than that; then what is held. At most `max_batches`, however
/// large they become: their numbers end at the snapshot's, and all of them must be above what the listener
/// has.
pub(super) fn batches(rank: u32, events: Vec<OwnedEvent>, max_batches: u64) -> Vec<Bytes> {
    let encode = |events: &[OwnedEvent]| -> Bytes { encode_republished(0.0, rank, events).into() };
    let stored = events.iter().map(|event| match event {
        OwnedEvent::Stored(stored) => stored.block_hashes.len(),
        _ => 0,
    });
    let total: usize = stored.sum();
    // One less than allowed: blocks that hang together are not cut, so that the last batch may be a small
    // rest.
    let after_clear = max_batches.saturating_sub(1);
    let allowed = usize::try_from(after_clear.saturating_sub(1)).unwrap_or(usize::MAX).max(1);
    let batch_blocks = if after_clear <= 1 { usize::MAX } else { BATCH_BLOCKS.max(total.div_ceil(allowed)) };
    let mut batches = Vec::new();
    let mut open = vec![OwnedEvent::Cleared];
    if after_clear > 0 {
        batches.push(encode(&std::mem::take(&mut open)));
    }
    let mut blocks = 0;
    for event in events {
        if let OwnedEvent::Stored(stored) = &event {
            blocks += stored.block_hashes.len();
        }
        open.push(event);
        if blocks >= batch_blocks {
            batches.push(encode(&std::mem::take(&mut open)));
            blocks = 0;
        }
    }
    if !open.is_empty() {
        batches.push(encode(&open));
    }
    batches
}

/// A store of no blocks, as an engine tells one that keeps none: it says what the group is, also if it holds
/// nothing now.
fn describe(group: &Group, main: Option<&Arc<Place>>) -> OwnedEvent {
    let block_size = group.block_size.filter(|_| group.size_is_sure).unwrap_or(0);
    OwnedEvent::Stored(OwnedStored {
        token_ids: vec![0; block_size as usize],
        block_size,
        medium: main.and_then(|main| main.medium.as_deref()).map(str::to_owned),
        group: group.group,
        spec_kind: group.spec_kind.as_deref().map(str::to_owned),
        sliding_window: group.sliding_window,
        ..OwnedStored::default()
    })
}

fn add_image(runs: &mut Runs, snapshot: &Snapshot, (block, place): (&BlockImage, &Place), copies: u32) {
    let group = snapshot.groups.iter().find(|group| group.group == place.group);
    let of_group = |size: u32| block.chains.iter().find(|chain| chain.block_size == size);
    let own = group.and_then(|group| group.block_size).and_then(of_group);
    // Blocks of other groups may be known by what the main group says of them, which is not what they are.
    let any = || snapshot.chains_of(block).0.filter(|_| place.is_main() || snapshot.groups.len() < 2);
    match own.or_else(any) {
        // A peer named it by its content: without tokens it cannot be published.
        Some(chain) if chain.tokens.is_empty() => {}
        Some(chain) => {
            let keys = chain.extra_keys.as_ref();
            let link = Link {
                hash: block.hash,
                parent: chain.parent(),
                tokens: &chain.tokens,
                keys,
                block_size: chain.block_size,
            };
            runs.add(place, &chain.attributes, copies, &link);
        }
        None => runs.add_hash_only(place, copies, block.hash),
    }
}

/// One block of a chain.
struct Link<'l> {
    hash: u64,
    parent: Parent,
    tokens: &'l Tokens,
    keys: Option<&'l ExtraKeys>,
    block_size: u32,
}

/// Joins blocks that follow each other into stores.
#[derive(Default)]
struct Runs {
    done: Vec<OwnedEvent>,
    /// Further copies.
    further: Vec<OwnedEvent>,
    open: Option<(OwnedStored, u32, u64)>,
}

impl Runs {
    fn add(&mut self, place: &Place, attributes: &Attributes, copies: u32, link: &Link<'_>) {
        let template = frame(place, attributes);
        let keys = first_keys(link.parent == Parent::Root, link.keys, attributes);
        if let Some((stored, open_copies, last)) = &mut self.open
            && stored.block_hashes.len() < BATCH_BLOCKS
            && link.parent == Parent::Block(*last)
            && *open_copies == copies
            && stored.block_size == link.block_size
            && same_frame(stored, &template)
        {
            stored.block_hashes.push(OwnedHash::Unsigned(link.hash));
            stored.token_ids.extend(link.tokens.iter());
            push_keys(stored, keys);
            *last = link.hash;
            return;
        }
        self.close();
        let mut stored = OwnedStored {
            block_hashes: vec![OwnedHash::Unsigned(link.hash)],
            parent: match link.parent {
                Parent::Root => None,
                Parent::Block(parent) => Some(OwnedHash::Unsigned(parent)),
            },
            token_ids: link.tokens.to_vec(),
            block_size: link.block_size,
            ..template
        };
        push_keys(&mut stored, keys);
        self.open = Some((stored, copies, link.hash));
    }

    fn add_hash_only(&mut self, place: &Place, copies: u32, hash: u64) {
        self.close();
        let stored = OwnedStored {
            block_hashes: vec![OwnedHash::Unsigned(hash)],
            ..frame(place, &Attributes::default())
        };
        self.open = Some((stored, copies, hash));
        self.close();
    }

    fn close(&mut self) {
        if let Some((stored, copies, _)) = self.open.take() {
            // One announcement a copy: listeners that count must arrive at the same number.
            for _ in 1..copies {
                self.further.push(OwnedEvent::Stored(stored.clone()));
            }
            self.done.push(OwnedEvent::Stored(stored));
        }
    }

    /// All stores. Further copies come last, and children before their parents: a store of what is held, from
    /// which the same batch goes on, would be taken for one that announces nothing new.
    fn finish(mut self) -> Vec<OwnedEvent> {
        self.close();
        self.done.extend(self.further.into_iter().rev());
        self.done
    }
}

/// A block's extra keys. The first block of a prompt has the salt among them, as with vLLM: as the engine
/// sent it, or else with the mark by which Dynamo's routers know it.
pub(super) fn first_keys(
    is_first: bool,
    keys: Option<&ExtraKeys>,
    attributes: &Attributes,
) -> Option<Vec<OwnedExtraKey>> {
    let mut keys = keys.map(|keys| keys.to_vec());
    if let (true, Some(salt)) = (is_first, attributes.cache_salt.as_deref()) {
        let is_salt = |key: &OwnedExtraKey| matches!(key, OwnedExtraKey::Text(text) if text == salt || dynamo_salt(text) == Some(salt));
        if !keys.as_ref().is_some_and(|keys| keys.iter().any(is_salt)) {
            keys.get_or_insert_default().push(OwnedExtraKey::Text(dynamo_salt_key(salt)));
        }
    }
    keys
}

fn push_keys(stored: &mut OwnedStored, keys: Option<Vec<OwnedExtraKey>>) {
    stored.extra_keys.get_or_insert_default().push(keys);
}

fn same_frame(stored: &OwnedStored, template: &OwnedStored) -> bool {
    stored.medium == template.medium
        && stored.group == template.group
        && stored.locality == template.locality
        && stored.ownership == template.ownership
        && stored.lora_id == template.lora_id
        && stored.lora_name == template.lora_name
        && stored.cache_salt == template.cache_salt
        && stored.bigrams == template.bigrams
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::time::Duration;

    use kvplane_stream::{Interpreter, JournalOptions, Ledger, Now};
    use kvplane_wire::Decoder;

    use super::*;

    const NOW: Now = Now { mono: Duration::ZERO, unix_ms: 1_700_000_000_000 };

    fn ledger(batches: &[Bytes]) -> Ledger {
        let (mut interpreter, mut ledger) = Interpreter::with_ledger(JournalOptions::default(), 0, NOW);
        interpreter.heard_from_start(&mut ledger);
        for (sequence, payload) in batches.iter().enumerate() {
            let mut decoder = Decoder::default();
            interpreter.apply(&mut ledger, sequence as u64, &decoder.decode(payload).unwrap(), NOW);
        }
        ledger
    }

    #[test]
    fn a_listener_to_a_snapshot_knows_the_groups() {
        let store = |group: u32, kind: &str, size: u32, ends: &[u64]| {
            OwnedEvent::Stored(OwnedStored {
                block_hashes: ends.iter().map(|&end| OwnedHash::Unsigned(end)).collect(),
                token_ids: (0..32).collect(),
                block_size: size,
                medium: Some("GPU".into()),
                group: Some(group),
                spec_kind: Some(kind.into()),
                sliding_window: (kind == "sliding_window").then_some(9),
                ..OwnedStored::default()
            })
        };
        // Smaller blocks, larger ones, and a group that holds nothing.
        let events = [
            store(0, "sliding_window", 4, &[4, 8, 12, 16, 20, 24, 28, 32]),
            store(1, "mamba", 16, &[32]),
            store(2, "sliding_window", 8, &[]),
            store(3, "full_attention", 8, &[8, 16, 24, 32]),
        ];
        let mut first = ledger(&[encode_republished(1.0, 0, &events).into()]);
        let mut builder = first.begin_snapshot();
        while !builder.gather() {
            first.step_snapshot(&mut builder, 9).unwrap();
        }
        let second = ledger(&batches(0, copies(&builder.finish()), 9));
        assert_eq!(second.groups(), first.groups());
        assert_eq!(second.resumption(), first.resumption());
        let sorted = |ledger: &Ledger| {
            let mut marks = ledger.all_marks();
            marks.sort_unstable_by_key(|(hash, _)| *hash);
            marks
        };
        assert_eq!(sorted(&first).len(), 4);
        assert_eq!(sorted(&second), sorted(&first));
        assert_eq!(second.state().digest(), first.state().digest());
    }
}
