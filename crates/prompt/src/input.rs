//! What is asked about: text, or a chat.

use std::fmt;

use crate::json::Json;
use crate::parity::{Dimension, Dimensions};
use crate::{MAX_MESSAGES, MAX_TEXT, PromptError};

/// A prompt that is not ids yet.
#[derive(Clone, PartialEq)]
pub enum PromptInput {
    /// As for `/v1/completions`: the tokenizer adds its special tokens.
    Text(String),
    /// As for `/v1/chat/completions`: the template makes text of it, and the tokenizer adds nothing.
    Chat(Chat),
}

/// A chat request, as far as it decides about ids.
#[derive(Clone, PartialEq)]
pub struct Chat {
    /// The messages, as in the request.
    pub messages: Vec<Json>,
    /// The tools, as in the request; none and an absent list are the same.
    pub tools: Vec<Json>,
    /// Variables for the template beside the others.
    pub kwargs: Vec<(String, Json)>,
    /// Documents, for templates that know them.
    pub documents: Option<Json>,
    /// Ends with what the model's answer begins with.
    pub add_generation_prompt: bool,
    /// Ends with the last message, without the end of it.
    pub continue_final_message: bool,
}

impl Default for Chat {
    fn default() -> Self {
        Self {
            messages: Vec::new(),
            tools: Vec::new(),
            kwargs: Vec::new(),
            documents: None,
            add_generation_prompt: true,
            continue_final_message: false,
        }
    }
}

impl fmt::Debug for Chat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chat({} messages, {} tools)", self.messages.len(), self.tools.len())
    }
}

impl fmt::Debug for PromptInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "Text({} bytes)", text.len()),
            Self::Chat(chat) => fmt::Debug::fmt(chat, f),
        }
    }
}

impl PromptInput {
    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// A chat from the JSON of its fields; `tools` and `kwargs` may be absent or null.
    pub fn chat(messages: Json, tools: Option<Json>, kwargs: Option<Json>) -> Result<Self, PromptError> {
        let messages = match messages {
            Json::Array(messages) => messages,
            other => return Err(PromptError::field("messages", format!("is {}, not a list", other.kind()))),
        };
        let tools = match tools {
            None | Some(Json::Null) => Vec::new(),
            Some(Json::Array(tools)) => tools,
            Some(other) => {
                return Err(PromptError::field("tools", format!("is {}, not a list", other.kind())));
            }
        };
        let kwargs = match kwargs {
            None | Some(Json::Null) => Vec::new(),
            Some(Json::Object(pairs)) => pairs,
            Some(other) => {
                let reason = format!("is {}, not an object", other.kind());
                return Err(PromptError::field("chat_template_kwargs", reason));
            }
        };
        Ok(Self::Chat(Chat { messages, tools, kwargs, ..Chat::default() }))
    }

    /// About how many bytes of text it has.
    pub fn size(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Chat(chat) => {
                let lists = chat.messages.iter().chain(&chat.tools).chain(&chat.documents);
                lists.chain(chat.kwargs.iter().map(|(_, value)| value)).map(size_of).sum()
            }
        }
    }

    /// What engines have to agree about for this prompt.
    pub fn dimensions(&self) -> Dimensions {
        match self {
            Self::Text(text) => {
                Dimensions::from(Dimension::Plain).with_if(Dimension::NonAscii, !text.is_ascii())
            }
            Self::Chat(chat) => chat.dimensions(),
        }
    }

    /// Bounds that are checked before anything is made of it.
    pub(crate) fn check(&self) -> Result<(), PromptError> {
        let field = if matches!(self, Self::Text(_)) { "prompt" } else { "messages" };
        if self.size() > MAX_TEXT {
            return Err(PromptError::field(field, format!("has more than {MAX_TEXT} bytes")));
        }
        let Self::Chat(chat) = self else { return Ok(()) };
        if chat.messages.is_empty() {
            return Err(PromptError::field("messages", "is empty"));
        }
        if chat.messages.len() > MAX_MESSAGES {
            return Err(PromptError::field("messages", format!("has more than {MAX_MESSAGES} elements")));
        }
        if chat.add_generation_prompt && chat.continue_final_message {
            let reason = "and add_generation_prompt exclude each other";
            return Err(PromptError::field("continue_final_message", reason));
        }
        Ok(())
    }
}

impl Chat {
    fn dimensions(&self) -> Dimensions {
        let role = |message: &Json| message.get("role").and_then(Json::as_str).map(str::to_owned);
        let roles: Vec<_> = self.messages.iter().map(role).collect();
        let is = |at: usize, name: &str| roles.get(at).is_some_and(|role| role.as_deref() == Some(name));
        let any = |name: &str| (0..roles.len()).any(|at| is(at, name));
        let parts = |message: &Json| matches!(message.get("content"), Some(Json::Array(_)));
        Dimensions::from(Dimension::Chat)
            .with_if(Dimension::System, any("system") || any("developer"))
            .with_if(Dimension::Tools, !self.tools.is_empty() || any("tool") || self.calls_tools())
            .with_if(Dimension::MultiTurn, any("assistant"))
            .with_if(Dimension::NonAscii, self.messages.iter().chain(&self.tools).any(|json| !is_ascii(json)))
            .with_if(
                Dimension::TrailingAssistant,
                self.continue_final_message || is(roles.len().saturating_sub(1), "assistant"),
            )
            .with_if(Dimension::Parts, self.messages.iter().any(parts))
            .with_if(
                Dimension::Kwargs,
                !self.kwargs.is_empty() || self.documents.is_some() || !self.add_generation_prompt,
            )
    }

    fn calls_tools(&self) -> bool {
        self.messages.iter().any(|message| message.given("tool_calls").is_some())
    }
}

fn size_of(json: &Json) -> usize {
    match json {
        Json::String(text) => text.len(),
        Json::Array(items) => items.iter().map(size_of).sum::<usize>() + items.len(),
        Json::Object(pairs) => pairs.iter().map(|(key, value)| key.len() + size_of(value)).sum(),
        _ => 1,
    }
}

fn is_ascii(json: &Json) -> bool {
    match json {
        Json::String(text) => text.is_ascii(),
        Json::Array(items) => items.iter().all(is_ascii),
        Json::Object(pairs) => pairs.iter().all(|(key, value)| key.is_ascii() && is_ascii(value)),
        _ => true,
    }
}
