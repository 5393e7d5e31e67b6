//! One side of one connection, from the greeting on.

use super::command::{self, Command, PingContext};
use super::frame::{self, Complete, FrameDecoder, Multipart};
use super::greeting::{self, Greeting};
use super::mechanism::{Mechanism, Null};
use super::{ProtocolError, SocketType, printable};

/// Unsent bytes from which on PINGs are not answered: a peer that does not read need not be told that we do.
const OUT_LIMIT: usize = 16 << 10;

/// The minor version that has SUBSCRIBE commands.
const SUBSCRIBES_BY_COMMAND: u8 = 1;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The handshake is complete.
    Established,
    /// A message is complete: see [`Session::message`].
    Message,
    /// The peer answered a PING.
    Pong(PingContext),
}

enum State {
    Greeting(Greeting),
    Handshake,
    Traffic,
}

/// The protocol's state for one connection. Bytes for the peer gather in [`Session::out`].
pub(crate) struct Session {
    state: State,
    mechanism: Box<dyn Mechanism>,
    decoder: FrameDecoder,
    /// Prefixes to subscribe to, once the handshake is complete.
    topics: Vec<Vec<u8>>,
    minor: u8,
    /// Bytes for the peer, from `sent` on.
    out: Vec<u8>,
    sent: usize,
}

impl Session {
    /// A SUB that wants topics with these prefixes.
    pub(crate) fn subscriber(topics: Vec<Vec<u8>>, max_message_bytes: usize) -> Self {
        Self::new(SocketType::Sub, topics, max_message_bytes)
    }

    /// A DEALER.
    pub(crate) fn dealer(max_message_bytes: usize) -> Self {
        Self::new(SocketType::Dealer, Vec::new(), max_message_bytes)
    }

    fn new(socket: SocketType, topics: Vec<Vec<u8>>, max_message_bytes: usize) -> Self {
        let mechanism: Box<dyn Mechanism> = Box::new(Null::new(socket));
        let out = greeting::ours(mechanism.name()).to_vec();
        Self {
            state: State::Greeting(Greeting::new()),
            mechanism,
            decoder: FrameDecoder::new(max_message_bytes),
            topics,
            minor: 0,
            out,
            sent: 0,
        }
    }

    /// Takes bytes up to the end of the first message or command; says how many, and what happened. Call it again with the
    /// rest.
    pub(crate) fn feed(&mut self, input: &[u8]) -> Result<(usize, Option<Event>), ProtocolError> {
        let mut taken = 0;
        while taken < input.len() {
            if let State::Greeting(greeting) = &mut self.state {
                let (count, greeted) = greeting.feed(&input[taken..])?;
                taken += count;
                if let Some(greeted) = greeted {
                    greeted.expect_mechanism(self.mechanism.name())?;
                    self.minor = greeted.minor;
                    self.mechanism.begin(&mut self.out);
                    self.state = State::Handshake;
                }
                continue;
            }
            let (count, complete) = self.decoder.feed(&input[taken..])?;
            taken += count;
            if complete.is_some() {
                return Ok((taken, self.complete(complete)?));
            }
        }
        Ok((taken, None))
    }

    /// Where to read the next bytes to, instead of feeding them; see [`FrameDecoder::space`].
    pub(crate) fn space(&mut self) -> Option<&mut [u8]> {
        self.decoder.space()
    }

    /// So many bytes were read to [`Self::space`].
    pub(crate) fn filled(&mut self, count: usize) -> Result<Option<Event>, ProtocolError> {
        let complete = self.decoder.filled(count);
        self.complete(complete)
    }

    fn complete(&mut self, complete: Option<Complete>) -> Result<Option<Event>, ProtocolError> {
        match complete {
            None => Ok(None),
            Some(Complete::Message) => Ok(Some(Event::Message)),
            Some(Complete::Command) => self.command(),
        }
    }

    fn command(&mut self) -> Result<Option<Event>, ProtocolError> {
        let command = Command::parse(self.decoder.command())?;
        if matches!(self.state, State::Traffic) {
            return match command {
                Command::Ping { context } => {
                    if self.out.len() - self.sent < OUT_LIMIT {
                        command::pong(&context, &mut self.out);
                    }
                    Ok(None)
                }
                Command::Pong { context } => Ok(Some(Event::Pong(context))),
                Command::Error { reason } => Err(ProtocolError::Rejected(printable(reason))),
                // As libzmq does: what a later version adds is not ours to judge.
                Command::Ready { .. } | Command::Other { .. } => Ok(None),
            };
        }
        if !self.mechanism.command(&command, &mut self.out)? {
            return Ok(None);
        }
        self.state = State::Traffic;
        self.decoder.allow_messages();
        for topic in std::mem::take(&mut self.topics) {
            if self.minor >= SUBSCRIBES_BY_COMMAND {
                command::subscribe(&topic, &mut self.out);
            } else {
                frame::put_message(&[&[&[1], &topic[..]].concat()], &mut self.out);
            }
        }
        Ok(Some(Event::Established))
    }

    /// The message, after [`Event::Message`] and until more is fed.
    pub(crate) fn message(&mut self) -> &mut Multipart {
        self.decoder.message()
    }

    /// Whether a message has begun and not ended.
    pub(crate) fn is_mid_message(&self) -> bool {
        self.decoder.is_mid_message()
    }

    /// Queues a message.
    pub(crate) fn send(&mut self, frames: &[&[u8]]) {
        frame::put_message(frames, &mut self.out);
    }

    /// Queues a PING; false when too much is unsent already.
    pub(crate) fn ping(&mut self, ttl: u16, context: &PingContext) -> bool {
        let fits = self.out.len() - self.sent < OUT_LIMIT;
        if fits {
            command::ping(ttl, context, &mut self.out);
        }
        fits
    }

    /// Bytes to send.
    pub(crate) fn out(&self) -> &[u8] {
        &self.out[self.sent..]
    }

    /// So many of [`Self::out`] were sent.
    pub(crate) fn sent(&mut self, count: usize) {
        self.sent += count;
        if self.sent >= self.out.len() {
            self.out.clear();
            // The greeting and the subscriptions are behind us: what follows is short.
            self.out.shrink_to(KEPT_OUT);
            self.sent = 0;
        }
    }

    /// Bytes of memory that it holds.
    pub(crate) fn memory(&self) -> usize {
        self.decoder.memory() + self.out.capacity()
    }
}

const KEPT_OUT: usize = 128;
