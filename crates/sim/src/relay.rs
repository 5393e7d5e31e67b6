//! A simulated server of relayed events: an engine's cache behind SMG's `SubscribeKvEvents`.
//!
//! It runs requests on caches of its own, one per rank, and sends what they do as a relay before an engine
//! would: numbered as the engine numbers them, with a load record on every message that differs each time.
//!
//! | style | a number | 0 |
//! |---|---|---|
//! | [`RelayStyle::Keeps`] | what follows it; `OUT_OF_RANGE` outside the history | the whole history, or a snapshot where it is cut |
//! | [`RelayStyle::LiveOnly`] | `OUT_OF_RANGE` | what comes from now on |

mod life;
mod message;
mod operated;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use kvplane_proto::Encoded;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tonic::{Code, Status};

use crate::engine::{CompletionResult, SimError};
use crate::fault::Restart;
use crate::grpc;
use crate::history::next_token;
use crate::keys::Keys;
use crate::operate::{Conduct, Desk, before_routes};
use crate::serve::ServerThread;
use life::Life;

/// Messages that a subscriber may leave unread. One that reads slower is cut off.
const UNREAD: usize = 65_536;

/// What the server does with a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RelayStyle {
    /// It keeps a history.
    #[default]
    Keeps,
    /// It has none.
    LiveOnly,
}

/// The service that offers the method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RelayService {
    /// vLLM's.
    #[default]
    Vllm,
    /// `SGLang`'s.
    Sglang,
    /// `TokenSpeed`'s.
    Tokenspeed,
    /// TensorRT-LLM's.
    Trtllm,
    /// MLX's, which has no events.
    Mlx,
}

/// A simulated server's configuration. The default is a small one on a free loopback port.
#[derive(Debug, Clone)]
pub struct RelayConfig {
    /// Where it listens.
    pub address: SocketAddr,
    /// Under which service.
    pub service: RelayService,
    /// What it does with a number.
    pub style: RelayStyle,
    /// Data-parallel ranks. With more than one, messages name theirs.
    pub ranks: u32,
    /// Batches that are kept per rank.
    pub history: usize,
    /// What snapshots say of the time before the server listened.
    pub unknown_before: u64,
    /// Blocks in one part of a snapshot.
    pub part_blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Blocks per rank.
    pub blocks: usize,
    /// Determines hashes and generated tokens.
    pub seed: u64,
    /// How operations go from the start.
    pub conduct: Conduct,
}

impl Default for RelayConfig {
    fn default() -> Self {
        Self {
            address: ([127, 0, 0, 1], 0).into(),
            service: RelayService::Vllm,
            style: RelayStyle::Keeps,
            ranks: 1,
            history: 10_000,
            unknown_before: 0,
            part_blocks: 32,
            block_size: 16,
            blocks: 96,
            seed: 0,
            conduct: Conduct::default(),
        }
    }
}

/// One thing that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelayFault {
    /// Running calls end with this status.
    End(Code),
    /// New calls are refused with this status.
    Refuse(Code),
    /// New calls get no headers.
    Mute,
    /// New calls get headers, and nothing else.
    Hang,
    /// New calls are served again.
    Serve,
    /// The next batches are not sent; the history has them.
    Skip(u32),
    /// The next numbers are used up without a batch.
    Lose(u32),
    /// The next batches are sent twice.
    Double(u32),
    /// Every subscriber gets a load record without a batch.
    Heartbeat,
    /// Every subscriber gets bytes that are no message.
    Nonsense,
    /// A new life, without the running calls.
    Restart(Restart),
}

/// A running server. It ends when this is dropped.
#[derive(Debug)]
pub struct SimRelay {
    shared: Arc<Shared>,
    server: ServerThread,
}

/// What the server's thread and its owner share.
#[derive(Debug)]
pub(crate) struct Shared {
    config: RelayConfig,
    state: Mutex<State>,
    desk: Arc<Desk>,
    start_time: SystemTime,
}

#[derive(Debug)]
struct State {
    ranks: Vec<Life>,
    subscribers: Vec<mpsc::Sender<Result<Encoded, Status>>>,
    answer: Answer,
    /// The number of every call, also of those that were refused.
    calls: Vec<u64>,
    skip: u32,
    lose: u32,
    double: u32,
}

/// What becomes of a new call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Answer {
    Serve,
    Refuse(Code),
    Mute,
    Hang,
}

impl SimRelay {
    /// Binds, and serves on a thread of its own.
    pub fn start(config: RelayConfig) -> Result<Self, SimError> {
        let ranks = (0..config.ranks.max(1)).map(|rank| Life::new(&config, rank)).collect();
        let state = State {
            ranks,
            subscribers: Vec::new(),
            answer: Answer::Serve,
            calls: Vec::new(),
            skip: 0,
            lose: 0,
            double: 0,
        };
        let desk = Arc::new(Desk::new(config.conduct.clone()));
        let shared = Arc::new(Shared {
            config,
            state: Mutex::new(state),
            desk,
            start_time: std::time::UNIX_EPOCH + kvplane_runtime::unix_time(),
        });
        let router = grpc::router(shared.config.service, shared.clone(), Some(shared.clone()));
        let router = router.merge(operated::control(shared.clone()));
        let server =
            ServerThread::start("sim-relay", shared.config.address, before_routes(router, &shared.desk))?;
        Ok(Self { shared, server })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Runs a request to its end on a rank.
    pub fn complete(
        &self,
        rank: u32,
        prompt: &[u32],
        max_tokens: usize,
    ) -> Result<CompletionResult, SimError> {
        let Shared { config, state, .. } = &*self.shared;
        let state = &mut *state.lock();
        let life = state.ranks.get_mut(rank as usize).ok_or(SimError::NoRank(rank))?;
        let mut request = life.begin(prompt, max_tokens, Keys::default())?;
        state.publish(rank);
        let mut output: Vec<u32> = Vec::new();
        for _ in 0..max_tokens {
            let life = &mut state.ranks[rank as usize];
            // The last token is sampled but never computed, so it is in no block.
            if let Some(&last) = output.last() {
                life.append(&mut request, last)?;
            }
            output.push(next_token(config.seed, request.tokens()));
            state.publish(rank);
        }
        state.ranks[rank as usize].finish(&request);
        Ok(CompletionResult { rank, cached_tokens: request.cached_tokens(), output })
    }

    /// Forgets every cached block of a rank, and says so at once.
    pub fn clear(&self, rank: u32) -> Result<(), SimError> {
        let state = &mut *self.shared.state.lock();
        state.ranks.get_mut(rank as usize).ok_or(SimError::NoRank(rank))?.clear()?;
        state.publish(rank);
        Ok(())
    }

    /// Makes something go wrong.
    pub fn fault(&self, fault: RelayFault) {
        let state = &mut *self.shared.state.lock();
        match fault {
            RelayFault::End(code) => state.end(code),
            RelayFault::Refuse(code) => state.answer = Answer::Refuse(code),
            RelayFault::Mute => state.answer = Answer::Mute,
            RelayFault::Hang => state.answer = Answer::Hang,
            RelayFault::Serve => state.answer = Answer::Serve,
            RelayFault::Skip(batches) => state.skip = batches,
            RelayFault::Lose(batches) => state.lose = batches,
            RelayFault::Double(batches) => state.double = batches,
            RelayFault::Heartbeat => state.send(&message::load_only()),
            RelayFault::Nonsense => state.send(&Encoded(message::NONSENSE)),
            RelayFault::Restart(restart) => {
                for life in &mut state.ranks {
                    life.restart(restart);
                }
                state.end(Code::Unavailable);
            }
        }
    }

    /// How operations go from now on, until somebody says otherwise.
    pub fn conduct(&self, conduct: Conduct) {
        self.shared.desk.set(conduct);
    }

    /// What operators have asked, the last thousand questions: method and path.
    pub fn asked(&self) -> Vec<String> {
        self.shared.desk.asked()
    }

    /// What a rank holds: the 64 bits of each hash, and its copies.
    pub fn held(&self, rank: u32) -> BTreeMap<u64, u64> {
        let state = self.shared.state.lock();
        let held = state.ranks.get(rank as usize).map(Life::held).unwrap_or_default();
        held.into_iter().map(|(hash, copies)| (hash, copies as u64)).collect()
    }

    /// The number of a rank's next batch.
    pub fn next_sequence(&self, rank: u32) -> u64 {
        self.shared.state.lock().ranks.get(rank as usize).map_or(0, Life::next_sequence)
    }

    /// The number of every call so far, also of those that were refused.
    pub fn calls(&self) -> Vec<u64> {
        self.shared.state.lock().calls.clone()
    }

    /// How many calls are being served.
    pub fn subscribers(&self) -> usize {
        let state = &mut *self.shared.state.lock();
        state.subscribers.retain(|subscriber| !subscriber.is_closed());
        state.subscribers.len()
    }

    /// Ends the server: connections break.
    pub fn stop(&self) {
        self.server.stop();
    }
}

impl State {
    /// Numbers and sends what a rank's last step did, if it did anything.
    fn publish(&mut self, rank: u32) {
        let lost = self.lose > 0;
        let Some(batch) = self.ranks[rank as usize].publish(lost) else { return };
        if lost {
            self.lose -= 1;
        } else if self.skip > 0 {
            self.skip -= 1;
        } else {
            self.send(&message::with_load(&batch));
            if self.double > 0 {
                self.double -= 1;
                self.send(&message::with_load(&batch));
            }
        }
    }

    fn send(&mut self, message: &Encoded) {
        self.subscribers.retain(|subscriber| subscriber.try_send(Ok(message.clone())).is_ok());
    }

    fn end(&mut self, code: Code) {
        for subscriber in self.subscribers.drain(..) {
            if code != Code::Ok {
                let _ = subscriber.try_send(Err(Status::new(code, "simulated")));
            }
        }
    }
}

impl Shared {
    /// Takes a call: what becomes of it, and what it is sent.
    pub(crate) fn subscribe(&self, start: u64) -> (Answer, mpsc::Receiver<Result<Encoded, Status>>) {
        let state = &mut *self.state.lock();
        state.calls.push(start);
        let (sender, receiver) = mpsc::channel(UNREAD);
        let mut answer = state.answer;
        if matches!(answer, Answer::Serve) {
            match life::first_messages(&self.config, &state.ranks, start) {
                Ok(messages) => {
                    for message in messages {
                        let _ = sender.try_send(Ok(message::with_load(&message)));
                    }
                }
                Err(code) => answer = Answer::Refuse(code),
            }
        }
        if matches!(answer, Answer::Serve | Answer::Hang) {
            state.subscribers.push(sender);
        }
        (answer, receiver)
    }
}
