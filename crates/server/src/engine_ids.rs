//! Ids of models whose tokenizer is in their engines alone: asked of one of them, text by text.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use kvplane_ingest::Plane;
use kvplane_prompt::engine::{self, EngineAddress, EngineError};
use kvplane_prompt::{AskEngines, PromptError, PromptInput};
use kvplane_transport::HttpClient;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::parity::address;

/// Engines that are asked for one text, one after the other.
const ATTEMPTS: usize = 2;
/// Texts that engines are asked for at the same time.
const AT_ONCE: usize = 32;
/// Longer than any question may take: an answer, or none, always comes before.
const LONGEST: Duration = Duration::from_mins(2);
/// Engines that are remembered not to render.
const MAX_REMEMBERED: usize = 4_096;

/// Asks the engines of a plane.
#[derive(Debug)]
pub(crate) struct EngineIds {
    plane: Arc<Plane>,
    runtime: Handle,
    asking: Arc<AtomicUsize>,
    turn: AtomicUsize,
    /// Engines without `/render`: asked by `/tokenize` at once.
    plain: Arc<Mutex<HashSet<String>>>,
}

impl EngineIds {
    pub(crate) fn new(plane: Arc<Plane>, runtime: Handle) -> Self {
        Self { plane, runtime, asking: Arc::default(), turn: AtomicUsize::new(0), plain: Arc::default() }
    }

    /// Engines of the model that can be asked, each time beginning with another.
    fn engines(&self, model: &str) -> Vec<(String, EngineAddress)> {
        let all = self.plane.engines();
        let of_model = all.iter().filter(|engine| engine.spec.model.as_str() == model);
        let mut found: Vec<(String, EngineAddress)> = of_model
            .filter_map(|engine| Some((engine.spec.id.as_str().to_owned(), address(engine)?)))
            .collect();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let first = turn % found.len().max(1);
        found.rotate_left(first);
        found.truncate(ATTEMPTS);
        found
    }
}

/// Given back when it is dropped.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl AskEngines for EngineIds {
    fn ids(&self, model: &str, input: &PromptInput) -> Result<(Vec<u32>, String), PromptError> {
        let place = Place(self.asking.clone());
        if self.asking.fetch_add(1, Ordering::AcqRel) >= AT_ONCE {
            return Err(PromptError::Busy);
        }
        let engines = self.engines(model);
        if engines.is_empty() {
            return Err(PromptError::no_engine(model, "none has an http address"));
        }
        let (plain, asked, name) = (self.plain.clone(), input.clone(), model.to_owned());
        let (tell, reported) = mpsc::sync_channel(1);
        kvplane_runtime::spawn_on(&self.runtime, "ask an engine for ids", async move {
            let _ = tell.send(ask(&name, engines, &plain, &asked).await);
            drop(place);
        });
        reported.recv_timeout(LONGEST).unwrap_or_else(|_| Err(PromptError::no_engine(model, "no answer")))
    }
}

async fn ask(
    model: &str,
    engines: Vec<(String, EngineAddress)>,
    plain: &Mutex<HashSet<String>>,
    input: &PromptInput,
) -> Result<(Vec<u32>, String), PromptError> {
    let client = HttpClient::new();
    let mut reason = String::new();
    for (name, address) in engines {
        match one(&client, &name, &address, plain, input).await {
            Ok(ids) => return Ok((ids, name)),
            // The prompt is at fault: others would refuse it too.
            Err(EngineError::Refused(status @ (400 | 422))) => {
                let field = if matches!(input, PromptInput::Text(_)) { "prompt" } else { "messages" };
                return Err(PromptError::field(
                    field,
                    format!("engine {name:?} refuses it (status {status})"),
                ));
            }
            Err(error) => reason = format!("{name}: {error}"),
        }
    }
    Err(PromptError::no_engine(model, reason))
}

/// The rendered request, where the engine serves that, and the prompt's ids otherwise.
async fn one(
    client: &HttpClient,
    name: &str,
    address: &EngineAddress,
    plain: &Mutex<HashSet<String>>,
    input: &PromptInput,
) -> Result<Vec<u32>, EngineError> {
    if !plain.lock().contains(name) {
        match engine::render(client, address, input).await {
            Err(EngineError::NotServed { .. }) => {
                let mut plain = plain.lock();
                if plain.len() >= MAX_REMEMBERED {
                    plain.clear();
                }
                plain.insert(name.to_owned());
            }
            rendered => return rendered,
        }
    }
    engine::tokenize(client, address, input).await
}
