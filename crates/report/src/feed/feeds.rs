//! A feed for every engine that there is.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use kvplane_core::{EngineId, EngineKind};
use kvplane_ingest::{Engine, Engines, Plane, Source, Stream, follow_ranks};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::progress::{Progress, Reached};
use super::rank::{Common, RankFeed};
use super::replica::Replica;
use super::{Rules, WithheldCounts};
use crate::sink::Sink;

/// How an engine is reported, and to whom.
pub struct Target {
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
    /// Feeds every engine for which `target` gives one, those that come later too. It is called once for
    /// each. Must be called within a tokio runtime.
    pub fn start(plane: &Arc<Plane>, target_of: impl Fn(&Engine) -> Option<Target> + Send + 'static) -> Self {
        let (counts, progress) = (Arc::<WithheldCounts>::default(), Progress::default());
        let supervisor = Supervisor {
            plane: plane.clone(),
            counts: counts.clone(),
            progress: progress.clone(),
            target_of,
            engines: HashMap::new(),
        };
        let running = AbortOnDropHandle::new(kvplane_runtime::spawn("report feeds", supervisor.run()));
        Self { plane: plane.clone(), counts, progress, _running: running }
    }

    /// Waits until everything in the engines' ledgers now is reported. Engines that are not connected are not
    /// waited for.
    pub async fn ready(&self) {
        self.progress.catch_up(self.plane.streams()).await;
    }

    /// Tokens per block of the engines of a model, each size once: prompts that are given as tokens are cut
    /// into these.
    pub fn block_sizes(&self, model: &str) -> BTreeSet<u32> {
        let members = self.plane.catalog().model(model).map(|roster| roster.members()).unwrap_or_default();
        members.iter().filter_map(|member| member.block_size()).collect()
    }

    /// Blocks that were withheld, and why.
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

/// An engine that is known.
struct Fed {
    identity: Identity,
    /// The engine as it is. Its feed knows of no other: if it watched the plane itself, it might miss a
    /// change that is seen here, or the other way round. It ends when this is dropped.
    engine: watch::Sender<Engines>,
    /// None where no server wants reports of it.
    feed: Option<AbortOnDropHandle<()>>,
}

struct Supervisor<F> {
    plane: Arc<Plane>,
    counts: Arc<WithheldCounts>,
    progress: Progress,
    target_of: F,
    engines: HashMap<EngineId, Fed>,
}

impl<F: Fn(&Engine) -> Option<Target> + Send + 'static> Supervisor<F> {
    async fn run(mut self) {
        let mut engines = self.plane.watch();
        loop {
            let now = engines.borrow_and_update().clone();
            self.keep(&now).await;
            if engines.changed().await.is_err() {
                return;
            }
        }
    }

    /// Feeds these engines, and no others.
    async fn keep(&mut self, now: &Engines) {
        let gone = self.engines.extract_if(|_, fed| !now.iter().any(|engine| fed.is(engine)));
        for Fed { engine, feed, .. } in gone.map(|(_, fed)| fed).collect::<Vec<_>>() {
            drop(engine);
            // Only when it has ended its name is free.
            if let Some(feed) = feed {
                let _ = feed.await;
            }
        }
        let streams = || now.iter().flat_map(|engine| &engine.streams);
        self.progress.retain(|known| streams().any(|stream| stream.id() == known));
        for engine in now.iter().filter(|engine| !matches!(engine.spec.source, Source::Linked(_))) {
            let id = engine.spec.id.clone();
            let fed = self.engines.entry(id).or_insert_with(|| {
                let common = (self.target_of)(engine).map(|Target { rules, sink }| Common {
                    rules: Arc::new(rules),
                    replica: Arc::new(Mutex::new(Replica::new(sink))),
                    counts: self.counts.clone(),
                    progress: self.progress.clone(),
                });
                Fed::start(engine, common)
            });
            fed.set(engine);
            if fed.feed.is_none() {
                // Nobody waits for it.
                engine.streams.iter().for_each(|stream| self.progress.set(stream.id(), Reached::Unwanted));
            }
        }
    }
}

impl Fed {
    fn start(engine: &Arc<Engine>, common: Option<Common>) -> Self {
        let (tell, engines) = watch::channel(Engines::from([engine.clone()]));
        let feed = common.map(|common| {
            AbortOnDropHandle::new(kvplane_runtime::spawn("report an engine", async move {
                let begin = |stream: &Arc<Stream>| RankFeed::new(common.clone(), stream.id().clone());
                follow_ranks(engines, |_| true, begin).await;
            }))
        });
        Self { identity: Identity::of(engine), engine: tell, feed }
    }

    /// Whether this is still the same engine. One that went and came back in a single step has other streams.
    fn is(&self, engine: &Engine) -> bool {
        let fed = self.engine.borrow();
        let shared = |stream: &Arc<Stream>| {
            engine.stream(stream.id().rank).is_some_and(|other| Arc::ptr_eq(other, stream))
        };
        Identity::of(engine) == self.identity && fed.iter().flat_map(|fed| &fed.streams).any(shared)
    }

    /// The engine as it is now.
    fn set(&self, engine: &Arc<Engine>) {
        self.engine.send_if_modified(|known| {
            let changed = known.iter().all(|known| !Arc::ptr_eq(known, engine));
            if changed {
                *known = Engines::from([engine.clone()]);
            }
            changed
        });
    }
}
