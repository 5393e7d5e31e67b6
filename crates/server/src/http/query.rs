//! `POST /v1/query`: who holds how much of a prompt.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use http_body::Body as _;
use kvplane_access::ApiError;
use kvplane_catalog::{Answer, Counts, GroupLength, Match, Note, Question, age_ms, check_length};
use kvplane_core::{ErrorCode, PublicError, Tier};
use kvplane_prompt::PromptInput;
use schemars::JsonSchema;
use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

use super::fields::{Fields, ListError, Malformed};
use super::keys::{ItemJson, KeyLists};
use super::text::TextFields;
use crate::questions::{Asker, TokenizedNote};
use crate::value::Protocol;

/// A token id and its comma in the widest form that people write.
const BYTES_PER_TOKEN: usize = 12;
/// Everything beside the tokens.
const BYTES_BESIDE: usize = 64 << 10;
/// Peers' clients send at most this much.
const LEAST_LIMIT: usize = 8 << 20;
/// A body that takes longer than some hundred microseconds is not read on a thread that serves others.
const LARGE: usize = 512 << 10;
/// The same for text, which has to be tokenized.
const LARGE_TEXT: usize = 32 << 10;
/// What a thread keeps for the next question.
const KEEP_TOKENS: usize = 64 << 10;

/// How large the body of a question may be.
pub(super) fn body_limit(max_tokens: usize) -> usize {
    max_tokens.saturating_mul(BYTES_PER_TOKEN).saturating_add(BYTES_BESIDE).max(LEAST_LIMIT)
}

pub(super) async fn query(State(asker): State<Arc<Asker>>, request: Request) -> Result<Response, ApiError> {
    let body = read_body(&asker, request).await?;
    let here = asker.clone();
    on_a_fitting_thread(&asker, body, move |body| respond(&here, body)).await?
}

/// What helps where a body is too long.
const SHORTER: &str = "ask about fewer tokens, or raise query.max_tokens in the configuration";

/// The whole body. One that says itself that it is too large is refused before it is read.
pub(super) async fn read_body(asker: &Asker, request: Request) -> Result<Bytes, PublicError> {
    let limit = body_limit(asker.max_tokens);
    let body = request.into_body();
    if body.size_hint().lower() > limit as u64 {
        return Err(PublicError::field("body", format!("has more than {limit} bytes")).with_next(SHORTER));
    }
    let cut_off = |_| PublicError::field("body", format!("breaks off, or has more than {limit} bytes"));
    axum::body::to_bytes(body, limit).await.map_err(cut_off)
}

/// Runs at once what is short, and elsewhere what is not.
pub(super) async fn on_a_fitting_thread<R: Send + 'static>(
    asker: &Asker,
    body: Bytes,
    run: impl FnOnce(&[u8]) -> R + Send + 'static,
) -> Result<R, ApiError> {
    let waits = asker.prompts.asks_engines();
    let at_once = if !is_text(asker, &body) {
        LARGE
    } else if waits {
        0
    } else {
        LARGE_TEXT
    };
    if body.len() < at_once {
        return Ok(run(&body));
    }
    let ran = tokio::task::spawn_blocking(move || run(&body)).await;
    ran.map_err(|_| ApiError(PublicError::new(ErrorCode::Internal, "the question could not be read")))
}

/// Whether a long body seems to have text in it. A wrong guess costs time, and nothing else.
fn is_text(asker: &Asker, body: &[u8]) -> bool {
    /// Bytes of a body that are searched for the names of its fields.
    const HEAD: usize = 4 << 10;
    let head = &body[..body.len().min(HEAD)];
    let names = |name: &[u8]| head.windows(name.len()).any(|window| window == name);
    let long = body.len() >= LARGE_TEXT || asker.prompts.asks_engines();
    long && !asker.prompts.is_empty() && (names(b"\"messages\"") || names(b"\"prompt\""))
}

thread_local! {
    /// Prompts are long, and one is read after the other.
    static QUESTION: RefCell<Question> = RefCell::default();
}

/// Runs with this thread's question, emptied.
pub(super) fn with_question<R>(run: impl FnOnce(&mut Question) -> R) -> R {
    QUESTION.with_borrow_mut(|question| {
        question.clear();
        let done = run(question);
        question.forget_beyond(KEEP_TOKENS);
        done
    })
}

fn respond(asker: &Asker, body: &[u8]) -> Result<Response, ApiError> {
    let ask = |question: &mut Question| {
        let text = read(body, asker.max_tokens, question)?;
        let tokenized = text.map(|text| asker.tokenize(question, &text)).transpose()?;
        let groups = question.groups == Some(true);
        let (json, found) = question.ask(asker.catalog(), asker.asking(), |answer| {
            asker.value.answered(Protocol::Http, question, answer);
            (serde_json::to_vec(&AnswerJson { answer, groups, tokenized }), answer.is_hit())
        })?;
        let json = json.map_err(|_| PublicError::new(ErrorCode::Internal, "the answer cannot be written"))?;
        Ok::<_, PublicError>((json, found))
    };
    let json = asker.questions.answer(|| with_question(ask))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], json).into_response())
}

/// Reads a question of ours: what it does not know it refuses.
/// Text is given back: it is not ids yet.
pub(super) fn read(
    body: &[u8],
    max_tokens: usize,
    question: &mut Question,
) -> Result<Option<PromptInput>, PublicError> {
    read_and(body, max_tokens, question, &[], |_, _| Ok(()))
}

/// Reads a question, and other fields beside it.
pub(super) fn read_and(
    body: &[u8],
    max_tokens: usize,
    question: &mut Question,
    others: &'static [&'static str],
    mut other: impl FnMut(&'static str, &mut Fields<'_>) -> Result<(), PublicError>,
) -> Result<Option<PromptInput>, PublicError> {
    let malformed = |Malformed(reason)| PublicError::field("body", reason);
    let mut fields = Fields::open(body).map_err(malformed)?;
    let mut seen: Vec<&'static str> = Vec::with_capacity(FIELDS.len());
    let mut text = TextFields::default();
    while let Some(name) = fields.next().map_err(malformed)? {
        let known = || FIELDS.into_iter().chain(others.iter().copied());
        let Some(field) = known().find(|known| *known == name) else {
            let name: String = name.chars().take(64).collect();
            return Err(PublicError::field(
                "body",
                format!("has an unknown field {name:?}; known: {}", known().collect::<Vec<_>>().join(", ")),
            ));
        };
        if seen.contains(&field) {
            return Err(PublicError::field(field, "is given twice").with_next("give it once"));
        }
        seen.push(field);
        if text.read(field, &mut fields)? {
            continue;
        }
        match field {
            "token_ids" => read_token_ids(question, &mut fields, max_tokens)?,
            "block_hashes" => read_block_hashes(question, &mut fields, max_tokens)?,
            "block_size" => {
                question.block_size = fields.value().map_err(|_| not("block_size", "a whole number"))?;
            }
            "chained" => question.chained = fields.value().map_err(|_| not("chained", "true or false"))?,
            "model" => question.model = fields.value().map_err(|_| not("model", "text"))?,
            "lora_name" => question.lora_name = fields.value().map_err(|_| not("lora_name", "text"))?,
            "lora_id" => {
                question.lora_id = fields.value().map_err(|_| not("lora_id", "a whole number"))?;
            }
            "cache_salt" => question.cache_salt = fields.value().map_err(|_| not("cache_salt", "text"))?,
            "extra_keys" => {
                let what = "a list per block, or null for each without keys; a key is text, a whole number, [id, offset] or {\"bytes\": hexadecimal}";
                let lists: Option<KeyLists> = fields.value().map_err(|_| not("extra_keys", what))?;
                question.extra_keys = lists.map(|lists| lists.0);
            }
            "multimodal" => {
                let what = "a list of items with id, offset and length";
                let items: Option<Vec<ItemJson>> = fields.value().map_err(|_| not("multimodal", what))?;
                question.multimodal = items.map(|items| items.into_iter().map(Into::into).collect());
            }
            "groups" => question.groups = fields.value().map_err(|_| not("groups", "true or false"))?,
            "limit" => question.limit = fields.value().map_err(|_| not("limit", "a whole number"))?,
            "min_tokens" => {
                question.min_tokens = fields.value().map_err(|_| not("min_tokens", "a whole number"))?;
            }
            "all" => question.all = fields.value().map_err(|_| not("all", "true or false"))?,
            beside => other(beside, &mut fields)?,
        }
    }
    text.finish()
}

const FIELDS: [&str; 20] = [
    "model",
    "token_ids",
    "lora_name",
    "lora_id",
    "cache_salt",
    "extra_keys",
    "multimodal",
    "block_hashes",
    "block_size",
    "chained",
    "groups",
    "limit",
    "min_tokens",
    "all",
    "prompt",
    "messages",
    "tools",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
];

fn not(field: &'static str, what: &str) -> PublicError {
    PublicError::field(field, format!("is not {what}"))
}

pub(super) fn read_token_ids(
    question: &mut Question,
    fields: &mut Fields<'_>,
    max: usize,
) -> Result<(), PublicError> {
    let mut ids = question.token_room();
    let read = fields.numbers(max, |number| match u32::try_from(number.magnitude) {
        Ok(id) if !number.negative => {
            ids.push(id);
            true
        }
        _ => false,
    });
    let given =
        read.map_err(|error| list_error("token_ids", &error, max, "a whole number from 0 to 4294967295"))?;
    question.set_token_ids(ids, given);
    Ok(())
}

pub(super) fn read_block_hashes(
    question: &mut Question,
    fields: &mut Fields<'_>,
    max: usize,
) -> Result<(), PublicError> {
    let mut hashes = question.hash_room();
    let read = fields.numbers(max, |number| {
        // Peers write the same 64 bits with a sign.
        let signed = number.negative && number.magnitude <= 1 << 63;
        hashes.push(if signed { number.magnitude.wrapping_neg() } else { number.magnitude });
        signed || !number.negative
    });
    let given = read.map_err(|error| list_error("block_hashes", &error, max, "a whole number of 64 bits"))?;
    question.set_block_hashes(hashes, given);
    Ok(())
}

fn list_error(field: &'static str, error: &ListError, max: usize, what: &str) -> PublicError {
    match error {
        ListError::NotAList => not(field, "a list"),
        ListError::TooLong => match check_length(field, max.saturating_add(1), max) {
            Err(error) => error,
            Ok(()) => not(field, "a list that can be read"),
        },
        // The element itself is part of a prompt and is not repeated.
        ListError::Element(at) => PublicError::field(field, format!("element {at} is not {what}")),
    }
}

struct AnswerJson<'a> {
    answer: &'a Answer<'a>,
    /// Groups were asked for.
    groups: bool,
    /// Text was asked for.
    tokenized: Option<TokenizedNote>,
}

impl Serialize for AnswerJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { answer, groups, tokenized } = *self;
        let mut out = serializer.serialize_struct("Answer", 5 + usize::from(tokenized.is_some()))?;
        out.serialize_field(
            "matches",
            &List(|| answer.matches().map(|found| MatchJson::new(&found, groups))),
        )?;
        out.serialize_field("best", &List(|| answer.best().map(|best| StreamJson::new(&best))))?;
        out.serialize_field("trust", answer.trust.as_str())?;
        out.serialize_field("not_credited", &List(|| answer.not_credited().map(NotCreditedJson::new)))?;
        out.serialize_field("counts", &CountsJson::new(answer))?;
        if let Some(tokenized) = tokenized {
            out.serialize_field("tokenized", &tokenized)?;
        }
        out.end()
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "QueryCounts")]
pub(super) struct CountsJson {
    /// Credited streams that hold something of the prompt, listed or not.
    holders: usize,
    /// Those of them that hold the most.
    best: usize,
    /// Credited streams that hold nothing of it.
    empty: usize,
    /// Streams that are not credited, listed or not.
    not_credited: usize,
    /// The same, by why.
    not_credited_by_reason: BTreeMap<&'static str, usize>,
    /// Credited streams whose blocks the prompt does not fill.
    shorter_than_block: usize,
}

impl CountsJson {
    fn new(answer: &Answer<'_>) -> Self {
        let Counts { holders, best, empty, not_credited } = answer.counts;
        Self {
            holders,
            best,
            empty,
            not_credited,
            not_credited_by_reason: answer.refusals(),
            shorter_than_block: answer.shorter_than_block(),
        }
    }
}

/// A list that is written as it is made.
struct List<F>(F);

impl<F, I> Serialize for List<F>
where
    F: Fn() -> I,
    I: Iterator<Item: Serialize>,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0())
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "StreamName")]
pub(super) struct StreamJson<'a> {
    engine: &'a str,
    rank: u32,
}

impl<'a> StreamJson<'a> {
    fn new(found: &Match<'a>) -> Self {
        Self { engine: found.member.id.engine.as_str(), rank: found.member.id.rank }
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Match")]
pub(super) struct MatchJson<'a> {
    engine: &'a str,
    rank: u32,
    epoch: u64,
    trust: &'static str,
    reason: Option<&'static str>,
    /// How old the proof is that the engine is there: the match describes the engine as of at most so long
    /// ago.
    age_ms: Option<u64>,
    block_size: Option<u32>,
    #[serde(flatten)]
    length: LengthJson,
    /// What the engine is expected to report as cached tokens for exactly this prompt. Absent if hashes were
    /// given.
    #[serde(skip_serializing_if = "Option::is_none")]
    cached_tokens: Option<u64>,
    /// `prompt_shorter_than_block`: the prompt does not fill one block of the stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    main: Option<LengthJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<Vec<GroupJson>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Length")]
struct LengthJson {
    blocks: u32,
    tokens: u64,
    tiers: TiersJson,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "GroupLength")]
struct GroupJson {
    group: Option<u32>,
    kind: &'static str,
    #[serde(flatten)]
    length: LengthJson,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "TokensByTier")]
struct TiersJson {
    device: u64,
    host: u64,
    disk: u64,
    remote: u64,
}

impl LengthJson {
    fn new(found: &Match<'_>) -> Self {
        Self {
            blocks: found.blocks(),
            tokens: found.tokens(),
            tiers: TiersJson {
                device: found.tokens_in(Tier::Device),
                host: found.tokens_in(Tier::Host),
                disk: found.tokens_in(Tier::Disk),
                remote: found.tokens_in(Tier::Remote),
            },
        }
    }
}

impl<'a> MatchJson<'a> {
    fn new(found: &Match<'a>, groups: bool) -> Self {
        let StreamJson { engine, rank } = StreamJson::new(found);
        let group = |side: &GroupLength| GroupJson {
            group: side.group,
            kind: side.kind.as_str(),
            length: LengthJson::new(&found.with_depths(side.depths)),
        };
        Self {
            engine,
            rank,
            epoch: found.view.epoch.as_u64(),
            trust: found.view.trust.as_str(),
            reason: found.view.reason.map(kvplane_core::Reason::as_str),
            age_ms: found.age.map(age_ms),
            block_size: found.block_size,
            length: LengthJson::new(found),
            cached_tokens: found.cached_tokens,
            note: found.note().map(Note::as_str),
            main: found.reported_main(groups).as_ref().map(LengthJson::new),
            groups: groups.then(|| found.sides().iter().map(group).collect()),
        }
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "NotCredited")]
pub(super) struct NotCreditedJson<'a> {
    engine: &'a str,
    rank: u32,
    epoch: u64,
    trust: &'static str,
    reason: &'static str,
    continuity: &'static str,
    /// How old the proof is that the engine is there; null before the first.
    age_ms: Option<u64>,
}

impl<'a> NotCreditedJson<'a> {
    fn new(found: Match<'a>) -> Self {
        let StreamJson { engine, rank } = StreamJson::new(&found);
        Self {
            engine,
            rank,
            epoch: found.view.epoch.as_u64(),
            trust: found.view.trust.as_str(),
            reason: found.refusal(),
            continuity: found.view.continuity.as_str(),
            age_ms: found.age.map(age_ms),
        }
    }
}
