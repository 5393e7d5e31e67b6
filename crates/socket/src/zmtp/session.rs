//! One side of one connection, from the greeting on.

use super::command::{self, Command, PingContext};
use super::frame::{self, Complete, FrameDecoder, Multipart};
use super::greeting::{self, Greeting};
use super::mechanism::{Mechanism, Null};
use super::{ProtocolError, SocketType, printable};

/// Unsent bytes from which on PINGs are not answered: a peer that does not read does not need a PONG.
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
    /// The peer asks a publishing socket for a sign of life. The answer is the caller's: it has its place in
    /// the queue of messages. `ttl` is in tenths of a second.
    Ping { ttl: u16, context: PingContext },
    /// The peer of an XPUB wants a topic: see [`Session::topic`].
    Subscribe(Carrier),
    /// The peer of an XPUB does not want a topic any more.
    Cancel(Carrier),
}

/// What a subscription came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// A command of its own: from version 3.1 on.
    Command,
    /// A message of one frame that begins with 1 or 0.
    Message,
}

enum State {
    Greeting(Greeting),
    Handshake,
    Traffic,
}

/// The longest message that a publishing socket reads: a subscription by message, or a replay request.
const PUBLISHER_READS: usize = 64 << 10;

/// The protocol's state for one connection. Bytes for the peer gather in [`Session::out`].
pub(crate) struct Session {
    socket: SocketType,
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

    /// An XPUB.
    pub(crate) fn publisher() -> Self {
        Self::new(SocketType::XPub, Vec::new(), PUBLISHER_READS)
    }

    /// A ROUTER.
    pub(crate) fn router() -> Self {
        Self::new(SocketType::Router, Vec::new(), PUBLISHER_READS)
    }

    fn new(socket: SocketType, topics: Vec<Vec<u8>>, max_message_bytes: usize) -> Self {
        let mechanism: Box<dyn Mechanism> = Box::new(Null::new(socket));
        let out = greeting::ours(mechanism.name()).to_vec();
        Self {
            socket,
            state: State::Greeting(Greeting::new()),
            mechanism,
            decoder: FrameDecoder::new(max_message_bytes),
            topics,
            minor: 0,
            out,
            sent: 0,
        }
    }

    /// Takes bytes up to the end of the first message or command; says how many, and what happened. Call it
    /// again with the rest.
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

    /// This many bytes were read into [`Self::space`].
    pub(crate) fn filled(&mut self, count: usize) -> Result<Option<Event>, ProtocolError> {
        let complete = self.decoder.filled(count);
        self.complete(complete)
    }

    fn complete(&mut self, complete: Option<Complete>) -> Result<Option<Event>, ProtocolError> {
        match complete {
            None => Ok(None),
            Some(Complete::Message) if self.socket == SocketType::XPub => Ok(self.subscription()),
            Some(Complete::Message) => Ok(Some(Event::Message)),
            Some(Complete::Command) => self.command(),
        }
    }

    /// A message to an XPUB. One that is no subscription means nothing here.
    fn subscription(&mut self) -> Option<Event> {
        let message = self.decoder.message();
        match message.frames() {
            Some([frame]) if frame.first() == Some(&1) => Some(Event::Subscribe(Carrier::Message)),
            Some([frame]) if frame.first() == Some(&0) => Some(Event::Cancel(Carrier::Message)),
            _ => {
                message.clear();
                None
            }
        }
    }

    fn command(&mut self) -> Result<Option<Event>, ProtocolError> {
        let command = Command::parse(self.decoder.command())?;
        if matches!(self.state, State::Traffic) {
            return match command {
                Command::Ping { ttl, context } if self.socket.publishes() => {
                    Ok(Some(Event::Ping { ttl, context }))
                }
                Command::Ping { context, .. } => {
                    if self.out.len() - self.sent < OUT_LIMIT {
                        command::pong(&context, &mut self.out);
                    }
                    Ok(None)
                }
                Command::Pong { context } => Ok(Some(Event::Pong(context))),
                Command::Error { reason } => Err(ProtocolError::Rejected(printable(reason))),
                Command::Subscribe { .. } if self.socket == SocketType::XPub => {
                    Ok(Some(Event::Subscribe(Carrier::Command)))
                }
                Command::Cancel { .. } if self.socket == SocketType::XPub => {
                    Ok(Some(Event::Cancel(Carrier::Command)))
                }
                // As libzmq does: what a later version adds is not ours to judge.
                _ => Ok(None),
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

    /// The topic of a subscription, after [`Event::Subscribe`] or [`Event::Cancel`] and until more is fed.
    pub(crate) fn topic(&mut self, carrier: Carrier) -> &[u8] {
        match carrier {
            Carrier::Message => self.decoder.message().frame(0).get(1..).unwrap_or_default(),
            Carrier::Command => match Command::parse(self.decoder.command()) {
                Ok(Command::Subscribe { topic } | Command::Cancel { topic }) => topic,
                _ => &[],
            },
        }
    }

    /// The identity that the peer gave, after [`Event::Established`]; empty when it gave none.
    pub(crate) fn identity(&self) -> &[u8] {
        self.mechanism.identity()
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

    /// This many bytes of [`Self::out`] were sent.
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
