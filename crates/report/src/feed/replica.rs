//! What an engine holds, as one replica: the prefixes of all its ranks.
//!
//! Every rank's ledger adds and takes away one share for each block that it tells. A prefix is held while there is a share of it, in the
//! warmest tier that has one. Ranks may have different hashes for the same tokens, and one may hold the same tokens twice:
//! shares are counted by adapter and fingerprint.

use std::sync::Arc;

use kvplane_hints::{CacheTier, Note};
use rustc_hash::FxHashMap;

use super::ledger::{Ledger, Shift};
use crate::sink::Sink;

/// Tiers that are told, warmest first.
const TIERS: [CacheTier; 3] = [CacheTier::T1, CacheTier::T2, CacheTier::T3];

/// Shares of one prefix, by tier.
#[derive(Debug, Default)]
struct Shares([u32; TIERS.len()]);

impl Shares {
    fn warmest(&self) -> Option<CacheTier> {
        let counted = TIERS.into_iter().zip(self.0);
        counted.into_iter().find(|&(_, count)| count > 0).map(|(tier, _)| tier)
    }

    fn of(&mut self, tier: CacheTier) -> Option<&mut u32> {
        let at = TIERS.into_iter().position(|known| known == tier)?;
        self.0.get_mut(at)
    }
}

/// What an engine holds, and who is told.
pub(super) struct Replica {
    /// By adapter, then by fingerprint.
    held: FxHashMap<Arc<str>, FxHashMap<u64, Shares>>,
    /// Shares of all prefixes.
    shares: usize,
    notes: Vec<Note>,
    sink: Box<dyn Sink>,
}

impl Replica {
    pub(super) fn new(sink: Box<dyn Sink>) -> Self {
        Self { held: FxHashMap::default(), shares: 0, notes: Vec::new(), sink }
    }

    /// A rank's block came, went, or lies elsewhere.
    pub(super) fn shift(&mut self, shift: &Shift<'_>) {
        if !self.held.contains_key(shift.adapter) {
            self.held.insert(shift.adapter.clone(), FxHashMap::default());
        }
        let Some(prefixes) = self.held.get_mut(shift.adapter) else { return };
        let shares = prefixes.entry(shift.fingerprint).or_default();
        let was = shares.warmest();
        if let Some(count) = shift.now.and_then(|tier| shares.of(tier)) {
            *count += 1;
            self.shares += 1;
        }
        if let Some(count) = shift.was.and_then(|tier| shares.of(tier)) {
            *count -= 1;
            self.shares -= 1;
        }
        let now = shares.warmest();
        if now.is_none() {
            prefixes.remove(&shift.fingerprint);
            if prefixes.is_empty() {
                self.held.remove(shift.adapter);
            }
        }
        match now {
            _ if was == now => {}
            Some(tier) => self.notes.push(Note::Held(shift.prefix(tier))),
            None => {
                let (fingerprint, adapter) = (shift.fingerprint, shift.adapter.clone());
                self.notes.push(Note::Gone { fingerprint, adapter });
            }
        }
    }

    /// If all that is held is what this rank tells, then nothing is held any more, and that is said at once.
    pub(super) fn empty(&mut self, ledger: &Ledger) -> bool {
        if self.shares != ledger.told() {
            return false;
        }
        if self.shares > 0 {
            self.notes.push(Note::Nothing);
            self.shares = 0;
            self.held = FxHashMap::default();
            self.flush();
        }
        true
    }

    /// Tells what changed.
    pub(super) fn flush(&mut self) {
        if !self.notes.is_empty() {
            self.sink.tell(&self.notes);
            self.notes.clear();
        }
    }
}
