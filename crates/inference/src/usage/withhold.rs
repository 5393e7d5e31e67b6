//! Takes the event with nothing but the usage out of a stream that was asked for it on the client's behalf.

use bytes::{Bytes, BytesMut};
use memchr::{memchr_iter, memmem};
use serde::Deserialize;

/// An event that is longer is passed on unread: the one with the usage is short.
const MAX_EVENT: usize = 64 << 10;

/// Passes events on as they end.
#[derive(Debug, Default)]
pub struct Withhold {
    held: BytesMut,
    /// The event at hand is too long, and is being passed on.
    long: bool,
    /// Up to where `held` was looked at for an end.
    seen: usize,
}

#[derive(Deserialize)]
struct Event {
    choices: Option<Vec<serde::de::IgnoredAny>>,
    usage: Option<serde::de::IgnoredAny>,
}

impl Withhold {
    /// What of the stream is to be passed on now.
    pub fn pass(&mut self, piece: Bytes, end: bool) -> Bytes {
        if !end && self.held.is_empty() && !self.long && is_of_others(&piece) {
            return piece;
        }
        let mut out = BytesMut::new();
        self.held.extend_from_slice(&piece);
        while let Some(length) = self.event_end() {
            let event = self.held.split_to(length);
            self.seen = 0;
            if std::mem::take(&mut self.long) || !is_usage_alone(&event) {
                out.extend_from_slice(&event);
            }
        }
        if self.held.len() > MAX_EVENT {
            self.long = true;
            // The last bytes may be the beginning of an event's end.
            let keep = self.held.len() - 3;
            out.extend_from_slice(&self.held.split_to(keep));
            self.seen = 0;
        }
        if end {
            let rest = self.held.split();
            if self.long || !is_usage_alone(&rest) {
                out.extend_from_slice(&rest);
            }
        }
        out.freeze()
    }

    /// Where the event at hand ends, its empty line included.
    fn event_end(&mut self) -> Option<usize> {
        let from = self.seen;
        for at in memchr_iter(b'\n', &self.held[from..]) {
            let at = from + at;
            let rest = &self.held[at + 1..];
            if rest.starts_with(b"\n") {
                return Some(at + 2);
            }
            if rest.starts_with(b"\r\n") {
                return Some(at + 3);
            }
        }
        self.seen = self.held.len().saturating_sub(2);
        None
    }
}

/// Whether a piece is whole events, and has no empty list: then none of them is the one with the usage.
fn is_of_others(piece: &[u8]) -> bool {
    let mut lists = memchr_iter(b']', piece);
    piece.ends_with(b"\n\n") && !lists.any(|at| piece[..at].trim_ascii_end().last() == Some(&b'['))
}

/// Whether an event is the one that `include_usage` adds: a usage, and an empty list of choices.
fn is_usage_alone(event: &[u8]) -> bool {
    let Some(at) = memmem::find(event, b"data:") else { return false };
    if at > 0 && event[at - 1] != b'\n' {
        return false;
    }
    let data = event[at + b"data:".len()..].trim_ascii();
    let Ok(event) = serde_json::from_slice::<Event>(data) else { return false };
    event.usage.is_some() && event.choices.is_some_and(|choices| choices.is_empty())
}
