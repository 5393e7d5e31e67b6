//! How questions about prompts went, in kvplane's own protocols: `/v1/query`, `Query` and `QueryStream`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kvplane_catalog::{Asking, Catalog, Question};
use kvplane_core::{PublicError, Trust};
use kvplane_ingest::Plane;
use kvplane_metrics::{Latencies, LatenciesRead};
use kvplane_prompt::{Dimensions, PromptError, PromptInput, Prompts, Tokenized};
use schemars::JsonSchema;
use serde::Serialize;

use crate::parity;
use crate::value::Value;

/// Upper ends of the buckets, in seconds: short prompts take microseconds.
const BOUNDS: [f64; 13] = [
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1,
];

/// How a question ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Somebody who is credited holds some of the prompt.
    Hit,
    /// Nobody does.
    Miss,
    /// It could not be answered; the caller got an error.
    Refused,
}

impl Outcome {
    const ALL: [(Self, &str); 3] = [(Self::Hit, "hit"), (Self::Miss, "miss"), (Self::Refused, "refused")];
}

/// What is counted of questions.
#[derive(Debug)]
pub(crate) struct Questions {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    took: Latencies,
}

impl Default for Questions {
    fn default() -> Self {
        Self { outcomes: Default::default(), took: Latencies::new(&BOUNDS) }
    }
}

impl Questions {
    /// Answers one. The answer comes with whether anybody was found.
    pub(crate) fn answer<R, E>(&self, ask: impl FnOnce() -> Result<(R, bool), E>) -> Result<R, E> {
        let begun = kvplane_runtime::now();
        let answered = ask();
        let outcome = match &answered {
            Ok((_, true)) => Outcome::Hit,
            Ok((_, false)) => Outcome::Miss,
            Err(_) => Outcome::Refused,
        };
        self.outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
        self.took.record(begun.elapsed());
        answered.map(|(answer, _)| answer)
    }

    /// How many ended how.
    pub(crate) fn outcomes(&self) -> [(&'static str, u64); Outcome::ALL.len()] {
        Outcome::ALL.map(|(outcome, name)| (name, self.outcomes[outcome as usize].load(Ordering::Relaxed)))
    }

    /// How long they took.
    pub(crate) fn took(&self) -> LatenciesRead {
        self.took.read()
    }
}

/// What answering a question takes: the streams, what bounds it, and where it is counted.
#[derive(Debug)]
pub(crate) struct Asker {
    pub(crate) plane: Arc<Plane>,
    /// Trust levels whose state is given out by protocols that cannot carry a flag.
    pub(crate) credit: Vec<Trust>,
    /// The longest prompt that may be asked for.
    pub(crate) max_tokens: usize,
    /// How long the text of a decision may take to become ids, before a millisecond for every 4 KiB of it.
    pub(crate) tokenize_timeout: Duration,
    pub(crate) questions: Questions,
    /// Tokens asked for and found, over all protocols.
    pub(crate) value: Arc<Value>,
    /// Makes ids of prompts that are given as text.
    pub(crate) prompts: Prompts,
    /// Held while a prompt is compared with an engine: one at a time.
    pub(crate) comparing: Arc<AtomicBool>,
}

/// What an answer says of a prompt that was given as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct TokenizedNote {
    /// Its tokens.
    pub(crate) tokens: u64,
    /// Whether engines compute the same ids: `proven` or `assumed`.
    pub(crate) parity: &'static str,
    /// What engines have to agree about for it.
    #[serde(skip)]
    pub(crate) dimensions: Dimensions,
}

/// A text that is not known in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WithoutTokens {
    /// In one word.
    pub(crate) why: &'static str,
    /// About how many tokens it has.
    pub(crate) about: u64,
}

/// Bytes of a token in usual text: good enough to know long work from short.
const BYTES_PER_TOKEN: usize = 4;

/// Refuses what does not go with text.
fn check_beside(question: &Question, input: &PromptInput) -> Result<(), PublicError> {
    let field = if matches!(input, PromptInput::Text(_)) { "prompt" } else { "messages" };
    for (other, given) in
        [("token_ids", question.token_ids.is_some()), ("block_hashes", question.block_hashes.is_some())]
    {
        if given {
            return Err(PublicError::field(field, format!("and {other} exclude each other")));
        }
    }
    for (other, given) in
        [("multimodal", question.multimodal.is_some()), ("extra_keys", question.extra_keys.is_some())]
    {
        if given {
            return Err(PublicError::field(other, format!("goes with token_ids, not with {field}")));
        }
    }
    Ok(())
}

fn put(question: &mut Question, made: Tokenized) -> TokenizedNote {
    let Tokenized { model, adapter, ids, standing, dimensions } = made;
    let note = TokenizedNote { tokens: ids.len() as u64, parity: standing.as_str(), dimensions };
    if question.lora_name.is_none() && question.lora_id.is_none() {
        question.lora_name = adapter;
    }
    question.model = Some(model);
    question.set_token_ids(ids, true);
    note
}

impl Asker {
    /// Puts the ids of a text into the question, and the adapter that it was asked for by.
    pub(crate) fn tokenize(
        &self,
        question: &mut Question,
        input: &PromptInput,
    ) -> Result<TokenizedNote, PublicError> {
        check_beside(question, input)?;
        let made = self.ids(question.model.as_deref().unwrap_or_default(), input)?;
        Ok(put(question, made))
    }

    /// The same for a decision: without ids in time the question stays without them, and the word says why.
    pub(crate) async fn tokenize_in_time(
        self: &Arc<Self>,
        question: &mut Question,
        input: PromptInput,
    ) -> Result<Result<TokenizedNote, WithoutTokens>, PublicError> {
        check_beside(question, &input)?;
        let (here, model) = (self.clone(), question.model.clone().unwrap_or_default());
        let bytes = input.size();
        let deadline = Prompts::deadline(self.tokenize_timeout, bytes);
        match self.prompts.in_time(bytes, deadline, move || here.ids(&model, &input)).await {
            Ok(made) => Ok(Ok(put(question, made))),
            Err(error) => match error.decides_by_load() {
                Some(why) => {
                    if let Some(model) = question.model.as_deref().and_then(|name| self.prompts.model(name)) {
                        // The engines serve the model; an adapter is one of its names.
                        question.model = Some(model.name().to_owned());
                    }
                    tracing::debug!(why, bytes, %error, "picked by load: no tokens");
                    Ok(Err(WithoutTokens { why, about: (bytes / BYTES_PER_TOKEN) as u64 }))
                }
                None => Err(error.into()),
            },
        }
    }

    /// The ids of a text. Some are compared with an engine's.
    pub(crate) fn ids(&self, model: &str, input: &PromptInput) -> Result<Tokenized, PromptError> {
        let made = self.prompts.tokenize(model, input)?;
        let of_engine = self.prompts.model(&made.model).is_some_and(|model| model.asks_engines());
        if !of_engine && self.prompts.sample() {
            parity::compare_one(self, &made.model, input.clone(), made.ids.clone(), made.dimensions);
        }
        Ok(made)
    }

    pub(crate) fn catalog(&self) -> &Catalog {
        self.plane.catalog()
    }

    /// What questions are bound by.
    pub(crate) fn asking(&self) -> Asking<'_> {
        Asking { credit: &self.credit, max_tokens: self.max_tokens }
    }
}
