//! What can be made to go wrong, and the JSON for it.
//!
//! ```json
//! {"drop": 3}                                      next live frames are not sent; replay still has them
//! {"duplicate": 2}                                 next live frames are sent twice
//! {"delay_ms": 50, "count": 2}                     next live frames, and what follows them, come later
//! {"reorder": 1}                                   next live frames each come after their successor
//! {"garbage": 1} {"truncate": 1}                   next live payloads are noise, or cut; replay is right
//! {"lose": 1}                                      next sequences are used up and never sent or replayed
//! {"replay": "on|off|slow|endless|short|garbage|nonsense"}    how replay requests are answered
//! {"restart": {"first_sequence": 0, "same_content": false}}   a new life on the same ports
//! {"disconnect": true}                             the same life closes and reopens its sockets
//! {"operations": {"busy": true}}                   operations go wrong: see [`operate::conduct`](crate::operate::conduct)
//! ```
//!
//! Keys combine; `"rank": r` limits the frame and replay faults to one rank.

use serde::{Deserialize, Serialize};

use crate::operate::Conduct;
use crate::service::ServiceFault;

/// How replay requests are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplayMode {
    /// As an engine does.
    #[default]
    On,
    /// Not at all; the socket is there.
    Off,
    /// One batch every 100 ms.
    Slow,
    /// The first batch that was asked for every 100 ms, and never the end marker.
    Endless,
    /// The first half of what was asked for, rounded up, then the end marker.
    Short,
    /// Noise instead of payloads, under the right sequences.
    Garbage,
    /// Frames that are no reply.
    Nonsense,
}

/// A new life of the engine: empty pool, new start time, sequences from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Restart {
    /// Batches that the new life has published before anyone could connect; they are in its replay buffer.
    pub first_sequence: u64,
    /// Whether those come from the requests of the old life, so that their blocks have equal hashes.
    pub same_content: bool,
}

/// One thing that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The next live frames are not sent.
    Drop(u32),
    /// The next live frames are sent twice.
    Duplicate(u32),
    /// The next live frames come later.
    Delay {
        /// How much later.
        millis: u64,
        /// How many.
        count: u32,
    },
    /// The next live frames each come after their successor.
    Reorder(u32),
    /// The next live payloads are noise.
    Garbage(u32),
    /// The next live payloads are cut in half.
    Truncate(u32),
    /// The next sequences are used up without a batch.
    Lose(u32),
    /// How replay is answered from now on.
    Replay(ReplayMode),
    /// A new life.
    Restart(Restart),
    /// Sockets close and reopen; nothing else changes.
    Disconnect,
}

/// The JSON form of one or more faults.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FaultRequest {
    /// Only this rank; all without.
    pub rank: Option<u32>,
    drop: Option<u32>,
    duplicate: Option<u32>,
    delay_ms: Option<u64>,
    count: Option<u32>,
    reorder: Option<u32>,
    garbage: Option<u32>,
    truncate: Option<u32>,
    lose: Option<u32>,
    replay: Option<ReplayMode>,
    restart: Option<Restart>,
    disconnect: Option<bool>,
    /// How operations go from now on.
    pub operations: Option<Conduct>,
    /// What goes wrong with requests from now on.
    pub service: Option<ServiceFault>,
}

impl FaultRequest {
    /// The faults asked for.
    pub fn faults(&self) -> Vec<Fault> {
        let delay = self.delay_ms.map(|millis| Fault::Delay { millis, count: self.count.unwrap_or(1) });
        let all = [
            self.drop.map(Fault::Drop),
            self.duplicate.map(Fault::Duplicate),
            delay,
            self.reorder.map(Fault::Reorder),
            self.garbage.map(Fault::Garbage),
            self.truncate.map(Fault::Truncate),
            self.lose.map(Fault::Lose),
            self.replay.map(Fault::Replay),
            self.restart.map(Fault::Restart),
            self.disconnect.filter(|wanted| *wanted).map(|_| Fault::Disconnect),
        ];
        all.into_iter().flatten().collect()
    }
}
