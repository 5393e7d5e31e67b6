//! Whether the engine was there a moment ago.
//!
//! A connection that carries nothing looks the same whether the engine is idle or its host is gone. The
//! driver knows more (pongs, keepalives) and says so with [`Sequencer::silent`] and [`Sequencer::proven`];
//! questions to the replay socket that stay unanswered say the rest. While there is doubt the stream is
//! `recovering`: frames go on being placed, since they may well arrive in order on the same connection, but
//! nothing is credited.

use super::recovery::Request;
use super::{Phase, Sequencer};
use crate::clock::Now;

/// Why a stream that follows is not `live`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doubt {
    /// Nothing proved within the limit that the engine is there.
    Silent,
    /// Two questions in a row were not answered.
    Unanswered,
    /// The engine is there again, and was asked for what it sent last.
    Asked,
}

/// The longest pause between two questions that stay unanswered, in retry pauses.
const LONGEST_PAUSE: u32 = 10;

impl Sequencer {
    /// Nothing was proven within the limit. The stream is `recovering` until something is; the connection
    /// stays as it is.
    pub fn silent(&mut self, now: Now) {
        if !self.connected || self.doubt == Some(Doubt::Silent) {
            return;
        }
        self.doubt_that(now, Doubt::Silent);
        if self.phase == Phase::Live && self.options.replay && self.request.is_none() {
            // The answer would be the proof.
            self.ask_replay(now, true);
        }
    }

    /// The engine was proven to be there. After a silence the replay socket, if there is one, is asked for
    /// the last batch before the stream is `live` again: what was sent last may have been lost.
    pub fn proven(&mut self, now: Now) {
        self.last_proof = now.mono;
        self.quiet.proven();
        match self.doubt {
            None | Some(Doubt::Asked) => {}
            Some(_) if self.phase == Phase::Live && self.options.replay => {
                self.doubt = Some(Doubt::Asked);
                self.ask_replay(now, true);
            }
            Some(_) => self.end_doubt(),
        }
    }

    /// [`Self::proven`] where nothing is in doubt: true then. Else nothing is done.
    pub fn proven_quietly(&mut self, now: Now) -> bool {
        let is_quiet = self.doubt.is_none();
        if is_quiet {
            self.last_proof = now.mono;
            self.quiet.proven();
        }
        is_quiet
    }

    /// A question that was asked while following was not answered. That is evidence: it is asked again at
    /// once, and without an answer to that the stream is not `live`, unless the engine was heard meanwhile.
    pub(super) fn probe_failed(&mut self, now: Now, request: &Request) {
        self.failed_probes = self.failed_probes.saturating_add(1);
        let there = self.doubt == Some(Doubt::Asked) || self.last_proof > request.asked();
        if there && self.failed_probes > 1 {
            // Only its replay socket is dead: that says nothing of the engine, now and the next time.
            self.replay_is_deaf = true;
        }
        if self.replay_is_deaf {
            if self.doubt != Some(Doubt::Silent) {
                self.end_doubt();
            }
            self.quiet.postpone(now.mono, self.options.quiet_every);
        } else if self.failed_probes == 1 || self.doubt == Some(Doubt::Asked) {
            self.ask_replay(now, true);
        } else {
            if self.doubt.is_none() {
                self.doubt_that(now, Doubt::Unanswered);
            }
            let pause = self.options.retry_pause * self.failed_probes.min(LONGEST_PAUSE);
            self.quiet.postpone(now.mono, pause);
        }
    }

    /// A batch came in its turn: the engine is there, although its replay socket does not answer.
    pub(super) fn heard_in_order(&mut self, now: Now) {
        self.last_proof = now.mono;
        if self.doubt == Some(Doubt::Unanswered) {
            self.end_doubt();
        }
    }

    /// The replay socket answered in full: nothing is in doubt.
    pub(super) fn answered(&mut self, now: Now) {
        self.last_proof = now.mono;
        self.failed_probes = 0;
        self.replay_is_deaf = false;
        self.end_doubt();
    }

    fn doubt_that(&mut self, now: Now, doubt: Doubt) {
        if self.doubt.replace(doubt).is_none() {
            self.counters.silences += 1;
            self.doubt_since = Some(now.mono);
        }
    }

    pub(super) fn end_doubt(&mut self) {
        self.doubt = None;
        self.doubt_since = None;
        self.down &= self.unresolved_since.is_some();
    }
}
