//! Frames, and the messages and commands that they make.
//!
//! ```text
//! frame   flags (1 more, 2 long, 4 command), length (1 byte, or 8 BE when long), body
//! ```
//!
//! A length is checked before anything is allocated for it, and memory follows the bytes that came, not the
//! length that was announced. A large body is read straight into its own buffer ([`FrameDecoder::space`]).

use bytes::Bytes;

use super::ProtocolError;

/// The frames of a message that are kept: a replay reply with delimiter and topic has four. Later ones are
/// counted and dropped.
pub(crate) const MAX_FRAMES: usize = 4;

/// More frames than this in one message are a protocol error.
pub(crate) const MAX_FRAMES_COUNTED: usize = 1024;

/// The longest command. A READY with every property that libzmq knows has some 100 bytes.
pub(crate) const MAX_COMMAND_BYTES: usize = 4 << 10;

/// The least that a growing buffer has room for, if its frame is that long.
const FIRST_GROWTH: usize = 64 << 10;

/// Bodies with at least this much to come are read without a detour.
const DIRECT_FROM: usize = 16 << 10;

/// Memory that a frame's buffer keeps for the next message.
const KEPT_CAPACITY: usize = 256;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// One message: its first [`MAX_FRAMES`] frames, and how many there were.
#[derive(Debug, Default)]
pub(crate) struct Multipart {
    frames: [Vec<u8>; MAX_FRAMES],
    count: usize,
}

impl Multipart {
    /// All frames; `None` when there were more than were kept.
    pub(crate) fn frames(&self) -> Option<&[Vec<u8>]> {
        self.frames.get(..self.count)
    }

    /// How many frames there were.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// A frame's bytes; empty when there is no such frame, or it was taken.
    pub(crate) fn frame(&self, index: usize) -> &[u8] {
        self.frames.get(index).map_or(&[], Vec::as_slice)
    }

    /// Takes a frame's bytes out, without a copy.
    pub(crate) fn take(&mut self, index: usize) -> Bytes {
        self.frames.get_mut(index).map(std::mem::take).map_or_else(Bytes::new, Bytes::from)
    }

    /// Forgets the message, and gives its memory back.
    pub(crate) fn clear(&mut self) {
        for frame in &mut self.frames {
            frame.clear();
            if frame.capacity() > KEPT_CAPACITY {
                *frame = Vec::new();
            }
        }
        self.count = 0;
    }

    fn memory(&self) -> usize {
        self.frames.iter().map(Vec::capacity).sum()
    }
}

/// What is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Complete {
    /// See [`FrameDecoder::message`].
    Message,
    /// See [`FrameDecoder::command`].
    Command,
}

#[derive(Debug, Clone, Copy)]
enum Place {
    Frame(usize),
    Skipped,
    Command,
}

/// A frame whose header is known.
#[derive(Debug, Clone, Copy)]
struct Body {
    place: Place,
    length: usize,
    filled: usize,
    more: bool,
}

/// Bytes to messages and commands.
#[derive(Debug)]
pub(crate) struct FrameDecoder {
    max_message_bytes: usize,
    /// During the handshake no message is due.
    commands_only: bool,
    header: [u8; 9],
    header_filled: usize,
    body: Option<Body>,
    message: Multipart,
    message_bytes: usize,
    /// The message was complete: the next frame begins another.
    message_complete: bool,
    command: Vec<u8>,
}

impl FrameDecoder {
    pub(crate) fn new(max_message_bytes: usize) -> Self {
        Self {
            max_message_bytes,
            commands_only: true,
            header: [0; 9],
            header_filled: 0,
            body: None,
            message: Multipart::default(),
            message_bytes: 0,
            message_complete: true,
            command: Vec::new(),
        }
    }

    /// The handshake is complete.
    pub(crate) fn allow_messages(&mut self) {
        self.commands_only = false;
    }

    /// The message, after [`Complete::Message`] and until more is fed.
    pub(crate) fn message(&mut self) -> &mut Multipart {
        &mut self.message
    }

    /// The command's body, after [`Complete::Command`] and until more is fed.
    pub(crate) fn command(&self) -> &[u8] {
        &self.command
    }

    /// Whether a message has begun and not ended.
    pub(crate) fn is_mid_message(&self) -> bool {
        !self.message_complete
    }

    /// Bytes of memory that it holds.
    pub(crate) fn memory(&self) -> usize {
        self.message.memory() + self.command.capacity()
    }

    /// Takes bytes up to the end of the first message or command; says how many. Call it again with the rest.
    pub(crate) fn feed(&mut self, input: &[u8]) -> Result<(usize, Option<Complete>), ProtocolError> {
        let mut taken = 0;
        loop {
            if self.body.is_none() {
                taken += self.feed_header(&input[taken..])?;
            }
            let Some(body) = &mut self.body else { return Ok((taken, None)) };
            let wanted = (body.length - body.filled).min(input.len() - taken);
            let piece = &input[taken..taken + wanted];
            if wanted > 0 {
                match body.place {
                    Place::Frame(index) => {
                        grow(&mut self.message.frames[index], body, wanted).copy_from_slice(piece);
                    }
                    Place::Command => grow(&mut self.command, body, wanted).copy_from_slice(piece),
                    Place::Skipped => {}
                }
            }
            taken += wanted;
            body.filled += wanted;
            if body.filled < body.length {
                return Ok((taken, None));
            }
            if let Some(complete) = self.body_complete() {
                return Ok((taken, Some(complete)));
            }
        }
    }

    /// Where the next bytes belong, when that is the middle of a large frame: they can be read to there. Say
    /// afterwards how many they were, with [`Self::filled`].
    pub(crate) fn space(&mut self) -> Option<&mut [u8]> {
        let body = self.body.as_ref()?;
        let left = body.length - body.filled;
        match body.place {
            Place::Frame(index) if left >= DIRECT_FROM => {
                let frame = &mut self.message.frames[index];
                if frame.len() == body.filled {
                    grow(frame, body, DIRECT_FROM);
                }
                Some(&mut frame[body.filled..])
            }
            _ => None,
        }
    }

    /// This many bytes were read into [`Self::space`].
    pub(crate) fn filled(&mut self, count: usize) -> Option<Complete> {
        let body = self.body.as_mut()?;
        body.filled = (body.filled + count).min(body.length);
        if body.filled < body.length { None } else { self.body_complete() }
    }

    fn feed_header(&mut self, input: &[u8]) -> Result<usize, ProtocolError> {
        let mut taken = 0;
        while let Some(&byte) = input.get(taken) {
            self.header[self.header_filled] = byte;
            self.header_filled += 1;
            taken += 1;
            let flags = self.header[0];
            if flags > MORE | LONG | COMMAND || flags & (MORE | COMMAND) == MORE | COMMAND {
                return Err(ProtocolError::Flags(flags));
            }
            let whole = if flags & LONG == 0 { 2 } else { 9 };
            if self.header_filled == whole {
                self.header_filled = 0;
                let length = if flags & LONG == 0 {
                    u64::from(self.header[1])
                } else {
                    let [_, length @ ..] = self.header;
                    u64::from_be_bytes(length)
                };
                self.body = Some(self.begin(flags, length)?);
                break;
            }
        }
        Ok(taken)
    }

    fn begin(&mut self, flags: u8, length: u64) -> Result<Body, ProtocolError> {
        let more = flags & MORE != 0;
        let bounded = |max: usize| usize::try_from(length).ok().filter(|&length| length <= max);
        if flags & COMMAND != 0 {
            let length = bounded(MAX_COMMAND_BYTES).ok_or(ProtocolError::CommandTooLarge(length))?;
            self.command.clear();
            return Ok(Body { place: Place::Command, length, filled: 0, more });
        }
        if self.commands_only {
            return Err(ProtocolError::EarlyMessage);
        }
        if std::mem::take(&mut self.message_complete) {
            self.message.clear();
            self.message_bytes = 0;
        }
        let length = bounded(self.max_message_bytes - self.message_bytes).ok_or_else(|| {
            let size = length.saturating_add(self.message_bytes as u64);
            ProtocolError::MessageTooLarge { size, limit: self.max_message_bytes as u64 }
        })?;
        if self.message.count >= MAX_FRAMES_COUNTED {
            return Err(ProtocolError::TooManyFrames);
        }
        self.message_bytes += length;
        let index = self.message.count;
        let place = if index < MAX_FRAMES { Place::Frame(index) } else { Place::Skipped };
        Ok(Body { place, length, filled: 0, more })
    }

    fn body_complete(&mut self) -> Option<Complete> {
        let body = self.body.take()?;
        if matches!(body.place, Place::Command) {
            return Some(Complete::Command);
        }
        self.message.count += 1;
        if body.more {
            return None;
        }
        self.message_complete = true;
        Some(Complete::Message)
    }
}

/// Makes room for at least `wanted` more bytes of a body and gives it. Doubles, so that bytes are copied once
/// at most on the average, and never goes beyond the body's length.
fn grow<'a>(buffer: &'a mut Vec<u8>, body: &Body, wanted: usize) -> &'a mut [u8] {
    let needed = body.filled + wanted;
    if buffer.len() < needed {
        let length = needed.max(body.filled * 2).max(FIRST_GROWTH).min(body.length);
        buffer.reserve_exact(length - buffer.len());
        buffer.resize(length, 0);
    }
    &mut buffer[body.filled..needed]
}

/// Appends a command frame.
pub(crate) fn put_command(body: &[u8], out: &mut Vec<u8>) {
    put(COMMAND, body, out);
}

/// Appends a message.
pub(crate) fn put_message(frames: &[&[u8]], out: &mut Vec<u8>) {
    let last = frames.len().saturating_sub(1);
    for (index, frame) in frames.iter().enumerate() {
        put(if index < last { MORE } else { 0 }, frame, out);
    }
}

/// Bytes of a message with these frames on the wire.
pub(crate) fn message_length(frames: &[&[u8]]) -> usize {
    let header = |frame: &[u8]| if u8::try_from(frame.len()).is_ok() { 2 } else { 9 };
    frames.iter().map(|frame| header(frame) + frame.len()).sum()
}

fn put(flags: u8, body: &[u8], out: &mut Vec<u8>) {
    if let Ok(length) = u8::try_from(body.len()) {
        out.extend_from_slice(&[flags, length]);
    } else {
        out.push(flags | LONG);
        out.extend_from_slice(&(body.len() as u64).to_be_bytes());
    }
    out.extend_from_slice(body);
}
