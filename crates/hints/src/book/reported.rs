//! What replicas say of themselves, beside what they hold.

use super::census::{Refused, ReplicaReport, Stats, Whose};
use super::known::Known;
use super::{Book, RESERVED_TENANT};
use crate::observer::Happened;

impl Book {
    /// What a replica says of itself, as it was reported. Returns whether it was taken: not of a reserved
    /// tenant, nor of an engine that is heard here, see [`Self::hear_stats`].
    pub fn set_stats(&self, whose: Whose<'_>, stats: Stats, at_us: i64) -> Result<bool, Refused> {
        if whose.tenant == RESERVED_TENANT {
            return Ok(false);
        }
        let mut known = self.known.write();
        let replica = known.admit(whose, Some(&self.limits))?;
        if known.replicas[replica].heard {
            return Ok(false);
        }
        self.write_stats(&mut known, whose, replica, stats, at_us);
        Ok(true)
    }

    /// What an engine that is heard here says of itself. As with [`Self::hear`], from the first call on
    /// nobody else speaks for it.
    pub fn hear_stats(&self, whose: Whose<'_>, stats: Stats, at_us: i64) {
        if whose.tenant == RESERVED_TENANT {
            return;
        }
        let mut known = self.known.write();
        if let Some(replica) = self.hear_first(&mut known, whose) {
            self.write_stats(&mut known, whose, replica, stats, at_us);
        }
    }

    fn write_stats(&self, known: &mut Known, whose: Whose<'_>, replica: u32, stats: Stats, at_us: i64) {
        known.replicas[replica].report =
            Some(ReplicaReport { stats: stats.finite(), at_us, alive_us: at_us });
        if let Some(listener) = self.listener() {
            listener.happened(whose, Happened::Updated);
        }
    }

    /// A replica is alive, as it was reported: what it said of itself still holds. Returns `false` for an
    /// engine that is heard here: its life is its own to tell.
    pub fn alive(&self, whose: Whose<'_>, at_us: i64) -> bool {
        let mut known = self.known.write();
        let Some(replica) = known.find(whose) else { return true };
        let of = &mut known.replicas[replica];
        if of.heard {
            return false;
        }
        if let Some(report) = &mut of.report {
            report.alive_us = at_us;
        }
        if let Some(listener) = self.listener() {
            listener.happened(whose, Happened::Updated);
        }
        true
    }
}
