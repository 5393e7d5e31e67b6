//! Batches that the engine's own process hands over, with its own numbers: does each follow the one before
//! it?
//!
//! Nothing lies between the engine and us that could delay, double or reorder a batch, and nobody can be
//! asked again. So a missing number is lost for good, and one that has passed is a mistake of the caller, who
//! gets an error:
//!
//! | number | meaning |
//! |---|---|
//! | one above the last | the next |
//! | higher | what lies between is lost: `gap` |
//! | the last, or below | refused; nothing changes |
//! | the first of all | the beginning, if the caller says that he was there from the start; else what came before is unknown |

use kvplane_core::{Continuity, Reason};
use kvplane_wire::{DecodeError, RejectReason};

use crate::loss::lose;
use crate::sequencer::{Action, Counters, OnGap};

/// How batches are handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandedOptions {
    /// The cache was empty when the first batch was handed over.
    pub from_start: bool,
    /// What a missing number does.
    pub on_gap: OnGap,
}

impl Default for HandedOptions {
    fn default() -> Self {
        Self { from_start: true, on_gap: OnGap::Drop }
    }
}

/// Why a batch was not taken. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// It cannot be read.
    #[error("{0}")]
    Undecodable(#[from] DecodeError),
    /// Its parts do not go together.
    #[error("{}", .0.as_str())]
    Unfit(RejectReason),
    /// Its number has passed.
    #[error("{number} is not above {last}, the last number")]
    Passed {
        /// Its number.
        number: u64,
        /// The last that was taken.
        last: u64,
    },
    /// There is no number above the last.
    #[error("there is no number above the last")]
    NoNumber,
    /// The stream has a source of its own.
    #[error("the stream has a source of its own")]
    Foreign,
}

/// The state machine of batches that are handed over.
#[derive(Debug)]
pub(crate) struct Handed {
    options: HandedOptions,
    last: Option<u64>,
    counters: Counters,
}

impl Handed {
    pub(crate) fn new(options: HandedOptions) -> Self {
        Self { options, last: None, counters: Counters::default() }
    }

    /// Nothing is between the engine and us, so that it is heard from the first batch on.
    pub(crate) fn continuity(&self) -> Continuity {
        if self.last.is_some() { Continuity::Live } else { Continuity::Connecting }
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    pub(crate) fn last_sequence(&self) -> Option<u64> {
        self.last
    }

    pub(crate) fn count_undecodable(&mut self) {
        self.counters.undecodable += 1;
    }

    /// The number of the next batch: as the caller says, or the next there is, from `first` on.
    pub(crate) fn number(&mut self, given: Option<u64>, first: u64) -> Result<u64, NotTaken> {
        match (given, self.last) {
            (Some(number), Some(last)) if number <= last => {
                self.counters.refused += 1;
                Err(NotTaken::Passed { number, last })
            }
            (Some(number), _) => Ok(number),
            (None, Some(last)) => last.checked_add(1).ok_or(NotTaken::NoNumber),
            (None, None) => Ok(first),
        }
    }

    /// What must be done before the batch of that number is applied. `begins` says that it can be the first
    /// of a life.
    pub(crate) fn take(&mut self, number: u64, begins: bool) -> Option<Action> {
        match self.last.replace(number) {
            None if self.options.from_start && begins => Some(Action::HeardFromStart),
            None => Some(Action::KnownFrom(number)),
            Some(last) if number - last == 1 => None,
            Some(_) => {
                self.counters.gaps += 1;
                Some(lose(&mut self.counters, self.options.on_gap, Reason::Gap))
            }
        }
    }
}
