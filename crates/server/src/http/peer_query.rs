//! The questions of Dynamo's and Mooncake's indexer: `/query` and `/query_by_hash`, in their JSON.
//!
//! Their answers have no room for trust: only streams that are credited are in them. What these routes do not
//! know they pass over, as the peers do. Counts are tokens; those of colder tiers include the warmer ones.

mod form;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body::Body as _;
use kvplane_catalog::{Answer, Listing, Prompt, Question, Roster};
use kvplane_core::{PublicError, Tier};
use kvplane_ingest::DEFAULT_ROUTING_GROUP;
use serde::Serialize;
use serde_json::json;

use super::fields::Fields;
use super::query::{body_limit, on_a_fitting_thread, read_block_hashes, read_token_ids, with_question};
use crate::questions::Asker;
use crate::value::Protocol;

/// A refusal in the peers' form: text where a request cannot be read, and JSON everywhere else.
#[derive(Debug)]
pub(super) enum Refusal {
    Json(StatusCode, String),
    Text(StatusCode, String),
}

impl Refusal {
    /// A defect of ours.
    pub(super) fn failed(message: String) -> Self {
        Self::Json(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    fn too_large() -> Self {
        let message = "Failed to buffer the request body: length limit exceeded";
        Self::Text(StatusCode::PAYLOAD_TOO_LARGE, message.to_owned())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::Json(status, message) => (status, Json(json!({ "error": message }))).into_response(),
            Self::Text(status, message) => (status, message).into_response(),
        }
    }
}

pub(super) async fn query(State(asker): State<Arc<Asker>>, request: Request) -> Response {
    answer(asker, request, |asker, body| respond(asker, body, By::Tokens)).await
}

pub(super) async fn query_by_hash(State(asker): State<Arc<Asker>>, request: Request) -> Response {
    answer(asker, request, |asker, body| respond(asker, body, By::Hashes)).await
}

async fn answer(
    asker: Arc<Asker>,
    request: Request,
    respond: fn(&Asker, &[u8]) -> Result<Response, Refusal>,
) -> Response {
    let body = match read_body(&asker, request).await {
        Ok(body) => body,
        Err(refusal) => return refusal.into_response(),
    };
    let here = asker.clone();
    match on_a_fitting_thread(&asker, body, move |body| respond(&here, body)).await {
        Ok(responded) => responded.into_response(),
        Err(error) => error.into_response(),
    }
}

/// The whole body. One that says itself that it is too large is refused before it is read.
async fn read_body(asker: &Asker, request: Request) -> Result<Bytes, Refusal> {
    if !is_json(request.headers()) {
        let message = "Expected request with `Content-Type: application/json`";
        return Err(Refusal::Text(StatusCode::UNSUPPORTED_MEDIA_TYPE, message.to_owned()));
    }
    let (limit, body) = (body_limit(asker.max_tokens), request.into_body());
    if body.size_hint().lower() > limit as u64 {
        return Err(Refusal::too_large());
    }
    axum::body::to_bytes(body, limit).await.map_err(|_| Refusal::too_large())
}

/// Whether a body is said to be JSON: `application/json`, or `application/…+json`.
fn is_json(headers: &HeaderMap) -> bool {
    let given = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind.strip_prefix("application/").is_some_and(|kind| kind == "json" || kind.ends_with("+json"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Tokens,
    Hashes,
}

fn respond(asker: &Asker, body: &[u8], by: By) -> Result<Response, Refusal> {
    with_question(|question| {
        let group = read(body, by, asker.max_tokens, question)?;
        let unreadable = || form::unreadable(body, by == By::Tokens);
        let model = question.model.as_deref().ok_or_else(unreadable)?;
        let prompt = match (by, &question.token_ids, &question.block_hashes) {
            (By::Tokens, Some(ids), _) => Prompt::Tokens { ids, namespace: question.names().namespace() },
            (By::Hashes, _, Some(hashes)) => Prompt::Hashes { hashes, chained: false, block_size: None },
            (By::Tokens, None, _) | (By::Hashes, _, None) => return Err(unreadable()),
        };
        if by == By::Hashes && question.cache_salt.is_some() {
            let message = "cache_salt is not taken here: block_hashes carry it already";
            return Err(Refusal::Json(StatusCode::BAD_REQUEST, message.to_owned()));
        }
        let in_group =
            |roster: &Arc<Roster>| roster.has_member(|member| member.identity.routing_group == group);
        let Some(roster) = asker.catalog().model(model).filter(in_group) else {
            let message = format!("no indexer for model={model} routing_group={group}");
            return Err(Refusal::Json(StatusCode::NOT_FOUND, message));
        };
        let overlap = |answer: &Answer<'_>| {
            asker.value.answered(Protocol::Indexer, question, answer);
            Overlap::of(answer, &group)
        };
        Ok(Json(roster.ask_for(&prompt, &asker.credit, Listing::HOLDERS, overlap)).into_response())
    })
}

/// Reads a peer's question and gives its routing group. What these routes do not know they pass over.
fn read(body: &[u8], by: By, max_tokens: usize, question: &mut Question) -> Result<String, Refusal> {
    let unreadable = || form::unreadable(body, by == By::Tokens);
    let mut group = None;
    let mut seen: Vec<&'static str> = Vec::with_capacity(FIELDS.len());
    let mut fields = Fields::open(body).map_err(|_| unreadable())?;
    while let Some(name) = fields.next().map_err(|_| unreadable())? {
        let known =
            FIELDS.into_iter().find(|(field, only)| *field == name && only.is_none_or(|only| only == by));
        let Some((field, _)) = known else {
            fields.skip().map_err(|_| unreadable())?;
            continue;
        };
        if seen.contains(&field) {
            return Err(unreadable());
        }
        seen.push(field);
        // A list that the peers would read is longer than may be asked for.
        let length = |error: PublicError| {
            let too_long = || Refusal::Json(StatusCode::PAYLOAD_TOO_LARGE, error.in_full());
            form::check(body, by == By::Tokens).unwrap_or_else(too_long)
        };
        match field {
            "token_ids" => read_token_ids(question, &mut fields, max_tokens).map_err(length)?,
            "block_hashes" => read_block_hashes(question, &mut fields, max_tokens).map_err(length)?,
            "model_name" => question.model = fields.value().map_err(|_| unreadable())?,
            "routing_group" => group = Some(fields.value().map_err(|_| unreadable())?),
            "lora_name" => question.lora_name = fields.value().map_err(|_| unreadable())?,
            "cache_salt" => question.cache_salt = fields.value().map_err(|_| unreadable())?,
            // A text that nobody reads.
            _ => drop(fields.value::<String>().map_err(|_| unreadable())?),
        }
    }
    Ok(group.unwrap_or_else(|| DEFAULT_ROUTING_GROUP.to_owned()))
}

/// The fields of both questions, and of which alone.
const FIELDS: [(&str, Option<By>); 7] = [
    ("token_ids", Some(By::Tokens)),
    ("block_hashes", Some(By::Hashes)),
    ("model_name", None),
    ("routing_group", None),
    ("lora_name", Some(By::Tokens)),
    ("cache_salt", None),
    ("tenant_id", None),
];

/// Tokens by instance, then by rank.
#[derive(Debug, Default, Serialize)]
struct Overlap {
    /// On the device.
    scores: BTreeMap<String, BTreeMap<String, u64>>,
    /// Always empty, as at the peers.
    frequencies: [u32; 0],
    instances: BTreeMap<String, Instance>,
}

/// The best of an instance's ranks.
#[derive(Debug, Default, Serialize)]
struct Instance {
    longest_matched: u64,
    gpu: u64,
    dp: BTreeMap<String, u64>,
    cpu: u64,
    disk: u64,
}

impl Overlap {
    fn of(answer: &Answer<'_>, group: &str) -> Self {
        let mut overlap = Self::default();
        for found in answer.matches().filter(|found| found.tokens() > 0) {
            let identity = &found.member.identity;
            if identity.routing_group != group {
                continue;
            }
            let (id, rank) = (identity.worker_id.to_string(), found.member.id.rank.to_string());
            let [gpu, cpu, disk] = [Tier::Device, Tier::Host, Tier::Disk].map(|tier| found.tokens_in(tier));
            let instance = overlap.instances.entry(id.clone()).or_default();
            instance.longest_matched = instance.longest_matched.max(disk);
            instance.gpu = instance.gpu.max(gpu);
            instance.cpu = instance.cpu.max(cpu);
            instance.disk = instance.disk.max(disk);
            if gpu > 0 {
                raise(&mut instance.dp, rank.clone(), gpu);
                raise(overlap.scores.entry(id).or_default(), rank, gpu);
            }
        }
        overlap
    }
}

/// Two engines may have been given one number.
fn raise(tokens: &mut BTreeMap<String, u64>, rank: String, at_least: u64) {
    let known = tokens.entry(rank).or_default();
    *known = at_least.max(*known);
}
