//! Getting a connection to a peer, again and again until it is there.
//!
//! ```text
//! Waiting ──> Resolving ──> Connecting ──> Connected ──> (lost) ──> Waiting
//!    ^            │              │ next address
//!    └────────────┴──────────────┘ pause: doubles, with jitter
//! ```

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kvplane_core::Backoff;
use mio::Registry;

use crate::address::Address;
use crate::stream::Stream;

/// A host that does not answer at all is given up after this, and its next address tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Addresses of one name that are tried in a round.
const MAX_ADDRESSES: usize = 16;

/// What the caller has to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Todo {
    /// Nothing now.
    Nothing,
    /// Resolve this name and hand in the answer with [`Dialer::resolved`].
    Resolve { host: String, port: u16 },
    /// The connection is there: [`Dialer::take`] it.
    Connected,
}

enum State {
    Waiting { until: Instant },
    Resolving,
    Connecting { stream: Stream, until: Instant },
    Connected { stream: Option<Stream> },
}

/// Dials one address. Its stream is registered under the token that it was made with.
pub(crate) struct Dialer {
    address: Address,
    token: usize,
    backoff: Backoff,
    state: State,
    /// Addresses still to be tried in this round.
    left: VecDeque<SocketAddr>,
    /// What was last said about it: a failure is a warning once, and not at each attempt.
    said: String,
    /// How long pauses may become because many others are away too.
    crowded: Duration,
}

impl Dialer {
    /// The first attempt is due at once.
    pub(crate) fn new(address: Address, token: usize, backoff: Backoff, now: Instant) -> Self {
        let state = State::Waiting { until: now };
        Self {
            address,
            token,
            backoff,
            state,
            left: VecDeque::new(),
            said: String::new(),
            crowded: Duration::ZERO,
        }
    }

    /// From now on pauses may become as long as this, if that is longer than usual.
    pub(crate) fn share_with_others(&mut self, crowded: Duration) {
        self.crowded = crowded;
    }

    /// Whether there is no connection.
    pub(crate) fn is_absent(&self) -> bool {
        !matches!(self.state, State::Connected { .. })
    }

    /// When [`Self::advance`] is due, unless something happens before.
    pub(crate) fn due(&self) -> Option<Instant> {
        match &self.state {
            State::Waiting { until } | State::Connecting { until, .. } => Some(*until),
            State::Resolving | State::Connected { .. } => None,
        }
    }

    /// Time passed, or the stream has news.
    pub(crate) fn advance(&mut self, registry: &Registry, now: Instant) -> Todo {
        match &self.state {
            State::Waiting { until } if *until <= now => self.begin(registry, now),
            State::Connecting { stream, until } => match stream.is_connected() {
                Ok(true) => {
                    let State::Connecting { stream, .. } =
                        std::mem::replace(&mut self.state, State::Connected { stream: None })
                    else {
                        return Todo::Nothing;
                    };
                    self.state = State::Connected { stream: Some(stream) };
                    Todo::Connected
                }
                Ok(false) if now < *until => Todo::Nothing,
                Ok(false) => self.next_address(registry, now, &io::ErrorKind::TimedOut.into()),
                Err(error) => self.next_address(registry, now, &error),
            },
            _ => Todo::Nothing,
        }
    }

    /// The answer to [`Todo::Resolve`].
    pub(crate) fn resolved(
        &mut self,
        answer: io::Result<Vec<SocketAddr>>,
        registry: &Registry,
        now: Instant,
    ) -> Todo {
        if !matches!(self.state, State::Resolving) {
            return Todo::Nothing;
        }
        match answer {
            Ok(found) => {
                self.left = found.into_iter().take(MAX_ADDRESSES).collect();
                self.next_address(registry, now, &io::Error::other("the name has no addresses"))
            }
            Err(error) => {
                self.wait(now, &error);
                Todo::Nothing
            }
        }
    }

    /// The stream, after [`Todo::Connected`].
    pub(crate) fn take(&mut self) -> Option<Stream> {
        match &mut self.state {
            State::Connected { stream } => stream.take(),
            _ => None,
        }
    }

    /// The connection was established, and is lost: dials again after a pause. One that was cut for a
    /// protocol error soon after its handshake would be cut again: the pause goes on to double.
    pub(crate) fn lost(&mut self, now: Instant, established: Option<Instant>, at_fault: bool, why: &str) {
        let lasted = established.map(|since| now.saturating_duration_since(since));
        if lasted.is_some_and(|lasted| !at_fault || lasted >= self.backoff.longest()) {
            self.backoff.reset();
            self.said.clear();
        }
        self.left.clear();
        self.wait(now, why);
    }

    fn begin(&mut self, registry: &Registry, now: Instant) -> Todo {
        match self.address.clone() {
            Address::Ip(address) => {
                self.left = VecDeque::from([address]);
                self.next_address(registry, now, &io::ErrorKind::AddrNotAvailable.into())
            }
            Address::Name { host, port } => {
                self.state = State::Resolving;
                Todo::Resolve { host, port }
            }
            Address::Path(_) | Address::Abstract(_) => {
                let connected = self.address.unix().and_then(|address| Stream::connect_unix(&address));
                match connected.and_then(|stream| self.registered(stream, registry)) {
                    Ok(stream) => {
                        self.state = State::Connected { stream: Some(stream) };
                        Todo::Connected
                    }
                    Err(error) => {
                        self.note_shortage(&error);
                        self.wait(now, &error);
                        Todo::Nothing
                    }
                }
            }
        }
    }

    /// An absent engine is nothing special; a machine that has no descriptors left is.
    fn note_shortage(&self, error: &io::Error) {
        const ENFILE: i32 = 23;
        const EMFILE: i32 = 24;
        if matches!(error.raw_os_error(), Some(ENFILE | EMFILE)) && self.said != error.to_string() {
            tracing::warn!(address = ?self.address, %error, "cannot open a socket");
        }
    }

    fn next_address(&mut self, registry: &Registry, now: Instant, failure: &io::Error) -> Todo {
        let mut failure = failure.to_string();
        while let Some(address) = self.left.pop_front() {
            match Stream::connect_tcp(address).and_then(|stream| self.registered(stream, registry)) {
                Ok(stream) => {
                    self.state = State::Connecting { stream, until: now + CONNECT_TIMEOUT };
                    return Todo::Nothing;
                }
                Err(error) => {
                    self.note_shortage(&error);
                    failure = error.to_string();
                }
            }
        }
        self.wait(now, &failure);
        Todo::Nothing
    }

    fn registered(&self, mut stream: Stream, registry: &Registry) -> io::Result<Stream> {
        stream.register(registry, self.token)?;
        Ok(stream)
    }

    fn wait(&mut self, now: Instant, why: &(impl std::fmt::Display + ?Sized)) {
        let why = why.to_string();
        let pause = self.backoff.wait_up_to(self.crowded);
        let pause_ms = pause.as_millis() as u64;
        if self.said == why {
            tracing::trace!(address = ?self.address, reason = why, pause_ms, "not connected");
        } else {
            tracing::debug!(address = ?self.address, reason = why, pause_ms, "not connected");
            self.said = why;
        }
        self.state = State::Waiting { until: now + pause };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_of_a_name_is_tried_before_a_pause() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap();
        let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut poll = mio::Poll::new().unwrap();
        let mut events = mio::Events::with_capacity(8);
        let address = Address::Name { host: "engine".to_owned(), port: 1 };
        let long = Duration::from_hours(1);
        let start = kvplane_runtime::now();
        let mut dialer = Dialer::new(address, 1, Backoff::new(long, long), start);
        let asked = dialer.advance(poll.registry(), start);
        assert_eq!(asked, Todo::Resolve { host: "engine".to_owned(), port: 1 });
        let mut todo = dialer.resolved(Ok(vec![gone, there]), poll.registry(), start);
        while todo != Todo::Connected {
            assert!(start.elapsed() < Duration::from_secs(20));
            poll.poll(&mut events, Some(Duration::from_millis(100))).unwrap();
            todo = dialer.advance(poll.registry(), start);
        }
        assert!(dialer.take().is_some());
        // And without any, there is a pause.
        let mut dialer =
            Dialer::new(Address::Name { host: "x".to_owned(), port: 1 }, 2, Backoff::new(long, long), start);
        dialer.advance(poll.registry(), start);
        assert_eq!(dialer.resolved(Ok(Vec::new()), poll.registry(), start), Todo::Nothing);
        assert!(dialer.due().is_some_and(|due| due >= start + long / 2));
    }
}
