//! Whether the ids that are computed here are those of an engine: proven, assumed or contradicted. A state
//! machine without IO.
//!
//! A template may be right for a single message and wrong for tools, so the state is one per model, engine
//! and [`Dimension`].
//!
//! | evidence | effect |
//! |---|---|
//! | an engine's ids are equal | the dimensions of the prompt are `proven`, unless they are contradicted |
//! | an engine's ids, or their number, differ | `contradicted`: all dimensions of the prompt that are not proven, or all of them if all are |
//! | the number of ids is equal | nothing: different ids can be as many |
//! | the engine starts anew | all its dimensions are `assumed` again |

mod dimension;
mod probe;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use dimension::{Dimension, Dimensions};
pub use probe::{Probe, probes};

/// Engines that are kept per model: more do not run one model behind one plane.
const MAX_ENGINES: usize = 4096;
/// One of this many requests is compared with an engine.
const SAMPLE_EVERY: u64 = 1000;

/// What ids are worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Standing {
    /// The engine computed the same for such prompts.
    Proven,
    /// Nobody has compared them yet.
    #[default]
    Assumed,
    /// The engine computed other ids for such a prompt.
    Contradicted,
}

impl Standing {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Proven, Self::Assumed, Self::Contradicted];

    /// In one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Proven => "proven",
            Self::Assumed => "assumed",
            Self::Contradicted => "contradicted",
        }
    }
}

/// What an engine said of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// It returned its ids.
    Ids {
        /// They are those that were computed here.
        equal: bool,
    },
    /// It returned the number of ids, as in `usage.prompt_tokens`.
    Length {
        /// It is as many as were computed here.
        equal: bool,
    },
}

/// A dimension that was not contradicted before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contradiction {
    /// The model.
    pub model: String,
    /// The engine whose ids differ.
    pub engine: String,
    /// The dimensions that are contradicted now and were not before.
    pub dimensions: Dimensions,
}

/// The state of one engine, for pages and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParityRow {
    /// The model.
    pub model: String,
    /// The engine.
    pub engine: String,
    /// What each dimension is worth.
    pub standings: Vec<(Dimension, Standing)>,
    /// Comparisons that agreed and that did not.
    pub agreed: u64,
    /// Comparisons that did not agree.
    pub differed: u64,
}

#[derive(Debug, Clone, Default)]
struct Engine {
    standings: [Standing; Dimension::ALL.len()],
    agreed: u64,
    differed: u64,
    /// The probes were compared.
    settled: bool,
    /// They were, or cannot be.
    tried: bool,
}

/// What is known of every engine of every model.
#[derive(Debug, Default)]
pub struct Parity {
    models: BTreeMap<String, BTreeMap<String, Engine>>,
    requests: u64,
}

impl Parity {
    /// Takes an engine's word about a prompt with these dimensions. Returns what is contradicted by it for
    /// the first time.
    pub fn observe(
        &mut self,
        model: &str,
        engine: &str,
        dimensions: Dimensions,
        evidence: Evidence,
    ) -> Option<Contradiction> {
        let engines = self.models.entry(model.to_owned()).or_default();
        if !engines.contains_key(engine) && engines.len() >= MAX_ENGINES {
            return None;
        }
        let state = engines.entry(engine.to_owned()).or_default();
        let (Evidence::Ids { equal } | Evidence::Length { equal }) = evidence;
        if equal {
            state.agreed += 1;
            if matches!(evidence, Evidence::Ids { .. }) {
                state.prove(dimensions);
            }
            return None;
        }
        state.differed += 1;
        let fresh = state.contradict(dimensions);
        (!fresh.is_empty()).then(|| Contradiction {
            model: model.to_owned(),
            engine: engine.to_owned(),
            dimensions: fresh,
        })
    }

    /// What ids for such a prompt are worth to one engine.
    pub fn of_engine(&self, model: &str, engine: &str, dimensions: Dimensions) -> Standing {
        let state = self.models.get(model).and_then(|engines| engines.get(engine));
        state.map_or(Standing::Assumed, |state| state.of(dimensions))
    }

    /// What ids for such a prompt are worth to all engines of a model: the worst. With it, the first engine
    /// that contradicts.
    pub fn of_model(&self, model: &str, dimensions: Dimensions) -> (Standing, Option<&str>) {
        let Some(engines) = self.models.get(model) else { return (Standing::Assumed, None) };
        let worst = engines.iter().map(|(name, state)| (state.of(dimensions), name.as_str()));
        let worst = worst.reduce(|worst, next| if next.0 > worst.0 { next } else { worst });
        match worst {
            None => (Standing::Assumed, None),
            Some((Standing::Contradicted, engine)) => (Standing::Contradicted, Some(engine)),
            Some((standing, _)) => (standing, None),
        }
    }

    /// A dimension of these that an engine contradicts.
    pub fn contradicted(&self, model: &str, engine: &str, dimensions: Dimensions) -> Option<Dimension> {
        let state = self.models.get(model)?.get(engine)?;
        dimensions.iter().find(|dimension| state.standings[*dimension as usize] == Standing::Contradicted)
    }

    /// The engine is known to serve the model, and nothing it said before counts: it started anew, or is new.
    pub fn begin(&mut self, model: &str, engine: &str) {
        let engines = self.models.entry(model.to_owned()).or_default();
        if engines.len() < MAX_ENGINES || engines.contains_key(engine) {
            engines.insert(engine.to_owned(), Engine::default());
        }
    }

    /// The probes were compared with the engine. From now on a request that differs is blamed on what the
    /// probes did not prove.
    pub fn settle(&mut self, model: &str, engine: &str) {
        if let Some(state) = self.models.get_mut(model).and_then(|engines| engines.get_mut(engine)) {
            (state.settled, state.tried) = (true, true);
        }
    }

    /// The probes cannot be compared with the engine: it is blamed on requests alone.
    pub fn give_up(&mut self, model: &str, engine: &str) {
        if let Some(state) = self.models.get_mut(model).and_then(|engines| engines.get_mut(engine)) {
            state.tried = true;
        }
    }

    /// Whether a request that differs may be blamed on its dimensions. Before the probes it would be blamed
    /// on all of them.
    pub fn was_tried(&self, model: &str, engine: &str) -> bool {
        self.models.get(model).and_then(|engines| engines.get(engine)).is_some_and(|state| state.tried)
    }

    /// Whether the probes were compared with the engine.
    pub fn is_settled(&self, model: &str, engine: &str) -> bool {
        self.models.get(model).and_then(|engines| engines.get(engine)).is_some_and(|state| state.settled)
    }

    /// The engine is gone.
    pub fn forget(&mut self, model: &str, engine: &str) {
        if let Some(engines) = self.models.get_mut(model) {
            engines.remove(engine);
        }
    }

    /// Whether this request is one to compare: the first, and one of every thousand.
    pub fn sample(&mut self) -> bool {
        self.requests += 1;
        self.requests % SAMPLE_EVERY == 1
    }

    /// Every engine.
    pub fn rows(&self) -> Vec<ParityRow> {
        let engines = self.models.iter().flat_map(|(model, engines)| {
            engines.iter().map(move |(engine, state)| ParityRow {
                model: model.clone(),
                engine: engine.clone(),
                standings: Dimension::ALL.into_iter().zip(state.standings).collect(),
                agreed: state.agreed,
                differed: state.differed,
            })
        });
        engines.collect()
    }
}

impl Engine {
    fn of(&self, dimensions: Dimensions) -> Standing {
        let standings = dimensions.iter().map(|dimension| self.standings[dimension as usize]);
        standings.max().unwrap_or(Standing::Assumed)
    }

    /// A contradiction stays until the engine starts anew: one prompt that is right does not mend another.
    fn prove(&mut self, dimensions: Dimensions) {
        for dimension in dimensions.iter() {
            let standing = &mut self.standings[dimension as usize];
            if *standing == Standing::Assumed {
                *standing = Standing::Proven;
            }
        }
    }

    /// Blames what is not proven, if there is anything; otherwise their combination, so all of them.
    fn contradict(&mut self, dimensions: Dimensions) -> Dimensions {
        let is =
            |state: &Self, dimension: Dimension, standing| state.standings[dimension as usize] == standing;
        let suspects: Vec<Dimension> =
            dimensions.iter().filter(|dimension| !is(self, *dimension, Standing::Proven)).collect();
        let blamed = if suspects.is_empty() { dimensions.iter().collect() } else { suspects };
        let mut fresh = Dimensions::default();
        for dimension in blamed {
            if !is(self, dimension, Standing::Contradicted) {
                fresh = fresh.with_if(dimension, true);
            }
            self.standings[dimension as usize] = Standing::Contradicted;
        }
        fresh
    }
}
