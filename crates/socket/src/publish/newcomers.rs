//! Subscribers that have just come, and what only one of them is sent.

use super::hub::{Hub, State};
use crate::SocketError;
use crate::zmtp::frame::message_length;

/// A subscriber of one socket. It never becomes another's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SubscriberId {
    line: usize,
    serial: u64,
}

/// What became of a message for one subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// It waits to be written, or is written already.
    Queued,
    /// Too much waits already: nothing was queued. Try again later.
    Full,
    /// The subscriber has left.
    Gone,
}

/// How far the owner of a socket has taken notice of a peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    /// It has subscribed, and the owner has not seen it.
    pub(super) is_new: bool,
    /// What is published does not go to it for now.
    pub(super) is_held_back: bool,
}

impl Hub {
    /// The subscribers that want a topic and have subscribed since the last call; where subscribers are held
    /// back, also those that are held back again.
    pub(super) fn newcomers(&self, topic: &[u8]) -> Vec<SubscriberId> {
        let mut state = self.state.lock();
        if !std::mem::take(&mut state.has_newcomers) {
            return Vec::new();
        }
        let lines = state.lines.iter_mut().enumerate();
        let new = lines.filter_map(|(at, line)| {
            let line = line.as_mut().filter(|line| line.arrival.is_new && line.topics.matches(topic))?;
            line.arrival.is_new = false;
            Some(SubscriberId { line: at, serial: line.serial })
        });
        new.collect()
    }

    /// Queues a message for one subscriber.
    pub(super) fn send_to(&self, id: SubscriberId, frames: &[&[u8]]) -> Result<Delivery, SocketError> {
        let mut state = self.state.lock();
        if state.ended {
            return Err(SocketError::Stopped);
        }
        let Some(line) = state.subscriber(id) else { return Ok(Delivery::Gone) };
        if !line.outgoing.has_room(message_length(frames), &self.limits) {
            return Ok(Delivery::Full);
        }
        self.send(&mut state, id.line, frames);
        let call = state.call();
        drop(state);
        self.call_if(call);
        Ok(Delivery::Queued)
    }

    /// A subscriber that was held back gets what is published from now on.
    pub(super) fn admit(&self, id: SubscriberId) {
        if let Some(line) = self.state.lock().subscriber(id) {
            line.arrival.is_held_back = false;
        }
    }

    /// Holds every subscriber back: all are newcomers again.
    pub(super) fn hold_back(&self) {
        let mut state = self.state.lock();
        for line in state.lines.iter_mut().flatten().filter(|line| !line.arrival.is_held_back) {
            line.arrival = Arrival { is_new: true, is_held_back: true };
        }
        state.has_newcomers = true;
    }
}

impl State {
    fn subscriber(&mut self, id: SubscriberId) -> Option<&mut super::hub::Line> {
        self.lines.get_mut(id.line)?.as_mut().filter(|line| line.serial == id.serial)
    }
}
