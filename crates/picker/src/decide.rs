//! One decision: the body is read once, its prompt becomes ids, and the plane picks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use kvplane_inference::{
    self as inference, Allowed, Ask, Asked, Chosen, Edit, Endpoint, NoTokens, PickError, Pool, Prompt, Role,
    Tokens, rename_model,
};
use kvplane_prompt::PromptInput;
use tokio::time::timeout;

use crate::exchange::{Go, Head, Renamed, Request, Verdict};
use crate::names;
use crate::refusal::Refusal;
use crate::rewrite::{Rewrites, draw};
use crate::rules::Rules;
use crate::service::{Shared, Ticket};
use crate::stats::Outcome;

/// Bodies that are read on the thread that serves the stream: well below a millisecond.
const AT_ONCE: usize = 16 << 10;

/// The verdict, and what has to be ended with the request.
pub(crate) struct Decided {
    pub(crate) verdict: Verdict,
    pub(crate) ticket: Option<Ticket>,
}

impl From<Refusal> for Decided {
    fn from(refusal: Refusal) -> Self {
        Self { verdict: Verdict::Refuse(refusal), ticket: None }
    }
}

/// Decides. Always comes to an end: what takes too long is decided without it. After the pick there is
/// nothing to wait for, so that dropping this books nothing.
pub(crate) async fn decide(shared: Arc<Shared>, request: Request) -> Decided {
    match attempt(&shared, request).await {
        Ok(decided) => decided,
        Err(refusal) => {
            shared.stats.count(match refusal.status {
                429 => Outcome::Shed,
                503 => Outcome::NoEndpoint,
                412 => Outcome::NotCached,
                _ => Outcome::Invalid,
            });
            tracing::debug!(status = refusal.status, reason = refusal.kind, "request refused");
            refusal.into()
        }
    }
}

async fn attempt(shared: &Arc<Shared>, request: Request) -> Result<Decided, Refusal> {
    let rules = shared.rules();
    let pool = &rules.pool;
    let Request { head, body, whole } = request;
    let allowed = head.subset.as_ref().map_or(Allowed::All, |subset| pool.subset(subset));
    let places: Vec<usize> = takers(pool, &allowed).collect();
    if places.is_empty() {
        return Err(Refusal::no_endpoint(match (&head.subset, pool.endpoints().len()) {
            (_, 0) => "the pool has no endpoint",
            (Some(_), _) => "no endpoint of the subset is in the pool",
            (None, _) => "no endpoint of the pool takes requests",
        }));
    }
    if is_sheddable(&rules, shared, &head) && is_saturated(shared, places.len()) {
        return Err(Refusal::saturated("all endpoints are busy, and the request's objective may be shed"));
    }
    let ask_for = |model: &str| rewrite(&rules, shared, &head, model);
    let (asked, tokens, renamed) = read(shared, &head, &body, whole, &ask_for).await?;
    let body = match &renamed {
        Some(renamed) => Body::Changed(rename_model(body, &renamed.engine)),
        None => Body::AsItCame(body),
    };
    let turn = Turn { shared, head: &head, pool, allowed: &allowed, asked: &asked, renamed };
    turn.pick(&tokens, body, &places)
}

/// A request's body.
enum Body {
    AsItCame(Vec<Bytes>),
    Changed(Vec<Bytes>),
}

impl Body {
    /// With fields put in; `None` where nothing is changed.
    fn with(self, edit: Edit) -> Option<Vec<Bytes>> {
        match self {
            Self::AsItCame(_) if edit.is_empty() => None,
            Self::Changed(body) if edit.is_empty() => Some(body),
            Self::AsItCame(body) | Self::Changed(body) => Some(edit.apply(body)),
        }
    }
}

/// Which model is asked for in the place of the client's: by the rules, by the options, or by what a gateway
/// in front wants.
fn rewrite(rules: &Rules, shared: &Shared, head: &Head, model: &str) -> Option<Renamed> {
    let drawn = || draw(shared.drawn.fetch_add(1, Ordering::Relaxed));
    let ruled = |rules: &Rewrites| {
        let draw = if rules.is_empty() { 0 } else { drawn() };
        rules.target(model, draw).map(str::to_owned)
    };
    let engine = ruled(&rules.rewrites)
        .or_else(|| ruled(&shared.options.rewrites))
        .or_else(|| head.rewrite.clone())
        .filter(|engine| engine != model && !model.is_empty())?;
    shared.stats.count_rewritten();
    Some(Renamed { client: model.to_owned(), engine })
}

/// Endpoints that a gateway may send requests to.
fn takers<'a>(pool: &'a Pool, allowed: &'a Allowed) -> impl Iterator<Item = usize> + 'a {
    let endpoints = pool.endpoints().iter().enumerate();
    endpoints.filter(|(at, one)| allowed.has(*at) && one.takes_requests()).map(|(at, _)| at)
}

/// Whether the request's objective has a priority below 0.
fn is_sheddable(rules: &Rules, shared: &Shared, head: &Head) -> bool {
    let priority = |name: &String| rules.objectives.get(name).or_else(|| shared.options.objectives.get(name));
    head.objective.as_ref().and_then(priority).is_some_and(|priority| *priority < 0)
}

fn is_saturated(shared: &Shared, endpoints: usize) -> bool {
    shared.stats.in_flight().load(Ordering::Relaxed) >= shared.options.shed_at * endpoints.max(1)
}

/// What is asked, and the ids of its prompt.
async fn read(
    shared: &Arc<Shared>,
    head: &Head,
    body: &[Bytes],
    whole: bool,
    ask_for: &impl Fn(&str) -> Option<Renamed>,
) -> Result<(Asked, Result<Tokens, NoTokens>, Option<Renamed>), Refusal> {
    let size: usize = body.iter().map(Bytes::len).sum();
    if size == 0 || !whole {
        return Ok((Asked::default(), Err(NoTokens::NoPrompt), None));
    }
    let api = head.api;
    let parse = |body: &[Bytes]| match body {
        [one] => inference::read(api, one),
        several => inference::read(api, &several.concat()),
    };
    if size <= AT_ONCE {
        let mut asked = parse(body)?;
        let renamed = rename(&mut asked, ask_for);
        let tokens = tokenize(shared, &mut asked);
        return Ok((asked, tokens, renamed));
    }
    let within = shared.options.tokenize_within(size);
    let deadline = kvplane_runtime::now() + within;
    let mut asked = if size <= 16 * AT_ONCE {
        parse(body)?
    } else {
        let (body, api) = (body.to_vec(), api);
        let reading = tokio::task::spawn_blocking(move || inference::read(api, &body.concat()));
        match timeout(within, reading).await {
            Ok(Ok(read)) => read?,
            // Nothing is known of the request: it is sent in turn.
            Ok(Err(_)) | Err(_) => return Ok((Asked::default(), Err(NoTokens::TooSlow), None)),
        }
    };
    let renamed = rename(&mut asked, ask_for);
    let prompt = match asked.prompt.take() {
        Some(Prompt::Text(prompt)) => prompt,
        other => {
            asked.prompt = other;
            let tokens = tokenize(shared, &mut asked);
            return Ok((asked, tokens, renamed));
        }
    };
    let tokens = tokenize_aside(shared, &asked.model, prompt, deadline).await;
    Ok((asked, tokens, renamed))
}

/// Asks for another model, where one takes the place of the client's.
fn rename(asked: &mut Asked, ask_for: &impl Fn(&str) -> Option<Renamed>) -> Option<Renamed> {
    let renamed = ask_for(&asked.model)?;
    asked.model.clone_from(&renamed.engine);
    Some(renamed)
}

fn tokenize(shared: &Shared, asked: &mut Asked) -> Result<Tokens, NoTokens> {
    match asked.prompt.take() {
        None if asked.model.is_empty() => Err(NoTokens::NoPrompt),
        None => Err(NoTokens::OtherApi),
        Some(Prompt::Ids(ids)) => {
            Ok(Tokens { model: asked.model.clone(), adapter: None, ids, proven: true, ..Tokens::default() })
        }
        Some(Prompt::Text(prompt)) => shared.plane.tokenize(&asked.model, prompt),
    }
}

/// Tokenizes off the workers, a few at a time, and not for longer than allowed.
async fn tokenize_aside(
    shared: &Arc<Shared>,
    model: &str,
    prompt: PromptInput,
    deadline: std::time::Instant,
) -> Result<Tokens, NoTokens> {
    let (here, model) = (shared.clone(), model.to_owned());
    let work = async {
        let turn = shared.tokenizing.clone().acquire_owned().await.map_err(|_| NoTokens::Busy)?;
        let work = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            here.plane.tokenize(&model, prompt)
        });
        work.await.unwrap_or(Err(NoTokens::NotRendered))
    };
    tokio::time::timeout_at(deadline.into(), work).await.unwrap_or(Err(NoTokens::TooSlow))
}

/// All that a pick goes by.
struct Turn<'a> {
    shared: &'a Arc<Shared>,
    head: &'a Head,
    pool: &'a Arc<Pool>,
    allowed: &'a Allowed,
    asked: &'a Asked,
    renamed: Option<Renamed>,
}

impl Turn<'_> {
    fn ask(
        &self,
        tokens: Result<&Tokens, NoTokens>,
        role: Role,
        limit: usize,
        with: Option<&str>,
    ) -> Result<Chosen, PickError> {
        self.shared.plane.pick(&Ask {
            model: &self.asked.model,
            tokens,
            cache_salt: self.asked.cache_salt.as_deref(),
            session: self.head.session.as_deref(),
            output: self.asked.output,
            pool: self.pool,
            allowed: self.allowed,
            role,
            limit,
            with,
        })
    }

    fn pick(
        &self,
        tokens: &Result<Tokens, NoTokens>,
        body: Body,
        places: &[usize],
    ) -> Result<Decided, Refusal> {
        let stats = &self.shared.stats;
        let disaggregated = self.pool.endpoints().iter().any(|one| one.role == Some(Role::Prefill));
        let role = if disaggregated { Role::Decode } else { Role::Both };
        // Who holds more than the chosen one is known when all are asked for.
        let answers = 1 + self.shared.options.fallbacks;
        let limit = if self.pulls() { self.pool.endpoints().len().max(answers) } else { answers };
        let mut known = tokens.as_ref().map_err(|why| *why);
        let mut chosen = self.ask(known, role, limit, None);
        if let (Err(PickError::Invalid(_)), Ok(_)) = (&chosen, known) {
            known = Err(NoTokens::NotRendered);
            chosen = self.ask(known, role, limit, None);
        }
        let mut chosen = match chosen {
            Ok(chosen) => chosen,
            Err(PickError::UnknownModel | PickError::Invalid(_)) => {
                stats.count(Outcome::InTurn);
                return Ok(self.in_turn(places, body));
            }
            Err(PickError::Saturated(why)) => return Err(Refusal::saturated(why)),
            Err(PickError::Nobody(why)) => return Err(Refusal::no_endpoint(why)),
        };
        let cached = chosen.endpoints.first().map_or(0, |first| first.cached);
        let mut ticket = self.shared.ticket(chosen.receipt.clone(), self.address(chosen.endpoints[0].place));
        if self.head.only_cached && cached == 0 {
            // The ticket is dropped, and ends what was booked.
            return Err(Refusal::not_cached());
        }
        match known {
            Ok(_) => stats.count(Outcome::Tokens),
            Err(why) => {
                stats.count(Outcome::Load);
                stats.count_without(why);
            }
        }
        let mut headers = Vec::new();
        if let Some(rank) = chosen.endpoints[0].rank {
            headers.push((names::RANK, rank.to_string()));
        }
        // Who holds how much, and who computes what nobody holds.
        let mut holders: Vec<(usize, u64)> =
            chosen.endpoints.iter().map(|one| (one.place, one.cached)).collect();
        let mut computes = (chosen.endpoints[0].place, cached);
        chosen.endpoints.truncate(answers);
        if disaggregated && let Ok(tokens) = known {
            let uncached = (tokens.ids.len() as u64).saturating_sub(cached);
            let from = self.shared.options.prefill_from;
            if from > 0
                && uncached >= from
                && let Ok(prefill) = self.ask(
                    known,
                    Role::Prefill,
                    if self.pulls() { self.pool.endpoints().len() } else { 1 },
                    Some(&chosen.receipt),
                )
            {
                let place = prefill.endpoints[0].place;
                computes = (place, prefill.endpoints[0].cached);
                holders.extend(prefill.endpoints.iter().map(|one| (one.place, one.cached)));
                ticket.add_prefill(prefill.receipt);
                // Prefilling where it is decoded needs nobody else.
                if place != chosen.endpoints[0].place {
                    headers.push((names::PREFILLER, self.address(place)));
                }
            }
        }
        headers.extend(self.source(&holders, computes).map(|place| (names::KV_SOURCE, self.address(place))));
        headers.extend(self.encoders(chosen.endpoints[0].place).map(|list| (names::ENCODERS, list)));
        let (edit, withhold_usage) = self.edit(known, chosen.endpoints[0].kind);
        let endpoints: Vec<String> = chosen.endpoints.iter().map(|one| self.address(one.place)).collect();
        let scores = if self.shared.options.scores {
            // Scores are better the higher they are.
            endpoints
                .iter()
                .cloned()
                .zip(chosen.endpoints.iter().map(|one| 1.0 / (1.0 + one.cost.max(0.0))))
                .collect()
        } else {
            Vec::new()
        };
        let go = Go {
            endpoints,
            scores,
            headers,
            body: body.with(edit),
            withhold_usage,
            renamed: self.renamed.clone(),
            receipt: Some(chosen.receipt),
        };
        Ok(Decided { verdict: Verdict::Go(Box::new(go)), ticket: Some(ticket) })
    }

    /// Whether engines can pull blocks from one another.
    fn pulls(&self) -> bool {
        self.shared.options.pull_from > 0
    }

    /// Who holds enough more of the prompt than the one that computes it, where engines can pull blocks.
    fn source(&self, holders: &[(usize, u64)], (computes, cached): (usize, u64)) -> Option<usize> {
        // Of those that hold the same, the first is the least busy.
        let best = holders.iter().rev().max_by_key(|(_, held)| *held)?;
        let enough = self.pulls() && best.1 >= cached.saturating_add(self.shared.options.pull_from);
        (enough && best.0 != computes).then_some(best.0)
    }

    /// Who encodes the request's images: one endpoint for each, in turn, unless the chosen one does it
    /// itself.
    fn encoders(&self, chosen: usize) -> Option<String> {
        let endpoints = self.pool.endpoints();
        if self.asked.media == 0 || endpoints.get(chosen).is_some_and(|one| one.encodes) {
            return None;
        }
        let all: Vec<&Endpoint> = endpoints.iter().filter(|one| one.encodes && one.ready).collect();
        let count = self.asked.media.min(all.len());
        let turn = self.shared.turn.fetch_add(count, Ordering::Relaxed);
        let list: Vec<String> = (0..count).map(|at| all[(turn + at) % all.len()].to_string()).collect();
        (!list.is_empty()).then(|| list.join(","))
    }

    fn address(&self, place: usize) -> String {
        self.pool.endpoints().get(place).map(ToString::to_string).unwrap_or_default()
    }

    /// What is changed in the body, and whether the usage is to be withheld from the client.
    fn edit(&self, tokens: Result<&Tokens, NoTokens>, kind: &str) -> (Edit, bool) {
        let options = &self.shared.options;
        let mut edit = Edit::default();
        let usage = options.include_usage
            && self.head.answer_passes
            && self.asked.stream
            && !self.asked.has_stream_options;
        if usage {
            edit.include_usage();
        }
        if let Ok(tokens) = tokens
            && options.token_in
            && self.asked.plain
        {
            edit.token_ids(kind, &tokens.ids);
        }
        (edit, usage)
    }

    /// The next endpoint in turn: without a booking, and without a receipt.
    fn in_turn(&self, places: &[usize], body: Body) -> Decided {
        let turn = self.shared.turn.fetch_add(1, Ordering::Relaxed);
        let endpoints = (0..places.len().min(1 + self.shared.options.fallbacks))
            .map(|at| self.address(places[(turn + at) % places.len()]))
            .collect();
        let encoders = self.encoders(places[turn % places.len()]);
        let go = Go {
            endpoints,
            scores: Vec::new(),
            headers: encoders.map(|list| (names::ENCODERS, list)).into_iter().collect(),
            body: body.with(Edit::default()),
            withhold_usage: false,
            renamed: self.renamed.clone(),
            receipt: None,
        };
        Decided { verdict: Verdict::Go(Box::new(go)), ticket: None }
    }
}
