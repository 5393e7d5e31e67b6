//! A ledger that is fed events, and the words in which tests say them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kvplane_core::Tier;
use kvplane_stream::{Entry, Interpreter, JournalOptions, Ledger, Now, Snapshot};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{Decoder, OwnedEvent, OwnedHash, OwnedRemoved, OwnedStored};

pub(crate) const NOW: Now = Now { mono: Duration::ZERO, unix_ms: 1_700_000_000_000 };

/// A ledger, and the number of its next batch.
pub(crate) struct Rig {
    pub(crate) interpreter: Interpreter,
    pub(crate) ledger: Ledger,
    pub(crate) next: u64,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(JournalOptions::default())
    }

    pub(crate) fn with(options: JournalOptions) -> Self {
        let (mut interpreter, mut ledger) = Interpreter::with_ledger(options, 0, NOW);
        interpreter.heard_from_start(&mut ledger);
        Self { interpreter, ledger, next: 0 }
    }

    pub(crate) fn apply(&mut self, events: &[OwnedEvent]) -> Arc<Entry> {
        let before = self.ledger.cursor();
        let payload = encode_batch(Profile::Vllm0_32, 1.0, Some(0), events);
        let mut decoder = Decoder::default();
        self.interpreter.apply(&mut self.ledger, self.next, &decoder.decode(&payload).unwrap(), NOW);
        self.next += 1;
        self.ledger.read_after(before, 1).unwrap().remove(0)
    }

    pub(crate) fn held(&self) -> BTreeMap<(Option<u32>, Tier, u64), u32> {
        let residencies = self.ledger.state().residencies();
        residencies.map(|(place, hash, copies)| ((place.group, place.tier, hash), copies)).collect()
    }

    pub(crate) fn device(&self) -> BTreeMap<u64, u32> {
        self.held()
            .into_iter()
            .filter(|((_, tier, _), _)| *tier == Tier::Device)
            .map(|((_, _, h), c)| (h, c))
            .collect()
    }

    pub(crate) fn snapshot(&mut self) -> Snapshot {
        let mut builder = self.ledger.begin_snapshot();
        while !builder.gather() {
            self.ledger.step_snapshot(&mut builder, 2).unwrap();
        }
        builder.finish()
    }
}

pub(crate) fn hashes(list: &[u64]) -> Vec<OwnedHash> {
    list.iter().map(|&hash| OwnedHash::Unsigned(hash)).collect()
}

pub(crate) fn stored(list: &[u64], parent: Option<u64>) -> OwnedStored {
    OwnedStored {
        block_hashes: hashes(list),
        parent: parent.map(OwnedHash::Unsigned),
        token_ids: list.iter().flat_map(|&hash| [hash as u32 * 2, hash as u32 * 2 + 1]).collect(),
        block_size: 2,
        medium: Some("GPU".into()),
        group: Some(0),
        spec_kind: Some("full_attention".into()),
        ..OwnedStored::default()
    }
}

pub(crate) fn store(list: &[u64], parent: Option<u64>) -> OwnedEvent {
    OwnedEvent::Stored(stored(list, parent))
}

pub(crate) fn remove(list: &[u64]) -> OwnedEvent {
    remove_from("GPU", list)
}

/// What is known of the blocks is their hashes alone.
pub(crate) fn placeholder(list: &[u64], medium: &str) -> OwnedEvent {
    let medium = Some(medium.to_owned());
    OwnedEvent::Stored(OwnedStored {
        token_ids: Vec::new(),
        block_size: 0,
        medium,
        spec_kind: None,
        ..stored(list, None)
    })
}

pub(crate) fn store_in(medium: &str, list: &[u64], parent: Option<u64>) -> OwnedEvent {
    OwnedEvent::Stored(OwnedStored { medium: Some(medium.to_owned()), ..stored(list, parent) })
}

pub(crate) fn remove_from(medium: &str, list: &[u64]) -> OwnedEvent {
    OwnedEvent::Removed(OwnedRemoved {
        block_hashes: hashes(list),
        medium: Some(medium.to_owned()),
        group: Some(0),
        ..OwnedRemoved::default()
    })
}
