//! How recently the engine of a stream was proven to be there.
//!
//! A path that falls silent (link down, host gone, no RST) looks like an idle engine. So a source keeps
//! asking (ZMTP PING, HTTP/2 PING, a drain, a question to another plane) and says for which moment it has
//! proof: everything that the engine had published by then has been fed to the recorder. A stream whose proof
//! is older than `max_silence` is *stale*: it is `recovering`, and nothing of it is credited.

use std::time::Duration;

use super::Recorder;
use crate::clock::Now;

/// The proof that a source has, and how old it may be.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Liveness {
    /// `None`: the source cannot fall silent, as the engine's own process.
    max_silence: Option<Duration>,
    /// On the monotonic clock.
    proven_at: Option<Duration>,
    stale: bool,
}

/// What a look at the clock changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    FellSilent,
    CameBack,
}

impl Liveness {
    pub(super) fn age(&self, now: Duration) -> Option<Duration> {
        match self.max_silence {
            None => Some(Duration::ZERO),
            Some(_) => self.proven_at.map(|at| now.saturating_sub(at)),
        }
    }

    /// When the proof that there is will be too old. Never, if it is already: only another proof changes
    /// that.
    pub(super) fn stale_at(&self) -> Duration {
        let at = self.proven_at.filter(|_| !self.stale).zip(self.max_silence);
        at.map_or(Duration::MAX, |(at, max)| at.saturating_add(max))
    }

    /// Judges the age of the proof. Says when the verdict changed.
    pub(super) fn judge(&mut self, now: Duration) -> Option<Turn> {
        let max = self.max_silence?;
        let stale = self.age(now).is_none_or(|age| age > max);
        if stale == std::mem::replace(&mut self.stale, stale) {
            return None;
        }
        Some(if stale { Turn::FellSilent } else { Turn::CameBack })
    }
}

impl Recorder {
    /// From now on the stream is stale while the last proof is older than this. Until the first proof, it is.
    pub fn bound_silence(&mut self, max_silence: Duration) {
        self.liveness = Liveness { max_silence: Some(max_silence), proven_at: None, stale: true };
    }

    /// The engine was there at `at` (monotonic), and all that it had published by then has been fed.
    pub fn prove(&mut self, now: Now, at: Duration) {
        self.liveness.proven_at = self.liveness.proven_at.max(Some(at.min(now.mono)));
        if !self.liveness.stale {
            self.follower.proven(now);
        }
        self.settle(now);
    }

    /// [`Self::prove`] where nothing follows from it, which is nearly always: true if that was so, and
    /// nothing else has changed. Else nothing has changed at all.
    pub fn prove_quietly(&mut self, now: Now, at: Duration) -> bool {
        let is_quiet = !self.liveness.stale && self.follower.proven_quietly(now);
        if is_quiet {
            self.liveness.proven_at = self.liveness.proven_at.max(Some(at.min(now.mono)));
        }
        is_quiet
    }

    /// The moment of the last proof, on the monotonic clock.
    pub fn proven_at(&self) -> Option<Duration> {
        self.liveness.proven_at
    }

    /// How old the last proof is; `None` before the first. Zero where the source cannot fall silent.
    pub fn age(&self, now: Now) -> Option<Duration> {
        self.liveness.age(now.mono)
    }

    /// Whether the last proof is older than the stream's `max_silence`.
    pub fn is_stale(&self) -> bool {
        self.liveness.stale
    }
}
