//! External processing over gRPC: messages to and from an [`Exchange`].

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Instant;

use futures::future::BoxFuture;
use futures::{Stream, StreamExt as _, poll};
use kvplane_inference::{Endpoint, Plane, Pool, Report};
use kvplane_proto::envoy::server::external_processor_server::{ExternalProcessor, ExternalProcessorServer};
use kvplane_proto::{Received, Reply};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use crate::decide::{Decided, decide};
use crate::exchange::{Budget, End, Ending, Exchange, Output};
use crate::health;
use crate::options::Options;
use crate::pace::{PacedInfo, Turn};
use crate::rules::Rules;
use crate::stats::{Ended, Stats};

/// What all streams share.
pub(crate) struct Shared {
    pub(crate) plane: Arc<dyn Plane>,
    pub(crate) options: Options,
    pub(crate) stats: Arc<Stats>,
    /// Long prompts that are tokenized at the same time.
    pub(crate) tokenizing: Arc<Semaphore>,
    /// Whose turn it is where nothing else decides.
    pub(crate) turn: AtomicUsize,
    /// Draws of models that share requests.
    pub(crate) drawn: AtomicU64,
    rules: watch::Receiver<Arc<Rules>>,
    budget: Budget,
}

impl Shared {
    /// What requests are decided by now.
    pub(crate) fn rules(&self) -> Arc<Rules> {
        self.rules.borrow().clone()
    }

    pub(crate) fn is_ready(&self) -> bool {
        let rules = self.rules();
        rules.synced && self.plane.is_ready() && rules.pool.endpoints().iter().any(Endpoint::takes_requests)
    }

    pub(crate) fn ticket(self: &Arc<Self>, receipt: String, picked: String) -> Ticket {
        self.stats.in_flight().fetch_add(1, Ordering::Relaxed);
        Ticket {
            shared: self.clone(),
            receipt: Some(receipt),
            prefill: None,
            picked,
            at: kvplane_runtime::now(),
            first_byte_ms: None,
        }
    }
}

/// What was booked for a request. Ends with it, however it ends.
pub(crate) struct Ticket {
    shared: Arc<Shared>,
    receipt: Option<String>,
    prefill: Option<String>,
    picked: String,
    at: Instant,
    first_byte_ms: Option<u64>,
}

impl Ticket {
    /// Somebody else prefills: that is booked too, until the first byte comes.
    pub(crate) fn add_prefill(&mut self, receipt: String) {
        self.prefill = Some(receipt);
    }

    fn first_byte(&mut self) {
        self.first_byte_ms = Some(self.at.elapsed().as_millis() as u64);
        for receipt in self.receipt.iter().chain(&self.prefill) {
            self.shared.plane.first_byte(receipt);
        }
    }

    fn end(mut self, ending: Ending) {
        let failed = ending.end == End::Finished && !(200..300).contains(&ending.status);
        let finished = ending.end == End::Finished && !failed;
        self.shared.stats.count_end(match (finished, failed, ending.usage.cached) {
            (true, _, Some(_)) => Ended::Usage,
            (true, _, None) => Ended::NoUsage,
            (false, true, _) => Ended::Failed,
            (false, false, _) => Ended::Aborted,
        });
        if let Some(served) = ending.served.as_ref().filter(|served| **served != self.picked) {
            self.shared.stats.count_wrong_endpoint();
            tracing::warn!(picked = self.picked, served, "an endpoint other than the picked one answered");
        }
        let report = Report {
            finished,
            usage: ending.usage,
            served: ending.served,
            attempts: ending.attempts,
            any_rank: false,
            first_byte_ms: self.first_byte_ms,
        };
        // What was cached is what the one who prefilled says.
        if let Some(prefill) = self.prefill.take() {
            let rest = Report { finished, ..Report::default() };
            self.shared.plane.ended(&prefill, Report { served: None, ..report });
            if let Some(receipt) = self.receipt.take() {
                self.shared.plane.ended(&receipt, rest);
            }
        } else if let Some(receipt) = self.receipt.take() {
            self.shared.plane.ended(&receipt, report);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.shared.stats.in_flight().fetch_sub(1, Ordering::Relaxed);
        if self.receipt.is_some() {
            self.shared.stats.count_end(Ended::Aborted);
        }
        for receipt in self.receipt.take().into_iter().chain(self.prefill.take()) {
            self.shared.plane.ended(&receipt, Report::default());
        }
    }
}

/// The picker: one service, and the pool that it picks from. Cheap to clone.
#[derive(Clone)]
pub struct Picker {
    shared: Arc<Shared>,
}

impl fmt::Debug for Picker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Picker").field("rules", &self.shared.rules()).finish_non_exhaustive()
    }
}

impl Picker {
    /// A picker over a plane. It goes by the rules of each moment: see `rules.rs` for who sends them.
    pub fn new(plane: Arc<dyn Plane>, options: Options, rules: watch::Receiver<Arc<Rules>>) -> Self {
        // More at once than there are processors only makes each of them slower.
        let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        let budget = Budget::new(options.max_body, options.max_bodies);
        let shared = Shared {
            plane,
            options,
            stats: Arc::default(),
            tokenizing: Arc::new(Semaphore::new(threads)),
            turn: AtomicUsize::new(0),
            drawn: AtomicU64::new(0),
            rules,
            budget,
        };
        Self { shared: Arc::new(shared) }
    }

    /// The endpoints.
    pub fn pool(&self) -> Arc<Pool> {
        self.shared.rules().pool.clone()
    }

    /// What was counted.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.shared.stats
    }

    /// Bytes of bodies that are held.
    pub fn held_bytes(&self) -> usize {
        self.shared.budget.held()
    }

    /// The services of a listener: external processing, and health that says "not serving" once `stop` is
    /// cancelled.
    pub fn routes(&self, stop: CancellationToken) -> Routes {
        let max = self.shared.options.max_body + (1 << 20);
        let server = ExternalProcessorServer::new(self.clone()).max_decoding_message_size(max);
        self.health_routes(stop).add_service(server)
    }

    /// Health alone, for a listener of its own.
    pub fn health_routes(&self, stop: CancellationToken) -> Routes {
        let (reporter, service) = tonic_health::server::health_reporter();
        kvplane_runtime::spawn("picker health", health::report(self.shared.clone(), reporter, stop));
        Routes::new(service)
    }
}

/// Messages of one stream that are taken before anything is sent: their bytes have room in its window.
const AT_ONCE: usize = 64;

type Outgoing = Pin<Box<dyn Stream<Item = Result<Reply, Status>> + Send>>;

#[tonic::async_trait]
impl ExternalProcessor for Picker {
    type ProcessStream = Outgoing;

    async fn process(&self, request: Request<Streaming<Received>>) -> Result<Response<Outgoing>, Status> {
        let turn = request.extensions().get::<PacedInfo>().map(|info| info.waiting.begin());
        let conversation = Box::new(Conversation::new(self.shared.clone(), request.into_inner(), turn));
        let outgoing = futures::stream::unfold(conversation, |mut conversation| async move {
            conversation.next().await.map(|message| (message, conversation))
        });
        Ok(Response::new(outgoing.boxed()))
    }
}

/// One stream. Reading its messages drives it: what Envoy does not read holds up what is read
/// from it.
struct Conversation {
    shared: Arc<Shared>,
    incoming: Option<Streaming<Received>>,
    exchange: Exchange,
    deciding: Option<BoxFuture<'static, Decided>>,
    outgoing: VecDeque<Reply>,
    /// What the exchange wants; kept for its room.
    outputs: Vec<Output>,
    ticket: Option<Ticket>,
    closing: bool,
    /// While its request waits for the pick, its connection is read at once.
    turn: Option<Turn>,
    /// Why no more is read. The stream ends with it: to Envoy, one that ends well before it was answered is
    /// an empty answer.
    failed: Option<Status>,
}

impl Conversation {
    fn new(shared: Arc<Shared>, incoming: Streaming<Received>, turn: Option<Turn>) -> Self {
        shared.stats.stream_began();
        let exchange = Exchange::new(shared.budget.clone());
        Self {
            shared,
            incoming: Some(incoming),
            exchange,
            deciding: None,
            outgoing: VecDeque::new(),
            outputs: Vec::new(),
            ticket: None,
            closing: false,
            turn,
            failed: None,
        }
    }

    /// The next message for Envoy; `None` when all is said.
    async fn next(&mut self) -> Option<Result<Reply, Status>> {
        loop {
            if let Some(message) = self.outgoing.pop_front() {
                return Some(Ok(message));
            }
            if self.closing {
                return self.failed.take().map(Err);
            }
            match (&mut self.deciding, &mut self.incoming) {
                (Some(deciding), Some(incoming)) => tokio::select! {
                    biased;
                    decided = deciding => self.decided(decided),
                    message = incoming.message() => self.message(message),
                },
                (Some(deciding), None) => {
                    let decided = deciding.await;
                    self.decided(decided);
                }
                (None, Some(incoming)) => {
                    let message = incoming.message().await;
                    self.message(message);
                    self.what_has_come().await;
                }
                (None, None) => return self.failed.take().map(Err),
            }
            self.carry_out();
        }
    }

    /// Takes messages of an answer that are there already: their bytes are sent back together.
    async fn what_has_come(&mut self) {
        for _ in 0..AT_ONCE {
            if !self.exchange.is_sent() {
                return;
            }
            let Some(incoming) = &mut self.incoming else { return };
            let Poll::Ready(message) = poll!(incoming.next()) else { return };
            self.message(message.transpose());
        }
    }

    fn message(&mut self, message: Result<Option<Received>, Status>) {
        match message {
            Ok(Some(message)) => return self.exchange.message(message),
            Ok(None) => {}
            Err(status) => self.failed = Some(status),
        }
        // The client or Envoy is gone: what is being decided is not needed.
        self.incoming = None;
        self.deciding = None;
        self.exchange.closed();
    }

    fn decided(&mut self, decided: Decided) {
        self.deciding = None;
        self.ticket = decided.ticket;
        self.exchange.decided(decided.verdict);
    }

    fn carry_out(&mut self) {
        self.exchange.take(&mut self.outputs);
        for output in self.outputs.drain(..) {
            match output {
                Output::Send(message) => self.outgoing.push_back(Reply::Message(message)),
                Output::Pass(passed) => self.outgoing.push_back(Reply::Passed(passed)),
                Output::Decide(request) => {
                    self.deciding = Some(Box::pin(decide(self.shared.clone(), *request)));
                }
                Output::FirstByte => {
                    if let Some(ticket) = &mut self.ticket {
                        ticket.first_byte();
                    }
                }
                Output::Ended(ending) => {
                    if let Some(ticket) = self.ticket.take() {
                        ticket.end(ending);
                    }
                }
                Output::Close => self.closing = true,
            }
        }
        if self.exchange.is_decided() {
            self.turn = None;
        }
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        self.shared.stats.stream_ended();
    }
}

#[cfg(test)]
mod tests;
