//! Committing a draft: one entry of the window.

use kvplane_core::{Continuity, StateDigest};

use super::window::Notes;
use super::{Draft, Ledger};
use crate::change::{Change, Transition, fit};

impl Ledger {
    /// Writes a draft as the entry of a batch.
    pub(crate) fn commit_batch(&mut self, engine_sequence: u64, timestamp: f64, draft: Draft) {
        self.engine_sequence = Some(engine_sequence);
        self.engine_digest = self.coming_digest.take();
        self.push(Some(engine_sequence), timestamp, draft.changes, draft.transitions);
    }

    /// Writes a draft as an entry that no batch brought.
    pub(crate) fn commit(&mut self, draft: Draft) {
        self.push(None, 0.0, draft.changes, draft.transitions);
    }

    /// Puts a change of trust that no batch brought into the window.
    pub(crate) fn commit_trust(&mut self) {
        self.trust_changed = true;
        self.commit(Draft::default());
    }

    /// The continuity changed: subscribers get an entry.
    pub fn note_continuity(&mut self, continuity: Continuity) {
        self.continuity = continuity;
        self.continuity_changed = true;
        self.commit(Draft::default());
    }

    /// The stream stands elsewhere, and no entry says so.
    pub(crate) fn stand(&mut self, continuity: Continuity) {
        self.continuity = continuity;
        self.window.set_continuity(continuity);
    }

    /// An entry that says nothing: a consumer that is given a snapshot as batches needs one behind it that
    /// everybody has.
    pub fn note_nothing(&mut self) {
        self.commit(Draft::default());
    }

    fn push(
        &mut self,
        engine_sequence: Option<u64>,
        timestamp: f64,
        changes: Vec<Change>,
        transitions: Vec<Transition>,
    ) {
        self.note_doubt_of_device();
        let notes = Notes {
            trust: std::mem::take(&mut self.trust_changed).then(|| self.trust.clone()),
            continuity: std::mem::take(&mut self.continuity_changed).then_some(self.continuity),
            age: self.age,
            ..self.notes(self.state.digest())
        };
        self.push_noted(engine_sequence, timestamp, changes, notes, transitions);
    }

    /// What every entry says of the state after it.
    pub(super) fn notes(&mut self, digest: StateDigest) -> Notes {
        Notes {
            digest,
            untranslatable: self.untranslatable(),
            known_from: self.known_from(),
            resumption: self.sides.take_news(),
            marks: self.take_marks(),
            ..Notes::default()
        }
    }

    pub(super) fn push_noted(
        &mut self,
        engine_sequence: Option<u64>,
        timestamp: f64,
        changes: Vec<Change>,
        notes: Notes,
        mut transitions: Vec<Transition>,
    ) {
        if engine_sequence.is_some() {
            self.last_timestamp = Some(timestamp);
        }
        let mut changes = if self.options.transitions_only { Vec::new() } else { changes };
        if !self.keeps_tokens() {
            changes.iter_mut().for_each(Change::drop_tokens);
            transitions.iter_mut().for_each(Transition::drop_tokens);
        }
        fit(&mut changes);
        fit(&mut transitions);
        for transition in &mut transitions {
            match transition {
                Transition::Stored { blocks, .. } => fit(blocks),
                Transition::Removed { hashes, .. } => fit(hashes),
                Transition::Cleared => {}
            }
        }
        let batch = engine_sequence.map(|sequence| (sequence, self.engine_digest));
        let entry = self.window.push(batch, timestamp, changes, notes, transitions);
        if let Some(fresh) = &mut self.fresh {
            fresh.push(entry);
        }
        self.state.compact();
    }
}
