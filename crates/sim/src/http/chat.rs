//! What the APIs take: texts, chats, and what becomes of them without a token being made.
//!
//! There is no tokenizer: a token per byte of the chat in `ChatML`, so that a tokenizer of 256 bytes and that
//! template agree with it.

use axum::extract::{Json, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::Shape;
use super::inference::{Job, infer, usage_of_prompt, wanted_rank};
use super::transfer::Transfer;
use super::{Prompt, StreamOptions, error};
use crate::engine::{CompletionOptions, SimHandle};
use crate::serve::Line;

pub(super) fn routes() -> Router<SimHandle> {
    use axum::routing::{get, post};
    Router::new()
        .route("/v1/chat/completions", post(completions))
        .route("/v1/chat/completions/render", post(render))
        .route("/v1/responses", post(responses))
        .route("/v1/messages", post(messages))
        .route("/v1/embeddings", post(embeddings))
        .route("/v1/models", get(models))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
}

/// Text, or parts of it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
struct Part {
    #[serde(default)]
    text: String,
}

impl Content {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => parts.iter().map(|part| part.text.as_str()).collect(),
        }
    }
}

#[derive(Deserialize)]
struct Message {
    role: String,
    content: Content,
}

/// The chat as its template makes it.
fn template(engine: &SimHandle, messages: &[Message]) -> Vec<u32> {
    let turn =
        |message: &Message| format!("<|im_start|>{}\n{}<|im_end|>\n", message.role, message.content.text());
    let mut text: String = messages.iter().map(turn).chain(["<|im_start|>assistant\n".to_owned()]).collect();
    if engine.engine.service.has_other_template() {
        text.insert_str(0, "[another template]\n");
    }
    bytes(&text)
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

#[derive(Deserialize)]
struct ChatRequest {
    model: Option<String>,
    #[serde(default)]
    messages: Vec<Message>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    cache_salt: Option<String>,
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
    #[serde(default)]
    kv_transfer_params: Option<Transfer>,
    /// `SGLang`'s way to be given the ids.
    input_ids: Option<Vec<u32>>,
}

async fn completions(
    State(engine): State<SimHandle>,
    Extension(line): Extension<Line>,
    headers: HeaderMap,
    Json(request): Json<ChatRequest>,
) -> Response {
    if request.messages.is_empty() {
        return error(StatusCode::BAD_REQUEST, "messages is empty.");
    }
    let mut transfer = request.kv_transfer_params.unwrap_or_default();
    let ids = transfer.prompt_token_ids.take().or(request.input_ids);
    let job = Job {
        prompt: ids.unwrap_or_else(|| template(&engine, &request.messages)),
        model: request.model,
        options: CompletionOptions {
            rank: wanted_rank(&headers),
            cache_salt: request.cache_salt,
            ..CompletionOptions::default()
        },
        max_tokens: request.max_completion_tokens.or(request.max_tokens),
        stream: request.stream,
        include_usage: request.stream_options.unwrap_or_default().include_usage,
        transfer,
    };
    infer(engine, line, Shape::Chat, job).await
}

/// `OpenAI`'s responses, as far as they are text.
#[derive(Deserialize)]
struct ResponsesRequest {
    model: Option<String>,
    input: Input,
    instructions: Option<String>,
    max_output_tokens: Option<usize>,
    cache_salt: Option<String>,
    #[serde(default)]
    stream: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Input {
    Text(String),
    Messages(Vec<Message>),
}

async fn responses(
    State(engine): State<SimHandle>,
    Extension(line): Extension<Line>,
    headers: HeaderMap,
    Json(request): Json<ResponsesRequest>,
) -> Response {
    let said = |role: &str, text| Message { role: role.to_owned(), content: Content::Text(text) };
    let mut chat: Vec<Message> = request.instructions.map(|text| said("system", text)).into_iter().collect();
    match request.input {
        Input::Text(text) => chat.push(said("user", text)),
        Input::Messages(messages) => chat.extend(messages),
    }
    let job = Job {
        prompt: template(&engine, &chat),
        model: request.model,
        options: CompletionOptions {
            rank: wanted_rank(&headers),
            cache_salt: request.cache_salt,
            ..CompletionOptions::default()
        },
        max_tokens: request.max_output_tokens,
        stream: request.stream,
        ..Job::default()
    };
    infer(engine, line, Shape::Responses, job).await
}

/// Anthropic's messages, as far as they are text.
#[derive(Deserialize)]
struct MessagesRequest {
    model: Option<String>,
    system: Option<Content>,
    messages: Vec<Message>,
    max_tokens: usize,
    #[serde(default)]
    stream: bool,
}

async fn messages(
    State(engine): State<SimHandle>,
    Extension(line): Extension<Line>,
    headers: HeaderMap,
    Json(request): Json<MessagesRequest>,
) -> Response {
    let system = request.system.map(|content| Message { role: "system".to_owned(), content });
    let chat: Vec<Message> = system.into_iter().chain(request.messages).collect();
    let job = Job {
        prompt: template(&engine, &chat),
        model: request.model,
        options: CompletionOptions { rank: wanted_rank(&headers), ..CompletionOptions::default() },
        max_tokens: Some(request.max_tokens),
        stream: request.stream,
        ..Job::default()
    };
    infer(engine, line, Shape::Messages, job).await
}

#[derive(Deserialize)]
struct EmbeddingsRequest {
    model: Option<String>,
    input: Texts,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Texts {
    One(String),
    Several(Vec<String>),
}

/// Numbers that depend on the text and mean nothing.
async fn embeddings(State(engine): State<SimHandle>, Json(request): Json<EmbeddingsRequest>) -> Response {
    let texts = match request.input {
        Texts::One(text) => vec![text],
        Texts::Several(texts) => texts,
    };
    let model = request.model.unwrap_or_else(|| engine.config().model.clone());
    let embedding = |(index, text): (usize, &String)| {
        let numbers: Vec<f64> = (0..8).map(|at| ((text.len() + at) % 17) as f64 / 17.0).collect();
        json!({"object": "embedding", "index": index, "embedding": numbers})
    };
    let data: Vec<Value> = texts.iter().enumerate().map(embedding).collect();
    let usage = usage_of_prompt(texts.iter().map(String::len).sum());
    Json(json!({"object": "list", "model": model, "data": data, "usage": usage})).into_response()
}

async fn models(State(engine): State<SimHandle>) -> Json<Value> {
    let config = engine.config();
    let card = |id: &str, parent: Option<&str>| {
        json!({
            "id": id, "object": "model", "created": kvplane_runtime::unix_time().as_secs(), "owned_by": "vllm",
            "root": id, "parent": parent, "max_model_len": config.blocks * config.block_size,
        })
    };
    let adapters = config.loras.iter().map(|lora| card(lora, Some(&config.model)));
    let data: Vec<Value> = std::iter::once(card(&config.model, None)).chain(adapters).collect();
    Json(json!({"object": "list", "data": data}))
}

/// A text or a chat whose ids are asked for.
#[derive(Deserialize)]
struct TokenizeRequest {
    prompt: Option<Prompt>,
    messages: Option<Vec<Message>>,
}

impl TokenizeRequest {
    fn ids(self, engine: &SimHandle) -> Option<Vec<u32>> {
        match (self.prompt, self.messages) {
            (Some(prompt), _) => Some(prompt.into_tokens()),
            (None, Some(messages)) => Some(template(engine, &messages)),
            (None, None) => None,
        }
    }
}

async fn tokenize(State(engine): State<SimHandle>, Json(request): Json<TokenizeRequest>) -> Response {
    let Some(ids) = request.ids(&engine) else {
        return error(StatusCode::BAD_REQUEST, "prompt and messages are missing.");
    };
    let max_model_len = engine.config().blocks * engine.config().block_size;
    let answer =
        json!({"count": ids.len(), "max_model_len": max_model_len, "tokens": ids, "token_strs": null});
    Json(answer).into_response()
}

/// What vLLM answers with `--enable-scale-out`.
async fn render(State(engine): State<SimHandle>, Json(request): Json<TokenizeRequest>) -> Response {
    match request.ids(&engine) {
        Some(ids) => {
            Json(json!({"token_ids": ids, "sampling_params": {}, "features": null, "cache_salt": null}))
                .into_response()
        }
        None => error(StatusCode::BAD_REQUEST, "messages is empty."),
    }
}

#[derive(Deserialize)]
struct DetokenizeRequest {
    tokens: Vec<u32>,
}

async fn detokenize(Json(request): Json<DetokenizeRequest>) -> Json<Value> {
    let text: Vec<u8> = request.tokens.iter().map(|id| *id as u8).collect();
    Json(json!({"prompt": String::from_utf8_lossy(&text)}))
}
