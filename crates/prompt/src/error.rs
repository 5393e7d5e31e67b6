//! What can go wrong, never with text or ids in it.

use std::path::PathBuf;
use std::time::Duration;

use kvplane_core::{ErrorCode, PublicError};

/// Why there are no ids.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PromptError {
    /// A field of the request is wrong.
    #[error("{field} {reason}")]
    Field {
        /// As the caller calls it: `prompt`, `messages`, `messages[3].content`, `tools`, …
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Nobody configured a tokenizer for the model.
    #[error("model {model:?} has no tokenizer here")]
    NoTokenizer {
        /// As the caller calls it.
        model: String,
        /// Models that have one.
        known: Vec<String>,
    },
    /// The model has a tokenizer, and nothing that makes text of messages.
    #[error("model {model:?} has no chat template")]
    NoTemplate {
        /// The model.
        model: String,
    },
    /// The template fails on this request, or refuses it.
    #[error("messages cannot be rendered: {reason}")]
    Template {
        /// The kind of failure and the template's line.
        reason: String,
    },
    /// An engine computes other ids.
    #[error("engine {engine:?} of model {model:?} computes other ids for {dimension} prompts")]
    Contradicted {
        /// The model.
        model: String,
        /// The engine whose word it is.
        engine: String,
        /// What the prompts have in common.
        dimension: &'static str,
    },
    /// Too many texts are being tokenized.
    #[error("too many texts are being tokenized")]
    Busy,
    /// The ids did not come within the deadline.
    #[error("tokenizing took longer than {} ms", after.as_millis())]
    TooSlow {
        /// The deadline.
        after: Duration,
    },
    /// The model's engines are asked for ids, and none gave them.
    #[error("no engine of model {model:?} tokenized the text: {reason}")]
    NoEngine {
        /// The model.
        model: String,
        /// Why not.
        reason: String,
    },
    /// A defect.
    #[error("tokenizing failed")]
    Panicked,
    /// A defect, or a tokenizer file that cannot do what it says.
    #[error("the tokenizer of model {model:?} failed")]
    Failed {
        /// The model.
        model: String,
    },
}

impl PromptError {
    /// A field that is wrong.
    pub fn field(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Field { field: field.into(), reason: reason.into() }
    }

    /// No engine gave ids.
    pub fn no_engine(model: &str, reason: impl Into<String>) -> Self {
        Self::NoEngine { model: model.to_owned(), reason: reason.into() }
    }

    /// Why a request whose ids cannot be had is still worth a decision by load: its fields are as they should be.
    pub fn decides_by_load(&self) -> Option<&'static str> {
        match self {
            Self::TooSlow { .. } => Some("tokenizer_too_slow"),
            Self::Busy => Some("tokenizer_busy"),
            Self::Contradicted { .. } => Some("contradicted"),
            Self::NoEngine { .. } => Some("engine_failed"),
            Self::Panicked | Self::Failed { .. } => Some("tokenizer_failed"),
            Self::Field { .. }
            | Self::NoTokenizer { .. }
            | Self::NoTemplate { .. }
            | Self::Template { .. } => None,
        }
    }
}

impl From<PromptError> for PublicError {
    fn from(error: PromptError) -> Self {
        match error {
            PromptError::Field { field, reason } => {
                // A path like `messages[3].content` is in the message; the field is what the request has.
                let name = known_field(&field);
                let inner = field.strip_prefix(name).unwrap_or_default();
                let reason = if inner.is_empty() { reason } else { format!("{inner} {reason}") };
                PublicError::field(name, reason)
            }
            PromptError::NoTokenizer { model, known } => {
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                PublicError::field(
                    "model",
                    format!("{model:?} has no tokenizer, so its prompts cannot be given as text (models with one: {known})"),
                )
                .with_next("add a [[model]] with its tokenizer to the configuration, or give token_ids")
            }
            PromptError::NoTemplate { model } => PublicError::field(
                "messages",
                format!("cannot be rendered: model {model:?} has no chat template"),
            )
            .with_next("set chat_template of the [[model]], or give prompt or token_ids"),
            PromptError::Template { reason } => {
                PublicError::field("messages", format!("cannot be rendered: {reason}"))
            }
            error @ PromptError::Contradicted { .. } => {
                let message = format!("{error}: its own would not be found");
                PublicError::new(ErrorCode::Unavailable, message).with_next(
                    "give the [[model]] the engine's tokenizer and template, or ask with token_ids",
                )
            }
            error @ PromptError::NoEngine { .. } => {
                PublicError::new(ErrorCode::Unavailable, error.to_string())
                    .with_next("give the [[model]] a directory with tokenizer.json, or ask with token_ids")
            }
            error @ PromptError::Busy => PublicError::new(ErrorCode::LimitReached, error.to_string()),
            error @ PromptError::TooSlow { .. } => {
                PublicError::new(ErrorCode::Unavailable, error.to_string())
            }
            error @ (PromptError::Panicked | PromptError::Failed { .. }) => {
                PublicError::new(ErrorCode::Internal, error.to_string())
            }
        }
    }
}

/// The request's field that a path begins with.
fn known_field(path: &str) -> &'static str {
    const FIELDS: [&str; 8] = [
        "add_generation_prompt",
        "chat_template_kwargs",
        "continue_final_message",
        "documents",
        "messages",
        "model",
        "prompt",
        "tools",
    ];
    FIELDS.into_iter().find(|field| path.starts_with(field)).unwrap_or("messages")
}

/// Why a model's files cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct LoadError {
    /// The file or directory.
    pub path: PathBuf,
    /// What is wrong with it, and what to do.
    pub reason: String,
}

impl LoadError {
    pub(crate) fn new(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Self { path: path.into(), reason: reason.into() }
    }
}
