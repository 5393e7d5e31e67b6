//! Inputs from another plane that records the stream.

use std::time::Duration;

use kvplane_core::{Continuity, Cursor, Epoch, is_caught_up};
use kvplane_wire::Dialect;

use super::follower::Follower;
use super::{Happening, Recorder};
use crate::clock::Now;
use crate::mirror::{Mirror, MirrorEntry, MirroredState, Misfit};
use crate::options::JournalOptions;
use crate::sequencer::EpochCause;

impl Recorder {
    /// A recorder of a stream that another plane records. Out of its reach for longer than `down_after` is
    /// `down`.
    pub fn of_mirror(down_after: Duration, keep: JournalOptions, rank: u32, now: Now) -> Self {
        let mirror = Mirror::new(down_after, now);
        let mut recorder =
            Self::of(Follower::Mirrored(Box::new(mirror)), Dialect::default(), keep, rank, now);
        recorder.ledger.void(now);
        recorder
    }

    /// Whether another plane records the stream.
    pub fn is_mirror(&self) -> bool {
        matches!(self.follower, Follower::Mirrored(_))
    }

    /// Whether another plane records it, and all that it had when it was asked is here.
    pub fn is_current(&self) -> bool {
        matches!(&self.follower, Follower::Mirrored(mirror) if mirror.is_current())
    }

    /// Whether it is current, and credited here if it is there: see [`is_caught_up`].
    pub fn is_caught_up(&self) -> bool {
        let Follower::Mirrored(mirror) = &self.follower else { return false };
        let there = mirror.continuity_there();
        there.is_some_and(|there| is_caught_up(mirror.is_current(), there, self.continuity()))
    }

    /// Where the other plane goes on; `None`: with a snapshot.
    pub fn resume(&self) -> Option<Cursor> {
        Some(self.ledger.cursor()).filter(|cursor| cursor.epoch != Epoch::UNKNOWN)
    }

    /// The other plane answers, and is at `at`: until that is reached here, the stream is `recovering`.
    pub fn reached(&mut self, now: Now, at: Cursor) {
        let ours = self.ledger.cursor();
        self.mirror(now, |mirror| mirror.reached(at, ours));
    }

    /// The other plane is out of reach.
    pub fn lost(&mut self, now: Now) {
        self.mirror(now, |mirror| mirror.lost(now));
    }

    /// What is known is void: the other plane is in another life, or says what does not fit.
    pub fn void(&mut self, now: Now, misfit: Option<Misfit>) {
        self.happenings.extend(misfit.map(Happening::Void));
        self.ledger.void(now);
        self.mirror(now, |mirror| mirror.void(misfit.is_some()));
    }

    /// A whole state came.
    pub fn load(&mut self, now: Now, state: MirroredState) {
        let continuity = state.end.continuity;
        self.ledger.load(state);
        let (epoch, cursor) = (self.ledger.epoch(), self.ledger.cursor());
        let mut another_life = false;
        self.mirror(now, |mirror| {
            another_life = mirror.loaded(continuity, epoch);
            mirror.moved(cursor);
        });
        if another_life {
            self.happenings.push(Happening::Epoch(epoch, EpochCause::Upstream));
        }
    }

    /// The next entry came. After an error everything is void.
    pub fn mirrored(&mut self, now: Now, entry: MirrorEntry) -> Result<(), Misfit> {
        let continuity = entry.continuity;
        if let Err(misfit) = self.ledger.apply_mirrored(entry) {
            self.void(now, Some(misfit));
            return Err(misfit);
        }
        let cursor = self.ledger.cursor();
        self.mirror(now, |mirror| {
            if let Some(continuity) = continuity {
                mirror.reported(continuity);
            }
            mirror.moved(cursor);
        });
        Ok(())
    }

    /// The other plane says where the stream stands, without an entry.
    pub fn mirror_continuity(&mut self, now: Now, continuity: Continuity) {
        self.mirror(now, |mirror| mirror.reported(continuity));
    }

    fn mirror(&mut self, now: Now, input: impl FnOnce(&mut Mirror)) {
        if let Follower::Mirrored(mirror) = &mut self.follower {
            input(mirror);
            self.settle(now);
        } else {
            self.misdirect("mirrored");
        }
    }
}
