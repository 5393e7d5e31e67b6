//! Where a model's tokenizer and template are found.

use std::path::{Path, PathBuf};

use kvplane_transport::read_small_file;
use serde::Deserialize as _;

use crate::json::Json;
use crate::{ContentFormat, LoadError};

/// The largest template and the largest `tokenizer_config.json`, which may hold one.
const MAX_CONFIG: u64 = 16 << 20;
/// Names of special tokens that templates see.
const SPECIAL: [&str; 8] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
    "additional_special_tokens",
];

/// A model whose prompts can be given as text.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// As engines and callers call it.
    pub name: String,
    /// A directory with `tokenizer.json`, that file, or a model's directory in a Hugging Face cache
    /// (`models--org--name`). `engine`: the model's engines are asked for ids.
    pub tokenizer: PathBuf,
    /// A template instead of the directory's: what the engine was given as `--chat-template`.
    pub chat_template: Option<PathBuf>,
    /// What the engine was given as `--chat-template-content-format`; otherwise found from the template.
    pub content_format: Option<ContentFormat>,
    /// What the engine was given as `--default-chat-template-kwargs`.
    pub default_kwargs: Vec<(String, Json)>,
    /// Adapters of the model: they are asked for by their own names, and have its tokenizer.
    pub adapters: Vec<String>,
}

impl ModelSpec {
    /// A model with everything in a directory.
    pub fn from_directory(name: impl Into<String>, directory: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            tokenizer: directory.into(),
            chat_template: None,
            content_format: None,
            default_kwargs: Vec::new(),
            adapters: Vec::new(),
        }
    }
}

/// What was found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) tokenizer: PathBuf,
    /// The template for every chat, and another one for chats with tools.
    pub(crate) template: Option<String>,
    pub(crate) tool_template: Option<String>,
    pub(crate) special_tokens: Vec<(String, Json)>,
}

/// Looks for a model's files.
pub(crate) fn find(spec: &ModelSpec) -> Result<Found, LoadError> {
    let tokenizer = tokenizer_file(&spec.tokenizer)?;
    let config = config_beside(&tokenizer)?;
    let special_tokens = SPECIAL.into_iter().filter_map(|name| {
        let token = config.given(name)?;
        Some((name.to_owned(), token.given("content").unwrap_or(token).clone()))
    });
    let special_tokens = special_tokens.collect();
    let (template, tool_template) = match &spec.chat_template {
        Some(path) => (Some(read_text(path)?), None),
        None => templates(&tokenizer, &config)?,
    };
    Ok(Found { tokenizer, template, tool_template, special_tokens })
}

/// The `tokenizer.json` that a path means.
fn tokenizer_file(given: &Path) -> Result<PathBuf, LoadError> {
    if given.is_file() {
        return Ok(given.to_owned());
    }
    let direct = given.join("tokenizer.json");
    if direct.is_file() {
        return Ok(direct);
    }
    let missing = |reason: &str| LoadError::new(given, reason);
    let reference = given.join("refs").join("main");
    if let Ok(revision) = read_small_file(&reference, 256) {
        let revision = String::from_utf8_lossy(&revision).trim().to_owned();
        let is_name = !revision.is_empty() && revision.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let cached = given.join("snapshots").join(&revision).join("tokenizer.json");
        if is_name && cached.is_file() {
            return Ok(cached);
        }
        return Err(missing(
            "the Hugging Face cache has no tokenizer.json of refs/main: download it, or name a directory",
        ));
    }
    if !given.exists() {
        return Err(missing("there is no such file or directory"));
    }
    Err(missing("has no tokenizer.json: vocabularies in other formats can be converted with transformers"))
}

fn config_beside(tokenizer: &Path) -> Result<Json, LoadError> {
    let path = tokenizer.with_file_name("tokenizer_config.json");
    if !path.exists() {
        return Ok(Json::Null);
    }
    let bytes = read(&path)?;
    // Limits that mean "none" are written as 1e30: they are read as absent.
    let mut reader = serde_json::Deserializer::from_slice(&bytes);
    let config = serde_json::Value::deserialize(&mut reader);
    let config = config.map_err(|error| LoadError::new(&path, format!("is not JSON: {error}")))?;
    Ok(from_value(config))
}

fn from_value(value: serde_json::Value) -> Json {
    match value {
        serde_json::Value::Null => Json::Null,
        serde_json::Value::Bool(value) => Json::Bool(value),
        serde_json::Value::Number(number) => number.as_i64().map_or(Json::Null, Json::Int),
        serde_json::Value::String(text) => Json::String(text),
        serde_json::Value::Array(items) => Json::Array(items.into_iter().map(from_value).collect()),
        serde_json::Value::Object(map) => {
            Json::Object(map.into_iter().map(|(key, value)| (key, from_value(value))).collect())
        }
    }
}

/// Templates in files of their own count before those in the configuration.
fn templates(tokenizer: &Path, config: &Json) -> Result<(Option<String>, Option<String>), LoadError> {
    let file = tokenizer.with_file_name("chat_template.jinja");
    let for_tools = tokenizer.with_file_name("additional_chat_templates").join("tool_use.jinja");
    if file.is_file() {
        let for_tools = if for_tools.is_file() { Some(read_text(&for_tools)?) } else { None };
        return Ok((Some(read_text(&file)?), for_tools));
    }
    let named = |wanted: &str| match config.get("chat_template") {
        Some(Json::Array(list)) => {
            let entry = list.iter().find(|entry| entry.get("name").and_then(Json::as_str) == Some(wanted))?;
            entry.get("template").and_then(Json::as_str).map(str::to_owned)
        }
        Some(Json::String(text)) if wanted == "default" => Some(text.clone()),
        _ => None,
    };
    if let Some(template) = named("default") {
        return Ok((Some(template), named("tool_use")));
    }
    let old = tokenizer.with_file_name("chat_template.json");
    if !old.is_file() {
        return Ok((None, named("tool_use")));
    }
    let json =
        Json::parse(&read(&old)?).map_err(|error| LoadError::new(&old, format!("is not JSON: {error}")))?;
    Ok((json.get("chat_template").and_then(Json::as_str).map(str::to_owned), None))
}

fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    read_small_file(path, MAX_CONFIG).map_err(|error| LoadError::new(path, error.to_string()))
}

fn read_text(path: &Path) -> Result<String, LoadError> {
    String::from_utf8(read(path)?).map_err(|_| LoadError::new(path, "is not text in UTF-8"))
}
