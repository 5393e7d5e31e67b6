//! What of the order survives a restart of kvplane.
//!
//! A restart is a disconnect that the engine knows nothing of: whatever was heard over the connection and not
//! placed is void in either case, and questions under way are. What is left is which batch was last, and what
//! was concluded before it.

use std::time::Duration;

use super::hold::Recent;
use super::{Last, Options, Phase, Sequencer};
use crate::clock::Now;
use crate::persist::persist;

/// Everything that outlives a connection, but for the digests of the last batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not one state in disguise")]
pub(crate) struct Order {
    pub(crate) last: Option<Last>,
    pub(crate) fresh: bool,
    pub(crate) start_reported: bool,
    any_first: bool,
    interleaved: bool,
    /// The replay address is another publisher's.
    is_foreign: bool,
    is_deaf: bool,
    contradictions: u32,
    hole_after: Option<u64>,
    /// When the engine's process started, as it said in this epoch.
    started: Option<u64>,
}

persist!(Order {
    last,
    fresh,
    start_reported,
    any_first,
    interleaved,
    is_foreign,
    is_deaf,
    contradictions,
    hole_after,
    started,
});

impl Order {
    /// Of a stream that has heard nothing.
    pub(crate) const NEW: Self = Self {
        last: None,
        fresh: true,
        start_reported: false,
        any_first: false,
        interleaved: false,
        is_foreign: false,
        is_deaf: false,
        contradictions: 0,
        hole_after: None,
        started: None,
    };

    /// Another epoch begins.
    pub(crate) fn begin_epoch(&mut self) {
        *self = Self { last: None, fresh: true, start_reported: false, ..*self };
    }

    /// A batch was placed, or given up.
    pub(crate) fn place(&mut self, sequence: u64, digest: u128) {
        self.last = Some(Last { sequence, digest: Some(digest) });
        self.fresh = false;
    }
}

/// What a stream has heard, for one that goes on after it.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) order: Order,
    pub(crate) recent: Recent,
    /// It has been connected, ...
    pub(crate) reached: bool,
    /// ... and was out of reach for too long.
    pub(crate) down: bool,
}

impl Sequencer {
    /// What is to be remembered now.
    pub(crate) fn order(&self) -> Order {
        Order {
            last: self.last,
            fresh: self.fresh,
            start_reported: self.start_reported,
            any_first: self.any_first,
            interleaved: self.interleaved,
            is_foreign: self.counters.replays_foreign > 0 && !self.options.replay,
            is_deaf: self.replay_is_deaf,
            contradictions: self.contradictions,
            hole_after: self.hole_after,
            started: self.hint.baseline,
        }
    }

    /// A stream that goes on after another one, as if its connection had just ended.
    pub(crate) fn after(options: Options, seen: Seen, now: Now) -> Self {
        let Seen { order, recent, reached, down } = seen;
        let mut sequencer = Self::new(options);
        sequencer.last = order.last;
        sequencer.fresh = order.fresh;
        sequencer.start_reported = order.start_reported;
        sequencer.any_first = order.any_first;
        sequencer.interleaved = order.interleaved;
        sequencer.replay_is_deaf = order.is_deaf;
        sequencer.contradictions = order.contradictions;
        sequencer.hole_after = order.hole_after;
        sequencer.hint.baseline = order.started;
        sequencer.recent = recent;
        sequencer.down = down;
        sequencer.last_proof = Duration::ZERO;
        if order.is_foreign {
            sequencer.options.replay = false;
            sequencer.counters.replays_foreign = 1;
        }
        if reached {
            sequencer.phase = Phase::Recovering;
            sequencer.unresolved_since = Some(now.mono);
        }
        sequencer.adopted = true;
        sequencer.void_connection();
        sequencer
    }
}
