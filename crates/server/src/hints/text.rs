//! Prompts as text: `prompt_text` of a lookup, and `RenderTemplate`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvplane_core::{Namespace, chain_hash, hash_blocks};
use kvplane_hints::PrefixHash;
use kvplane_metrics::hint_counters::Unusable;
use kvplane_prompt::{Json, Model, PromptError, PromptInput};
use kvplane_proto::inferencecache as proto;
use xxhash_rust::xxh3::xxh3_64;

use super::Hints;

/// The longest text, as the peer has it.
const MAX_TEXT: usize = 1 << 20;
/// How long a text may take of a caller with all the time in the world.
const LONGEST: Duration = Duration::from_secs(5);

/// The ids of a lookup's text: one message of the user, and the beginning of the answer, as the peer has it.
pub(super) async fn ids(
    hints: &Arc<Hints>,
    request: &proto::LookupRouteRequest,
    deadline: Option<Instant>,
) -> Result<Vec<u32>, Unusable> {
    if request.prompt_text.len() > MAX_TEXT {
        return Err(Unusable::TooLong);
    }
    let left = deadline.map(|deadline| deadline.saturating_duration_since(kvplane_runtime::now()));
    let within = left.map_or(LONGEST, |left| left.min(LONGEST));
    let (here, model, text) = (hints.prompts.clone(), request.model_id.clone(), request.prompt_text.clone());
    let work = move || {
        let input = of_user(&here, &model, text)?;
        here.tokenize(&model, &input)
    };
    let made = hints.prompts.in_time(request.prompt_text.len(), within, work).await;
    made.map(|made| made.ids).map_err(|_| Unusable::NotTokenized)
}

/// A text as a message of the user, where the model has a template.
fn of_user(prompts: &kvplane_prompt::Prompts, model: &str, text: String) -> Result<PromptInput, PromptError> {
    let plain = |model: &Arc<Model>| model.template().is_none() && !model.asks_engines();
    if prompts.model(model).is_some_and(plain) {
        return Ok(PromptInput::Text(text));
    }
    let message = [("role", "user".to_owned()), ("content", text)];
    let message = message.map(|(name, value)| (name.to_owned(), Json::String(value)));
    PromptInput::chat(Json::Array(vec![Json::Object(message.to_vec())]), None, None)
}

/// Renders, and says in a word what came of it.
pub(super) async fn render(
    hints: &Arc<Hints>,
    request: proto::RenderTemplateRequest,
) -> proto::RenderTemplateResponse {
    let answer =
        |code: &str| proto::RenderTemplateResponse { reason_code: code.to_owned(), ..Default::default() };
    let Some(model) = hints.prompts.model(&request.template_ref) else { return answer("TEMPLATE_NOT_FOUND") };
    let Some(revision) = model.template().map(|template| xxh3_64(template.source().as_bytes())) else {
        return answer("TEMPLATE_NOT_FOUND");
    };
    let bytes: usize = request.variables.values().map(String::len).sum();
    if bytes > MAX_TEXT {
        return answer("RENDER_ERROR");
    }
    let (prompts, model, size) = (hints.prompts.clone(), model.clone(), hints.options.block_size);
    let work = move || {
        let input = chat(&prompts, &request)?;
        let text = model.render(&input, kvplane_runtime::unix_ms() / 1000)?;
        let ids = prompts.tokenize(model.name(), &input)?.ids;
        let mut contents = Vec::new();
        hash_blocks(&ids, size as usize, Namespace::PLAIN, &mut contents);
        let hash = contents.into_iter().fold(None, |previous, content| Some(chain_hash(previous, content)));
        let stable_prefix_hash =
            hash.map(|hash| PrefixHash::Fingerprint(hash).to_bytes()).unwrap_or_default();
        Ok((request.tenant_id, text, stable_prefix_hash))
    };
    match hints.prompts.in_time(bytes, LONGEST, work).await {
        Ok((tenant, text, stable_prefix_hash)) => proto::RenderTemplateResponse {
            rendered_prompt: text.into_bytes().into(),
            stable_prefix_hash: stable_prefix_hash.into(),
            tenant_namespace: tenant.into_bytes().into(),
            template_revision: format!("{revision:016x}"),
            ..answer("OK")
        },
        Err(_) => answer("RENDER_ERROR"),
    }
}

/// The chat in the variables of a request.
fn chat(
    prompts: &kvplane_prompt::Prompts,
    request: &proto::RenderTemplateRequest,
) -> Result<PromptInput, PromptError> {
    let json = |name: &str| match request.variables.get(name) {
        None => Ok(None),
        Some(text) => {
            let wrong = |_| PromptError::field(name, "is not JSON that can be kept");
            Json::parse(text.as_bytes()).map(Some).map_err(wrong)
        }
    };
    let mut input = match (json("messages")?, request.variables.get("prompt")) {
        (Some(messages), None) => PromptInput::chat(messages, json("tools")?, None)?,
        (None, Some(text)) => of_user(prompts, &request.template_ref, text.clone())?,
        _ => return Err(PromptError::field("messages", "or prompt is to be given, and not both")),
    };
    if let PromptInput::Chat(chat) = &mut input {
        let others = request
            .variables
            .iter()
            .filter(|(name, _)| !["messages", "tools", "prompt"].contains(&name.as_str()));
        chat.kwargs = others.map(|(name, value)| (name.clone(), Json::String(value.clone()))).collect();
        chat.kwargs.sort_by(|one, other| one.0.cmp(&other.0));
    }
    Ok(input)
}
