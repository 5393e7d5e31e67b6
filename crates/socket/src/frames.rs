//! Reading multipart messages without blocking, and giving payloads away.

use bytes::Bytes;
use zmq::{DONTWAIT, Message, Socket};

/// The most frames of any message that this room understands: a replay reply with delimiter and topic.
pub(crate) const MAX_FRAMES: usize = 4;

/// Below this a payload is copied. libzmq reads small messages from a shared 8 KiB buffer, so that a kept
/// 200-byte payload would keep all of it; larger ones have memory of their own and are passed on as they are.
const COPY_BELOW: usize = 8 << 10;

/// One multipart message: the first [`MAX_FRAMES`] frames, and how many there were.
#[derive(Default)]
pub(crate) struct Multipart {
    frames: [Option<Message>; MAX_FRAMES],
    count: usize,
}

impl Multipart {
    /// Receives the next message; `None` when there is none now.
    pub(crate) fn receive(socket: &Socket) -> Result<Option<Self>, zmq::Error> {
        let mut whole = Self::default();
        loop {
            let frame = match socket.recv_msg(DONTWAIT) {
                Ok(frame) => frame,
                Err(zmq::Error::EAGAIN) if whole.count == 0 => return Ok(None),
                Err(zmq::Error::EINTR) => continue,
                Err(cause) => return Err(cause),
            };
            let more = frame.get_more();
            if let Some(slot) = whole.frames.get_mut(whole.count) {
                *slot = Some(frame);
            }
            whole.count += 1;
            if !more {
                return Ok(Some(whole));
            }
        }
    }

    /// How many frames the message had, also those that were not kept.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// A frame's bytes; empty when there is no such frame.
    pub(crate) fn frame(&self, index: usize) -> &[u8] {
        self.frames.get(index).and_then(Option::as_deref).unwrap_or(&[])
    }

    /// A frame as a big-endian sequence; `None` unless it has eight bytes.
    pub(crate) fn sequence(&self, index: usize) -> Option<u64> {
        self.frame(index).try_into().ok().map(u64::from_be_bytes)
    }

    /// Takes a frame's bytes out.
    pub(crate) fn take(&mut self, index: usize) -> Bytes {
        self.frames.get_mut(index).and_then(Option::take).map_or_else(Bytes::new, into_bytes)
    }
}

fn into_bytes(message: Message) -> Bytes {
    if message.len() < COPY_BELOW {
        Bytes::copy_from_slice(&message)
    } else {
        Bytes::from_owner(Owner(message))
    }
}

/// `zmq::Message` derefs to its bytes but is not `AsRef`, which `Bytes` asks for.
struct Owner(Message);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
