//! A rank's publisher: one thread that owns the sockets, as in the engines.
//!
//! It publishes what it is given, keeps the last batches for replay and answers requests between two
//! publishes. Faults of frames and of replay happen here; the pool never hears of them.

mod outbox;
mod replies;

#[cfg(test)]
mod tests;

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kvplane_core::EngineKind;
use kvplane_socket::{Endpoint, PubOptions, PubSocket, RouterSocket, SocketError};
use kvplane_wire::{OwnedEvent, encode_batch};
use parking_lot::Mutex;

use self::outbox::Outbox;
use self::replies::{Replies, Ring};
use crate::config::{SimConfig, address_of_rank, endpoint_of_rank};
use crate::fault::Fault;

/// How often replay requests are looked for when nothing is published; engines: at most 100 ms.
const REPLAY_POLL: Duration = Duration::from_millis(10);

/// How long an address that is taken is tried again: a process that had it before may still be ending.
const REBIND_PATIENCE: Duration = Duration::from_mins(1);

/// What the publisher thread is asked to do.
pub(crate) enum Command {
    /// A batch, and how many before it found no room.
    Publish(Vec<OwnedEvent>, u64),
    /// Bytes as a payload, under a given or the next sequence.
    Raw(Option<u64>, Vec<u8>),
    Fault(Fault),
    /// A new life that has published these batches already.
    Restart(Vec<Vec<OwnedEvent>>),
    WaitForSubscriptions(u64, Duration, SyncSender<bool>),
    /// Answers with the next sequence once everything before it is done.
    Sync(SyncSender<u64>),
    Stop,
}

/// The other threads' side of a publisher.
pub(crate) struct PublisherHandle {
    commands: SyncSender<Command>,
    /// Batches that found no room since the last one that did; `None` for an engine that waits for room.
    lost: Option<Mutex<u64>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    pub(crate) events: String,
    pub(crate) replay: Option<String>,
}

impl PublisherHandle {
    /// Opens the sockets of a rank and starts its thread.
    pub(crate) fn start(config: &SimConfig, rank: u32) -> Result<Self, SocketError> {
        let addresses = Addresses {
            events: endpoint_of_rank(&config.events, rank),
            replay: config.replay.as_deref().map(|address| address_of_rank(address, rank)),
        };
        let sockets = Sockets::open(config, &addresses)?;
        let events = sockets.live.last_endpoint().to_owned();
        let replay = sockets.replay.as_ref().map(|socket| socket.last_endpoint().to_owned());
        // From now on on the ports that were chosen.
        let addresses = Addresses {
            events: match addresses.events {
                Endpoint::Bind(_) => Endpoint::Bind(events.clone()),
                connect @ Endpoint::Connect(_) => connect,
            },
            replay: replay.clone(),
        };
        let (commands, inbox) = sync_channel(config.queue);
        let publisher = Publisher {
            inbox,
            addresses,
            rank,
            next_sequence: 0,
            last_timestamp: 0.0,
            ring: Ring::new(config.buffer_steps),
            outbox: Outbox::default(),
            replies: Replies::new(config),
            config: config.clone(),
        };
        let thread =
            thread::Builder::new().name(format!("sim-pub-{rank}")).spawn(|| publisher.run(sockets))?;
        let lost = (config.profile.engine() == EngineKind::Trtllm).then(Mutex::default);
        let handle = Self { commands, lost, thread: Mutex::new(Some(thread)), events, replay };
        for fault in &config.faults {
            // A restart concerns the pool as well: the engine does it.
            if !matches!(fault, Fault::Restart(_)) {
                handle.send(Command::Fault(*fault));
            }
        }
        Ok(handle)
    }

    /// Queues a command; waits when the queue is full. A publisher that ended takes none.
    pub(crate) fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    /// Queues a batch. When the queue is full, engines wait for room, except TensorRT-LLM: there the batch is lost,
    /// and its number is missing.
    pub(crate) fn publish(&self, events: Vec<OwnedEvent>) {
        let Some(lost) = &self.lost else { return self.send(Command::Publish(events, 0)) };
        let mut lost = lost.lock();
        match self.commands.try_send(Command::Publish(events, *lost)) {
            Err(TrySendError::Full(_)) => *lost += 1,
            Ok(()) | Err(TrySendError::Disconnected(_)) => *lost = 0,
        }
    }

    /// Waits until all earlier commands are done; the next sequence, `None` if the publisher ended.
    pub(crate) fn sync(&self) -> Option<u64> {
        let (answer, wait) = sync_channel(1);
        self.send(Command::Sync(answer));
        let lost = self.lost.as_ref().map_or(0, |lost| *lost.lock());
        wait.recv().ok().map(|next| next + lost)
    }

    /// Waits for subscribers; see [`PubSocket::wait_for_subscriptions`].
    pub(crate) fn wait_for_subscriptions(&self, count: u64, timeout: Duration) -> bool {
        let (answer, wait) = sync_channel(1);
        self.send(Command::WaitForSubscriptions(count, timeout, answer));
        wait.recv().unwrap_or(false)
    }

    /// Ends the thread and closes the sockets.
    pub(crate) fn stop(&self) {
        self.send(Command::Stop);
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("a simulated publisher panicked");
        }
    }
}

impl Drop for PublisherHandle {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Addresses {
    events: Endpoint,
    replay: Option<String>,
}

struct Sockets {
    live: PubSocket,
    replay: Option<RouterSocket>,
}

impl Sockets {
    fn open(config: &SimConfig, addresses: &Addresses) -> Result<Self, SocketError> {
        let options = PubOptions { send_hwm: config.hwm, ..PubOptions::new(addresses.events.clone()) };
        let live = patiently(|| PubSocket::open(&config.context, &options))?;
        let bind = |address: &String| patiently(|| RouterSocket::bind(&config.context, address, config.hwm));
        Ok(Self { live, replay: addresses.replay.as_ref().map(bind).transpose()? })
    }
}

fn patiently<T>(open: impl Fn() -> Result<T, SocketError>) -> Result<T, SocketError> {
    let deadline = kvplane_runtime::now() + REBIND_PATIENCE;
    loop {
        match open() {
            Err(error) if error.is_address_in_use() && kvplane_runtime::now() < deadline => {
                thread::sleep(Duration::from_millis(5));
            }
            result => return result,
        }
    }
}

struct Publisher {
    inbox: Receiver<Command>,
    config: SimConfig,
    addresses: Addresses,
    rank: u32,
    next_sequence: u64,
    last_timestamp: f64,
    ring: Ring,
    outbox: Outbox,
    replies: Replies,
}

impl Publisher {
    fn run(mut self, mut sockets: Sockets) {
        loop {
            match self.inbox.recv_timeout(self.patience()) {
                Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(Command::Restart(batches)) => {
                    self.new_life(batches);
                    match self.reopen(sockets) {
                        Some(reopened) => sockets = reopened,
                        None => return,
                    }
                }
                Ok(Command::Fault(Fault::Disconnect)) => match self.reopen(sockets) {
                    Some(reopened) => sockets = reopened,
                    None => return,
                },
                Ok(command) => self.obey(command, &mut sockets.live),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.flush(&mut sockets.live);
            if let Some(router) = &sockets.replay {
                self.replies.serve(router, &self.ring);
            }
        }
    }

    /// How long the thread may sleep before a frame or a reply is due.
    fn patience(&self) -> Duration {
        let dues = [self.outbox.due(), self.replies.due()];
        let now = kvplane_runtime::now();
        let due = dues.into_iter().flatten().map(|due| due.saturating_duration_since(now)).min();
        due.map_or(REPLAY_POLL, |due| due.min(REPLAY_POLL))
    }

    fn obey(&mut self, command: Command, live: &mut PubSocket) {
        match command {
            Command::Publish(events, lost) => {
                self.next_sequence += lost;
                let payload = self.encode(&events);
                let sequence = self.advance();
                if !self.outbox.loses() {
                    self.ring.push(sequence, payload.clone());
                    self.outbox.push(sequence, payload);
                }
            }
            Command::Raw(given, payload) => {
                let sequence = given.unwrap_or_else(|| self.advance());
                if given.is_none() {
                    self.ring.push(sequence, payload.clone());
                }
                self.outbox.push(sequence, payload);
            }
            Command::Fault(Fault::Replay(mode)) => self.replies.set_mode(mode),
            Command::Fault(fault) => self.outbox.inject(fault),
            Command::Sync(answer) => {
                // So that "done" includes the wire, except for what is held back on purpose.
                self.flush(live);
                let _ = answer.try_send(self.next_sequence);
            }
            Command::WaitForSubscriptions(count, timeout, answer) => {
                let _ = answer.try_send(live.wait_for_subscriptions(count, timeout));
            }
            Command::Restart(_) | Command::Stop => {}
        }
    }

    fn flush(&mut self, live: &mut PubSocket) {
        while let Some((sequence, payload)) = self.outbox.pop(kvplane_runtime::now()) {
            if let Err(error) = live.send(self.config.topic.as_bytes(), sequence, &payload) {
                tracing::warn!(%error, rank = self.rank, "a batch was not published");
            }
        }
    }

    fn encode(&mut self, events: &[OwnedEvent]) -> Vec<u8> {
        const LEAST_STEP: f64 = 1e-5;
        let now = kvplane_runtime::unix_time().as_secs_f64();
        self.last_timestamp = now.max(self.last_timestamp + LEAST_STEP);
        encode_batch(self.config.profile, self.last_timestamp, Some(self.rank), events)
    }

    fn advance(&mut self) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        sequence
    }

    fn new_life(&mut self, batches: Vec<Vec<OwnedEvent>>) {
        self.next_sequence = 0;
        self.ring = Ring::new(self.config.buffer_steps);
        self.outbox = Outbox::default();
        self.replies.forget();
        for events in batches {
            let payload = self.encode(&events);
            let sequence = self.advance();
            self.ring.push(sequence, payload);
        }
    }

    /// Closes the sockets and opens them again at the same addresses.
    fn reopen(&mut self, sockets: Sockets) -> Option<Sockets> {
        drop(sockets);
        self.replies.forget();
        match Sockets::open(&self.config, &self.addresses) {
            Ok(sockets) => Some(sockets),
            Err(error) => {
                tracing::error!(%error, rank = self.rank, "cannot reopen the sockets; the rank is gone");
                None
            }
        }
    }
}
