//! Engines' own word on a prompt's ids, over HTTP.
//!
//! | way | asks | exact |
//! |---|---|---|
//! | [`render`] | `/v1/chat/completions/render`, `/v1/completions/render` (vLLM with `--enable-scale-out`) | by construction |
//! | [`tokenize`] | `/tokenize` (vLLM, SGLang) | for text, messages, tools and template variables |
//! | [`token_in`] | nothing: a request that carries the ids | by construction, for text |

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode};
use kvplane_transport::{HttpClient, HttpQuestion, NoAnswer, Sent};
use serde::Deserialize;

use crate::input::{Chat, PromptInput};
use crate::json::Json;
use crate::parity::{Dimensions, Evidence, probes};
use crate::{Model, PromptError};

/// An answer has some eight bytes per id, and a rendered request repeats little else.
const MAX_ANSWER: usize = 64 << 20;
/// What an engine may take for a short prompt.
const DEADLINE: Duration = Duration::from_secs(5);
/// And for each megabyte of it besides.
const PER_MEGABYTE: Duration = Duration::from_secs(5);

/// An engine's HTTP server.
#[derive(Debug, Clone)]
pub struct EngineAddress {
    /// `http://host:port`.
    pub base: String,
    /// The model's name there, where the server wants one.
    pub model: String,
    /// Who asks, for a server that wants to know. Marked as sensitive.
    pub authorization: Option<HeaderValue>,
}

/// Why an engine did not tell ids.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// No answer.
    #[error("{0}")]
    NoAnswer(#[from] NoAnswer),
    /// Not this route, or not with its flags (404, 403, 405).
    #[error("the engine does not serve {path} (status {status})")]
    NotServed {
        /// The route.
        path: &'static str,
        /// What it said.
        status: u16,
    },
    /// It refuses the prompt.
    #[error("the engine refuses the request (status {0})")]
    Refused(u16),
    /// What it says is no answer.
    #[error("the engine's answer has no token ids")]
    Unreadable,
}

/// Way B: the engine renders the very request. The ids are those that it would serve.
pub async fn render(
    client: &HttpClient,
    engine: &EngineAddress,
    input: &PromptInput,
) -> Result<Vec<u32>, EngineError> {
    let path = match input {
        PromptInput::Text(_) => "/v1/completions/render",
        PromptInput::Chat(_) => "/v1/chat/completions/render",
    };
    ask(client, engine, path, input).await
}

/// Way C: the engine tokenizes the prompt.
pub async fn tokenize(
    client: &HttpClient,
    engine: &EngineAddress,
    input: &PromptInput,
) -> Result<Vec<u32>, EngineError> {
    ask(client, engine, "/tokenize", input).await
}

/// Way D: a chat request that carries its ids, so that the engine computes none (vLLM since 0.27). Other
/// fields stay as they are.
pub fn token_in(request: &mut serde_json::Map<String, serde_json::Value>, ids: &[u32]) {
    let parameters = request.entry("kv_transfer_params").or_insert_with(|| serde_json::json!({}));
    if !parameters.is_object() {
        *parameters = serde_json::json!({});
    }
    parameters["prompt_token_ids"] = ids.into();
}

/// The body of a question about a prompt.
pub fn body(model: &str, input: &PromptInput) -> String {
    let mut pairs = vec![("model".to_owned(), Json::from(model))];
    match input {
        PromptInput::Text(text) => pairs.push(("prompt".to_owned(), Json::String(text.clone()))),
        PromptInput::Chat(chat) => {
            let Chat { messages, tools, kwargs, documents, add_generation_prompt, continue_final_message } =
                chat;
            pairs.push(("messages".to_owned(), Json::Array(messages.clone())));
            if !tools.is_empty() {
                pairs.push(("tools".to_owned(), Json::Array(tools.clone())));
            }
            if !kwargs.is_empty() {
                pairs.push(("chat_template_kwargs".to_owned(), Json::Object(kwargs.clone())));
            }
            pairs.extend(documents.clone().map(|documents| ("documents".to_owned(), documents)));
            pairs.push(("add_generation_prompt".to_owned(), Json::Bool(*add_generation_prompt)));
            if *continue_final_message {
                pairs.push(("continue_final_message".to_owned(), Json::Bool(true)));
            }
        }
    }
    Json::Object(pairs).to_text()
}

/// Both routes have one of these.
#[derive(Deserialize)]
struct Answer {
    tokens: Option<Vec<u32>>,
    token_ids: Option<Vec<u32>>,
    prompt_token_ids: Option<Vec<u32>>,
}

async fn ask(
    client: &HttpClient,
    engine: &EngineAddress,
    path: &'static str,
    input: &PromptInput,
) -> Result<Vec<u32>, EngineError> {
    let body = Bytes::from(body(&engine.model, input));
    let deadline = DEADLINE + PER_MEGABYTE * (body.len() >> 20) as u32;
    let question = HttpQuestion {
        method: Method::POST,
        base: &engine.base,
        path,
        json: Some(body),
        authorization: engine.authorization.clone(),
        header: None,
    };
    let (status, answer) = client.ask(question, MAX_ANSWER, deadline, &Sent::default()).await?;
    match status {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND | StatusCode::FORBIDDEN | StatusCode::METHOD_NOT_ALLOWED => {
            return Err(EngineError::NotServed { path, status: status.as_u16() });
        }
        other => return Err(EngineError::Refused(other.as_u16())),
    }
    read(&answer).ok_or(EngineError::Unreadable)
}

/// The ids of an answer; a completion's is a list of requests.
fn read(answer: &[u8]) -> Option<Vec<u32>> {
    let first = |answer: Answer| answer.tokens.or(answer.token_ids).or(answer.prompt_token_ids);
    if let Ok(answer) = serde_json::from_slice::<Answer>(answer) {
        return first(answer);
    }
    let answers: Vec<Answer> = serde_json::from_slice(answer).ok()?;
    answers.into_iter().next().and_then(first)
}

/// What an engine says to one prompt.
#[derive(Debug, Clone)]
pub struct Compared {
    /// The probe's name.
    pub probe: &'static str,
    /// Its dimensions.
    pub dimensions: Dimensions,
    /// What it proves.
    pub evidence: Evidence,
}

/// Compares the fixed probes with an engine's `/tokenize`. A probe that the model's template refuses, or the
/// engine, says nothing.
pub async fn compare(
    client: &HttpClient,
    engine: &EngineAddress,
    model: &Model,
) -> Result<Vec<Compared>, EngineError> {
    let mut compared = Vec::new();
    for probe in probes() {
        let ids = match model.ids(&probe.input, kvplane_runtime::unix_ms() / 1000) {
            Ok(ids) => ids,
            Err(
                PromptError::Template { .. } | PromptError::NoTemplate { .. } | PromptError::Field { .. },
            ) => continue,
            Err(_) => return Err(EngineError::Unreadable),
        };
        let theirs = match tokenize(client, engine, &probe.input).await {
            Ok(theirs) => theirs,
            Err(EngineError::Refused(_)) => continue,
            Err(error) => return Err(error),
        };
        let evidence = Evidence::Ids { equal: ids == theirs };
        compared.push(Compared { probe: probe.name, dimensions: probe.input.dimensions(), evidence });
    }
    Ok(compared)
}
