//! One decision: the body is read once, its prompt becomes ids, and the plane picks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use kvplane_prompt::PromptInput;
use tokio::time::timeout;

use crate::body::{self, Asked, Prompt};
use crate::edit::Edit;
use crate::exchange::{Go, Head, Request, Verdict};
use crate::names;
use crate::plane::{Ask, Chosen, NoTokens, PickError, Tokens};
use crate::pool::{Allowed, Pool, Role};
use crate::refusal::Refusal;
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

/// Decides. Always comes to an end: what takes too long is decided without it. After the pick there is nothing to wait for, so that
/// whoever drops this has booked nothing.
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
    let pool = shared.pool();
    let Request { head, body, whole } = request;
    let allowed = head.subset.as_ref().map_or(Allowed::All, |subset| pool.subset(subset));
    let places: Vec<usize> = takers(&pool, &allowed).collect();
    if places.is_empty() {
        return Err(Refusal::no_endpoint(match (&head.subset, pool.endpoints().len()) {
            (_, 0) => "the pool has no endpoint",
            (Some(_), _) => "no endpoint of the subset is in the pool",
            (None, _) => "no endpoint of the pool takes requests",
        }));
    }
    if shared.options.is_sheddable(head.objective.as_deref()) && is_saturated(shared, places.len()) {
        return Err(Refusal::saturated("all endpoints are busy, and the request's objective may be shed"));
    }
    let (asked, tokens) = read(shared, &head, &body, whole).await?;
    let turn = Turn { shared, head: &head, pool: &pool, allowed: &allowed, asked: &asked };
    turn.pick(&tokens, body, &places)
}

/// Endpoints that a gateway may send requests to.
fn takers<'a>(pool: &'a Pool, allowed: &'a Allowed) -> impl Iterator<Item = usize> + 'a {
    let endpoints = pool.endpoints().iter().enumerate();
    endpoints.filter(|(at, one)| allowed.has(*at) && one.role.takes_requests()).map(|(at, _)| at)
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
) -> Result<(Asked, Result<Tokens, NoTokens>), Refusal> {
    let size: usize = body.iter().map(Bytes::len).sum();
    if size == 0 || !whole {
        return Ok((Asked::default(), Err(NoTokens::NoPrompt)));
    }
    let api = head.api;
    let parse = |body: &[Bytes]| match body {
        [one] => body::read(api, one),
        several => body::read(api, &several.concat()),
    };
    if size <= AT_ONCE {
        let mut asked = parse(body)?;
        let tokens = tokenize(shared, &mut asked);
        return Ok((asked, tokens));
    }
    let within = shared.options.tokenize_within(size);
    let deadline = kvplane_runtime::now() + within;
    let mut asked = if size <= 16 * AT_ONCE {
        parse(body)?
    } else {
        let (body, api) = (body.to_vec(), api);
        let reading = tokio::task::spawn_blocking(move || body::read(api, &body.concat()));
        match timeout(within, reading).await {
            Ok(Ok(read)) => read?,
            // Nothing is known of the request: it is sent in turn.
            Ok(Err(_)) | Err(_) => return Ok((Asked::default(), Err(NoTokens::TooSlow))),
        }
    };
    let Some(Prompt::Text(prompt)) = asked.prompt.take() else {
        let tokens = tokenize(shared, &mut asked);
        return Ok((asked, tokens));
    };
    let tokens = tokenize_aside(shared, &asked.model, prompt, deadline).await;
    Ok((asked, tokens))
}

fn tokenize(shared: &Shared, asked: &mut Asked) -> Result<Tokens, NoTokens> {
    match asked.prompt.take() {
        None if asked.model.is_empty() => Err(NoTokens::NoPrompt),
        None => Err(NoTokens::OtherApi),
        Some(Prompt::Ids(ids)) => Ok(Tokens { model: asked.model.clone(), adapter: None, ids, proven: true }),
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
}

impl Turn<'_> {
    fn ask(&self, tokens: Result<&Tokens, NoTokens>, role: Role, limit: usize) -> Result<Chosen, PickError> {
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
        })
    }

    fn pick(
        &self,
        tokens: &Result<Tokens, NoTokens>,
        body: Vec<Bytes>,
        places: &[usize],
    ) -> Result<Decided, Refusal> {
        let stats = &self.shared.stats;
        let disaggregated = self.pool.endpoints().iter().any(|one| one.role == Role::Prefill);
        let role = if disaggregated { Role::Decode } else { Role::Both };
        let limit = 1 + self.shared.options.fallbacks;
        let mut known = tokens.as_ref().map_err(|why| *why);
        let mut chosen = self.ask(known, role, limit);
        if let (Err(PickError::Invalid(_)), Ok(_)) = (&chosen, known) {
            known = Err(NoTokens::NotRendered);
            chosen = self.ask(known, role, limit);
        }
        let chosen = match chosen {
            Ok(chosen) => chosen,
            Err(PickError::UnknownModel | PickError::Invalid(_)) => {
                stats.count(Outcome::InTurn);
                return Ok(self.in_turn(places));
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
        if disaggregated && let Ok(tokens) = known {
            let uncached = (tokens.ids.len() as u64).saturating_sub(cached);
            if uncached >= self.shared.options.prefill_from.max(1)
                && let Ok(prefill) = self.ask(known, Role::Prefill, 1)
            {
                let place = prefill.endpoints[0].place;
                ticket.add_prefill(prefill.receipt);
                // Prefilling where it is decoded needs nobody else.
                if place != chosen.endpoints[0].place {
                    headers.push((names::PREFILLER, self.address(place)));
                }
            }
        }
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
            body: (!edit.is_empty()).then(|| edit.apply(body)),
            withhold_usage,
            receipt: Some(chosen.receipt),
        };
        Ok(Decided { verdict: Verdict::Go(Box::new(go)), ticket: Some(ticket) })
    }

    fn address(&self, place: usize) -> String {
        self.pool.endpoints().get(place).map(ToString::to_string).unwrap_or_default()
    }

    /// What is changed in the body, and whether the usage is to be withheld from the client.
    fn edit(&self, tokens: Result<&Tokens, NoTokens>, kind: &str) -> (Edit, bool) {
        let options = &self.shared.options;
        let mut edit = Edit::default();
        let usage = options.include_usage && self.asked.stream && !self.asked.has_stream_options;
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
    fn in_turn(&self, places: &[usize]) -> Decided {
        let turn = self.shared.turn.fetch_add(1, Ordering::Relaxed);
        let endpoints = (0..places.len().min(1 + self.shared.options.fallbacks))
            .map(|at| self.address(places[(turn + at) % places.len()]))
            .collect();
        let go = Go {
            endpoints,
            scores: Vec::new(),
            headers: Vec::new(),
            body: None,
            withhold_usage: false,
            receipt: None,
        };
        Decided { verdict: Verdict::Go(Box::new(go)), ticket: None }
    }
}
