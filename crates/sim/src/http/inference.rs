//! Requests for tokens, whatever API they come by: taken, begun when it is their turn, and answered whole or
//! token by token.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use super::answer::{Answer, Shape};
use super::error;
use super::transfer::{Blocks, Transfer};
use crate::engine::{CompletionOptions, Running, SimError, SimHandle};
use crate::serve::Line;
use crate::service::{Place, ServiceFault};

/// Tokens that are generated where a request does not say how many.
pub(crate) const DEFAULT_TOKENS: usize = 16;

/// A request as every API comes to.
#[derive(Debug, Default)]
pub(super) struct Job {
    pub(super) model: Option<String>,
    pub(super) prompt: Vec<u32>,
    pub(super) options: CompletionOptions,
    pub(super) max_tokens: Option<usize>,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) transfer: Transfer,
}

/// The header that selects a rank at vLLM's server.
pub(super) fn wanted_rank(headers: &HeaderMap) -> Option<u32> {
    headers.get("x-data-parallel-rank")?.to_str().ok()?.parse().ok()
}

/// A request that was begun.
struct Begun {
    engine: SimHandle,
    running: Running,
    answer: Answer,
    fault: ServiceFault,
    line: Line,
    _place: Place,
}

/// Answers a request.
pub(super) async fn infer(engine: SimHandle, line: Line, shape: Shape, job: Job) -> Response {
    let stream = job.stream;
    match begin(engine, line, shape, job).await {
        Ok(begun) if stream => begun.events(),
        Ok(begun) => begun.whole().await,
        Err(refused) => *refused,
    }
}

async fn begin(engine: SimHandle, line: Line, shape: Shape, job: Job) -> Result<Begun, Box<Response>> {
    let refuse = |status, message: &str| Err(Box::new(error(status, message)));
    let config = engine.config();
    let service = engine.engine.service.clone();
    let fault = service.next();
    if let Some(status) = fault.status {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        return refuse(status, "simulated");
    }
    let Some(place) = service.enter(config.pace.max_requests) else {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "The engine has as many requests as it takes.");
    };
    let model = job.model.unwrap_or_else(|| config.model.clone());
    let mut options = job.options;
    options.lora = options.lora.or_else(|| config.loras.iter().find(|lora| **lora == model).cloned());
    if options.lora.is_none() && model != config.model {
        return refuse(StatusCode::NOT_FOUND, &format!("The model `{model}` does not exist."));
    }
    if job.prompt.is_empty() {
        return refuse(StatusCode::BAD_REQUEST, "The prompt is empty.");
    }
    let blocks = Blocks::of(config, &job.prompt);
    if let Err(why) = job.transfer.check(&blocks) {
        return refuse(StatusCode::BAD_REQUEST, why);
    }
    if fault.no_ranks && options.rank.is_some() {
        return refuse(StatusCode::BAD_REQUEST, "The header X-data-parallel-rank is not understood.");
    }
    let rank = *options.rank.get_or_insert_with(|| engine.next_rank());
    if fault.hold {
        service.lifted().await;
    }
    let turn = service.prefill(rank).await;
    let (max_tokens, prompt_tokens) = (job.max_tokens.unwrap_or(DEFAULT_TOKENS).max(1), job.prompt.len());
    let run = {
        let engine = engine.clone();
        spawn_blocking(move || engine.begin(&job.prompt, max_tokens, &options)).await
    };
    let running = match run {
        Ok(Ok(running)) => running,
        Ok(Err(cause @ SimError::NoRank(_))) => return refuse(StatusCode::BAD_REQUEST, &cause.to_string()),
        Ok(Err(cause)) => return refuse(StatusCode::SERVICE_UNAVAILABLE, &cause.to_string()),
        Err(cause) => return refuse(StatusCode::INTERNAL_SERVER_ERROR, &cause.to_string()),
    };
    // What another engine computed is there, but for the last token.
    let cached = if job.transfer.is_received() { prompt_tokens - 1 } else { running.cached_tokens() };
    tokio::time::sleep(config.pace.prefill_of(prompt_tokens - cached)).await;
    drop(turn);
    let answer = Answer {
        shape,
        model,
        prompt_tokens,
        cached,
        include_usage: job.include_usage,
        transfer: job.transfer.returned(&engine, &blocks),
    };
    Ok(Begun { engine, running, answer, fault, line, _place: place })
}

/// What the next token is.
enum Next {
    Token(u32),
    End,
    Failed(SimError),
}

impl Begun {
    /// One token more, as fast as the engine is.
    async fn next(mut self, made: usize) -> (Self, Next) {
        if self.fault.die_after.is_some_and(|most| made >= most) {
            self.line.cut().await;
        }
        let pause = self.engine.config().pace.token;
        if made > 0 && !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        // The publisher may make it wait.
        let stepped = spawn_blocking(move || {
            let stepped = self.running.step();
            (self, stepped)
        });
        match stepped.await {
            Ok((begun, Ok(Some(token)))) => (begun, Next::Token(token)),
            Ok((begun, Ok(None))) => (begun, Next::End),
            Ok((begun, Err(cause))) => (begun, Next::Failed(cause)),
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
    }

    async fn whole(mut self) -> Response {
        if self.engine.config().pace.token.is_zero() && self.fault.die_after.is_none() {
            return self.at_once().await;
        }
        let mut output = Vec::new();
        loop {
            let (begun, next) = self.next(output.len()).await;
            self = begun;
            match next {
                Next::Token(token) => output.push(token),
                Next::End => return axum::Json(self.answer.whole(&output)).into_response(),
                Next::Failed(cause) => return error(StatusCode::SERVICE_UNAVAILABLE, &cause.to_string()),
            }
        }
    }

    /// All tokens in one go: they take no time.
    async fn at_once(self) -> Response {
        let Self { mut running, answer, _place, .. } = self;
        let made = spawn_blocking(move || {
            while running.step()?.is_some() {}
            Ok::<_, SimError>(running.finish())
        });
        match made.await {
            Ok(Ok(made)) => axum::Json(answer.whole(&made.output)).into_response(),
            Ok(Err(cause)) => error(StatusCode::SERVICE_UNAVAILABLE, &cause.to_string()),
            Err(cause) => error(StatusCode::INTERNAL_SERVER_ERROR, &cause.to_string()),
        }
    }

    fn events(self) -> Response {
        let (events, sent) = mpsc::channel::<Bytes>(1);
        kvplane_runtime::spawn("simulated answer", async move {
            let gone = events.clone();
            tokio::select! {
                () = self.generate(events) => {}
                // The request ends with the client.
                () = gone.closed() => {}
            }
        });
        let body = ReceiverStream::new(sent).map(Ok::<_, std::convert::Infallible>);
        ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], Body::from_stream(body))
            .into_response()
    }

    async fn generate(mut self, events: mpsc::Sender<Bytes>) {
        let mut output = Vec::new();
        let mut text = self.answer.begins();
        loop {
            if !text.is_empty() && events.send(Bytes::from(std::mem::take(&mut text))).await.is_err() {
                return;
            }
            let (begun, next) = self.next(output.len()).await;
            self = begun;
            match next {
                Next::Token(token) => {
                    output.push(token);
                    text = self.answer.token(token);
                }
                Next::End => {
                    text = self.answer.ends(&output);
                    // Its blocks are free before its client knows that it is over.
                    drop(self.running);
                    let _ = events.send(Bytes::from(text)).await;
                    return;
                }
                Next::Failed(cause) => {
                    let _ = events.send(Bytes::from(Answer::failed(&cause.to_string()))).await;
                    return;
                }
            }
        }
    }
}

/// What an engine was asked for that makes no tokens.
pub(super) fn usage_of_prompt(prompt_tokens: usize) -> Value {
    serde_json::json!({"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens, "completion_tokens": 0})
}

/// Requests that wait to be begun, for tests.
pub(super) fn held(engine: &SimHandle) -> usize {
    Arc::clone(&engine.engine.service).held()
}
