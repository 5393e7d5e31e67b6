//! Prompts as text, in the body of a question.

use kvplane_core::PublicError;
use kvplane_prompt::{Chat, Json, PromptInput};

use super::fields::Fields;

/// What was given.
#[derive(Default)]
pub(super) struct TextFields {
    prompt: Option<String>,
    messages: Option<Json>,
    tools: Option<Json>,
    kwargs: Option<Json>,
    generation: Option<bool>,
    go_on: Option<bool>,
}

impl TextFields {
    /// Whether it was one of these fields.
    pub(super) fn read(&mut self, field: &'static str, fields: &mut Fields<'_>) -> Result<bool, PublicError> {
        let not = |what: &str| PublicError::field(field, format!("is not {what}"));
        let json = "JSON that can be kept: no number beyond 64 bits, and at most 262144 values";
        match field {
            "prompt" => self.prompt = fields.value().map_err(|_| not("text"))?,
            "messages" => self.messages = fields.value().map_err(|_| not(json))?,
            "tools" => self.tools = fields.value().map_err(|_| not(json))?,
            "chat_template_kwargs" => self.kwargs = fields.value().map_err(|_| not(json))?,
            "add_generation_prompt" => self.generation = fields.value().map_err(|_| not("true or false"))?,
            "continue_final_message" => self.go_on = fields.value().map_err(|_| not("true or false"))?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The prompt, where one was given as text.
    pub(super) fn finish(self) -> Result<Option<PromptInput>, PublicError> {
        let beside = [
            ("tools", self.tools.is_some()),
            ("chat_template_kwargs", self.kwargs.is_some()),
            ("add_generation_prompt", self.generation.is_some()),
            ("continue_final_message", self.go_on.is_some()),
        ];
        let messages = self.messages.filter(|messages| *messages != Json::Null);
        let Some(messages) = messages else {
            if let Some((field, _)) = beside.into_iter().find(|(_, given)| *given) {
                return Err(PublicError::field(field, "goes with messages").with_next("leave it out"));
            }
            return Ok(self.prompt.map(PromptInput::Text));
        };
        if self.prompt.is_some() {
            return Err(PublicError::field("prompt", "and messages exclude each other"));
        }
        let mut input = PromptInput::chat(messages, self.tools, self.kwargs)?;
        if let PromptInput::Chat(Chat { add_generation_prompt, continue_final_message, .. }) = &mut input {
            *continue_final_message = self.go_on.unwrap_or(false);
            // As engines' clients do it: a message that is continued has no prompt for a new one.
            *add_generation_prompt = self.generation.unwrap_or(!*continue_final_message);
        }
        Ok(Some(input))
    }
}
