//! Chats, and answers as events.
//!
//! There is no tokenizer: a token per byte of the chat in `ChatML`, so that a tokenizer of 256 bytes and that template agree with it.

use axum::body::{Body, Bytes};
use axum::extract::{Json, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_stream::StreamExt as _;

use super::{CompletionRequest, Prompt, StreamOptions, complete, completion, error};
use crate::engine::{CompletionResult, SimHandle};

/// Which answer is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Text,
    Chat,
}

impl Shape {
    /// Makes a completion's answer a chat's.
    pub(super) fn reshape(self, answer: &mut Value) {
        if self == Self::Chat {
            answer["object"] = "chat.completion".into();
            let content = answer["choices"][0]["text"].take();
            let tokens = answer["choices"][0]["token_ids"].take();
            answer["choices"] = json!([{
                "index": 0, "message": {"role": "assistant", "content": content}, "token_ids": tokens, "finish_reason": "length",
            }]);
        }
    }
}

#[derive(Deserialize)]
struct Message {
    role: String,
    content: String,
}

#[derive(Deserialize)]
pub(super) struct ChatRequest {
    model: Option<String>,
    #[serde(default)]
    messages: Vec<Message>,
    #[serde(alias = "max_completion_tokens")]
    max_tokens: Option<usize>,
    cache_salt: Option<String>,
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    stream_options: StreamOptions,
    /// vLLM's way to be given the ids.
    #[serde(default)]
    kv_transfer_params: TransferParams,
    /// `SGLang`'s.
    input_ids: Option<Vec<u32>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TransferParams {
    prompt_token_ids: Option<Vec<u32>>,
}

/// The chat as its template makes it.
fn render(messages: &[Message]) -> String {
    let turn = |message: &Message| format!("<|im_start|>{}\n{}<|im_end|>\n", message.role, message.content);
    messages.iter().map(turn).chain(["<|im_start|>assistant\n".to_owned()]).collect()
}

pub(super) async fn completions(
    State(engine): State<SimHandle>,
    headers: HeaderMap,
    Json(request): Json<ChatRequest>,
) -> Response {
    if request.messages.is_empty() {
        return error(StatusCode::BAD_REQUEST, "messages is empty.");
    }
    let ids = request.kv_transfer_params.prompt_token_ids.or(request.input_ids);
    let prompt = ids.map_or_else(|| Prompt::Text(render(&request.messages)), Prompt::Tokens);
    let request = CompletionRequest {
        model: request.model,
        prompt,
        max_tokens: request.max_tokens,
        cache_salt: request.cache_salt,
        lora: None,
        rank: None,
        extra: super::Extra::default(),
        vllm_xargs: super::EngineArguments::default(),
        stream: request.stream,
        stream_options: request.stream_options,
    };
    complete(engine, headers, request, Shape::Chat).await
}

/// The answer as events, one per token; the usage last, where it was asked for.
pub(super) fn events(
    model: &str,
    prompt_tokens: usize,
    result: &CompletionResult,
    shape: Shape,
    include_usage: bool,
) -> Response {
    let whole = completion(model, prompt_tokens, result);
    let chunk = |choices: Value, usage: Option<&Value>| {
        let object = if shape == Shape::Chat { "chat.completion.chunk" } else { "text_completion" };
        let mut chunk = json!({"id": whole["id"], "object": object, "model": model, "choices": choices});
        if include_usage {
            chunk["usage"] = usage.cloned().unwrap_or_default();
        }
        format!("data: {chunk}\n\n")
    };
    let token = |token: &u32| {
        let text = format!("{token} ");
        chunk(
            match shape {
                Shape::Chat => json!([{"index": 0, "delta": {"content": text}, "finish_reason": null}]),
                Shape::Text => json!([{"index": 0, "text": text, "finish_reason": null}]),
            },
            None,
        )
    };
    let mut all: Vec<String> = result.output.iter().map(token).collect();
    if include_usage {
        all.push(chunk(json!([]), Some(&whole["usage"])));
    }
    all.push("data: [DONE]\n\n".to_owned());
    let body = tokio_stream::iter(all).map(|event| Ok::<_, std::convert::Infallible>(Bytes::from(event)));
    ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], Body::from_stream(body)).into_response()
}
