//! Engines' tokenizers beside ours: the probes when an engine starts, and a request now and then.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::HeaderValue;
use kvplane_ingest::{Engine, Mood, Plane, Said, Source};
use kvplane_prompt::engine::{self, EngineAddress, EngineError};
use kvplane_prompt::{Contradiction, Dimensions, Evidence, PromptInput, Prompts};
use kvplane_receipts::Receipt;
use kvplane_transport::HttpClient;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use crate::questions::Asker;

/// How often engines are looked at: a restart is noticed within it.
const EVERY: Duration = Duration::from_secs(2);
/// How long after a failure an engine is asked again.
const AGAIN: Duration = Duration::from_secs(30);

/// What is known of an engine here.
struct Known {
    model: String,
    epoch: Option<u64>,
    /// When to compare it again; `None` once it was.
    due: Option<Instant>,
}

/// Compares every engine once in each of its lives.
pub(crate) async fn watch(prompts: Prompts, plane: Arc<Plane>, stop: CancellationToken) {
    let client = HttpClient::new();
    let mut known: HashMap<String, Known> = HashMap::new();
    let mut tick = tokio::time::interval(EVERY);
    while stop.run_until_cancelled(tick.tick()).await.is_some() {
        let engines = plane.engines();
        let here = |name: &str| engines.iter().any(|engine| engine.spec.id.as_str() == name);
        known.retain(|name, entry| {
            let kept = here(name);
            if !kept {
                prompts.forget(&entry.model, name);
            }
            kept
        });
        for engine in engines.iter() {
            note(&prompts, engine, &mut known);
            let name = engine.spec.id.as_str();
            let Some(entry) = known.get_mut(name) else { continue };
            if entry.due.is_none_or(|due| due > Instant::now()) {
                continue;
            }
            let compared = stop.run_until_cancelled(compare(&prompts, &plane, &client, engine)).await;
            entry.due = if compared == Some(true) { None } else { Some(Instant::now() + AGAIN) };
        }
    }
}

/// Notes an engine that is new or started anew.
fn note(prompts: &Prompts, engine: &Engine, known: &mut HashMap<String, Known>) {
    let (name, model) = (engine.spec.id.as_str(), engine.spec.model.as_str());
    let mirrored = matches!(engine.spec.source, Source::Mirrored(_) | Source::Linked(_));
    if mirrored || prompts.model(model).is_none_or(|model| model.asks_engines()) {
        return;
    }
    let epoch = engine.streams.first().map(|stream| stream.cursor().epoch.as_u64());
    let same = known.get(name).is_some_and(|entry| entry.epoch == epoch && entry.model == model);
    if !same {
        prompts.begin(model, name);
        if engine.spec.http.is_none() {
            prompts.give_up(model, name);
        }
        let due = engine.spec.http.is_some().then(Instant::now);
        known.insert(name.to_owned(), Known { model: model.to_owned(), epoch, due });
    }
}

/// Whether the engine answered.
async fn compare(prompts: &Prompts, plane: &Plane, client: &HttpClient, engine: &Engine) -> bool {
    let (name, model) = (engine.spec.id.as_str(), engine.spec.model.as_str());
    let (Some(address), Some(tokenizer)) = (address(engine), prompts.model(model)) else { return false };
    let compared = match engine::compare(client, &address, tokenizer).await {
        Ok(compared) => compared,
        Err(error) => {
            debug!(engine = name, %error, "tokenizer not compared");
            if matches!(error, EngineError::NotServed { .. }) {
                prompts.give_up(model, name);
            }
            return false;
        }
    };
    let mut equal = 0;
    for one in &compared {
        equal += usize::from(one.evidence == Evidence::Ids { equal: true });
        let found = prompts.observe(model, name, one.dimensions, one.evidence);
        tell(plane, found.as_ref());
    }
    prompts.settle(model, name);
    info!(engine = name, model, equal, probes = compared.len(), "tokenizer compared");
    true
}

/// An engine said how many tokens a prompt has: a free check of every request that passes by.
pub(crate) fn take_count(asker: &Asker, receipt: &Receipt) {
    let Some((delivered, _)) = &receipt.settled else { return };
    let (Some(bits), Some(counted)) = (receipt.decided.text, delivered.prompt) else { return };
    let chosen = receipt.decided.candidates.first().map(|chosen| &*chosen.engine);
    let Some(engine) = delivered.engine.as_deref().or(chosen) else { return };
    // Somebody else may have served, whose prompts are not known.
    if asker.plane.engine(engine).is_none_or(|one| one.spec.model.as_str() != &*receipt.decided.model) {
        return;
    }
    let (dimensions, equal) = (Dimensions::from_bits(bits), counted == receipt.decided.prompt);
    tell(&asker.plane, asker.prompts.counted(&receipt.decided.model, engine, dimensions, equal).as_ref());
}

/// A contradiction is an event of the plane.
fn tell(plane: &Plane, found: Option<&Contradiction>) {
    let Some(Contradiction { model, engine, dimensions }) = found else { return };
    let words = format!(
        "{engine} computes other token ids for {model} ({dimensions}): text is not answered for these"
    );
    plane.remark(Said { topic: "tokenizer", mood: Mood::Bad, words });
}

/// Compares one request with an engine of its model, in the background. Not if another is being compared.
pub(crate) fn compare_one(
    asker: &Asker,
    model: &str,
    input: PromptInput,
    ids: Vec<u32>,
    dimensions: Dimensions,
) {
    if asker.comparing.swap(true, Ordering::AcqRel) {
        return;
    }
    let turn = Turn(asker.comparing.clone());
    let engines = asker.plane.engines();
    let Some((name, address)) = engines.iter().find_map(|engine| {
        // Before the probes, a difference would be blamed on every dimension of the prompt.
        let settled = asker.prompts.is_settled(model, engine.spec.id.as_str());
        let address = (settled && engine.spec.model == model).then(|| address(engine)).flatten()?;
        Some((engine.spec.id.as_str().to_owned(), address))
    }) else {
        return;
    };
    let (prompts, plane, model) = (asker.prompts.clone(), asker.plane.clone(), model.to_owned());
    kvplane_runtime::spawn("compare a prompt", async move {
        let client = HttpClient::new();
        if let Ok(theirs) = engine::tokenize(&client, &address, &input).await {
            let found = prompts.observe(&model, &name, dimensions, Evidence::Ids { equal: ids == theirs });
            tell(&plane, found.as_ref());
        }
        drop(turn);
    });
}

/// Given back when it is dropped.
struct Turn(Arc<AtomicBool>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

pub(crate) fn address(engine: &Engine) -> Option<EngineAddress> {
    let base = engine.spec.http.clone()?;
    engine.spec.control.api_key().ok()?;
    Some(EngineAddress { base, model: engine.spec.model.clone(), authorization: authorization(engine) })
}

/// The `Authorization` header for an engine that wants a key.
pub(crate) fn authorization(engine: &Engine) -> Option<HeaderValue> {
    let key = engine.spec.control.api_key().ok()??;
    let mut header = HeaderValue::from_str(&format!("Bearer {key}")).ok()?;
    header.set_sensitive(true);
    Some(header)
}
