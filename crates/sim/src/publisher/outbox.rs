//! Live frames on their way out, and what goes wrong with them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::fault::Fault;

type Frame = (u64, Vec<u8>);

/// Frames in the order in which they will be sent.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: VecDeque<(Instant, Frame)>,
    /// A frame that waits for its successor.
    overtaken: Option<Frame>,
    left: Left,
}

/// How often each fault still applies.
#[derive(Debug, Default)]
struct Left {
    drop: u32,
    duplicate: u32,
    delay: u32,
    delay_by: Duration,
    reorder: u32,
    garbage: u32,
    truncate: u32,
    lose: u32,
}

impl Outbox {
    /// Arms a fault of frames; others are none of its business.
    pub(crate) fn inject(&mut self, fault: Fault) {
        let left = &mut self.left;
        match fault {
            Fault::Drop(count) => left.drop += count,
            Fault::Duplicate(count) => left.duplicate += count,
            Fault::Delay { millis, count } => {
                left.delay += count;
                left.delay_by = Duration::from_millis(millis);
            }
            Fault::Reorder(count) => left.reorder += count,
            Fault::Garbage(count) => left.garbage += count,
            Fault::Truncate(count) => left.truncate += count,
            Fault::Lose(count) => left.lose += count,
            Fault::Replay(_) | Fault::Restart(_) | Fault::Disconnect => {}
        }
    }

    /// Whether the next batch is lost altogether.
    pub(crate) fn loses(&mut self) -> bool {
        spend(&mut self.left.lose)
    }

    /// Takes a frame to send, with whatever befalls it.
    pub(crate) fn push(&mut self, sequence: u64, mut payload: Vec<u8>) {
        if spend(&mut self.left.drop) {
            return;
        }
        if spend(&mut self.left.garbage) {
            payload = noise(payload.len());
        }
        if spend(&mut self.left.truncate) {
            payload.truncate(payload.len() / 2);
        }
        if self.overtaken.is_none() && spend(&mut self.left.reorder) {
            self.overtaken = Some((sequence, payload));
            return;
        }
        let delay = if spend(&mut self.left.delay) { self.left.delay_by } else { Duration::ZERO };
        let due = kvplane_runtime::now() + delay;
        if spend(&mut self.left.duplicate) {
            self.queue.push_back((due, (sequence, payload.clone())));
        }
        self.queue.push_back((due, (sequence, payload)));
        if let Some(frame) = self.overtaken.take() {
            self.queue.push_back((due, frame));
        }
    }

    /// When the first frame may go out.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.queue.front().map(|(due, _)| *due)
    }

    /// The first frame, if it may go out by now. A delayed one holds up those behind it.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Frame> {
        if self.due()? > now {
            return None;
        }
        self.queue.pop_front().map(|(_, frame)| frame)
    }
}

/// Bytes that no decoder takes for a batch: 0xc1 is the one byte that msgpack never uses.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    vec![0xc1; length.max(1)]
}

fn spend(left: &mut u32) -> bool {
    let any = *left > 0;
    *left = left.saturating_sub(1);
    any
}
