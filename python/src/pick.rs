//! Decisions of a plane and reports of what came of them: arguments of Python to messages, and answers to
//! dicts.

use std::time::Duration;

use kvplane_embed::proto;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::arguments::{self, Fields};
use crate::errors::{Argument, bad_type};
use crate::question::{hashes, tokens};

/// How long a plane may take to answer, where nobody says otherwise.
const WITHIN: Duration = Duration::from_secs(10);

const PICK: [&str; 19] = [
    "block_hashes",
    "chained",
    "block_size",
    "lora_name",
    "lora_id",
    "cache_salt",
    "prompt",
    "messages",
    "tools",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "session",
    "policy",
    "limit",
    "dry_run",
    "output_tokens",
    "exclude",
    "timeout",
];

const TEXT: [&str; 7] = [
    "prompt",
    "messages",
    "tools",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "timeout",
];

const REPORT: [&str; 8] =
    ["state", "cached_tokens", "prompt_tokens", "engine", "rank", "first_token_ms", "attempts", "timeout"];

/// The request in the arguments of `pick`, and how long it may take.
pub(crate) fn request(
    model: &Bound<'_, PyAny>,
    token_ids: Option<&Bound<'_, PyAny>>,
    details: Option<&Bound<'_, PyDict>>,
) -> PyResult<(proto::PickRequest, Duration)> {
    let fields = Fields { within: "", values: details };
    fields.only(&PICK)?;
    let query = query(model, token_ids, &fields)?;
    let request = proto::PickRequest {
        prompt: Some(query),
        session: fields.text("session")?,
        policy: fields.text("policy")?,
        limit: fields.unsigned_32("limit")?,
        dry_run: fields.get("dry_run", arguments::truth)?.unwrap_or(false),
        output_tokens: fields.unsigned_32("output_tokens")?.unwrap_or(0),
        exclude: fields.get("exclude", endpoints)?.unwrap_or_default(),
    };
    Ok((request, within(&fields)?))
}

/// The prompt in the arguments of `tokenize`, and how long it may take.
pub(crate) fn text(
    model: &Bound<'_, PyAny>,
    details: Option<&Bound<'_, PyDict>>,
) -> PyResult<(proto::QueryRequest, Duration)> {
    let fields = Fields { within: "", values: details };
    fields.only(&TEXT)?;
    Ok((query(model, None, &fields)?, within(&fields)?))
}

/// A prompt, however it is given.
fn query(
    model: &Bound<'_, PyAny>,
    token_ids: Option<&Bound<'_, PyAny>>,
    fields: &Fields<'_, '_>,
) -> PyResult<proto::QueryRequest> {
    let ids = token_ids.filter(|ids| !ids.is_none());
    Ok(proto::QueryRequest {
        model: arguments::text(Argument::new("model"), model)?,
        token_ids: ids.map_or(Ok(Vec::new()), |ids| tokens(Argument::new("token_ids"), ids))?,
        block_hashes: fields.get("block_hashes", hashes)?.unwrap_or_default(),
        chained: fields.get("chained", arguments::truth)?,
        block_size: fields.unsigned_32("block_size")?,
        lora_name: fields.text("lora_name")?,
        lora_id: fields.signed_64("lora_id")?,
        cache_salt: fields.text("cache_salt")?,
        prompt: fields.text("prompt")?,
        messages: fields.text("messages")?,
        tools: fields.text("tools")?,
        chat_template_kwargs: fields.text("chat_template_kwargs")?,
        add_generation_prompt: fields.get("add_generation_prompt", arguments::truth)?,
        continue_final_message: fields.get("continue_final_message", arguments::truth)?,
        ..Default::default()
    })
}

/// The ids of a text, with the model and the adapter that they are of.
pub(crate) fn tokenized(py: Python<'_>, told: proto::TokenizeResponse) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("model", told.model)?;
    dict.set_item("lora_name", told.lora_name)?;
    dict.set_item("token_ids", told.token_ids)?;
    dict.set_item("parity", told.tokenized.map(|tokenized| tokenized.parity))?;
    Ok(dict)
}

/// The report in the arguments of `report`.
pub(crate) fn report(
    id: &Bound<'_, PyAny>,
    details: Option<&Bound<'_, PyDict>>,
) -> PyResult<(proto::DeliveryReport, Duration)> {
    let fields = Fields { within: "", values: details };
    fields.only(&REPORT)?;
    let state = match fields.text("state")?.as_deref() {
        Some("first_token") => proto::RequestState::FirstToken,
        Some("finish") => proto::RequestState::Finish,
        Some("abort") => proto::RequestState::Abort,
        _ => proto::RequestState::Unspecified,
    };
    let report = proto::DeliveryReport {
        id: arguments::text(Argument::new("id"), id)?,
        state: state.into(),
        cached_tokens: fields.get("cached_tokens", arguments::unsigned_64)?,
        prompt_tokens: fields.get("prompt_tokens", arguments::unsigned_64)?,
        engine: fields.text("engine")?,
        rank: fields.unsigned_32("rank")?,
        first_token_ms: fields.get("first_token_ms", arguments::float)?,
        attempts: fields.unsigned_32("attempts")?.unwrap_or(0),
    };
    Ok((report, within(&fields)?))
}

fn within(fields: &Fields<'_, '_>) -> PyResult<Duration> {
    Ok(fields.get("timeout", arguments::seconds)?.unwrap_or(WITHIN))
}

/// Endpoints as tuples of engine and rank.
fn endpoints(argument: Argument<'_>, value: &Bound<'_, PyAny>) -> PyResult<Vec<proto::StreamName>> {
    let mut names = Vec::new();
    arguments::elements(argument, value, "a sequence of (engine, rank)", |at, element| {
        let argument = argument.element(at);
        let pair = element.cast::<PyTuple>().ok().filter(|pair| pair.len() == 2);
        let pair = pair.ok_or_else(|| bad_type(argument, "a tuple of engine and rank", element))?;
        let engine = arguments::text(argument, &pair.get_item(0)?)?;
        let rank = arguments::unsigned_32(argument, &pair.get_item(1)?)?;
        names.push(proto::StreamName { engine, rank });
        Ok(())
    })?;
    Ok(names)
}

/// The answer, with the names of `POST /v1/pick`.
pub(crate) fn picked<'py>(py: Python<'py>, answer: &proto::PickResponse) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("id", Some(&answer.id).filter(|id| !id.is_empty()))?;
    let endpoints = PyList::empty(py);
    for one in &answer.endpoints {
        let endpoint = PyDict::new(py);
        endpoint.set_item("engine", &one.engine)?;
        endpoint.set_item("rank", one.rank)?;
        endpoint.set_item("cached_tokens", one.cached_tokens)?;
        endpoint.set_item("in_flight_tokens", one.in_flight_tokens)?;
        endpoint.set_item("trust", &one.trust)?;
        endpoint.set_item("age_ms", one.age_ms)?;
        endpoint.set_item("load", &one.load)?;
        endpoint.set_item("cost", one.cost)?;
        let terms = PyDict::new(py);
        let told = one.terms.unwrap_or_default();
        terms.set_item("queue_s", told.queue_s)?;
        terms.set_item("prefill_s", told.prefill_s)?;
        terms.set_item("imposed_s", told.imposed_s)?;
        terms.set_item("decode_s", told.decode_s)?;
        terms.set_item("memory_s", told.memory_s)?;
        endpoint.set_item("terms", terms)?;
        endpoints.append(endpoint)?;
    }
    dict.set_item("endpoints", endpoints)?;
    dict.set_item("why", &answer.why)?;
    dict.set_item("because", &answer.because)?;
    dict.set_item("policy", &answer.policy)?;
    dict.set_item("prompt_tokens", answer.prompt_tokens)?;
    dict.set_item("fleet_cached_tokens", answer.fleet_cached_tokens)?;
    dict.set_item("eligible_cached_tokens", answer.eligible_cached_tokens)?;
    dict.set_item("booked", answer.booked)?;
    let skipped = PyList::empty(py);
    for one in &answer.skipped {
        let passed = PyDict::new(py);
        passed.set_item("engine", &one.engine)?;
        passed.set_item("rank", one.rank)?;
        passed.set_item("why", &one.why)?;
        skipped.append(passed)?;
    }
    dict.set_item("skipped", skipped)?;
    dict.set_item("skipped_count", answer.skipped_count)?;
    dict.set_item("without_tokens", &answer.without_tokens)?;
    Ok(dict)
}

/// What the receipt says so far.
pub(crate) fn account<'py>(
    py: Python<'py>,
    account: &proto::DeliveryAccount,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("settled", account.settled)?;
    dict.set_item("predicted_tokens", account.predicted_tokens)?;
    dict.set_item("delivered_tokens", account.delivered_tokens)?;
    dict.set_item("gained_tokens", account.gained_tokens)?;
    let lost = PyDict::new(py);
    for (cause, tokens) in &account.lost {
        lost.set_item(cause, tokens)?;
    }
    dict.set_item("lost", lost)?;
    dict.set_item("drift", Some(&account.drift).filter(|drift| !drift.is_empty()))?;
    Ok(dict)
}
