//! Asking a replay socket what it has: once, from the beginning, as a plane does when it starts.

use std::time::Duration;

use bytes::Bytes;
use kvplane_socket::{ReplayEnd, ReplayHandler, ReplayRequest, Sockets};
use kvplane_wire::Decoder;
use tokio::sync::oneshot;

use crate::Heard;
use crate::seen::{RingEnd, RingSeen};

/// Engines answer between two batches, at most 100 ms apart; this is for one that is very busy.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// A ring of the usual 10 000 batches has some ten MiB. What is larger is known well enough by then.
const MAX_BYTES: usize = 64 << 20;

struct Reader {
    heard: Heard,
    decoder: Decoder,
    sender: oneshot::Sender<RingSeen>,
}

impl ReplayHandler for Reader {
    fn batch(&mut self, sequence: u64, payload: Bytes) {
        self.heard.note(&mut self.decoder, sequence, &payload, None);
    }

    fn finished(mut self: Box<Self>, end: ReplayEnd) {
        self.heard.note_ring_end(super::now());
        let end = match end {
            ReplayEnd::Complete => RingEnd::Complete,
            ReplayEnd::TooLarge => RingEnd::Cut,
            ReplayEnd::Deadline if self.heard.batches > 0 => RingEnd::Cut,
            ReplayEnd::Malformed(why) => RingEnd::Nonsense(why),
            ReplayEnd::Deadline | ReplayEnd::Idle | ReplayEnd::Cancelled => RingEnd::Silent,
        };
        // Nobody who waits any more is fine.
        let _ = self.sender.send(RingSeen { heard: self.heard, end });
    }
}

/// What is in the ring at an address.
pub(super) async fn read(sockets: &Sockets, address: &str, within: Duration) -> RingSeen {
    let (sender, answer) = oneshot::channel();
    let reader = Reader { heard: Heard::default(), decoder: Decoder::default(), sender };
    let request = ReplayRequest {
        idle_timeout: ANSWER_WITHIN,
        deadline: within.max(ANSWER_WITHIN),
        max_bytes: MAX_BYTES,
        ..ReplayRequest::new(address, 0)
    };
    let unheard = RingSeen { heard: Heard::default(), end: RingEnd::Silent };
    match sockets.replay(request, Box::new(reader)) {
        Ok(_) => answer.await.unwrap_or(unheard),
        Err(_) => unheard,
    }
}
