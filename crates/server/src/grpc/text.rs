//! Prompts as text, in a query.

use kvplane_core::PublicError;
use kvplane_prompt::{Chat, Json, PromptInput};

/// What a query has of it.
pub(super) struct Given {
    pub(super) prompt: Option<String>,
    pub(super) messages: Option<String>,
    pub(super) tools: Option<String>,
    pub(super) kwargs: Option<String>,
    pub(super) generation: Option<bool>,
    pub(super) go_on: Option<bool>,
}

/// The prompt, where one was given as text.
pub(super) fn input(given: Given) -> Result<Option<PromptInput>, PublicError> {
    let Given { prompt, messages, tools, kwargs, generation, go_on } = given;
    let Some(messages) = messages else {
        let beside = [
            ("tools", tools.is_some()),
            ("chat_template_kwargs", kwargs.is_some()),
            ("add_generation_prompt", generation.is_some()),
            ("continue_final_message", go_on.is_some()),
        ];
        if let Some((field, _)) = beside.into_iter().find(|(_, given)| *given) {
            return Err(PublicError::field(field, "goes with messages").with_next("leave it out"));
        }
        return Ok(prompt.map(PromptInput::Text));
    };
    if prompt.is_some() {
        return Err(PublicError::field("prompt", "and messages exclude each other"));
    }
    let messages = json("messages", &messages)?;
    let tools = tools.map(|tools| json("tools", &tools)).transpose()?;
    let kwargs = kwargs.map(|kwargs| json("chat_template_kwargs", &kwargs)).transpose()?;
    let mut input = PromptInput::chat(messages, tools, kwargs)?;
    if let PromptInput::Chat(Chat { add_generation_prompt, continue_final_message, .. }) = &mut input {
        *continue_final_message = go_on.unwrap_or(false);
        *add_generation_prompt = generation.unwrap_or(!*continue_final_message);
    }
    Ok(Some(input))
}

fn json(field: &'static str, text: &str) -> Result<Json, PublicError> {
    Json::parse(text.as_bytes()).map_err(|_| PublicError::field(field, "is not JSON that can be kept"))
}
