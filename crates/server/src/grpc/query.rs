//! `Query` and `QueryStream`: who holds how much of a prompt.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream as FutureStream, StreamExt as _};
use kvplane_access::ApiError;
use kvplane_catalog::{Answer, Counts, GroupLength, Match, Question, age_ms};
use kvplane_core::{ErrorCode, MultimodalItem, PublicError, Tier, Trust};
use kvplane_ingest::owned_keys;
use kvplane_prompt::PromptInput;
use kvplane_proto::kvplane::v1 as proto;
use kvplane_proto::kvplane::v1::query_result::Outcome;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::{encode, text};
use crate::questions::{Asker, TokenizedNote};
use crate::value::Protocol;

/// Tokens of one message that are hashed at once: some hundred microseconds. More is done where it delays
/// nobody.
const AT_ONCE: usize = 128 << 10;

/// Bytes of text that are tokenized at once.
const TEXT_AT_ONCE: usize = 32 << 10;

fn text_length(request: &proto::QueryRequest) -> usize {
    let texts = [&request.prompt, &request.messages, &request.tools, &request.chat_template_kwargs];
    texts.into_iter().flatten().map(String::len).sum()
}

/// The answers of a stream.
pub(super) type Answers = Pin<Box<dyn FutureStream<Item = Result<proto::QueryBatchResponse, Status>> + Send>>;

/// Answers one query.
pub(super) async fn query(
    asker: &Arc<Asker>,
    request: proto::QueryRequest,
) -> Result<proto::QueryResponse, Status> {
    if request.token_ids.len() <= AT_ONCE && is_short(asker, &request) {
        return Ok(answer(asker, request).map_err(ApiError)?);
    }
    let asker = asker.clone();
    let answered = tokio::task::spawn_blocking(move || answer(&asker, request)).await;
    let failed = |_| PublicError::new(ErrorCode::Internal, "the query could not be answered");
    Ok(answered.map_err(failed).flatten().map_err(ApiError)?)
}

/// The ids of a text.
pub(super) async fn tokenize(
    asker: &Arc<Asker>,
    request: proto::QueryRequest,
) -> Result<proto::TokenizeResponse, Status> {
    let aside = !is_short(asker, &request);
    let (mut question, text) = question(request).map_err(ApiError)?;
    let missing = || PublicError::field("prompt", "is missing, and so is messages");
    let text = text.ok_or_else(missing).map_err(ApiError)?;
    let here = asker.clone();
    let work = move || {
        let note = here.tokenize(&mut question, &text)?;
        Ok(proto::TokenizeResponse {
            model: question.model.unwrap_or_default(),
            lora_name: question.lora_name,
            token_ids: question.token_ids.unwrap_or_default(),
            tokenized: Some(tokenized_note(note)),
        })
    };
    if !aside {
        return Ok(work().map_err(ApiError)?);
    }
    let failed = |_| PublicError::new(ErrorCode::Internal, "the text could not be tokenized");
    Ok(tokio::task::spawn_blocking(work).await.map_err(failed).flatten().map_err(ApiError)?)
}

/// Answers messages one after the other: the next is read when this one is answered and taken.
pub(super) fn query_stream(
    asker: Arc<Asker>,
    stop: CancellationToken,
    batches: Streaming<proto::QueryBatch>,
) -> Answers {
    let stop = stop.cancelled_owned();
    let answers = batches.then(move |batch| {
        let asker = asker.clone();
        async move { answer_batch(&asker, batch?).await }
    });
    answers.take_until(stop).boxed()
}

async fn answer_batch(
    asker: &Arc<Asker>,
    batch: proto::QueryBatch,
) -> Result<proto::QueryBatchResponse, Status> {
    let tokens: usize =
        batch.queries.iter().map(|query| query.token_ids.len() + 4 * text_length(query)).sum();
    let waits = asker.prompts.asks_engines() && batch.queries.iter().any(|query| text_length(query) > 0);
    let answer_all = |asker: &Asker| {
        let results = batch.queries.into_iter().map(|request| {
            let id = request.id;
            let outcome = match answer(asker, request) {
                Ok(response) => Outcome::Response(response),
                Err(error) => Outcome::Refusal(proto::QueryRefusal {
                    code: error.code.as_str().to_owned(),
                    message: error.in_full(),
                    field: error.field.map(str::to_owned),
                }),
            };
            proto::QueryResult { id, outcome: Some(outcome) }
        });
        proto::QueryBatchResponse { results: results.collect() }
    };
    if tokens <= AT_ONCE && !waits {
        return Ok(answer_all(asker));
    }
    let asker = asker.clone();
    let answered = tokio::task::spawn_blocking(move || answer_all(&asker)).await;
    let failed = |_| PublicError::new(ErrorCode::Internal, "the queries could not be answered");
    Ok(answered.map_err(failed).map_err(ApiError)?)
}

/// Whether a text is made into ids within a fraction of a millisecond.
fn is_short(asker: &Asker, request: &proto::QueryRequest) -> bool {
    let most = if asker.prompts.asks_engines() { 0 } else { TEXT_AT_ONCE };
    text_length(request) <= most
}

fn answer(asker: &Asker, request: proto::QueryRequest) -> Result<proto::QueryResponse, PublicError> {
    asker.questions.answer(|| ask(asker, request))
}

/// The answer, and whether anybody was found.
fn ask(asker: &Asker, request: proto::QueryRequest) -> Result<(proto::QueryResponse, bool), PublicError> {
    let groups = request.groups;
    let (mut question, text) = question(request)?;
    let tokenized = text.map(|text| asker.tokenize(&mut question, &text)).transpose()?;
    question.ask(asker.catalog(), asker.asking(), |answer| {
        asker.value.answered(Protocol::Grpc, &question, answer);
        let mut response = response(answer, groups);
        response.tokenized = tokenized.map(tokenized_note);
        (response, answer.is_hit())
    })
}

pub(super) fn tokenized_note(TokenizedNote { tokens, parity, .. }: TokenizedNote) -> proto::Tokenized {
    proto::Tokenized { tokens, parity: parity.to_owned() }
}

/// The question of a message, and its text.
pub(super) fn question(request: proto::QueryRequest) -> Result<(Question, Option<PromptInput>), PublicError> {
    let proto::QueryRequest {
        model,
        token_ids,
        block_hashes,
        chained,
        block_size,
        lora_name,
        lora_id,
        cache_salt,
        extra_keys,
        multimodal,
        groups,
        limit,
        min_tokens,
        all,
        id: _,
        prompt,
        messages,
        tools,
        chat_template_kwargs,
        add_generation_prompt,
        continue_final_message,
    } = request;
    let text = text::input(text::Given {
        prompt,
        messages,
        tools,
        kwargs: chat_template_kwargs,
        generation: add_generation_prompt,
        go_on: continue_final_message,
    })?;
    if extra_keys.iter().flat_map(|block| &block.keys).any(|key| key.key.is_none()) {
        return Err(PublicError::field("extra_keys", "has a key of a kind that is not known here"));
    }
    let keys = |block: proto::BlockKeys| owned_keys(block.keys).collect();
    let item =
        |proto::MultimodalItem { id, offset, length }| MultimodalItem { id: id.into(), offset, length };
    let mut question = Question {
        model: Some(model),
        chained,
        block_size,
        lora_name,
        lora_id,
        cache_salt,
        extra_keys: (!extra_keys.is_empty()).then(|| extra_keys.into_iter().map(keys).collect()),
        multimodal: (!multimodal.is_empty()).then(|| multimodal.into_iter().map(item).collect()),
        groups: Some(groups),
        limit,
        min_tokens,
        all: Some(all),
        ..Question::default()
    };
    // On the wire an empty list is no list.
    let (tokens_given, hashes_given) = (!token_ids.is_empty(), !block_hashes.is_empty());
    question.set_token_ids(token_ids, tokens_given);
    question.set_block_hashes(block_hashes, hashes_given);
    Ok((question, text))
}

fn response(answer: &Answer<'_>, groups: bool) -> proto::QueryResponse {
    proto::QueryResponse {
        matches: answer.matches().map(|found| found_in(&found, groups)).collect(),
        best: answer.best().map(|found| name(&found)).collect(),
        trust: level(answer.trust),
        not_credited: answer.not_credited().map(|found| passed_over(&found)).collect(),
        counts: Some(counts(answer)),
        tokenized: None,
    }
}

fn counts(answer: &Answer<'_>) -> proto::QueryCounts {
    let Counts { holders, best, empty, not_credited } = answer.counts;
    let by_reason = answer.refusals().into_iter();
    proto::QueryCounts {
        holders: holders as u64,
        best: best as u64,
        empty: empty as u64,
        not_credited: not_credited as u64,
        not_credited_by_reason: by_reason.map(|(why, count)| (why.to_owned(), count as u64)).collect(),
        shorter_than_block: answer.shorter_than_block() as u64,
    }
}

fn name(found: &Match<'_>) -> proto::StreamName {
    proto::StreamName { engine: found.member.id.engine.to_string(), rank: found.member.id.rank }
}

fn level(trust: Trust) -> i32 {
    encode::level(trust).into()
}

fn found_in(found: &Match<'_>, groups: bool) -> proto::Match {
    let proto::StreamName { engine, rank } = name(found);
    let group = |side: &GroupLength| proto::GroupLength {
        group: side.group,
        kind: side.kind.as_str().to_owned(),
        length: Some(length(&found.with_depths(side.depths))),
    };
    let proto::Length { blocks, tokens, tiers } = length(found);
    proto::Match {
        engine,
        rank,
        epoch: found.view.epoch.as_u64(),
        trust: level(found.view.trust),
        reason: found.view.reason.map(|reason| reason.as_str().to_owned()),
        block_size: found.block_size,
        blocks,
        tokens,
        tiers,
        main: found.reported_main(groups).as_ref().map(length),
        groups: if groups { found.sides().iter().map(group).collect() } else { Vec::new() },
        age_ms: found.age.map(age_ms),
        cached_tokens: found.cached_tokens,
        note: found.note().map(|note| note.as_str().to_owned()),
    }
}

fn length(found: &Match<'_>) -> proto::Length {
    proto::Length {
        blocks: found.blocks(),
        tokens: found.tokens(),
        tiers: Some(proto::TierTokens {
            device: found.tokens_in(Tier::Device),
            host: found.tokens_in(Tier::Host),
            disk: found.tokens_in(Tier::Disk),
            remote: found.tokens_in(Tier::Remote),
        }),
    }
}

fn passed_over(found: &Match<'_>) -> proto::NotCredited {
    let proto::StreamName { engine, rank } = name(found);
    proto::NotCredited {
        engine,
        rank,
        epoch: found.view.epoch.as_u64(),
        trust: level(found.view.trust),
        reason: found.refusal().to_owned(),
        continuity: encode::proto_continuity(found.view.continuity).into(),
        age_ms: found.age.map(age_ms),
    }
}
