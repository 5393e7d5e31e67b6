//! A router that goes by events as they come: what somebody builds who subscribes and asks nothing.
//!
//! It has a fleet of its own, with the same engines, the same load and the same faults. Of engines that
//! publish no socket it remembers what it sent them, as gateways without events do.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::Context as _;
use kvplane_core::{Namespace, chain_hash, hash_blocks};
use kvplane_socket::Sockets;

use super::fleet::{BLOCK_SIZE, Fleet, Sim};
use super::plain::PlainConsumer;
use super::routing::{Delivered, choose};

/// How long the last batch is waited for. One that is lost never comes.
const PATIENCE: Duration = Duration::from_millis(100);
/// Prefixes that are remembered of an engine before all are forgotten.
const SENT_MAX: usize = 1 << 20;
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The third fleet, and what is believed of it.
pub(super) struct PlainRouter {
    pub(super) fleet: Fleet,
    sockets: Sockets,
    consumers: Vec<Option<PlainConsumer>>,
    /// Prefixes that were sent to each engine, and may be long gone.
    sent: Vec<HashSet<u64>>,
    computed: Vec<u64>,
    unheard: Option<usize>,
}

/// Where the router sent a request, what it believed, and what came of it.
pub(super) struct Believed {
    pub(super) predicted: u64,
    pub(super) delivered: Delivered,
}

impl PlainRouter {
    pub(super) fn new(fleet: Fleet) -> anyhow::Result<Self> {
        let sockets = Sockets::start(&kvplane_socket::Options::default());
        let engines = fleet.engines.len();
        Ok(Self {
            sockets: sockets.context("cannot start the plain consumer")?,
            consumers: (0..engines).map(|_| None).collect(),
            sent: vec![HashSet::new(); engines],
            computed: vec![0; engines],
            unheard: None,
            fleet,
        })
    }

    /// Subscribes to every engine that publishes.
    pub(super) fn join(&mut self) -> anyhow::Result<()> {
        for (at, engine) in self.fleet.engines.iter().enumerate() {
            let Sim::Published(sim) = &engine.sim else { continue };
            let events = sim.event_endpoints().into_iter().next().unwrap_or_default();
            let consumer =
                PlainConsumer::start(&self.sockets, &events).context("cannot start the plain consumer")?;
            self.consumers[at] = Some(consumer);
        }
        Ok(())
    }

    /// Whether every subscription stands.
    pub(super) fn is_connected(&self) -> bool {
        self.consumers.iter().flatten().all(PlainConsumer::is_connected)
    }

    /// Sends a request where it believes the most of it to be cached.
    pub(super) async fn route(&mut self, prompt: &[u32], max_tokens: usize) -> anyhow::Result<Believed> {
        if let Some(last) = self.unheard.take() {
            self.until_heard(last).await;
        }
        let chain = chain(prompt);
        let held: Vec<u64> = (0..self.fleet.engines.len()).map(|at| self.believed(at, &chain)).collect();
        let at = choose(prompt.len() as u64, &held, &self.computed);
        let tokens = self.serve(at, prompt, max_tokens)?;
        Ok(Believed { predicted: held[at], delivered: Delivered { engine: at, tokens } })
    }

    /// Runs a request on one engine; says how many of its tokens were cached.
    pub(super) fn serve(&mut self, at: usize, prompt: &[u32], max_tokens: usize) -> anyhow::Result<u64> {
        let tokens = self.fleet.engines[at].complete(prompt, max_tokens)?.cached_tokens as u64;
        self.computed[at] += (prompt.len() as u64).saturating_sub(tokens);
        if self.sent[at].len() > SENT_MAX {
            self.sent[at].clear();
        }
        self.sent[at].extend(chain(prompt));
        self.unheard = Some(at);
        Ok(tokens)
    }

    /// Blocks that are believed to be held and are not, over all engines that publish.
    pub(super) fn phantoms(&self) -> usize {
        let engines = self.fleet.engines.iter().zip(&self.consumers);
        engines
            .filter_map(|(engine, consumer)| Some(consumer.as_ref()?.belief(&engine.held()).phantoms))
            .sum()
    }

    /// Ends it. Blocks.
    pub(super) fn end(self) {
        drop(self.consumers);
        self.sockets.shutdown();
        self.fleet.stop();
    }

    fn believed(&self, at: usize, chain: &[u64]) -> u64 {
        let blocks = match &self.consumers[at] {
            Some(consumer) => consumer.holds(chain),
            None => chain.iter().take_while(|hash| self.sent[at].contains(hash)).count(),
        };
        (blocks * BLOCK_SIZE) as u64
    }

    async fn until_heard(&self, at: usize) {
        let Some(consumer) = &self.consumers[at] else { return };
        let deadline = kvplane_runtime::now() + PATIENCE;
        while consumer.last_sequence() != self.fleet.engines[at].last_reported()
            && kvplane_runtime::now() < deadline
        {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// The prefixes of a prompt, as hashes.
fn chain(prompt: &[u32]) -> Vec<u64> {
    let mut contents = Vec::with_capacity(prompt.len() / BLOCK_SIZE);
    hash_blocks(prompt, BLOCK_SIZE, Namespace::PLAIN, &mut contents);
    let mut previous = None;
    let mut chain = |content: u64| {
        let hash = chain_hash(previous, content);
        previous = Some(hash);
        hash
    };
    contents.into_iter().map(&mut chain).collect()
}
