//! From one rank's journal into its engine's replica.

use std::sync::Arc;

use kvplane_core::{Continuity, Cursor, Resumption, StreamId, Tier, TrustState};
use kvplane_ingest::{RankReader, StreamStatus};
use kvplane_stream::{Entry, Snapshot, Transition};
use parking_lot::{Mutex, MutexGuard};
use tracing::info;

use super::Rules;
use super::describe::Described;
use super::ledger::{Ledger, Shift};
use super::progress::{Progress, Reached};
use super::replica::Replica;
use super::share::Share;
use super::withheld::{Tally, WithheldCounts};
use crate::sink::Withheld;

/// Prefixes that are reported while the replica's lock is held; the engine's other ranks wait for it.
const STEP: usize = 1_024;

/// What the feeds of an engine's ranks have in common.
#[derive(Clone)]
pub(super) struct Common {
    pub(super) rules: Arc<Rules>,
    pub(super) replica: Arc<Mutex<Replica>>,
    pub(super) counts: Arc<WithheldCounts>,
    pub(super) progress: Progress,
}

/// Reads one rank.
pub(super) struct RankFeed {
    common: Common,
    stream: StreamId,
    ledger: Ledger,
    /// As last heard.
    trust: TrustState,
    resumption: Arc<Resumption>,
    share: Result<Share, Withheld>,
}

impl RankFeed {
    pub(super) fn new(common: Common, stream: StreamId) -> Self {
        Self {
            ledger: common.rules.ledger(Share::All),
            common,
            stream,
            trust: TrustState::default(),
            resumption: Arc::default(),
            share: Ok(Share::All),
        }
    }

    /// What is reported of the stream from now on.
    fn judge(&mut self) -> Result<Share, Withheld> {
        let share = Share::of(&self.trust, &self.resumption);
        if share != self.share {
            let stream = &self.stream;
            match share {
                Ok(share) => info!(%stream, ?share, "reporting what the engine holds as metadata"),
                Err(reason) => {
                    let reason = reason.as_str();
                    info!(%stream, reason, "not reporting what the engine holds");
                }
            }
            self.share = share;
        }
        share
    }

    /// Another ledger takes the place of this one. What both hold is not reported again.
    fn replace(&mut self, new: Ledger) {
        let old = std::mem::replace(&mut self.ledger, new);
        if self.ledger.reported() == 0 && self.common.replica.lock().empty(&old) {
            return;
        }
        // First what comes: a prefix that stays has a share at every moment.
        self.shift_all(self.ledger.prefixes());
        self.shift_all(old.prefixes().map(|shift| Shift { was: shift.now, now: None, ..shift }));
    }

    fn shift_all<'l>(&self, shifts: impl Iterator<Item = Shift<'l>>) {
        let mut shifts = shifts.peekable();
        while shifts.peek().is_some() {
            let mut replica = self.common.replica.lock();
            shifts.by_ref().take(STEP).for_each(|shift| replica.shift(&shift));
            replica.flush();
            MutexGuard::unlock_fair(replica);
        }
    }

    fn apply(&mut self, transition: &Transition) {
        if matches!(transition, Transition::Cleared) {
            self.replace(self.common.rules.ledger(self.ledger.share()));
            return;
        }
        let mut replica = self.common.replica.lock();
        change(&mut self.ledger, transition, &self.common.rules, &mut |shift| replica.shift(&shift));
        replica.flush();
    }
}

impl RankReader for RankFeed {
    fn wants(&self, status: &StreamStatus) -> bool {
        status.continuity == Continuity::Live
    }

    fn load(&mut self, snapshot: &Snapshot) {
        (self.trust, self.resumption) = (snapshot.trust.clone(), snapshot.resumption.clone());
        let mut new = self.common.rules.ledger(Share::All);
        match self.judge() {
            Ok(share) => {
                new = self.common.rules.ledger(share);
                for transition in snapshot.as_transitions() {
                    change(&mut new, &transition, &self.common.rules, &mut |_| ());
                }
                self.common.counts.add(&new.take_withheld());
            }
            Err(reason) => {
                let held = snapshot.image.blocks.iter().filter(|block| !block.holdings.is_empty());
                let mut tally = Tally::default();
                tally.add(reason, held.count());
                self.common.counts.add(&tally);
            }
        }
        self.replace(new);
        self.common.progress.set(&self.stream, Reached::Reported(snapshot.cursor));
    }

    fn follow(&mut self, entry: &Entry) -> bool {
        let before = self.share;
        if let Some(trust) = &entry.trust {
            self.trust = trust.clone();
        }
        if let Some(resumption) = &entry.resumption {
            self.resumption = resumption.clone();
        }
        if (entry.trust.is_some() || entry.resumption.is_some()) && self.judge() != before {
            if self.share.is_err() {
                self.forget();
            }
            return false;
        }
        match self.share {
            Ok(_) => {
                entry.transitions.iter().for_each(|transition| self.apply(transition));
                self.common.counts.add(&self.ledger.take_withheld());
            }
            Err(reason) => {
                let mut tally = Tally::default();
                tally.add(reason, entry.transitions.iter().map(stored).sum());
                self.common.counts.add(&tally);
            }
        }
        let cursor = Cursor { epoch: entry.epoch, sequence: entry.sequence };
        self.common.progress.set(&self.stream, Reached::Reported(cursor));
        entry.continuity != Some(Continuity::Down)
    }

    fn forget(&mut self) {
        self.replace(self.common.rules.ledger(Share::All));
        self.common.progress.set(&self.stream, Reached::Nothing);
    }
}

impl Drop for RankFeed {
    fn drop(&mut self) {
        self.common.progress.remove(&self.stream);
    }
}

fn change(ledger: &mut Ledger, transition: &Transition, rules: &Rules, tell: &mut impl FnMut(Shift<'_>)) {
    match transition {
        Transition::Stored { tier, parent, blocks } => {
            let blocks = blocks.iter().map(|block| Described::new(block, &rules.adapter_names));
            ledger.store(*tier, *parent, blocks, tell);
        }
        Transition::Removed { tier, hashes } => ledger.remove(*tier, hashes, tell),
        // The state of a snapshot has none, and subscribers of a stream start over with it.
        Transition::Cleared => {}
    }
}

/// Blocks that are new on the device or behind it.
fn stored(transition: &Transition) -> usize {
    match transition {
        Transition::Stored { tier, blocks, .. } if *tier != Tier::Unknown => blocks.len(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
