//! One decision over the catalog.

use kvplane_catalog::{Answer, Question};
use kvplane_core::{ErrorCode, PublicError, StreamId, Trust, hash_blocks};
use kvplane_prompt::Dimensions;
use kvplane_proto::kvplane::v1::BookingChange;
use kvplane_receipts::Decided;
use kvplane_route::{Ask, Decision, LoadSource, Outline, Policy, Role, Skip, Slot, Terms, Why};
use xxhash_rust::xxh3::xxh3_64;

use super::Routing;
use super::books::Books;
use super::scene::{Outcome, Scene};
use crate::questions::{Asker, TokenizedNote, WithoutTokens};
use crate::value::Protocol;

/// Entries of a stream before the decision that count as after it: the answer is read a little earlier than
/// the cursor.
const MARGIN: u64 = 8;
/// Endpoints that may be asked for, and excluded; receipts that may be asked for.
pub(crate) const MAX_ENDPOINTS: usize = 64;
/// Bytes of a session's name.
const MAX_SESSION: usize = 1_024;

/// What is wanted beside the prompt.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wish {
    pub(crate) session: Option<u64>,
    pub(crate) policy: Option<Policy>,
    /// Endpoints in the answer; 0 is the default.
    pub(crate) limit: usize,
    /// Do not book: the caller only wants to know.
    pub(crate) dry_run: bool,
    /// Tokens that are expected to be generated.
    pub(crate) output: u64,
    /// Endpoints that were tried already.
    pub(crate) exclude: Vec<StreamId>,
    /// The prompt's tokens are not known, and why not.
    pub(crate) without_tokens: Option<WithoutTokens>,
    /// The receipt of an earlier decision for the same request: its prompt was asked for once.
    pub(crate) with: Option<String>,
    /// The prompt was given as text, and what engines have to agree about for it.
    pub(crate) text: Option<Dimensions>,
}

/// Whether a stream may be picked.
pub(crate) type Among<'a> = &'a dyn Fn(&StreamId) -> bool;

impl Wish {
    pub(crate) fn set_limit(&mut self, limit: u32) -> Result<(), PublicError> {
        self.limit = limit as usize;
        if !(1..=MAX_ENDPOINTS).contains(&self.limit) {
            return Err(PublicError::field("limit", format!("is not 1 to {MAX_ENDPOINTS}")));
        }
        Ok(())
    }

    pub(crate) fn set_session(&mut self, name: Option<&str>) -> Result<(), PublicError> {
        if name.is_some_and(|name| name.len() > MAX_SESSION) {
            return Err(PublicError::field("session", format!("has more than {MAX_SESSION} bytes")));
        }
        self.session = name.map(|name| xxh3_64(name.as_bytes()));
        Ok(())
    }

    pub(crate) fn set_policy(&mut self, name: Option<&str>) -> Result<(), PublicError> {
        let parsed = name.map(|name| name.chars().take(64).collect::<String>().parse()).transpose();
        self.policy = parsed.map_err(|error| PublicError::field("policy", error))?;
        Ok(())
    }

    pub(crate) fn set_exclude(
        &mut self,
        ids: impl ExactSizeIterator<Item = StreamId>,
    ) -> Result<(), PublicError> {
        if ids.len() > MAX_ENDPOINTS {
            return Err(PublicError::field("exclude", format!("has more than {MAX_ENDPOINTS} elements")));
        }
        self.exclude = ids.collect();
        Ok(())
    }
}

/// An endpoint in the answer.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    pub(crate) id: StreamId,
    pub(crate) cached: u64,
    pub(crate) in_flight: u64,
    pub(crate) trust: Trust,
    pub(crate) age_ms: Option<u64>,
    /// What its load is known from.
    pub(crate) load: LoadSource,
    pub(crate) cost: f64,
    pub(crate) terms: Terms,
}

/// An endpoint that could not be picked.
#[derive(Debug, Clone)]
pub(crate) struct Passed {
    pub(crate) id: StreamId,
    pub(crate) why: Skip,
}

/// The answer.
#[derive(Debug, Clone)]
pub(crate) struct Picked {
    /// The receipt's name.
    pub(crate) id: Option<String>,
    pub(crate) endpoints: Vec<Endpoint>,
    /// Some of those who may not be picked.
    pub(crate) skipped: Vec<Passed>,
    /// All of them.
    pub(crate) skipped_count: u64,
    pub(crate) why: Why,
    pub(crate) policy: Policy,
    pub(crate) prompt: u64,
    pub(crate) fleet: u64,
    pub(crate) eligible: u64,
    pub(crate) booked: bool,
    pub(crate) trust: Trust,
    /// Of a prompt that was given as text.
    pub(crate) tokenized: Option<TokenizedNote>,
    /// Why the prompt's tokens are not known.
    pub(crate) without_tokens: Option<&'static str>,
}

impl Picked {
    /// Why the first is the first, in a sentence.
    pub(crate) fn because(&self) -> String {
        let Some(first) = self.endpoints.first() else { return "no endpoint is eligible".to_owned() };
        let (prompt, cached, in_flight) = (self.prompt, first.cached, first.in_flight);
        let held = match self.why {
            Why::Cached => format!("holds {cached} of {prompt} tokens, the most"),
            Why::InFlight => {
                format!(
                    "will hold about {in_flight} of {prompt} tokens: a prompt with the same prefix is on its way there"
                )
            }
            Why::Load => {
                format!("holds {cached} of {prompt} tokens; another holds {}, and costs more", self.eligible)
            }
            Why::NotHeld => format!("holds none of {prompt} tokens, and no other engine does"),
            Why::NoTokens | Why::Nobody => {
                let why = self.without_tokens.unwrap_or("not_given");
                format!("has the least work; the prompt's tokens are not known: {why}")
            }
        };
        format!("{} {held}", first.id)
    }
}

impl Routing {
    /// Decides where a prompt goes.
    pub(crate) fn pick(
        &self,
        asker: &Asker,
        question: &mut Question,
        wish: &Wish,
    ) -> Result<Picked, PublicError> {
        self.pick_among(asker, question, wish, &|_| true)
    }

    /// The same, where only some may be picked: the others count as not ready.
    pub(crate) fn pick_among(
        &self,
        asker: &Asker,
        question: &mut Question,
        wish: &Wish,
        among: Among<'_>,
    ) -> Result<Picked, PublicError> {
        // Every stream is a candidate, also those that hold nothing.
        (question.all, question.limit, question.min_tokens) = (Some(true), None, None);
        let question = &*question;
        let begun = kvplane_runtime::now();
        let outline = outline(question);
        let known = question.token_ids.is_some() || question.block_hashes.is_some();
        let prompt = prompt_tokens(question);
        let outcome = if known {
            question.ask(asker.catalog(), asker.asking(), |answer| {
                asker.value.answered(Protocol::Pick, question, answer);
                self.decide_over(asker, answer, wish, among, &outline, prompt)
            })?
        } else {
            self.pick_blind(asker, question, wish, among)?
        };
        let Outcome { mut picked, mut decided } = outcome;
        picked.without_tokens = wish.without_tokens.map(|without| without.why);
        if picked.endpoints.is_empty() {
            self.count(Why::Nobody, begun.elapsed());
            return Err(nobody(&picked));
        }
        let took = begun.elapsed();
        self.count(picked.why, took);
        if !wish.dry_run {
            decided.model = question.model.as_deref().unwrap_or_default().into();
            decided.decide_us = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
            decided.without_tokens = wish.without_tokens.map(|without| without.why);
            decided.text = wish.text.map(Dimensions::bits);
            stand(asker, &mut decided, &picked.endpoints[0].id);
            decided.contents = contents(question, decided.block_size);
            let earlier = wish.with.as_deref().and_then(|name| self.receipt_id(name).ok());
            let mut receipts = self.receipts.lock();
            let met = receipts.history.meet(outline.prefixes());
            let earlier = earlier.and_then(|id| receipts.ledger.get(id));
            decided.ceiling = earlier.map_or(met, |receipt| receipt.decided.ceiling);
            let id = receipts.ledger.open(decided);
            picked.id = Some(self.name(id));
        }
        Ok(picked)
    }

    /// Without tokens the load decides, and the answer says so.
    fn pick_blind(
        &self,
        asker: &Asker,
        question: &Question,
        wish: &Wish,
        among: Among<'_>,
    ) -> Result<Outcome, PublicError> {
        // A prompt of no tokens, for who is there and where they stand.
        let nothing = Question {
            model: question.model.clone(),
            token_ids: Some(Vec::new()),
            all: Some(true),
            ..Question::default()
        };
        nothing.ask(asker.catalog(), asker.asking(), |answer| {
            self.decide_over(asker, answer, wish, among, &Outline::default(), 0)
        })
    }

    fn decide_over(
        &self,
        asker: &Asker,
        answer: &Answer<'_>,
        wish: &Wish,
        among: Among<'_>,
        outline: &Outline,
        prompt: u64,
    ) -> Outcome {
        let mut books = self.books.lock();
        books.tidy(&asker.plane);
        let scene = Scene::of(&mut books, answer, among);
        let decision = self.decide(&mut books, &scene, wish, outline, prompt);
        if let Some(booking) = decision.booking {
            books.changed(&asker.plane, booking, BookingChange::Booked, None, self.now());
        }
        // The next one may decide while this one is put into words.
        drop(books);
        scene.outcome(&decision, prompt)
    }

    fn decide(
        &self,
        books: &mut Books,
        scene: &Scene<'_>,
        wish: &Wish,
        outline: &Outline,
        prompt: u64,
    ) -> Decision {
        const USUAL_LIMIT: usize = 3;
        let exclude: Vec<Slot> = wish.exclude.iter().filter_map(|id| books.find(id)).collect();
        let ask = Ask {
            prompt,
            about: wish.without_tokens.map_or(0, |without| without.about),
            outline,
            session: wish.session,
            role: Role::Both,
            output: wish.output,
            limit: if wish.limit == 0 { USUAL_LIMIT } else { wish.limit },
            book: !wish.dry_run,
            policy: wish.policy,
            exclude: &exclude,
        };
        books.router.pick(&ask, &scene.candidates, self.now())
    }
}

/// Where the chosen one's stream stands, so that what it shows from here on can be replayed.
fn stand(asker: &Asker, decided: &mut Decided, id: &StreamId) {
    let engine = asker.plane.engine(id.engine.as_str());
    if let Some(stream) = engine.as_ref().and_then(|engine| engine.stream(id.rank)) {
        let cursor = stream.cursor();
        decided.epoch = cursor.epoch.as_u64();
        decided.sequence = cursor.sequence.saturating_sub(MARGIN);
    }
}

fn prompt_tokens(question: &Question) -> u64 {
    match (&question.token_ids, &question.block_hashes) {
        (Some(ids), _) => ids.len() as u64,
        (None, Some(hashes)) => hashes.len() as u64 * u64::from(question.block_size.unwrap_or(0)),
        (None, None) => 0,
    }
}

/// Prefixes of the prompt. Images are not in its tokens: nothing is said of prompts with some.
fn outline(question: &Question) -> Outline {
    if question.extra_keys.is_some() || question.multimodal.is_some() {
        return Outline::default();
    }
    match (&question.token_ids, &question.block_hashes) {
        (Some(ids), _) => Outline::of_tokens(ids, question.names().namespace()),
        (None, Some(hashes)) => {
            Outline::of_units(hashes.iter().copied(), u64::from(question.block_size.unwrap_or(0)))
        }
        (None, None) => Outline::default(),
    }
}

/// What the blocks of the prompt are, to find them in the engine's stream.
fn contents(question: &Question, block_size: u32) -> Box<[u64]> {
    if block_size == 0 || question.extra_keys.is_some() || question.multimodal.is_some() {
        return Box::default();
    }
    match (&question.token_ids, &question.block_hashes) {
        (Some(ids), _) => {
            let mut contents = Vec::with_capacity(ids.len() / block_size as usize);
            hash_blocks(ids, block_size as usize, question.names().namespace(), &mut contents);
            contents.into()
        }
        (None, Some(hashes)) if question.chained != Some(true) => hashes[..].into(),
        _ => Box::default(),
    }
}

fn nobody(picked: &Picked) -> PublicError {
    const SHOWN: usize = 5;
    let named: Vec<String> =
        picked.skipped.iter().take(SHOWN).map(|one| format!("{} ({})", one.id, one.why.as_str())).collect();
    let busy = !picked.skipped.is_empty() && picked.skipped.iter().all(|one| one.why == Skip::OverCap);
    let code = if busy { ErrorCode::LimitReached } else { ErrorCode::Unavailable };
    let more = picked.skipped_count.saturating_sub(SHOWN as u64);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    PublicError::new(code, format!("no endpoint is eligible: {}{more}", named.join(", ")))
        .with_next("retry later; GET /v1/status shows the state of the engines")
}
