//! A feed for every engine that there is.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use kvplane_core::{EngineId, EngineKind};
use kvplane_ingest::{Engine, Feed, Plane, Stream, follow_ranks};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

use super::progress::{Progress, Reached};
use super::rank::{Common, RankFeed};
use super::replica::Replica;
use super::{Rules, WithheldCounts};
use crate::sink::Sink;

/// How an engine is told, and to whom.
pub struct Told {
    /// How.
    pub rules: Rules,
    /// To whom. It is dropped when the engine is gone, before another one takes its name.
    pub sink: Box<dyn Sink>,
}

/// Feeds of a plane's engines. They end when this is dropped.
#[derive(Debug)]
pub struct Feeds {
    plane: Arc<Plane>,
    counts: Arc<WithheldCounts>,
    progress: Progress,
    _running: AbortOnDropHandle<()>,
}

impl Feeds {
    /// Feeds every engine for which `told` says how, those that come later too. Must be called within a tokio runtime.
    pub fn start(plane: &Arc<Plane>, told: impl Fn(&Engine) -> Option<Told> + Send + 'static) -> Self {
        let (counts, progress) = (Arc::<WithheldCounts>::default(), Progress::default());
        let supervisor = Supervisor {
            plane: plane.clone(),
            counts: counts.clone(),
            progress: progress.clone(),
            told,
            engines: HashMap::new(),
        };
        let running = AbortOnDropHandle::new(tokio::spawn(supervisor.run()));
        Self { plane: plane.clone(), counts, progress, _running: running }
    }

    /// Waits until all is told that the engines' journals have now. Engines that are not heard are not waited for.
    pub async fn ready(&self) {
        self.progress.catch_up(self.plane.streams()).await;
    }

    /// Tokens per block of the engines of a model, each size once: prompts that are given as tokens are cut into these.
    pub fn block_sizes(&self, model: &str) -> BTreeSet<u32> {
        let members = self.plane.catalog().model(model).map(|roster| roster.members()).unwrap_or_default();
        members.iter().filter_map(|member| member.block_size()).collect()
    }

    /// Blocks that were not told, and why.
    pub fn withheld(&self) -> &Arc<WithheldCounts> {
        &self.counts
    }
}

/// What must not change while an engine is fed: with any of it, it is another replica.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    id: EngineId,
    kind: EngineKind,
    model: String,
    tenant: Option<String>,
}

impl Identity {
    fn of(engine: &Engine) -> Self {
        let spec = &engine.spec;
        Self { id: spec.id.clone(), kind: spec.kind, model: spec.model.clone(), tenant: spec.tenant.clone() }
    }
}

struct Supervisor<F> {
    plane: Arc<Plane>,
    counts: Arc<WithheldCounts>,
    progress: Progress,
    told: F,
    engines: HashMap<EngineId, (Identity, AbortOnDropHandle<()>)>,
}

impl<F: Fn(&Engine) -> Option<Told> + Send + 'static> Supervisor<F> {
    async fn run(mut self) {
        let mut engines = self.plane.watch();
        loop {
            let now = engines.borrow_and_update().clone();
            let stays = |identity: &Identity| now.iter().any(|engine| Identity::of(engine) == *identity);
            let gone = self.engines.extract_if(|_, (identity, _)| !stays(identity));
            for (_, (_, feed)) in gone.collect::<Vec<_>>() {
                // It ends by itself. Only then its name is free.
                let _ = feed.await;
            }
            let streams = || now.iter().flat_map(|engine| &engine.streams);
            self.progress.retain(|known| streams().any(|stream| stream.id() == known));
            for engine in now.iter().filter(|engine| !matches!(engine.spec.feed, Feed::Linked(_))) {
                self.begin(engine);
            }
            if engines.changed().await.is_err() {
                return;
            }
        }
    }

    fn begin(&mut self, engine: &Engine) {
        if self.engines.contains_key(&engine.spec.id) {
            return;
        }
        let Some(Told { rules, sink }) = (self.told)(engine) else {
            // Nobody waits for it.
            engine.streams.iter().for_each(|stream| self.progress.set(stream.id(), Reached::Unwanted));
            return;
        };
        let common = Common {
            rules: Arc::new(rules),
            replica: Arc::new(Mutex::new(Replica::new(sink))),
            counts: self.counts.clone(),
            progress: self.progress.clone(),
        };
        let identity = Identity::of(engine);
        let feed = AbortOnDropHandle::new(self.spawn(identity.clone(), common));
        self.engines.insert(identity.id.clone(), (identity, feed));
    }

    fn spawn(&self, identity: Identity, common: Common) -> JoinHandle<()> {
        let engines = self.plane.watch();
        tokio::spawn(async move {
            let begin = |stream: &Arc<Stream>| RankFeed::new(common.clone(), stream.id().clone());
            follow_ranks(engines, |engine| Identity::of(engine) == identity, begin).await;
        })
    }
}
