//! One model: its tokenizer and its template.

use crate::files::{self, ModelSpec};
use crate::input::PromptInput;
use crate::json::Json;
use crate::template::{ChatTemplate, Rendering};
use crate::tokenizer::{Implementation, Tokenizer};
use crate::{LoadError, MAX_TEXT, PromptError};

/// In the place of a path: the model's engines have the tokenizer.
const OF_ENGINE: &str = "engine";

/// Makes ids of a model's prompts.
#[derive(Debug)]
pub struct Model {
    name: String,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    /// For chats with tools, where there is one of its own.
    tool_template: Option<ChatTemplate>,
    special_tokens: Vec<(String, Json)>,
    default_kwargs: Vec<(String, Json)>,
    adapters: Vec<String>,
}

impl Model {
    /// Reads a model's files. Takes seconds for a large vocabulary.
    pub fn load(spec: &ModelSpec) -> Result<Self, LoadError> {
        if spec.tokenizer.as_os_str() == OF_ENGINE {
            return Self::of_engine(spec);
        }
        let found = files::find(spec)?;
        let compiled =
            |source: &Option<String>| {
                let source = source.as_ref()?;
                let place = spec.chat_template.as_ref().unwrap_or(&found.tokenizer);
                let template = ChatTemplate::with_format(source, spec.content_format);
                Some(template.map_err(|reason| {
                    LoadError::new(place, format!("the chat template has an error: {reason}"))
                }))
            };
        Ok(Self {
            name: spec.name.clone(),
            template: compiled(&found.template).transpose()?,
            tool_template: compiled(&found.tool_template).transpose()?,
            tokenizer: Tokenizer::load(&found.tokenizer)?,
            special_tokens: found.special_tokens,
            default_kwargs: spec.default_kwargs.clone(),
            adapters: spec.adapters.clone(),
        })
    }

    /// A model whose engines are asked.
    fn of_engine(spec: &ModelSpec) -> Result<Self, LoadError> {
        let files =
            spec.chat_template.is_some() || spec.content_format.is_some() || !spec.default_kwargs.is_empty();
        if files {
            let reason = "the engine has its template and its flags: leave out chat_template, content_format and default_kwargs";
            return Err(LoadError::new(OF_ENGINE, reason));
        }
        Ok(Self {
            name: spec.name.clone(),
            tokenizer: Tokenizer::of_engine(),
            template: None,
            tool_template: None,
            special_tokens: Vec::new(),
            default_kwargs: Vec::new(),
            adapters: spec.adapters.clone(),
        })
    }

    /// Whether ids are asked of its engines.
    pub fn asks_engines(&self) -> bool {
        self.tokenizer.implementation() == Implementation::Engine
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The adapters that have its tokenizer.
    pub fn adapters(&self) -> &[String] {
        &self.adapters
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The template for chats without tools.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    /// The text that is tokenized.
    pub fn render(&self, input: &PromptInput, unix_seconds: u64) -> Result<String, PromptError> {
        input.check()?;
        let chat = match input {
            PromptInput::Text(text) => return Ok(text.clone()),
            PromptInput::Chat(chat) => chat,
        };
        let for_tools = self.tool_template.as_ref().filter(|_| !chat.tools.is_empty());
        let template = for_tools.or(self.template.as_ref());
        let template = template.ok_or_else(|| PromptError::NoTemplate { model: self.name.clone() })?;
        let with = Rendering {
            special_tokens: &self.special_tokens,
            default_kwargs: &self.default_kwargs,
            unix_seconds,
        };
        template.render(chat, &with)
    }

    /// The ids that an engine with these files computes.
    pub fn ids(&self, input: &PromptInput, unix_seconds: u64) -> Result<Vec<u32>, PromptError> {
        input.check()?;
        let failed = || PromptError::Failed { model: self.name.clone() };
        // Templates write the special tokens of a chat themselves.
        if let PromptInput::Text(text) = input {
            return self.tokenizer.encode(text, true).ok_or_else(failed);
        }
        let text = self.render(input, unix_seconds)?;
        debug_assert!(text.len() <= MAX_TEXT);
        self.tokenizer.encode(&text, false).ok_or_else(failed)
    }
}
