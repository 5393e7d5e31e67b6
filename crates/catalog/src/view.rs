//! What an answer says about a stream, readable without the stream's lock.
//!
//! A stream changes its view rarely and is asked for it with every question. So the view lies in a cell
//! beside the index: a few words under a version. The version is odd while the stream is between two views.
//! A question reads the version before and after the look-up; if it is the same even number, the blocks
//! that were found are those of the view.
//!
//! ```text
//! stream   even ──> odd ── index is changed ── view is written ──> even
//! asker      version, view ── look-up ── version again
//! ```

use std::sync::atomic::{AtomicU64, Ordering, fence};

use std::time::Duration;

use kvplane_core::{Continuity, Epoch, Reason, Trust, is_credited};

use crate::freshness::Freshness;

/// Where a stream stands, what its answers are worth, and which life they are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// The publisher's life.
    pub epoch: Epoch,
    /// Where the stream stands.
    pub continuity: Continuity,
    /// What an answer is worth.
    pub trust: Trust,
    /// Why it is not exact.
    pub reason: Option<Reason>,
}

impl View {
    /// Whether an answer may credit the stream.
    pub fn is_credited(&self, credit: &[Trust]) -> bool {
        is_credited(self.continuity, self.trust, self.reason, credit)
    }

    /// The view of a stream whose engine was last proven to be there so long ago.
    pub(crate) fn at_age(self, freshness: &Freshness, age: Option<Duration>) -> Self {
        Self { continuity: freshness.judge(self.continuity, age), ..self }
    }

    /// Why a stream with this view is not credited, in one word.
    pub(crate) fn refusal(&self) -> &'static str {
        match (self.continuity, self.reason) {
            (Continuity::Live, Some(reason)) => reason.as_str(),
            (Continuity::Live, None) => self.trust.as_str(),
            (elsewhere, _) => elsewhere.as_str(),
        }
    }

    /// All of it but the epoch, in 24 bits.
    pub(crate) fn standing(self) -> u64 {
        pack(self).1
    }

    /// The view of a stream that is between two others: nothing is credited until it is settled.
    fn unsettled(self) -> Self {
        Self { continuity: Continuity::Recovering, ..self }
    }
}

/// A view and the version that it was read at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) view: View,
    version: u64,
}

/// Holds a stream's view. One writer (the stream's feed), any number of readers, who never wait and write
/// nothing.
#[derive(Debug)]
pub(crate) struct ViewCell {
    version: AtomicU64,
    epoch: AtomicU64,
    standing: AtomicU64,
}

impl ViewCell {
    pub(crate) fn new(view: View) -> Self {
        let (epoch, standing) = pack(view);
        Self { version: AtomicU64::new(0), epoch: AtomicU64::new(epoch), standing: AtomicU64::new(standing) }
    }

    /// From here on nobody credits the stream, until [`Self::settle`]. Says whether it was settled.
    pub(crate) fn unsettle(&self) -> bool {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version | 1, Ordering::Relaxed);
        // A reader that sees anything that is done after this also sees the odd version.
        fence(Ordering::Release);
        version.is_multiple_of(2)
    }

    /// The index is as this view says.
    pub(crate) fn settle(&self, view: View) {
        let (epoch, standing) = pack(view);
        self.unsettle();
        self.epoch.store(epoch, Ordering::Relaxed);
        self.standing.store(standing, Ordering::Relaxed);
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Release);
    }

    /// The view now.
    pub(crate) fn read(&self) -> Seen {
        let version = self.version.load(Ordering::Acquire);
        let view = unpack(self.epoch.load(Ordering::Relaxed), self.standing.load(Ordering::Relaxed));
        let seen = Seen { view, version };
        if self.is_unchanged(&seen) {
            seen
        } else {
            // An odd version is never unchanged: what is said here is said without blocks.
            Seen { view: view.unsettled(), version: version | 1 }
        }
    }

    /// Whether the stream has been in the view that was seen all the time since.
    pub(crate) fn is_unchanged(&self, seen: &Seen) -> bool {
        // Whatever was read before this, of the view or of the index, was written under a version that is
        // seen here.
        fence(Ordering::Acquire);
        self.version.load(Ordering::Relaxed) == seen.version && seen.is_settled()
    }
}

impl Seen {
    /// Whether the stream was in a view, and not between two.
    pub(crate) fn is_settled(&self) -> bool {
        self.version.is_multiple_of(2)
    }

    /// The same stream, known to have moved on during the look-up.
    pub(crate) fn overtaken(self) -> Self {
        Self { view: self.view.unsettled(), version: self.version | 1 }
    }
}

/// Continuity, trust and reason as a byte each; no reason is 0.
fn pack(view: View) -> (u64, u64) {
    let continuity =
        Continuity::ALL.iter().position(|&standing| standing == view.continuity).unwrap_or(0) as u64;
    let trust = Trust::ALL.iter().position(|&trust| trust == view.trust).unwrap_or(0) as u64;
    let reason = view.reason.map_or(0, |reason| reason.index() as u64 + 1);
    (view.epoch.as_u64(), continuity | trust << 8 | reason << 16)
}

fn unpack(epoch: u64, standing: u64) -> View {
    let byte = |at: u32| (standing >> (8 * at)) as usize & 0xff;
    View {
        epoch: Epoch::from_raw(epoch),
        // Only what was packed is ever unpacked; should it not be, the answer is the one that promises least.
        continuity: Continuity::ALL.get(byte(0)).copied().unwrap_or(Continuity::Connecting),
        trust: Trust::ALL.get(byte(1)).copied().unwrap_or(Trust::Unsound),
        reason: byte(2).checked_sub(1).and_then(|at| Reason::ALL.get(at).copied()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_view_is_read_as_it_was_written() {
        let reasons = Reason::ALL.into_iter().map(Some).chain([None]);
        for (at, reason) in reasons.enumerate() {
            for continuity in Continuity::ALL {
                for trust in Trust::ALL {
                    let epoch = Epoch::from_raw(1_700_000_000_000 + at as u64);
                    let view = View { epoch, continuity, trust, reason };
                    let (epoch, standing) = pack(view);
                    assert_eq!(unpack(epoch, standing), view);
                }
            }
        }
    }

    #[test]
    fn what_is_being_flushed_is_credited_at_no_level() {
        let (epoch, continuity) = (Epoch::from_raw(7), Continuity::Live);
        let view = |reason: Reason| View { epoch, continuity, trust: reason.trust(), reason: Some(reason) };
        assert!(view(Reason::GapKept).is_credited(&Trust::ALL));
        assert!(!view(Reason::Flushing).is_credited(&Trust::ALL));
    }

    #[test]
    fn a_change_is_noticed_also_when_the_view_is_the_same_again() {
        let epoch = Epoch::from_raw(7);
        let view = View { epoch, continuity: Continuity::Live, trust: Trust::Exact, reason: None };
        let cell = ViewCell::new(view);
        let seen = cell.read();
        assert_eq!(seen.view, view);
        assert!(cell.is_unchanged(&seen));
        cell.unsettle();
        assert!(!cell.is_unchanged(&seen));
        let between = cell.read();
        assert_eq!(between.view.continuity, Continuity::Recovering);
        assert!(!cell.is_unchanged(&between), "nobody is credited between two views");
        cell.settle(view);
        assert!(!cell.is_unchanged(&seen));
        assert_eq!(cell.read().view, view);
    }
}
