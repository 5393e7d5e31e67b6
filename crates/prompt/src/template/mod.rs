//! Chat templates: Jinja as transformers and vLLM run it.

mod clock;
mod content;
mod messages;
mod python;
mod source;

use std::fmt;
use std::io::{self, Write};

use minijinja::{Environment, Error, ErrorKind, Value};

pub use content::ContentFormat;

use crate::input::Chat;
use crate::json::Json;
use crate::{MAX_TEXT, PromptError};

/// Instructions of one rendering: some thousand for each of the messages that a chat may have. A template
/// that needs more loops over messages inside a loop over messages.
const FUEL: u64 = 64 << 20;
/// Marks where the last message ends, as transformers does it. Templates trim messages, so the space tells
/// whether they did.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";
const NAME: &str = "chat_template";
/// Variables that a request may not set through its kwargs.
const RESERVED: [&str; 4] = ["messages", "tools", "chat_template", "tokenize"];

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    format: ContentFormat,
    /// The template names the role, so it knows what to do with it.
    knows_developer: bool,
    /// Literal text of the template, to tell its own sentences from a prompt's.
    source: String,
}

/// What a rendering takes beside the chat.
#[derive(Debug, Clone, Copy)]
pub struct Rendering<'a> {
    /// `bos_token` and the like.
    pub special_tokens: &'a [(String, Json)],
    /// Variables that the engine was started with (`--default-chat-template-kwargs`).
    pub default_kwargs: &'a [(String, Json)],
    /// The time that the template may print, in seconds since 1970.
    pub unix_seconds: u64,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("format", &self.format).finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Compiles a template. The error says what is wrong and in which line.
    pub fn new(source: &str) -> Result<Self, String> {
        Self::with_format(source, None)
    }

    /// Compiles a template for an engine with `--chat-template-content-format`.
    pub fn with_format(source: &str, format: Option<ContentFormat>) -> Result<Self, String> {
        let source = source::normalized(source);
        let syntax = source::syntax().map_err(|error| error.kind().to_string())?;
        let format = format.unwrap_or_else(|| content::detect(&source, syntax.clone()));
        let mut environment = Environment::new();
        environment.set_syntax(syntax);
        environment.set_fuel(Some(FUEL));
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        python::extend(&mut environment);
        environment.add_template_owned(NAME, source.clone()).map_err(|error| described(&error))?;
        let knows_developer = source.contains("\"developer\"") || source.contains("'developer'");
        Ok(Self { environment, format, knows_developer, source })
    }

    /// How the template takes the content of messages.
    pub fn format(&self) -> ContentFormat {
        self.format
    }

    /// Its source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether what it makes depends on the time of day.
    pub fn reads_clock(&self) -> bool {
        self.source.contains("strftime_now")
    }

    /// The text that an engine would tokenize.
    pub fn render(&self, chat: &Chat, with: &Rendering<'_>) -> Result<String, PromptError> {
        let mut messages = messages::normalized(chat, self.format)?;
        if !self.knows_developer {
            messages = messages::without_developer(messages);
        }
        let continued = chat.continue_final_message.then(|| tag_last(&mut messages)).transpose()?;
        let context = context(chat, &messages, with)?;
        let text = self.run(context)?;
        match continued {
            Some(last) => cut_at_tag(text, &last),
            None => Ok(text),
        }
    }

    fn run(&self, context: Value) -> Result<String, PromptError> {
        let failed = |error: Error| self.refusal(&error);
        let template = self.environment.get_template(NAME).map_err(failed)?;
        let mut out = Bounded { bytes: Vec::new(), over: false };
        let ran = template.render_captured_to(context, &mut out).map(|_| ());
        if out.over {
            return Err(PromptError::field("messages", format!("become more than {MAX_TEXT} bytes of text")));
        }
        ran.map_err(failed)?;
        let invalid =
            |_| PromptError::Template { reason: "the template makes bytes that are no text".to_owned() };
        String::from_utf8(out.bytes).map_err(invalid)
    }

    /// The message for the caller. A sentence of the template is repeated, a sentence that was made of the
    /// prompt is not.
    fn refusal(&self, error: &Error) -> PromptError {
        let refused = python::refusal(error).filter(|words| self.source.contains(words.as_str()));
        let reason = match refused {
            Some(words) => format!("the template refuses them: {words}"),
            None => described(error),
        };
        PromptError::Template { reason }
    }
}

/// The variables of a rendering.
fn context(chat: &Chat, messages: &[Json], with: &Rendering<'_>) -> Result<Value, PromptError> {
    let mut pairs: Vec<(&str, Value)> = Vec::new();
    let named = |pairs: &mut Vec<(&str, Value)>, name, value| {
        pairs.retain(|(known, _)| *known != name);
        pairs.push((name, value));
    };
    pairs.push(("strftime_now", clock::function(with.unix_seconds)));
    for (name, token) in with.special_tokens {
        pairs.push((name, token.to_value()));
    }
    for (name, value) in with.default_kwargs.iter().chain(&chat.kwargs) {
        if RESERVED.contains(&name.as_str()) {
            let name: String = name.chars().take(64).collect();
            return Err(PromptError::field("chat_template_kwargs", format!("must not have {name:?}")));
        }
        let place = pairs.iter().position(|(known, _)| known == name);
        let value = value.to_value();
        match place {
            Some(at) => pairs[at].1 = value,
            None => pairs.push((name, value)),
        }
    }
    let tools = match messages::tools(chat)? {
        Some(tools) => Json::Array(tools).to_value(),
        None => Value::from(()),
    };
    named(&mut pairs, "messages", messages.iter().map(Json::to_value).collect());
    named(&mut pairs, "tools", tools);
    named(&mut pairs, "documents", chat.documents.as_ref().map_or_else(|| Value::from(()), Json::to_value));
    named(&mut pairs, "add_generation_prompt", Value::from(chat.add_generation_prompt));
    Ok(Value::from_pairs(pairs))
}

/// The kind of an error and its line: details may hold values.
fn described(error: &Error) -> String {
    let line = error.line().map_or_else(String::new, |line| format!(", line {line} of the chat template"));
    let kind = match error.kind() {
        ErrorKind::OutOfFuel => "the template takes too many steps".to_owned(),
        // About the template, not about values.
        ErrorKind::SyntaxError => format!("syntax error: {}", error.detail().unwrap_or_default()),
        kind => kind.to_string(),
    };
    format!("{kind}{line}")
}

/// Marks the end of the last message, and returns its text.
fn tag_last(messages: &mut [Json]) -> Result<String, PromptError> {
    let missing = || PromptError::field("messages", "ends with a message that has no text to continue");
    let Some(Json::Object(pairs)) = messages.last_mut() else { return Err(missing()) };
    let content = pairs.iter_mut().find(|(name, _)| name == "content").map(|(_, content)| content);
    let text = match content {
        Some(Json::String(text)) => text,
        Some(Json::Array(parts)) => {
            let texts = parts.iter_mut().rev().filter_map(|part| match part {
                Json::Object(pairs) => pairs.iter_mut().find(|(name, _)| name == "text"),
                _ => None,
            });
            let mut texts = texts.filter_map(|(_, text)| match text {
                Json::String(text) => Some(text),
                _ => None,
            });
            texts.next().ok_or_else(missing)?
        }
        _ => return Err(missing()),
    };
    let whole = text.clone();
    text.push_str(CONTINUE_TAG);
    Ok(whole)
}

/// The text up to the mark.
fn cut_at_tag(mut text: String, last: &str) -> Result<String, PromptError> {
    let gone =
        || PromptError::field("continue_final_message", "cannot be: the template drops the last message");
    let bare = CONTINUE_TAG.trim_end();
    if !text.contains(python::strip(last)) {
        return Err(gone());
    }
    let at = text.rfind(bare).ok_or_else(gone)?;
    let kept = text[at..].starts_with(CONTINUE_TAG);
    text.truncate(at);
    if !kept {
        let end = python::strip_end(&text).len();
        text.truncate(end);
    }
    Ok(text)
}

/// A text that may not become longer than it should.
struct Bounded {
    bytes: Vec<u8>,
    over: bool,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_TEXT {
            self.over = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
