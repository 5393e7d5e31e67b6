//! The part of a socket that only a ROUTER has: who asked for what.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use super::hub::{Hub, State, deadline_after};
use crate::SocketError;
use crate::connection::Refusal;
use crate::publish::ReplayRequestIn;

/// Requests of one peer that nobody has looked at. Beyond these, and the rest of one read, nothing is read
/// from it.
const MAX_REQUESTS: usize = 1000;

/// A peer is read again when it has this many requests left.
const FEW_REQUESTS: usize = MAX_REQUESTS / 2;

impl Hub {
    /// The next request: each peer gets its turn. `None` when `timeout` passed.
    pub(super) fn next_request(&self, timeout: Duration) -> Result<Option<ReplayRequestIn>, SocketError> {
        let mut deadline = None;
        let mut state = self.state.lock();
        loop {
            if let Some(request) = state.next_request() {
                let call = state.call();
                drop(state);
                self.call_if(call);
                return Ok(Some(request));
            }
            if state.ended {
                return Err(SocketError::Stopped);
            }
            if timeout.is_zero() {
                return Ok(None);
            }
            let deadline = *deadline.get_or_insert_with(|| deadline_after(timeout));
            if kvplane_runtime::now() >= deadline {
                return Ok(None);
            }
            self.changed.wait_until(&mut state, deadline);
        }
    }

    /// Queues a reply. As ROUTER sockets do, one to nobody, or to a peer that has too much waiting, is
    /// dropped.
    pub(super) fn reply(&self, identity: &[u8], frames: &[&[u8]]) -> Result<(), SocketError> {
        let mut state = self.state.lock();
        if state.ended {
            return Err(SocketError::Stopped);
        }
        if let Some(&line) = state.identities.get(identity) {
            self.send(&mut state, line, frames);
        }
        let call = state.call();
        drop(state);
        self.call_if(call);
        Ok(())
    }

    /// A peer asked for everything from `start` on.
    pub(super) fn request(&self, line: usize, start: u64) {
        let mut state = self.state.lock();
        let Some(Some(asker)) = state.lines.get_mut(line) else { return };
        asker.requests.push_back(start);
        if asker.requests.len() == 1 {
            state.turns.push_back(line);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Whether a peer has asked for so much that nothing more is to be read from it. The thread is called
    /// when that is over.
    pub(super) fn hold(&self, line: usize) -> bool {
        let mut state = self.state.lock();
        let Some(Some(asker)) = state.lines.get_mut(line) else { return false };
        asker.is_held = asker.requests.len() >= MAX_REQUESTS;
        asker.is_held
    }
}

impl State {
    fn next_request(&mut self) -> Option<ReplayRequestIn> {
        let line = self.turns.pop_front()?;
        let asker = self.lines.get_mut(line)?.as_mut()?;
        let start = asker.requests.pop_front()?;
        let request = ReplayRequestIn { identity: asker.identity.clone(), start };
        let resumes = asker.is_held && asker.requests.len() <= FEW_REQUESTS;
        if asker.requests.is_empty() {
            asker.requests.shrink_to(FEW_REQUESTS);
        } else {
            self.turns.push_back(line);
        }
        if resumes {
            asker.is_held = false;
            self.note(line);
        }
        Some(request)
    }

    /// The identity of a new peer: what it gave, if nobody has it, or else one that is made up, as libzmq
    /// does: 0 and a number.
    pub(super) fn identify(&mut self, given: &[u8], line: usize) -> Result<Vec<u8>, Refusal> {
        let mut identity = given.to_vec();
        while identity.is_empty() || (given.is_empty() && self.identities.contains_key(&identity)) {
            self.last_identity = self.last_identity.wrapping_add(1);
            identity = [&[0][..], &self.last_identity.to_be_bytes()].concat();
        }
        if self.identities.contains_key(&identity) {
            return Err(Refusal::Identity);
        }
        self.identities.insert(identity.clone(), line);
        Ok(identity)
    }
}

/// Any number.
pub(super) fn random() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}
