//! Engines that are followed here: what they hold is reported as it changes, and reports of others on them do
//! not count.

use parking_lot::RwLockWriteGuard;

use super::cells::{Cell, Seen};
use super::known::Known;
use super::{AT_ONCE, Book, Whose};
use crate::RESERVED_TENANT;
use crate::prefix::Note;

impl Book {
    /// What changed for an engine that is heard here. From the first call on it speaks for itself: reports
    /// about it are not taken.
    pub fn hear(&self, whose: Whose<'_>, scheme: &str, notes: &[Note]) {
        if whose.tenant == RESERVED_TENANT {
            return;
        }
        let mut known = self.known.write();
        self.hear_first(&mut known, whose);
        for notes in notes.chunks(AT_ONCE) {
            let mut replica = None;
            for note in notes {
                // It has another number once it held nothing, or once somebody forgot it in between.
                let Some(number) = replica.or_else(|| known.admit(whose, None).ok()) else { return };
                known.replicas[number].heard = true;
                self.note(&mut known, whose, number, scheme, note);
                replica = (*note != Note::Nothing).then_some(number);
            }
            RwLockWriteGuard::bump(&mut known);
        }
    }

    /// What others reported of an engine is void once it is heard. Returns its number.
    pub(super) fn hear_first(
        &self,
        known: &mut RwLockWriteGuard<'_, Known>,
        whose: Whose<'_>,
    ) -> Option<u32> {
        loop {
            let replica = known.admit(whose, None).ok()?;
            let of = &mut known.replicas[replica];
            if std::mem::replace(&mut of.heard, true) {
                return Some(replica);
            }
            of.last_event_us = 0;
            of.report = None;
            if of.places.is_empty() {
                return Some(replica);
            }
            // Others get the lock in between, and may forget it again.
            self.start_over(known, whose, replica);
        }
    }

    /// Nothing of a heard engine is left but its statistics.
    fn start_over(&self, known: &mut RwLockWriteGuard<'_, Known>, whose: Whose<'_>, replica: u32) {
        let report = known.replicas[replica].report;
        let ghost = self.detach(known, whose, replica);
        if let Ok(again) = known.admit(whose, None) {
            known.replicas[again].heard = true;
            known.replicas[again].report = report;
        }
        Self::drain(known, &ghost);
    }

    fn note(
        &self,
        known: &mut RwLockWriteGuard<'_, Known>,
        whose: Whose<'_>,
        replica: u32,
        scheme: &str,
        note: &Note,
    ) {
        let model = known.replicas[replica].model;
        match note {
            Note::Held(prefix) => {
                let Ok(place) = known.place(model, scheme, &prefix.adapter, false, None) else { return };
                let cell = Cell { seen: Seen::heard(prefix.tier), tokens: prefix.tokens };
                if known.put(replica, place, prefix.fingerprint, cell) {
                    known.tell(self.listener(), replica, place, prefix.fingerprint, true);
                }
            }
            Note::Gone { fingerprint, adapter } => {
                if let Some(place) = known.find_place(model, scheme, adapter, false) {
                    self.evict_from(known, replica, place, *fingerprint);
                }
            }
            Note::Nothing => self.start_over(known, whose, replica),
        }
    }
}
