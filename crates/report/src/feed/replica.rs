//! What an engine holds, as one replica: the prefixes of all its ranks.
//!
//! Every rank's ledger adds and takes away one share for each block that it tells. A prefix is held while
//! there is a share of it, in the warmest tier that has one. Ranks may have different hashes for the same
//! tokens, and one may hold the same tokens twice: shares are counted by adapter and fingerprint.

use std::sync::Arc;

use kvplane_hints::Note;
use rustc_hash::FxHashMap;

use super::ledger::{Ledger, Shift};
use super::lies::Lies;
use crate::sink::Sink;

/// Shares of one prefix, by where they lie.
#[derive(Debug, Default)]
struct Shares([u32; Lies::ALL.len()]);

impl Shares {
    fn warmest(&self) -> Option<Lies> {
        Lies::ALL.into_iter().zip(self.0).find(|&(_, count)| count > 0).map(|(lies, _)| lies)
    }

    fn of(&mut self, lies: Lies) -> &mut u32 {
        &mut self.0[lies as usize]
    }
}

/// What an engine holds, and who receives it.
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
        if let Some(lies) = shift.now {
            *shares.of(lies) += 1;
            self.shares += 1;
        }
        if let Some(lies) = shift.was {
            *shares.of(lies) -= 1;
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
            Some(lies) => self.notes.push(Note::Held(shift.prefix(lies))),
            None => {
                let (fingerprint, adapter) = (shift.fingerprint, shift.adapter.clone());
                self.notes.push(Note::Gone { fingerprint, adapter });
            }
        }
    }

    /// If all that is held is what this rank tells, then nothing is held any more, and that is said at once.
    pub(super) fn empty(&mut self, ledger: &Ledger) -> bool {
        if self.shares != ledger.reported() {
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
