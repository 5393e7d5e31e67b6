//! Prompts as text: from a string or a chat to the token ids that an engine computes for it.
//!
//! An index of KV blocks is asked in token ids, and people have text. Between the two lie a chat template, a
//! tokenizer and an engine's flags, and one id that differs early makes every block after it differ. So this
//! room does two things:
//!
//! * it **computes** ids ([`Prompts::tokenize`]): Jinja by the rules of transformers and vLLM
//!   ([`ChatTemplate`]), then the tokenizer ([`Tokenizer`]);
//! * it **proves** them ([`Parity`]): a state per model, engine and dimension of a request, fed with what
//!   engines answer to a fixed set of probes, to sampled requests and in `usage.prompt_tokens`. What is not
//!   proven says so ([`Tokenized::standing`]); what is contradicted is refused.
//!
//! ```no_run
//! # use kvplane_prompt::{ModelSpec, PromptInput, Prompts};
//! let spec = ModelSpec::from_directory("llama", "/models/llama");
//! let prompts = Prompts::load(vec![spec]).map_err(|(_, error)| error)?;
//! let tokenized = prompts.tokenize("llama", &PromptInput::text("Once upon a time"))?;
//! println!("{} tokens, {}", tokenized.ids.len(), tokenized.standing.as_str());
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Prompts`] is cheap to clone. `tokenize` computes on the calling thread; on an async worker use
//! [`Prompts::tokenized`], which moves long texts elsewhere and bounds how many are worked on at once.
//! Engines can also be asked for ids over HTTP ([`engine`]).
//!
//! Text and ids are prompts: no error, log line or `Debug` of this crate shows them.

pub mod engine;
mod error;
mod files;
mod input;
mod json;
mod model;
mod parity;
mod prompts;
mod template;
// The rigs of other crates have it too, and cannot be dependencies here.
#[cfg(test)]
#[path = "../../testkit/src/model.rs"]
pub mod testing;
#[cfg(test)]
mod tests;
mod tokenizer;

pub use error::{LoadError, PromptError};
pub use files::ModelSpec;
pub use input::{Chat, PromptInput};
pub use json::Json;
pub use model::Model;
pub use parity::{
    Contradiction, Dimension, Dimensions, Evidence, Parity, ParityRow, Probe, Standing, probes,
};
pub use prompts::{AskEngines, Counters, Prompts, Tokenized};
pub use template::{ChatTemplate, ContentFormat, Rendering};
pub use tokenizer::{Implementation, Tokenizer};

/// The longest text that is tokenized, in bytes, whether given or made by a template: four times the longest
/// context in use.
pub const MAX_TEXT: usize = 16 << 20;
/// Messages of one chat.
pub const MAX_MESSAGES: usize = 16 << 10;
