//! Flushes of an engine's cache, and what the stream shows of them.
//!
//! ```text
//!            begin            accepted                sign: Clear, Removals
//!   (nothing) ──> asked ────────────────> fenced ──────────────────────────> proven
//!                   │ refused               │ restart ──> restarted
//!                   v                       │ expired ──> unproven, or lost
//!               (nothing)
//! ```
//!
//! A flush is watched before the engine is asked: the stream may show it before the engine's answer is read.
//! From the engine's acceptance on the stream is *fenced* until it shows the flush.

use kvplane_core::Tier;

use crate::persist::{persist, persist_enum};
use crate::sequencer::EpochCause;

/// Names a flush that is watched on one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlushId(u64);

persist!(FlushId(_));

/// Why a flush cannot be watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FlushError {
    /// Another plane records the stream: its trust is that plane's word.
    #[error("another kvplane records the stream: flush the engine there")]
    Mirrored,
    /// The stream was taken off the plane.
    #[error("the stream was removed")]
    Removed,
}

/// What showed that a cache was flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushSign {
    /// The engine announced that it cleared the cache.
    Clear,
    /// The engine removed everything that its device was known to hold.
    Removals,
    /// There was nothing to flush: everything is known of the stream, and it holds nothing.
    NothingHeld,
}

persist_enum!(FlushSign { Clear = 0, Removals = 1, NothingHeld = 2 });

impl FlushSign {
    /// The name used in JSON and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Clear => "clear",
            Self::Removals => "removals",
            Self::NothingHeld => "nothing_held",
        }
    }
}

/// How far a flush reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlushReach {
    /// Tiers that held nothing at that moment.
    pub cleared: Vec<Tier>,
    /// Tiers that may still hold blocks, each with their number; `None` where it is not known.
    pub remaining: Vec<(Tier, Option<u64>)>,
}

persist!(FlushReach { cleared, remaining });

impl FlushReach {
    pub(crate) fn clear(&mut self, tier: Tier) {
        if !self.cleared.contains(&tier) && self.remaining.iter().all(|(other, _)| *other != tier) {
            self.cleared.push(tier);
        }
    }

    pub(crate) fn remain(&mut self, tier: Tier, blocks: Option<u64>) {
        self.cleared.retain(|other| *other != tier);
        if self.remaining.iter().all(|(other, _)| *other != tier) {
            self.remaining.push((tier, blocks));
        }
    }
}

/// How the watch over a flush ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlushOutcome {
    /// The stream showed the flush.
    Proven {
        /// By what.
        sign: FlushSign,
        /// How far it reached.
        reach: FlushReach,
    },
    /// The engine restarted after it had accepted the flush. The flush itself is not proven, but nothing of
    /// what the memory of the old process held is left: not on the device, not on the host. What lies on
    /// disks or elsewhere may be found again.
    Restarted {
        /// What the restart left.
        reach: FlushReach,
    },
    /// The stream did not show it in time. Residency was dropped.
    Unproven,
    /// The same, and batches of the stream were lost meanwhile, or the stream was removed: what would have
    /// shown it may be among them.
    Lost,
}

persist_enum!(FlushOutcome {
    Proven { sign, reach } = 0,
    Restarted { reach } = 1,
    Unproven = 2,
    Lost = 3,
});

impl FlushOutcome {
    /// The name used in JSON and logs.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Proven { .. } => "proven",
            Self::Restarted { .. } => "restarted",
            Self::Unproven => "unproven",
            Self::Lost => "lost",
        }
    }
}

#[derive(Debug, Clone)]
enum Stage {
    /// The engine was asked, and has not answered.
    Asked,
    /// The engine accepted. The restart of a stream that was `live` then comes after the flush.
    Accepted { live: bool },
    /// It is over, and its watcher has not been notified yet.
    Ended(FlushOutcome),
}

persist_enum!(Stage { Asked = 0, Accepted { live } = 1, Ended(outcome) = 2 });

#[derive(Debug)]
struct Flush {
    id: FlushId,
    stage: Stage,
    /// Batches were lost since it began.
    lost: bool,
}

persist!(Flush { id, stage, lost });

impl Flush {
    fn is_open(&self) -> bool {
        !matches!(self.stage, Stage::Ended(_))
    }
}

/// The flushes of one stream that somebody watches.
///
/// Every flush is announced by a clear of its own, and nothing says which clear is whose. So flushes at the
/// same time are proven together, by as many clears as there are flushes that may have been done: also those
/// that are not answered yet, and those that nobody waits for any more.
#[derive(Debug, Default)]
pub(crate) struct Fence {
    last_id: u64,
    flushes: Vec<Flush>,
    /// Clears since the flushes that are open began, and that proved none yet.
    clears: usize,
    /// Flushes that ended without a sign while others are open: theirs may still come.
    owed: usize,
    /// What was seen last.
    seen: Option<(FlushSign, FlushReach)>,
}

persist!(Fence { last_id, flushes, clears, owed, seen });

impl Fence {
    pub(crate) fn begin(&mut self) -> FlushId {
        // A clear beyond the flushes that are open was somebody else's, and is older than this one.
        self.clears = self.clears.min(self.wanted());
        self.last_id += 1;
        let id = FlushId(self.last_id);
        self.flushes.push(Flush { id, stage: Stage::Asked, lost: false });
        id
    }

    /// Those that have not ended.
    pub(crate) fn open(&self) -> Vec<FlushId> {
        self.flushes.iter().filter(|flush| flush.is_open()).map(|flush| flush.id).collect()
    }

    /// Whether somebody waits for a sign.
    pub(crate) fn is_watched(&self) -> bool {
        self.flushes.iter().any(Flush::is_open)
    }

    /// Whether an engine accepted a flush that is not shown yet.
    pub(crate) fn is_up(&self) -> bool {
        self.flushes.iter().any(|flush| matches!(flush.stage, Stage::Accepted { .. }))
    }

    /// Whether the engine accepted this one, and the stream has not shown it yet.
    pub(crate) fn is_waiting(&self, id: FlushId) -> bool {
        self.flushes.iter().any(|flush| flush.id == id && matches!(flush.stage, Stage::Accepted { .. }))
    }

    /// The engine accepted a flush. Returns how many are proven by that.
    pub(crate) fn accept(&mut self, id: FlushId, live: bool) -> usize {
        let asked = |flush: &&mut Flush| flush.id == id && matches!(flush.stage, Stage::Asked);
        if let Some(flush) = self.flushes.iter_mut().find(asked) {
            flush.stage = Stage::Accepted { live };
        }
        self.prove()
    }

    /// Nobody watches a flush any more. If it is open, it was refused: returns how many are proven by there
    /// being one fewer to be shown.
    pub(crate) fn forget(&mut self, id: FlushId) -> usize {
        self.flushes.retain(|flush| flush.id != id);
        self.let_go();
        self.prove()
    }

    /// A flush is not waited for any longer, and no sign of it came. The outcome may depend on whether
    /// batches were lost.
    pub(crate) fn expire(&mut self, id: FlushId, outcome: impl FnOnce(bool) -> FlushOutcome) {
        if let Some(flush) = self.flushes.iter_mut().find(|flush| flush.id == id && flush.is_open()) {
            flush.stage = Stage::Ended(outcome(flush.lost));
            self.owed += 1;
        }
        self.let_go();
    }

    pub(crate) fn outcome(&self, id: FlushId) -> Option<&FlushOutcome> {
        self.flushes.iter().find(|flush| flush.id == id).and_then(|flush| match &flush.stage {
            Stage::Ended(outcome) => Some(outcome),
            _ => None,
        })
    }

    /// The stream shows flushes. Returns how many are proven.
    pub(crate) fn show(&mut self, signs: Signs) -> usize {
        if !self.is_watched() {
            return 0;
        }
        // Flushing an empty cache removes nothing: the removal of everything stands for all.
        self.clears = if signs.removed_all { self.wanted() } else { self.clears + signs.clears };
        let sign = if signs.clears > 0 { FlushSign::Clear } else { FlushSign::Removals };
        self.seen = Some((sign, signs.reach));
        self.prove()
    }

    /// Batches are lost, and perhaps signs with them.
    pub(crate) fn note_loss(&mut self) {
        self.flushes.iter_mut().for_each(|flush| flush.lost = true);
    }

    /// Another epoch of the publisher began. `reach` is what a restart leaves.
    pub(crate) fn begin_epoch(&mut self, cause: EpochCause, reach: &FlushReach) {
        if cause.proven() {
            // What the old epoch announced, or would have, shows nothing of the new one.
            (self.clears, self.owed) = (0, 0);
        } else {
            self.note_loss();
        }
        for flush in self.flushes.iter_mut().filter(|flush| flush.is_open()) {
            let outcome = match flush.stage {
                _ if cause == EpochCause::Removed => FlushOutcome::Lost,
                Stage::Accepted { live: true } if cause.proven() => {
                    FlushOutcome::Restarted { reach: reach.clone() }
                }
                // Perhaps it was the new life that did it.
                _ => continue,
            };
            flush.stage = Stage::Ended(outcome);
        }
    }

    /// How many clears there are to be.
    fn wanted(&self) -> usize {
        self.owed + self.flushes.iter().filter(|flush| flush.is_open()).count()
    }

    /// Nothing counts once nobody waits.
    fn let_go(&mut self) {
        if !self.is_watched() {
            (self.clears, self.owed) = (0, 0);
        }
    }

    fn prove(&mut self) -> usize {
        if self.clears < self.wanted() {
            return 0;
        }
        let Some((sign, reach)) = &self.seen else { return 0 };
        let mut proven = 0;
        for flush in self.flushes.iter_mut().filter(|flush| matches!(flush.stage, Stage::Accepted { .. })) {
            flush.stage = Stage::Ended(FlushOutcome::Proven { sign: *sign, reach: reach.clone() });
            proven += 1;
        }
        self.clears -= proven;
        self.let_go();
        proven
    }
}

/// What one batch shows of flushes.
#[derive(Debug, Default)]
pub(crate) struct Signs {
    /// Clears of the whole cache.
    pub(crate) clears: usize,
    /// All that the device held was removed.
    pub(crate) removed_all: bool,
    pub(crate) reach: FlushReach,
}

impl Signs {
    pub(crate) fn are_there(&self) -> bool {
        self.clears > 0 || self.removed_all
    }
}
