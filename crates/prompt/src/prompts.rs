//! Every model that has a tokenizer, and what its ids are worth.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::files::ModelSpec;
use crate::input::PromptInput;
use crate::model::Model;
use crate::parity::{Contradiction, Dimensions, Evidence, Parity, ParityRow, Standing};
use crate::{LoadError, PromptError};

/// Text that takes less than a millisecond. It does not wait behind longer text.
const SHORT: usize = 16 << 10;
/// Texts that are tokenized at the same time under a deadline, and that may wait for their turn.
const SHORT_AT_ONCE: usize = 32;
const LONG_AT_ONCE: usize = 8;
const MAX_WAITING: usize = 1_024;
/// Bytes of text for which the deadline grows by a millisecond.
const BYTES_PER_MILLISECOND: usize = 4 << 10;

/// Makes ids of prompts. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Prompts {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// By name, and by the names of adapters.
    models: HashMap<String, Arc<Model>>,
    parity: Mutex<Parity>,
    counters: Counters,
    engines: OnceLock<Arc<dyn AskEngines>>,
    /// Places for short and for long texts.
    running: [Arc<Semaphore>; 2],
    waiting: Semaphore,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            models: HashMap::new(),
            parity: Mutex::default(),
            counters: Counters::default(),
            engines: OnceLock::new(),
            running: [SHORT_AT_ONCE, LONG_AT_ONCE].map(|places| Arc::new(Semaphore::new(places))),
            waiting: Semaphore::new(MAX_WAITING),
        }
    }
}

/// Engines that are asked for the ids of models without a tokenizer here.
pub trait AskEngines: fmt::Debug + Send + Sync {
    /// The ids of a prompt, and the engine whose word they are. Waits for the answer.
    fn ids(&self, model: &str, input: &PromptInput) -> Result<(Vec<u32>, String), PromptError>;
}

/// What was done, for metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Prompts that became ids.
    pub tokenized: AtomicU64,
    /// Their ids.
    pub tokens: AtomicU64,
    /// Prompts that did not.
    pub refused: AtomicU64,
    /// Nanoseconds of computing.
    pub nanoseconds: AtomicU64,
    /// Contradictions that were found.
    pub contradictions: AtomicU64,
    /// Prompts whose ids came after their deadline.
    pub too_slow: AtomicU64,
    /// Prompts that found too many others waiting.
    pub busy: AtomicU64,
}

/// Ids, and what they are worth.
#[derive(Clone, PartialEq, Eq)]
pub struct Tokenized {
    /// The model, where an adapter of it was asked for.
    pub model: String,
    /// The adapter, where one was asked for by its name.
    pub adapter: Option<String>,
    /// The prompt.
    pub ids: Vec<u32>,
    /// What engines have to agree about for it.
    pub dimensions: Dimensions,
    /// Whether they do: the worst of the model's engines.
    pub standing: Standing,
}

impl fmt::Debug for Tokenized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenized")
            .field("model", &self.model)
            .field("adapter", &self.adapter)
            .field("ids", &self.ids.len())
            .field("dimensions", &self.dimensions)
            .field("standing", &self.standing)
            .finish()
    }
}

impl Prompts {
    /// Reads every model's files. Takes seconds for large vocabularies. The error names the model's place in the list.
    pub fn load(specs: Vec<ModelSpec>) -> Result<Self, (usize, LoadError)> {
        let mut models = HashMap::new();
        for (at, spec) in specs.into_iter().enumerate() {
            let model = Arc::new(Model::load(&spec).map_err(|error| (at, error))?);
            for name in std::iter::once(&spec.name).chain(&spec.adapters) {
                if models.insert(name.clone(), model.clone()).is_some() {
                    let reason = format!("{name:?} is the name of two models or adapters");
                    return Err((at, LoadError::new(&spec.tokenizer, reason)));
                }
            }
            let implementation = model.tokenizer().implementation().as_str();
            let template = model.template().map_or("none", |template| template.format().as_str());
            tracing::info!(model = spec.name, implementation, template, "tokenizer loaded");
        }
        Ok(Self { shared: Arc::new(Shared { models, ..Shared::default() }) })
    }

    /// The model of a name, or of its adapter.
    pub fn model(&self, name: &str) -> Option<&Arc<Model>> {
        self.shared.models.get(name)
    }

    /// Whether no model has a tokenizer.
    pub fn is_empty(&self) -> bool {
        self.shared.models.is_empty()
    }

    /// Whether some model's ids are asked of its engines: that waits for them.
    pub fn asks_engines(&self) -> bool {
        self.shared.models.values().any(|model| model.asks_engines())
    }

    /// Whom to ask for ids of models without a tokenizer here. Counts once.
    pub fn set_engines(&self, engines: Arc<dyn AskEngines>) {
        self.shared.engines.get_or_init(|| engines);
    }

    /// Names of the models, without their adapters.
    pub fn names(&self) -> Vec<String> {
        let own = self.shared.models.iter().filter(|(name, model)| *name == model.name());
        let mut names: Vec<String> = own.map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }

    /// The ids of a prompt, computed on this thread. Refused where an engine of the model computes others.
    pub fn tokenize(&self, model: &str, input: &PromptInput) -> Result<Tokenized, PromptError> {
        let begun = kvplane_runtime::now();
        let made = self.make(model, input);
        let counters = &self.shared.counters;
        counters.nanoseconds.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        match &made {
            Ok(made) => {
                counters.tokenized.fetch_add(1, Ordering::Relaxed);
                counters.tokens.fetch_add(made.ids.len() as u64, Ordering::Relaxed);
            }
            Err(_) => {
                counters.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
        made
    }

    /// How long a text of this many bytes may take, where short ones may take `usual`.
    pub fn deadline(usual: Duration, bytes: usize) -> Duration {
        usual + Duration::from_millis((bytes / BYTES_PER_MILLISECOND) as u64)
    }

    /// Runs `work` on a text of this many bytes away from the async workers, and waits for it until the
    /// deadline at most. Work that is late goes on, and keeps its place until it is done: what is under way
    /// stays bounded.
    pub async fn in_time<T: Send + 'static>(
        &self,
        bytes: usize,
        deadline: Duration,
        work: impl FnOnce() -> Result<T, PromptError> + Send + 'static,
    ) -> Result<T, PromptError> {
        let done = async {
            let _waiting = self.shared.waiting.try_acquire().map_err(|_| PromptError::Busy)?;
            let places = &self.shared.running[usize::from(bytes > SHORT)];
            let place = places.clone().acquire_owned().await.map_err(|_| PromptError::Busy)?;
            let work = tokio::task::spawn_blocking(move || {
                let _place = place;
                work()
            });
            work.await.unwrap_or(Err(PromptError::Panicked))
        };
        let done = tokio::time::timeout(deadline, done).await;
        let done = done.unwrap_or(Err(PromptError::TooSlow { after: deadline }));
        let counters = &self.shared.counters;
        match &done {
            Err(PromptError::TooSlow { .. }) => counters.too_slow.fetch_add(1, Ordering::Relaxed),
            Err(PromptError::Busy) => counters.busy.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        done
    }

    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        MAX_WAITING - self.shared.waiting.available_permits()
    }

    fn make(&self, name: &str, input: &PromptInput) -> Result<Tokenized, PromptError> {
        let unknown =
            || PromptError::NoTokenizer { model: name.chars().take(256).collect(), known: self.names() };
        let model = self.model(name).ok_or_else(unknown)?;
        let dimensions = input.dimensions();
        let mut standing = self.standing(model.name(), dimensions)?;
        let ids = if model.asks_engines() {
            let ids = self.of_engines(model.name(), input, dimensions)?;
            standing = self.standing(model.name(), dimensions)?;
            ids
        } else {
            model.ids(input, kvplane_runtime::unix_ms() / 1000)?
        };
        Ok(Tokenized {
            model: model.name().to_owned(),
            adapter: (model.name() != name).then(|| name.to_owned()),
            ids,
            dimensions,
            standing,
        })
    }

    /// Ids by an engine's own word, which is proven for itself.
    fn of_engines(
        &self,
        model: &str,
        input: &PromptInput,
        dimensions: Dimensions,
    ) -> Result<Vec<u32>, PromptError> {
        input.check()?;
        let nobody = || PromptError::no_engine(model, "nobody is there to be asked");
        let (ids, engine) = self.shared.engines.get().ok_or_else(nobody)?.ids(model, input)?;
        self.observe(model, &engine, dimensions, Evidence::Ids { equal: true });
        Ok(ids)
    }

    /// Ids that an engine contradicts are not given out.
    fn standing(&self, model: &str, dimensions: Dimensions) -> Result<Standing, PromptError> {
        let parity = self.shared.parity.lock();
        match parity.of_model(model, dimensions) {
            (Standing::Contradicted, Some(engine)) => {
                let dimension = parity.contradicted(model, engine, dimensions);
                Err(PromptError::Contradicted {
                    model: model.to_owned(),
                    engine: engine.to_owned(),
                    dimension: dimension.map_or("such", |dimension| dimension.as_str()),
                })
            }
            (standing, _) => Ok(standing),
        }
    }

    /// Takes an engine's word about a prompt: logged and counted where it contradicts for the first time.
    pub fn observe(
        &self,
        model: &str,
        engine: &str,
        dimensions: Dimensions,
        evidence: Evidence,
    ) -> Option<Contradiction> {
        let found = self.shared.parity.lock().observe(model, engine, dimensions, evidence)?;
        self.shared.counters.contradictions.fetch_add(1, Ordering::Relaxed);
        let dimensions = found.dimensions;
        tracing::warn!(model, engine, %dimensions, ?evidence, "tokenizer contradicted: the engine computes other ids");
        Some(found)
    }

    /// The engine is new, or started anew.
    pub fn begin(&self, model: &str, engine: &str) {
        self.shared.parity.lock().begin(model, engine);
    }

    /// The probes were compared with the engine.
    pub fn settle(&self, model: &str, engine: &str) {
        self.shared.parity.lock().settle(model, engine);
    }

    /// The probes cannot be compared with the engine.
    pub fn give_up(&self, model: &str, engine: &str) {
        self.shared.parity.lock().give_up(model, engine);
    }

    /// How many prompt tokens an engine counted for a prompt that was computed here, as in
    /// `usage.prompt_tokens`. Says nothing before the engine's probes were tried.
    pub fn counted(
        &self,
        model: &str,
        engine: &str,
        dimensions: Dimensions,
        equal: bool,
    ) -> Option<Contradiction> {
        if !self.shared.parity.lock().was_tried(model, engine) {
            return None;
        }
        self.observe(model, engine, dimensions, Evidence::Length { equal })
    }

    /// Whether the probes were compared with the engine.
    pub fn is_settled(&self, model: &str, engine: &str) -> bool {
        self.shared.parity.lock().is_settled(model, engine)
    }

    /// The engine is gone.
    pub fn forget(&self, model: &str, engine: &str) {
        self.shared.parity.lock().forget(model, engine);
    }

    /// Whether this request is one to compare with an engine.
    pub fn sample(&self) -> bool {
        self.shared.parity.lock().sample()
    }

    /// What is known of every engine.
    pub fn parity(&self) -> Vec<ParityRow> {
        self.shared.parity.lock().rows()
    }

    /// What was done.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }
}
