//! What puts batches in order: one state machine per kind of source, behind what all of them have in common.

use std::time::Duration;

use kvplane_core::Continuity;

use crate::clock::Now;
use crate::drain::Drain;
use crate::handed::Handed;
use crate::mirror::Mirror;
use crate::relay::Relay;
use crate::sequencer::{Action, Counters, Sequenced, Sequencer};

#[derive(Debug)]
pub(super) enum Follower {
    /// A socket that the engine publishes on, perhaps with a replay socket beside it.
    Published(Box<Sequencer>),
    /// A read-once buffer.
    Drained(Box<Drain>),
    /// A server that keeps a stream of numbered batches.
    Relayed(Box<Relay>),
    /// Another plane, which has put them in order already.
    Mirrored(Box<Mirror>),
    /// The engine's own process.
    Handed(Box<Handed>),
}

/// Whatever the kind: the same call to each.
macro_rules! each {
    ($follower:expr, $machine:ident => $call:expr) => {
        match $follower {
            Follower::Published($machine) => $call,
            Follower::Drained($machine) => $call,
            Follower::Relayed($machine) => $call,
            Follower::Mirrored($machine) => $call,
            Follower::Handed($machine) => $call,
        }
    };
}

impl Follower {
    pub(super) fn continuity(&self) -> Continuity {
        each!(self, machine => machine.continuity())
    }

    pub(super) fn counters(&self) -> Counters {
        each!(self, machine => machine.counters())
    }

    pub(super) fn last_sequence(&self) -> Option<u64> {
        match self {
            Self::Published(machine) => machine.last_sequence(),
            Self::Drained(machine) => machine.last_sequence(),
            Self::Relayed(machine) => machine.last_sequence(),
            Self::Handed(machine) => machine.last_sequence(),
            // What comes from another plane is in order: only the journal knows it.
            Self::Mirrored(_) => None,
        }
    }

    pub(super) fn started(&self) -> Option<u64> {
        match self {
            Self::Published(machine) => machine.started(),
            Self::Drained(_) | Self::Relayed(_) | Self::Mirrored(_) | Self::Handed(_) => None,
        }
    }

    pub(super) fn poll(&mut self) -> Option<Action> {
        match self {
            Self::Published(machine) => machine.poll(),
            Self::Drained(machine) => machine.poll(),
            Self::Relayed(machine) => machine.poll(),
            // Both are applied as they come.
            Self::Mirrored(_) | Self::Handed(_) => None,
        }
    }

    pub(super) fn tick(&mut self, now: Now) {
        match self {
            Self::Published(machine) => machine.tick(now),
            Self::Drained(machine) => machine.tick(now),
            Self::Relayed(machine) => machine.tick(now),
            Self::Mirrored(machine) => machine.tick(now),
            Self::Handed(_) => {}
        }
    }

    /// The moment until which a tick changes nothing, unless something else happens before.
    pub(super) fn idle_until(&self) -> Duration {
        match self {
            Self::Published(machine) => machine.idle_until(),
            Self::Handed(_) => Duration::MAX,
            // They are few, or ticked by their own task.
            Self::Drained(_) | Self::Relayed(_) | Self::Mirrored(_) => Duration::ZERO,
        }
    }

    /// Nothing was proven within the limit.
    pub(super) fn silent(&mut self, now: Now) {
        match self {
            Self::Published(machine) => machine.silent(now),
            Self::Drained(machine) => machine.silent(now),
            Self::Relayed(machine) => machine.silent(now),
            Self::Mirrored(machine) => machine.silent(now),
            // Nothing lies between the engine's own process and us.
            Self::Handed(_) => {}
        }
    }

    /// [`Self::proven`], if nothing follows from it; else nothing is done.
    pub(super) fn proven_quietly(&mut self, now: Now) -> bool {
        match self {
            Self::Published(machine) => machine.proven_quietly(now),
            _ => false,
        }
    }

    /// The source was proven to be there.
    pub(super) fn proven(&mut self, now: Now) {
        match self {
            Self::Published(machine) => machine.proven(now),
            Self::Drained(machine) => machine.proven(now),
            Self::Relayed(machine) => machine.proven(now),
            Self::Mirrored(machine) => machine.proven(now),
            Self::Handed(_) => {}
        }
    }

    pub(super) fn undecodable(&mut self, now: Now, batch: Sequenced) {
        match self {
            Self::Published(machine) => machine.undecodable(now, batch),
            Self::Drained(machine) => machine.undecodable(now, batch),
            Self::Relayed(machine) => machine.undecodable(now, batch),
            Self::Mirrored(_) | Self::Handed(_) => {}
        }
    }
}
