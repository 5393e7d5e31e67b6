//! What the tree tells: events as `SGLang`'s recorder makes them.

use kvplane_wire::{OwnedEvent, OwnedHash, OwnedRemoved, OwnedStored};

use super::page_hash::PageHash;
use super::tree::Page;
use crate::keys::Keys;

/// Where pages lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Medium {
    Device,
    Host,
}

/// How events are made.
#[derive(Debug, Clone, Copy)]
pub struct EventStyle {
    /// Tokens are pairs.
    pub pairs: bool,
    /// The rule of hashes.
    pub hash: PageHash,
    /// Pages that follow one another share an event, and so do removals; without, each page has its own.
    pub coalesced: bool,
    /// A reset is one event; without, everything is removed (`TokenSpeed`, which has no such event).
    pub clears: bool,
}

/// Events that wait for the publisher.
#[derive(Debug)]
pub(super) struct PendingEvents {
    style: EventStyle,
    events: Vec<OwnedEvent>,
}

impl Medium {
    fn as_str(self) -> &'static str {
        match self {
            Self::Device => "GPU",
            Self::Host => "CPU_PINNED",
        }
    }
}

impl PendingEvents {
    pub(super) fn new(style: EventStyle) -> Self {
        Self { style, events: Vec::new() }
    }

    pub(super) fn take(&mut self) -> Vec<OwnedEvent> {
        std::mem::take(&mut self.events)
    }

    pub(super) fn cleared(&mut self) {
        self.events.push(OwnedEvent::Cleared);
    }

    /// The pages of a node, behind the last page of the node before.
    pub(super) fn stored(&mut self, pages: &[Page], before: Option<&Page>, medium: Medium, keys: &Keys) {
        let EventStyle { hash, pairs, .. } = self.style;
        let names_adapters = matches!(hash, PageHash::Chain { namespaced: true, .. });
        // Old releases lose the parent of a node's first page.
        let before = before.filter(|_| hash != PageHash::TokensOnly);
        let mut parent = before.map(|page| hash.written(page.bits));
        for page in pages {
            let own = hash.written(page.bits);
            let width = if pairs { 2 } else { 1 };
            let stored = OwnedStored {
                block_hashes: vec![own.clone()],
                parent: parent.replace(own),
                token_ids: page.ids.clone(),
                bigrams: pairs,
                block_size: (page.ids.len() / width) as u32,
                lora_name: keys.lora.clone().filter(|_| names_adapters),
                cache_salt: keys.salt.clone(),
                medium: Some(medium.as_str().to_owned()),
                ..OwnedStored::default()
            };
            match self.events.last_mut() {
                Some(OwnedEvent::Stored(tail)) if self.style.coalesced && follows(tail, &stored) => {
                    tail.block_hashes.extend(stored.block_hashes);
                    tail.token_ids.extend(stored.token_ids);
                }
                _ => self.events.push(OwnedEvent::Stored(stored)),
            }
        }
    }

    /// The pages of a node went from a medium.
    pub(super) fn removed(&mut self, pages: &[Page], medium: Medium) {
        let hashes = pages.iter().map(|page| self.style.hash.written(page.bits)).collect::<Vec<_>>();
        let removed = |block_hashes: Vec<OwnedHash>| {
            let medium = Some(medium.as_str().to_owned());
            OwnedEvent::Removed(OwnedRemoved { block_hashes, medium, ..OwnedRemoved::default() })
        };
        if !self.style.coalesced {
            self.events.extend(hashes.into_iter().map(|hash| removed(vec![hash])));
            return;
        }
        match self.events.last_mut() {
            Some(OwnedEvent::Removed(tail)) if tail.medium.as_deref() == Some(medium.as_str()) => {
                tail.block_hashes.extend(hashes);
            }
            _ => self.events.push(removed(hashes)),
        }
    }
}

fn follows(tail: &OwnedStored, next: &OwnedStored) -> bool {
    tail.block_hashes.last() == next.parent.as_ref()
        && tail.medium == next.medium
        && tail.block_size == next.block_size
        && tail.cache_salt == next.cache_salt
        && tail.lora_name == next.lora_name
}
