//! `[[model]]`: models whose prompts may be given as text.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow, ensure};
use kvplane_prompt::{ContentFormat, Json, ModelSpec, Prompts};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A model whose prompts may be given as text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelConfig {
    /// The engines' `model`.
    pub(crate) name: String,
    /// A directory with `tokenizer.json`, that file, or a model's directory in a Hugging Face cache
    /// (`models--org--name`). `engine` asks the model's engines for the ids of each text (`/render`, else `/tokenize`).
    pub(crate) tokenizer: PathBuf,
    /// A chat template instead of the directory's: what engines were started with as `--chat-template`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) chat_template: Option<PathBuf>,
    /// What engines were started with as `--chat-template-content-format`; found from the template when
    /// absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) content_format: Option<ContentFormatName>,
    /// What engines were started with as `--default-chat-template-kwargs`: a JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) default_kwargs: Option<String>,
    /// Names of adapters: a prompt that is asked for under one has the model's tokenizer and the adapter's
    /// blocks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) adapters: Vec<String>,
}

/// How a template takes content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ContentFormatName {
    /// As text.
    String,
    /// As a list of parts.
    Openai,
}

impl ModelConfig {
    fn spec(&self) -> anyhow::Result<ModelSpec> {
        ensure!(!self.name.is_empty(), "name: is empty");
        let kwargs = self.default_kwargs.as_deref().map(|text| Json::parse(text.as_bytes()));
        let default_kwargs = match kwargs.transpose().context("default_kwargs: is not JSON")? {
            None => Vec::new(),
            Some(Json::Object(pairs)) => pairs,
            Some(other) => return Err(anyhow!("default_kwargs: is {}, not a JSON object", other.kind())),
        };
        Ok(ModelSpec {
            name: self.name.clone(),
            tokenizer: self.tokenizer.clone(),
            chat_template: self.chat_template.clone(),
            content_format: self.content_format.map(|format| match format {
                ContentFormatName::String => ContentFormat::String,
                ContentFormatName::Openai => ContentFormat::OpenAi,
            }),
            default_kwargs,
            adapters: self.adapters.clone(),
        })
    }
}

/// Reads every model's files, which takes seconds.
pub(super) fn load(models: &[ModelConfig]) -> anyhow::Result<Prompts> {
    let specs = models.iter().enumerate();
    let specs =
        specs.map(|(at, model)| model.spec().with_context(|| format!("model[{at}] ({:?})", model.name)));
    let specs: Vec<ModelSpec> = specs.collect::<anyhow::Result<_>>()?;
    Prompts::load(specs).map_err(|(at, error)| {
        let name = models.get(at).map_or("", |model| model.name.as_str());
        anyhow!("model[{at}] ({name:?}): {error}")
    })
}
