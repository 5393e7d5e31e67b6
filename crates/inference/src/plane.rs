//! What decides, and keeps the books: behind this trait is the decision of `/v1/pick`.

use std::sync::Arc;

use kvplane_prompt::{Dimensions, PromptInput};

use kvplane_route::Role;

use crate::pool::{Allowed, Pool};
use crate::usage::Usage;

/// The plane that decides. One thing for every way of asking: `/v1/pick` and this.
pub trait Plane: Send + Sync + 'static {
    /// The ids of a prompt, computed on this thread.
    fn tokenize(&self, model: &str, prompt: PromptInput) -> Result<Tokens, NoTokens>;

    /// Whether a model's prompts can become ids here.
    fn tokenizes(&self, _model: &str) -> bool {
        true
    }

    /// Decides, books and opens a receipt. Takes microseconds.
    fn pick(&self, ask: &Ask<'_>) -> Result<Chosen, PickError>;

    /// The first byte of the answer came.
    fn first_byte(&self, receipt: &str);

    /// The request is over. Ends the booking; called once for every pick.
    fn ended(&self, receipt: &str, report: Report);

    /// Whether requests can be decided.
    fn is_ready(&self) -> bool;
}

/// A prompt's ids.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Tokens {
    /// The model, where an adapter of it was asked for.
    pub model: String,
    /// The adapter, where one was asked for by its name.
    pub adapter: Option<String>,
    /// The ids.
    pub ids: Vec<u32>,
    /// An engine of the model has computed the same ids.
    pub proven: bool,
    /// What engines have to agree about for it.
    pub dimensions: Dimensions,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens")
            .field("model", &self.model)
            .field("ids", &self.ids.len())
            .finish_non_exhaustive()
    }
}

/// Why a request is decided without the ids of its prompt: by load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoTokens {
    /// The request has no prompt.
    NoPrompt,
    /// Prompts of this API are not made into ids here.
    OtherApi,
    /// The model has no tokenizer here.
    NoTokenizer,
    /// The prompt cannot be made into ids: its template fails, or it has parts that are not text.
    NotRendered,
    /// An engine computes other ids.
    Contradicted,
    /// It took too long.
    TooSlow,
    /// Too many prompts are being tokenized.
    Busy,
}

impl NoTokens {
    /// Every reason.
    pub const ALL: [Self; 7] = [
        Self::NoPrompt,
        Self::OtherApi,
        Self::NoTokenizer,
        Self::NotRendered,
        Self::Contradicted,
        Self::TooSlow,
        Self::Busy,
    ];

    /// Its name in receipts and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoPrompt => "no_prompt",
            Self::OtherApi => "other_api",
            Self::NoTokenizer => "no_tokenizer",
            Self::NotRendered => "not_rendered",
            Self::Contradicted => "contradicted",
            Self::TooSlow => "tokenizer_too_slow",
            Self::Busy => "tokenizer_busy",
        }
    }
}

/// What is asked.
#[derive(Debug)]
pub struct Ask<'a> {
    /// As the client calls it.
    pub model: &'a str,
    /// The prompt, or why there is none.
    pub tokens: Result<&'a Tokens, NoTokens>,
    /// The prompt's salt.
    pub cache_salt: Option<&'a str>,
    /// Whose conversation it is.
    pub session: Option<&'a str>,
    /// Tokens that are expected to be generated.
    pub output: u64,
    /// Who could be picked.
    pub pool: &'a Arc<Pool>,
    /// Who of them may be.
    pub allowed: &'a Allowed,
    /// What the endpoint is to do.
    pub role: Role,
    /// Endpoints in the answer, the best first.
    pub limit: usize,
    /// The receipt of an earlier decision for the same request.
    pub with: Option<&'a str>,
}

impl Ask<'_> {
    /// Whether the endpoint at a place of the pool may be picked for what is asked.
    pub fn allows(&self, place: usize) -> bool {
        self.allowed.has(place) && self.pool.endpoints().get(place).is_some_and(|one| one.serves(self.role))
    }
}

/// An endpoint in the answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Its place in the pool.
    pub place: usize,
    /// The rank to name in a header: where one endpoint serves several.
    pub rank: Option<u32>,
    /// Tokens that it is expected to report as cached.
    pub cached: u64,
    /// By what the policy ordered: lower is better.
    pub cost: f64,
    /// The engine's software, in a word.
    pub kind: &'static str,
}

/// Where the request goes.
#[derive(Debug, Clone, PartialEq)]
pub struct Chosen {
    /// The best first; never empty.
    pub endpoints: Vec<Found>,
    /// The name of the receipt.
    pub receipt: String,
}

/// Why nobody was picked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PickError {
    /// No engine serves the model: kvplane knows nothing of it.
    UnknownModel,
    /// Everybody has as many requests as they may.
    Saturated(String),
    /// Nobody of those who may be picked can take requests.
    Nobody(String),
    /// The question itself is wrong.
    Invalid(String),
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// The answer came to its end.
    pub finished: bool,
    /// What the engine said of it.
    pub usage: Usage,
    /// Who answered, as an address; absent where Envoy did not say.
    pub served: Option<String>,
    /// How often it was sent.
    pub attempts: Option<u32>,
    /// The rank that was picked was refused, and the engine chose one itself.
    pub any_rank: bool,
    /// Milliseconds to the first byte of a streamed answer.
    pub first_byte_ms: Option<u64>,
}
