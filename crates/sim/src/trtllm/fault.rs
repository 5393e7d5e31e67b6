//! What can be made to go wrong, and the JSON for it.
//!
//! ```json
//! {"answer": "unavailable|html|object|truncated|lost|huge", "polls": 2}   how the next drains are answered
//! {"heal": true}                                             they are answered rightly again
//! {"lose": 3}                                                next events take their numbers and are never seen
//! {"steal": true}                                            somebody else drains
//! {"restart": {"first_event_id": 0, "same_content": false}}   a new life
//! {"operations": {"answer": "hang"}}                         operations go wrong: see [`operate::conduct`](crate::operate::conduct)
//! ```
//!
//! Keys combine; `"rank": r` limits lost events to one rank.

use serde::{Deserialize, Serialize};

use crate::operate::Conduct;

/// How a drain is answered instead of rightly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrtAnswer {
    /// With status 503, by something in front of the server: nothing is drained.
    Unavailable,
    /// With an error page and status 200, by the same: nothing is drained.
    Html,
    /// With an object, by the same: nothing is drained.
    Object,
    /// With half of the list: the rest is lost.
    Truncated,
    /// Never: all of it is lost.
    Lost,
    /// With ten megabytes of white space behind the list, which is whole.
    Huge,
}

/// A new life of the server: an empty cache, event ids from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrtRestart {
    /// The new life has published this many events before anybody could drain them. What of them is left is in the
    /// buffer; a small one has forgotten the first.
    pub first_event_id: u64,
    /// Whether those come from the requests of the old life, so that their blocks have equal hashes.
    pub same_content: bool,
}

/// One thing that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrtFault {
    /// The next drains are answered so.
    Answer {
        /// How.
        answer: TrtAnswer,
        /// How many.
        polls: u32,
    },
    /// All drains are answered rightly again.
    Heal,
    /// The next events are never seen.
    Lose(u32),
    /// Somebody else drains, once.
    Steal,
    /// A new life.
    Restart(TrtRestart),
}

/// The JSON form of one or more faults.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrtFaultRequest {
    /// Only this rank; all without.
    pub rank: Option<u32>,
    answer: Option<TrtAnswer>,
    polls: Option<u32>,
    heal: Option<bool>,
    lose: Option<u32>,
    steal: Option<bool>,
    restart: Option<TrtRestart>,
    /// How operations go from now on.
    pub operations: Option<Conduct>,
}

impl TrtFaultRequest {
    /// The faults asked for.
    pub fn faults(&self) -> Vec<TrtFault> {
        let answer = self.answer.map(|answer| TrtFault::Answer { answer, polls: self.polls.unwrap_or(1) });
        let all = [
            self.heal.filter(|wanted| *wanted).map(|_| TrtFault::Heal),
            answer,
            self.lose.map(TrtFault::Lose),
            self.steal.filter(|wanted| *wanted).map(|_| TrtFault::Steal),
            self.restart.map(TrtFault::Restart),
        ];
        all.into_iter().flatten().collect()
    }
}
