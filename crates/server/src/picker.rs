//! The plane behind an endpoint picker: the decision of `/v1/pick`, for endpoints of a pool.

mod bound;
mod listen;
mod places;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvplane_catalog::Question;
use kvplane_core::{EngineKind, ErrorCode, PublicError};
use kvplane_inference::{Ask, Chosen, Found, NoTokens, PickError, Plane, Report as Came, Tokens};
use kvplane_prompt::{PromptError, PromptInput, Standing, Tokenized};
use kvplane_receipts::Delivered;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::debug;

pub use listen::PickerSetup;
pub(crate) use listen::run;
use places::Places;

use crate::questions::{Asker, WithoutTokens};
use crate::readiness::Readiness;
use crate::routing::{MAX_ENDPOINTS, Report, Routing, State, Wish};

/// How long an account waits for what explains it, and how often it is looked for.
const EVIDENCE: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Accounts that wait at the same time.
const SETTLING: usize = 1_024;

/// What a picker decides with.
#[derive(Debug)]
pub(crate) struct Decider {
    asker: Arc<Asker>,
    routing: Arc<Routing>,
    readiness: Arc<Readiness>,
    policy: Option<String>,
    places: Mutex<Arc<Places>>,
    /// Receipts that wait for what explains them.
    settling: Arc<Semaphore>,
    ready: AtomicBool,
}

impl Decider {
    pub(crate) fn new(
        asker: Arc<Asker>,
        routing: Arc<Routing>,
        readiness: Arc<Readiness>,
        policy: Option<String>,
    ) -> Self {
        let (places, ready) = (Mutex::default(), AtomicBool::new(false));
        let settling = Arc::new(Semaphore::new(SETTLING));
        Self { asker, routing, readiness, policy, places, settling, ready }
    }

    /// Which streams the endpoints of a pool are.
    fn places(&self, pool: &Arc<kvplane_inference::Pool>) -> Arc<Places> {
        let engines = self.asker.plane.engines();
        let mut places = self.places.lock();
        if !places.is_of(pool, &engines) {
            *places = Arc::new(Places::new(pool.clone(), engines));
        }
        places.clone()
    }

    fn report(&self, receipt: &str, report: Report) {
        if let Err(error) = self.routing.report(&self.asker, receipt, report) {
            debug!(receipt, error = error.message, "report not taken");
        }
    }

    /// Who answered, as the ledger calls them.
    fn served(&self, came: &Came) -> (Option<Box<str>>, Option<u32>) {
        let Some(address) = &came.served else { return (None, None) };
        let places = self.places.lock().clone();
        match places.stream_at(address) {
            Some((engine, rank)) => (Some(engine.into()), rank),
            None => (Some(address.as_str().into()), None),
        }
    }
}

impl Plane for Decider {
    fn tokenize(&self, model: &str, prompt: PromptInput) -> Result<Tokens, NoTokens> {
        let made = self.asker.ids(model, &prompt).map_err(|error| match error {
            PromptError::NoTokenizer { .. } => NoTokens::NoTokenizer,
            PromptError::Contradicted { .. } => NoTokens::Contradicted,
            PromptError::Busy => NoTokens::Busy,
            _ => NoTokens::NotRendered,
        })?;
        let Tokenized { model, adapter, ids, standing, dimensions } = made;
        Ok(Tokens { model, adapter, ids, proven: standing == Standing::Proven, dimensions })
    }

    fn tokenizes(&self, model: &str) -> bool {
        self.asker.prompts.model(model).is_some()
    }

    fn pick(&self, ask: &Ask<'_>) -> Result<Chosen, PickError> {
        let places = self.places(ask.pool);
        if !places.any(|place| ask.allows(place)) {
            return Err(PickError::UnknownModel);
        }
        let mut question = Question { cache_salt: ask.cache_salt.map(str::to_owned), ..Question::default() };
        match ask.tokens {
            Ok(tokens) => {
                question.model = Some(tokens.model.clone());
                question.lora_name.clone_from(&tokens.adapter);
                question.token_ids = Some(tokens.ids.clone());
            }
            Err(_) => question.model = Some(ask.model.to_owned()),
        }
        let mut wish = Wish {
            output: ask.output,
            // Ids that the request brought were computed elsewhere.
            text: ask.tokens.ok().map(|tokens| tokens.dimensions).filter(|dimensions| !dimensions.is_empty()),
            without_tokens: ask.tokens.err().map(|why| WithoutTokens { why: why.as_str(), about: 0 }),
            with: ask.with.map(str::to_owned),
            ..Wish::default()
        };
        // Of engines with several ranks at one address, only the best rank is returned.
        wish.limit = if ask.limit <= 1 { 1 } else { MAX_ENDPOINTS };
        wish.set_session(ask.session).map_err(|error| PickError::Invalid(error.message))?;
        wish.set_policy(self.policy.as_deref()).map_err(|error| PickError::Invalid(error.message))?;
        let among = |id: &kvplane_core::StreamId| places.of(id).any(|place| ask.allows(place));
        let picked = self.routing.pick_among(&self.asker, &mut question, &wish, &among);
        let picked = picked.map_err(refused)?;
        let mut endpoints: Vec<Found> = Vec::with_capacity(ask.limit.min(picked.endpoints.len()));
        for one in &picked.endpoints {
            let Some(place) = places.of(&one.id).find(|place| ask.allows(*place)) else { continue };
            if endpoints.len() >= ask.limit || endpoints.iter().any(|known| known.place == place) {
                continue;
            }
            let (rank, kind) = places.header_rank(&one.id, place);
            endpoints.push(Found { place, rank, cached: one.cached, cost: one.cost, kind: software(kind) });
        }
        match picked.id {
            Some(receipt) if !endpoints.is_empty() => Ok(Chosen { endpoints, receipt }),
            _ => Err(PickError::Nobody("the endpoint went while it was picked".to_owned())),
        }
    }

    fn first_byte(&self, receipt: &str) {
        self.report(receipt, Report { state: Some(State::FirstToken), ..Report::default() });
    }

    fn ended(&self, receipt: &str, came: Came) {
        let state = Some(if came.finished { State::Finish } else { State::Abort });
        let (engine, rank) = self.served(&came);
        // No rank is that one: what was delivered is another's.
        let rank = if came.any_rank { Some(u32::MAX) } else { rank };
        let delivered = came.usage.cached.filter(|_| came.finished).map(|cached| Delivered {
            cached,
            prompt: came.usage.prompt,
            engine,
            rank,
            first_token_ms: came.first_byte_ms.map(|ms| ms as f64),
            attempts: came.attempts.unwrap_or(1).max(1),
        });
        let long = delivered.as_ref().is_some_and(|one| self.routing.needs_replay(receipt, one.cached));
        match (Handle::try_current(), delivered) {
            (Ok(runtime), Some(delivered)) if long => {
                // The booking is over now, whenever the account is settled.
                let first_token_ms = delivered.first_token_ms;
                self.report(receipt, Report { state, first_token_ms, delivered: None });
                let (asker, routing) = (self.asker.clone(), self.routing.clone());
                let settling =
                    settle_later(asker, routing, self.settling.clone(), receipt.to_owned(), delivered);
                kvplane_runtime::spawn_on(&runtime, "account of a request", settling);
            }
            (_, delivered) => self.report(receipt, Report { state, delivered, ..Report::default() }),
        }
    }

    fn is_ready(&self) -> bool {
        if self.ready.load(Ordering::Relaxed) {
            return true;
        }
        let ready = self.readiness.check(&self.asker.plane, false).ready;
        self.ready.store(ready, Ordering::Relaxed);
        ready
    }
}

/// Settles a receipt whose prediction and delivery differ, once the engine's stream says why: what the engine
/// announced before its answer may arrive after it, and a frame that was lost is only missed with the next
/// one.
async fn settle_later(
    asker: Arc<Asker>,
    routing: Arc<Routing>,
    settling: Arc<Semaphore>,
    receipt: String,
    delivered: Delivered,
) {
    let deadline = Instant::now() + EVIDENCE;
    // With too many of them, what is known now has to do.
    let turn = settling.try_acquire().ok();
    loop {
        let (asker, routing) = (asker.clone(), routing.clone());
        let (name, came, last) =
            (receipt.clone(), delivered.clone(), turn.is_none() || Instant::now() >= deadline);
        let settled = tokio::task::spawn_blocking(move || {
            let now = last || routing.is_explained(&asker.plane, &name, &came);
            if now {
                let report = Report { delivered: Some(came), ..Report::default() };
                if let Err(error) = routing.report(&asker, &name, report) {
                    debug!(receipt = name, error = error.message, "report not taken");
                }
            }
            now
        });
        if settled.await.unwrap_or(true) {
            return;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn software(kind: EngineKind) -> &'static str {
    match kind {
        EngineKind::Vllm => "vllm",
        EngineKind::Sglang => "sglang",
        _ => "other",
    }
}

fn refused(error: PublicError) -> PickError {
    match (error.code, error.field) {
        (ErrorCode::LimitReached, _) => PickError::Saturated(error.message),
        (ErrorCode::Unavailable, _) => PickError::Nobody(error.message),
        (_, Some("model")) => PickError::UnknownModel,
        _ => PickError::Invalid(error.message),
    }
}
