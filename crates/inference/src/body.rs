//! A request's body, as far as it decides where the request goes.

use std::borrow::Cow;
use std::fmt;

use kvplane_prompt::{Chat, Json, PromptInput};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, SeqAccess, Visitor};

/// Ids of a prompt that are kept: two bytes of a body can be one, which takes four in memory here, and again
/// wherever it is passed on to. No engine takes a longer prompt.
const MAX_IDS: usize = if cfg!(test) { 1 << 10 } else { 4 << 20 };

/// A body that cannot be understood. Says where and why, without any text of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(String);

impl Unreadable {
    /// With what is wrong.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

/// What a path asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
    /// Anything else: decided by load.
    Other,
}

impl Api {
    /// By the path, whatever is in front of it.
    pub fn of(path: &str) -> Self {
        let path = path.split('?').next().unwrap_or_default().trim_end_matches('/');
        if path.ends_with("/chat/completions") {
            Self::Chat
        } else if path.ends_with("/completions") {
            Self::Completions
        } else {
            Self::Other
        }
    }
}

/// What was asked for.
#[derive(Debug, Default)]
pub struct Asked {
    /// The model, as the client calls it.
    pub model: String,
    /// The prompt; absent where none decides.
    pub prompt: Option<Prompt>,
    /// The salt of its blocks.
    pub cache_salt: Option<String>,
    /// Tokens that may be generated.
    pub output: u64,
    /// The answer comes as events.
    pub stream: bool,
    /// The client says what events it wants.
    pub has_stream_options: bool,
    /// Parts of messages that are images, video or sound.
    pub media: usize,
    /// The prompt's ids may be sent along: nothing but its text decides about them.
    pub plain: bool,
}

/// A prompt.
#[derive(Debug)]
pub enum Prompt {
    /// As text, or as messages.
    Text(PromptInput),
    /// As token ids.
    Ids(Vec<u32>),
}

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
    #[serde(default)]
    messages: Json,
    #[serde(default)]
    tools: Json,
    #[serde(default)]
    chat_template_kwargs: Json,
    reasoning_effort: Option<IgnoredAny>,
    #[serde(default)]
    documents: Json,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    #[serde(default)]
    prompt: PromptField,
    #[serde(borrow)]
    cache_salt: Option<Cow<'a, str>>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    stream: Option<bool>,
    stream_options: Option<IgnoredAny>,
    kv_transfer_params: Option<IgnoredAny>,
    input_ids: Option<IgnoredAny>,
    echo: Option<bool>,
}

/// Of an API whose prompts are not understood: only the model matters.
#[derive(Deserialize)]
struct ModelAlone<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
}

/// Reads a body. What cannot be understood is refused only where the path says what it should be.
pub fn read(api: Api, body: &[u8]) -> Result<Asked, Unreadable> {
    if api == Api::Other {
        let model = serde_json::from_slice::<ModelAlone<'_>>(body).ok().and_then(|fields| fields.model);
        return Ok(Asked { model: model.unwrap_or_default().into_owned(), ..Asked::default() });
    }
    // The reason may quote the body: only its kind and place are shown.
    let wrong = |error: serde_json::Error| {
        let (line, column) = (error.line(), error.column());
        let what = if error.is_data() { "has a field of another type" } else { "is not JSON" };
        Unreadable::new(format!("the body {what} (line {line}, column {column})"))
    };
    let fields: Fields<'_> = serde_json::from_slice(body).map_err(wrong)?;
    let model = fields.model.as_deref().filter(|model| !model.is_empty());
    let model = model.ok_or_else(|| Unreadable::new("model is missing"))?.to_owned();
    let plain = fields.tools == Json::Null
        && fields.chat_template_kwargs == Json::Null
        && fields.documents == Json::Null
        && fields.reasoning_effort.is_none()
        && fields.add_generation_prompt.is_none()
        && fields.continue_final_message.is_none()
        && fields.kv_transfer_params.is_none()
        && fields.input_ids.is_none()
        && fields.echo != Some(true)
        && ends_with_user(&fields.messages);
    let media = media(&fields.messages);
    let prompt = match api {
        Api::Chat => Some(Prompt::Text(chat(
            fields.messages,
            fields.tools,
            fields.chat_template_kwargs,
            fields.documents,
            fields.add_generation_prompt,
            fields.continue_final_message,
        )?)),
        _ => match fields.prompt {
            PromptField::Missing => return Err(Unreadable::new("prompt is missing")),
            PromptField::Text(text) => Some(Prompt::Text(PromptInput::Text(text))),
            PromptField::Ids(ids) => Some(Prompt::Ids(ids)),
            // Several prompts in one request, or one that is too long: none of them decides.
            PromptField::Several => None,
        },
    };
    Ok(Asked {
        model,
        prompt,
        cache_salt: fields.cache_salt.map(Cow::into_owned).filter(|salt| !salt.is_empty()),
        output: fields.max_completion_tokens.or(fields.max_tokens).unwrap_or(0),
        stream: fields.stream == Some(true),
        has_stream_options: fields.stream_options.is_some(),
        media,
        plain: plain && api == Api::Chat,
    })
}

fn chat(
    messages: Json,
    tools: Json,
    kwargs: Json,
    documents: Json,
    generation: Option<bool>,
    go_on: Option<bool>,
) -> Result<PromptInput, Unreadable> {
    let mut input = PromptInput::chat(messages, Some(tools), Some(kwargs))
        .map_err(|error| Unreadable::new(error.to_string()))?;
    if let PromptInput::Chat(Chat {
        documents: given, add_generation_prompt, continue_final_message, ..
    }) = &mut input
    {
        *given = Some(documents).filter(|documents| *documents != Json::Null);
        *continue_final_message = go_on.unwrap_or(false);
        *add_generation_prompt = generation.unwrap_or(!*continue_final_message);
    }
    Ok(input)
}

/// Parts that an encoder is for.
fn media(messages: &Json) -> usize {
    const KINDS: [&str; 4] = ["image_url", "video_url", "input_audio", "audio_url"];
    let Json::Array(messages) = messages else { return 0 };
    let parts = messages.iter().filter_map(|message| match message.get("content") {
        Some(Json::Array(parts)) => Some(parts),
        _ => None,
    });
    let kinds = parts.flatten().filter_map(|part| part.get("type").and_then(Json::as_str));
    kinds.filter(|kind| KINDS.contains(kind)).count()
}

/// Whether the last message is a user's, and every content is text.
fn ends_with_user(messages: &Json) -> bool {
    let Json::Array(messages) = messages else { return false };
    let texts = messages.iter().all(|message| matches!(message.get("content"), Some(Json::String(_))));
    let last = messages.last().and_then(|message| message.get("role")).and_then(Json::as_str);
    texts && last == Some("user")
}

/// `prompt` in all its forms.
#[derive(Default)]
enum PromptField {
    #[default]
    Missing,
    Text(String),
    Ids(Vec<u32>),
    Several,
}

impl<'de> Deserialize<'de> for PromptField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptVisitor)
    }
}

struct PromptVisitor;

impl<'de> Visitor<'de> for PromptVisitor {
    type Value = PromptField;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text, a list of token ids, or a list of such")
    }

    fn visit_unit<E>(self) -> Result<PromptField, E> {
        Ok(PromptField::Missing)
    }

    fn visit_str<E>(self, text: &str) -> Result<PromptField, E> {
        Ok(PromptField::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<PromptField, E> {
        Ok(PromptField::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<PromptField, A::Error> {
        let mut ids = Ids::default();
        let mut only = None;
        let mut others = 0usize;
        while let Some(item) = items.next_element::<Element>()? {
            match item {
                Element::Id(id) => ids.push(id),
                Element::Prompt(prompt) => {
                    others += 1;
                    only = Some(prompt);
                }
            }
        }
        match (ids.is_empty(), others, only) {
            (true, 0, _) => Err(A::Error::custom("is empty")),
            (false, 0, _) => Ok(ids.done()),
            (true, 1, Some(prompt)) => Ok(prompt),
            (true, ..) => Ok(PromptField::Several),
            (false, ..) => Err(A::Error::custom("mixes ids and prompts")),
        }
    }
}

/// Ids as they come, up to a bound.
#[derive(Default)]
struct Ids {
    kept: Vec<u32>,
    too_many: bool,
}

impl Ids {
    fn push(&mut self, id: u32) {
        if self.kept.len() < MAX_IDS {
            self.kept.push(id);
        } else {
            self.too_many = true;
        }
    }

    fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    fn done(self) -> PromptField {
        if self.too_many { PromptField::Several } else { PromptField::Ids(self.kept) }
    }
}

/// An element of a list of prompts, or of ids.
enum Element {
    Id(u32),
    Prompt(PromptField),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ElementVisitor)
    }
}

struct ElementVisitor;

impl<'de> Visitor<'de> for ElementVisitor {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token id, text, or a list of token ids")
    }

    fn visit_u64<E: serde::de::Error>(self, id: u64) -> Result<Element, E> {
        u32::try_from(id).map(Element::Id).map_err(|_| E::custom("is not a token id"))
    }

    fn visit_str<E>(self, text: &str) -> Result<Element, E> {
        Ok(Element::Prompt(PromptField::Text(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Element, A::Error> {
        let mut ids = Ids::default();
        while let Some(id) = items.next_element::<u32>()? {
            ids.push(id);
        }
        Ok(Element::Prompt(ids.done()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        assert_eq!(Api::of("/v1/chat/completions?x=1"), Api::Chat);
        assert_eq!(Api::of("/prefix/v1/completions/"), Api::Completions);
        for other in ["/v1/messages", "/v1/models", "", "/v1/completions/render"] {
            assert_eq!(Api::of(other), Api::Other, "{other}");
        }
    }

    #[test]
    fn a_chat() {
        let asked = read(
            Api::Chat,
            br#"{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":7,"cache_salt":"s","x":[1]}"#,
        )
        .unwrap();
        assert_eq!((asked.model.as_str(), asked.output, asked.stream, asked.plain), ("m", 7, true, true));
        assert!(!asked.has_stream_options && asked.cache_salt.as_deref() == Some("s"));
        let Some(Prompt::Text(PromptInput::Chat(chat))) = asked.prompt else { panic!() };
        assert!(chat.add_generation_prompt && chat.messages.len() == 1);
        for more in [r#""tools":[{}]"#, r#""reasoning_effort":"low""#, r#""kv_transfer_params":{}"#] {
            let body = format!(r#"{{"model":"m",{more},"messages":[{{"role":"user","content":"hi"}}]}}"#);
            assert!(!read(Api::Chat, body.as_bytes()).unwrap().plain, "{more}");
        }
        let trailing = br#"{"model":"m","messages":[{"role":"assistant","content":"hi"}]}"#;
        assert!(!read(Api::Chat, trailing).unwrap().plain);
    }

    #[test]
    fn parts_for_encoders() {
        for (content, media) in [
            (r#""image_url""#, 0),
            (r#"[{"type":"text","text":"image_url"}]"#, 0),
            (
                r#"[{"type":"image_url","image_url":{"url":"u"}},{"type":"text","text":"x"},{"type":"input_audio"}]"#,
                2,
            ),
        ] {
            let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":{content}}}]}}"#);
            assert_eq!(read(Api::Chat, body.as_bytes()).unwrap().media, media, "{content}");
        }
    }

    #[test]
    fn prompts_of_completions() {
        let prompt = |prompt: &str| {
            let body = format!(r#"{{"prompt":{prompt},"model":"m"}}"#);
            read(Api::Completions, body.as_bytes()).map(|asked| asked.prompt)
        };
        assert!(
            matches!(prompt(r#""a\n""#), Ok(Some(Prompt::Text(PromptInput::Text(text)))) if text == "a\n")
        );
        assert!(matches!(prompt("[1,2]"), Ok(Some(Prompt::Ids(ids))) if ids == [1, 2]));
        assert!(matches!(prompt("[[1,2]]"), Ok(Some(Prompt::Ids(ids))) if ids == [1, 2]));
        assert!(matches!(prompt(r#"["a"]"#), Ok(Some(Prompt::Text(_)))));
        assert!(matches!(prompt(r#"["a","b"]"#), Ok(None)));
        for wrong in ["[]", "null", "7", "[-1]", r#"[1,"a"]"#, "{}", "[4294967296]"] {
            assert!(prompt(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_prompt_that_is_too_long_decides_nothing() {
        for (open, close) in [("[", "]"), ("[[", "]]")] {
            let body = |ids: usize| {
                format!(r#"{{"model":"m","prompt":{open}{}1{close}}}"#, "0,".repeat(ids - 1)).into_bytes()
            };
            let asked = read(Api::Completions, &body(MAX_IDS)).unwrap();
            assert!(matches!(asked.prompt, Some(Prompt::Ids(ids)) if ids.len() == MAX_IDS));
            assert!(read(Api::Completions, &body(MAX_IDS + 1)).unwrap().prompt.is_none());
        }
    }

    #[test]
    fn errors_quote_nothing() {
        for body in
            [r#"{"model":"secret"#, r#"{"model":7,"messages":"secret"}"#, r#"{"messages":[]}"#, "secret", ""]
        {
            let error = read(Api::Chat, body.as_bytes()).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
        assert_eq!(read(Api::Other, b"\xff not json").unwrap().model, "");
        assert_eq!(read(Api::Other, br#"{"model":"m"}"#).unwrap().model, "m");
    }
}
