//! The way to the other plane, and where the stream stands because of it.

use std::time::Duration;

use kvplane_core::{Continuity, Cursor, Epoch};

use crate::clock::Now;
use crate::sequencer::Counters;
use crate::silence::Silence;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    /// Nobody answers, since then.
    Lost { since: Duration, down: bool },
    /// Somebody does, and what we have is older than this.
    Behind(Cursor),
    /// We have all that there was when it was asked, and receive what follows.
    Up,
}

/// Where a stream of another plane stands.
#[derive(Debug)]
pub(crate) struct Mirror {
    down_after: Duration,
    link: Link,
    reached_before: bool,
    /// Where the other plane says that it stands; `None` while nothing of its state is here.
    reported: Option<Continuity>,
    /// The last life that a state was of.
    life: Option<Epoch>,
    silence: Silence,
    counters: Counters,
}

impl Mirror {
    pub(crate) fn new(down_after: Duration, now: Now) -> Self {
        Self {
            down_after,
            link: Link::Lost { since: now.mono, down: false },
            reached_before: false,
            reported: None,
            life: None,
            silence: Silence::default(),
            counters: Counters::default(),
        }
    }

    pub(crate) fn continuity(&self) -> Continuity {
        match (self.link, self.reported) {
            (Link::Lost { down: true, .. }, _) | (_, Some(Continuity::Down)) => Continuity::Down,
            (Link::Up, Some(reported)) => self.silence.limit(reported),
            (Link::Lost { .. }, _) if !self.reached_before => Continuity::Connecting,
            _ => Continuity::Recovering,
        }
    }

    /// Where the other plane says that it stands.
    pub(crate) fn continuity_there(&self) -> Option<Continuity> {
        self.reported
    }

    /// All that the other plane had when it was asked is here, and what follows is being received.
    pub(crate) fn is_current(&self) -> bool {
        self.link == Link::Up && self.reported.is_some()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    /// The other plane answers; it is at `at`, we are at `ours`.
    pub(crate) fn reached(&mut self, at: Cursor, ours: Cursor) {
        self.reached_before = true;
        self.silence.end();
        self.link = Link::Behind(at);
        self.moved(ours);
    }

    /// It does not any more.
    pub(crate) fn lost(&mut self, now: Now) {
        if !matches!(self.link, Link::Lost { .. }) {
            self.counters.disconnects += 1;
            self.link = Link::Lost { since: now.mono, down: false };
        }
        self.silence.end();
    }

    /// Nothing was proven within the limit: whatever the other plane said of the stream may no longer be so.
    pub(crate) fn silent(&mut self, now: Now) {
        self.silence.begin(now, &mut self.counters);
    }

    /// The other plane was proven to be there: what it says holds.
    pub(crate) fn proven(&mut self, _now: Now) {
        self.silence.end();
    }

    /// Our copy has come to be here.
    pub(crate) fn moved(&mut self, ours: Cursor) {
        if let Link::Behind(target) = self.link
            // A later life makes up for whatever was in an earlier one.
            && (ours.epoch > target.epoch || (ours.epoch == target.epoch && ours.sequence >= target.sequence))
        {
            self.link = Link::Up;
        }
    }

    /// The other plane says where the stream stands.
    pub(crate) fn reported(&mut self, continuity: Continuity) {
        self.reported = Some(continuity);
    }

    /// Nothing of its state is here any more.
    pub(crate) fn void(&mut self, misfit: bool) {
        self.reported = None;
        self.counters.refused += u64::from(misfit);
    }

    /// A whole state came, of this life. True if it is another than that of the state before.
    pub(crate) fn loaded(&mut self, continuity: Continuity, life: Epoch) -> bool {
        self.reported = Some(continuity);
        if life == Epoch::UNKNOWN {
            return false; // the other plane knows nothing either
        }
        let Some(before) = self.life.replace(life) else { return false };
        let another = before != life;
        if another {
            self.counters.restarts += 1;
        } else {
            self.counters.gaps += 1;
        }
        another
    }

    pub(crate) fn tick(&mut self, now: Now) {
        self.silence.tick(now, self.down_after);
        if let Link::Lost { since, down } = &mut self.link {
            *down = now.mono.saturating_sub(*since) >= self.down_after;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Now {
        Now { mono: Duration::from_secs(seconds), unix_ms: seconds * 1_000 }
    }

    #[test]
    fn a_plane_of_which_nothing_is_proven_is_not_live() {
        let cursor = Cursor { epoch: Epoch::from_raw(1), sequence: 1 };
        let mut mirror = Mirror::new(Duration::from_secs(10), at(0));
        mirror.reached(cursor, cursor);
        mirror.reported(Continuity::Live);
        assert_eq!(mirror.continuity(), Continuity::Live);
        mirror.silent(at(2));
        assert_eq!(mirror.continuity(), Continuity::Recovering);
        // What was sent before the silence, and is read in it, proves nothing.
        mirror.reported(Continuity::Live);
        mirror.moved(cursor);
        assert_eq!(mirror.continuity(), Continuity::Recovering);
        mirror.tick(at(12));
        assert_eq!(mirror.continuity(), Continuity::Down);
        mirror.proven(at(13));
        assert_eq!((mirror.continuity(), mirror.counters().silences), (Continuity::Live, 1));
        // Nothing better than what the other plane says.
        mirror.reported(Continuity::Recovering);
        mirror.silent(at(20));
        mirror.proven(at(21));
        assert_eq!(mirror.continuity(), Continuity::Recovering);
        mirror.reported(Continuity::Live);
        mirror.silent(at(30));
        mirror.reached(cursor, cursor);
        assert_eq!(mirror.continuity(), Continuity::Live, "an answer is a proof");
    }
}
