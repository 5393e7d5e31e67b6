//! What the owner of a publishing socket and the thread that serves it share.
//!
//! A peer has a [`Line`] from the end of its handshake on. Everything for it goes through the line's queue,
//! under one lock: messages when they are sent, the answer to a PING when the PING is read. So the answer
//! comes behind every message that was sent before, and no message comes before the subscription that asked
//! for it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use super::newcomers::Arrival;
use super::outgoing::{Amount, Limits, Outgoing, Writing};
use super::thread::Calls;
use super::topics::Topics;
use crate::SocketError;
use crate::connection::Refusal;
use crate::refusals::Refusals;
use crate::zmtp::SocketType;
use crate::zmtp::command::PingContext;
use crate::zmtp::frame::{message_length, put_message};

/// What happened to a publishing socket so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublishCounts {
    /// Peers that have completed their handshake and are there now.
    pub peers: usize,
    /// Messages that were dropped because a peer had too much waiting, counted for each such peer.
    pub dropped: u64,
    /// Connections that were closed because the peer broke the protocol or a limit, by a stable word.
    pub refused: BTreeMap<&'static str, u64>,
}

/// A socket, without its connections.
pub(super) struct Hub {
    pub(super) id: u64,
    pub(super) socket: SocketType,
    pub(super) limits: Limits,
    /// New subscribers get nothing before they are admitted, and those that lose a message are held back
    /// again.
    holds_back: bool,
    calls: Arc<Calls>,
    /// Of all sockets of the context.
    refusals: Refusals,
    pub(super) state: Mutex<State>,
    /// A subscription or a request came, or the socket ended.
    pub(super) changed: Condvar,
}

/// What is behind the lock.
pub(super) struct State {
    /// By the index that peers keep.
    pub(super) lines: Vec<Option<Line>>,
    /// Tokens of the peers that the thread must look at.
    pending: Vec<usize>,
    /// The thread was called, and has not taken `pending` yet.
    called: bool,
    /// The thread does not serve this socket any more.
    pub(super) ended: bool,
    dropped: u64,
    refused: BTreeMap<&'static str, u64>,
    /// Subscriptions that were ever made.
    subscriptions: u64,
    /// Some subscriber may be new.
    pub(super) has_newcomers: bool,
    /// The number of the last line that there was.
    last_serial: u64,
    /// Lines of a ROUTER by identity.
    pub(super) identities: HashMap<Vec<u8>, usize>,
    /// The last identity that was made up.
    pub(super) last_identity: u32,
    /// Lines of a ROUTER with requests, in the order in which they are served.
    pub(super) turns: VecDeque<usize>,
}

/// A peer after its handshake.
pub(super) struct Line {
    pub(super) token: usize,
    /// No other line of the socket has or had it.
    pub(super) serial: u64,
    pub(super) outgoing: Outgoing,
    /// It is among the pending.
    pending: bool,
    /// What the peer of an XPUB wants.
    pub(super) topics: Topics,
    /// How far the owner of an XPUB has taken notice of the peer.
    pub(super) arrival: Arrival,
    /// Who the peer of a ROUTER is.
    pub(super) identity: Vec<u8>,
    /// What the peer of a ROUTER asked for, and nobody has looked at.
    pub(super) requests: VecDeque<u64>,
    /// Nothing more is read from the peer until some requests were looked at.
    pub(super) is_held: bool,
}

impl Hub {
    pub(super) fn new(
        socket: SocketType,
        limits: Limits,
        holds_back: bool,
        calls: Arc<Calls>,
        refusals: Refusals,
    ) -> Arc<Self> {
        let state = State {
            lines: Vec::new(),
            pending: Vec::new(),
            called: false,
            ended: false,
            dropped: 0,
            refused: BTreeMap::new(),
            subscriptions: 0,
            has_newcomers: false,
            last_serial: 0,
            identities: HashMap::new(),
            last_identity: super::askers::random(),
            turns: VecDeque::new(),
        };
        let id = calls.next_id();
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Arc::new(Self { id, socket, limits, holds_back, calls, refusals, state, changed })
    }

    // === the owner's side ===

    /// Queues a message for every peer that wants its topic, which is the first frame. Never waits.
    pub(super) fn publish(&self, frames: &[&[u8]]) -> Result<(), SocketError> {
        let Some(topic) = frames.first() else { return Ok(()) };
        let size = message_length(frames);
        let mut encoded: Option<Bytes> = None;
        let mut state = self.state.lock();
        if state.ended {
            return Err(SocketError::Stopped);
        }
        let State { lines, pending, dropped, has_newcomers, .. } = &mut *state;
        let wanted = |line: &&mut Line| !line.arrival.is_held_back && line.topics.matches(topic);
        for line in lines.iter_mut().flatten().filter(wanted) {
            if line.outgoing.has_room(size, &self.limits) {
                let message = encoded.get_or_insert_with(|| encode(frames, size)).clone();
                line.outgoing.push(message);
                line.note(pending);
            } else {
                *dropped += 1;
                // What follows would be taken for all there is.
                if self.holds_back {
                    line.arrival = Arrival { is_new: true, is_held_back: true };
                    *has_newcomers = true;
                }
            }
        }
        let call = state.call();
        drop(state);
        self.call_if(call);
        Ok(())
    }

    /// Queues a message for one line, unless too much waits there.
    pub(super) fn send(&self, state: &mut State, line: usize, frames: &[&[u8]]) {
        let size = message_length(frames);
        let State { lines, pending, dropped, .. } = state;
        let Some(Some(line)) = lines.get_mut(line) else { return };
        if line.outgoing.has_room(size, &self.limits) {
            line.outgoing.push(encode(frames, size));
            line.note(pending);
        } else {
            *dropped += 1;
        }
    }

    /// How many subscriptions were ever made.
    pub(super) fn subscriptions(&self) -> u64 {
        self.state.lock().subscriptions
    }

    /// Waits until this many subscriptions were made.
    pub(super) fn wait_for_subscriptions(&self, count: u64, timeout: Duration) -> bool {
        let deadline = deadline_after(timeout);
        let mut state = self.state.lock();
        while state.subscriptions < count && !state.ended {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.subscriptions >= count
    }

    /// What happened so far.
    pub(super) fn counts(&self) -> PublishCounts {
        let state = self.state.lock();
        let peers = state.lines.iter().flatten().count();
        PublishCounts { peers, dropped: state.dropped, refused: state.refused.clone() }
    }

    /// Calls the thread, after the lock was released.
    pub(super) fn call_if(&self, call: bool) {
        if call {
            self.calls.serve(self.id);
        }
    }

    // === the thread's side ===

    /// A peer has completed its handshake; its line.
    pub(super) fn add(&self, token: usize, identity: &[u8]) -> Result<usize, Refusal> {
        let mut state = self.state.lock();
        let free = state.lines.iter().position(Option::is_none).unwrap_or(state.lines.len());
        let identity = match self.socket {
            SocketType::Router => state.identify(identity, free)?,
            _ => Vec::new(),
        };
        state.last_serial += 1;
        let line = Line {
            token,
            serial: state.last_serial,
            arrival: Arrival { is_new: false, is_held_back: self.holds_back },
            outgoing: Outgoing::default(),
            pending: false,
            topics: Topics::default(),
            identity,
            requests: VecDeque::new(),
            is_held: false,
        };
        if free == state.lines.len() {
            state.lines.push(Some(line));
        } else {
            state.lines[free] = Some(line);
        }
        Ok(free)
    }

    /// A peer is gone, and with it what waited for it.
    pub(super) fn remove(&self, line: usize) {
        let removed = {
            let mut state = self.state.lock();
            let removed = state.lines.get_mut(line).and_then(Option::take);
            if let Some(removed) = &removed {
                state.identities.remove(&removed.identity);
                state.turns.retain(|turn| *turn != line);
            }
            removed
        };
        // What it held is freed without the lock.
        drop(removed);
    }

    /// A peer wants topics with this prefix.
    pub(super) fn subscribe(&self, line: usize, prefix: &[u8]) -> Result<(), Refusal> {
        let mut state = self.state.lock();
        let Some(Some(found)) = state.lines.get_mut(line) else { return Ok(()) };
        found.topics.subscribe(prefix)?;
        found.arrival = Arrival { is_new: true, is_held_back: self.holds_back };
        state.has_newcomers = true;
        state.subscriptions += 1;
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// A peer does not want topics with this prefix any more.
    pub(super) fn cancel(&self, line: usize, prefix: &[u8]) {
        if let Some(Some(line)) = self.state.lock().lines.get_mut(line) {
            line.topics.cancel(prefix);
        }
    }

    /// Answers a PING, behind everything that was sent before.
    pub(super) fn pong(&self, line: usize, context: &PingContext) {
        if let Some(Some(line)) = self.state.lock().lines.get_mut(line) {
            line.outgoing.push_pong(context);
        }
    }

    /// So much was written; moves what is next to `writing`. False when there is nothing.
    pub(super) fn exchange(&self, line: usize, written: Amount, writing: &mut Writing) -> bool {
        let mut state = self.state.lock();
        let Some(Some(line)) = state.lines.get_mut(line) else { return false };
        line.outgoing.written(written);
        line.outgoing.move_to(writing)
    }

    /// So much was written.
    pub(super) fn written(&self, line: usize, written: Amount) {
        if let Some(Some(line)) = self.state.lock().lines.get_mut(line) {
            line.outgoing.written(written);
        }
    }

    /// The peers that there is something to do for, by token.
    pub(super) fn take_pending(&self, into: &mut Vec<usize>) {
        let mut state = self.state.lock();
        let State { lines, pending, called, .. } = &mut *state;
        *called = false;
        for line in lines.iter_mut().flatten() {
            line.pending = false;
        }
        into.append(pending);
    }

    /// A connection was closed for this reason; how many were so far, for any.
    pub(super) fn count_refused(&self, reason: &'static str) -> u64 {
        self.refusals.count(reason);
        let mut state = self.state.lock();
        *state.refused.entry(reason).or_default() += 1;
        state.refused.values().sum()
    }

    /// The thread does not serve the socket any more.
    pub(super) fn end(&self) {
        let lines = {
            let mut state = self.state.lock();
            state.ended = true;
            state.identities.clear();
            state.turns.clear();
            std::mem::take(&mut state.lines)
        };
        self.changed.notify_all();
        drop(lines);
    }
}

impl State {
    /// Whether the thread must be called: it has something to do, and does not know.
    pub(super) fn call(&mut self) -> bool {
        let call = !self.pending.is_empty() && !self.called;
        self.called |= call;
        call
    }

    /// The thread is to look at this line.
    pub(super) fn note(&mut self, line: usize) {
        if let Some(Some(line)) = self.lines.get_mut(line) {
            line.note(&mut self.pending);
        }
    }
}

impl Line {
    fn note(&mut self, pending: &mut Vec<usize>) {
        if !self.pending {
            self.pending = true;
            pending.push(self.token);
        }
    }
}

fn encode(frames: &[&[u8]], size: usize) -> Bytes {
    let mut bytes = Vec::with_capacity(size);
    put_message(frames, &mut bytes);
    bytes.into()
}

/// When a wait is over. One that is longer than the clock goes is as good as a year.
pub(super) fn deadline_after(timeout: Duration) -> Instant {
    const YEAR: Duration = Duration::from_hours(24 * 365);
    let now = kvplane_runtime::now();
    now.checked_add(timeout).unwrap_or(now + YEAR)
}
