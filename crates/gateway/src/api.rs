//! What a path asks for.

use http::Method;
use kvplane_access::Role;
use kvplane_inference as inference;

use crate::refusal::Dialect;

/// One API of the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Api {
    Chat,
    Completions,
    Responses,
    Messages,
    Embeddings,
    Tokenize,
    Detokenize,
    /// The models of all engines; answered here.
    Models,
    /// Answered here.
    Health,
    /// What engines compute beside these: passed on untouched.
    Inference,
    /// What changes engines or looks into them: passed on untouched, for administrators.
    Engine,
}

/// Below `/v1/`, and what engines have beside it.
const INFERENCE: [&str; 9] = [
    "/score",
    "/rerank",
    "/v2/rerank",
    "/pooling",
    "/classify",
    "/generate",
    "/invocations",
    "/v2/embed",
    "/version",
];
/// Below `/v1/`, and changes engines.
const CHANGES: [&str; 2] = ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"];

/// Names of models, below this, may have an encoded slash.
const MODEL: &str = "/v1/models/";

/// Whether every reader takes the path for the same one. Engines decode `/v1/load%5flora_adapter`, and what
/// stands between may resolve `/./` and `//`: such a path leads where nobody said.
fn is_plain(path: &str) -> bool {
    let decoded;
    let path = if path.starts_with(MODEL) {
        decoded = path.replace("%2F", "/").replace("%2f", "/");
        &decoded
    } else {
        path
    };
    let mut parts = path.split('/').skip(1);
    !path.contains(['%', '\\', ';']) && parts.all(|part| !matches!(part, "" | "." | ".."))
}

impl Api {
    pub(crate) const ALL: [Self; 11] = [
        Self::Chat,
        Self::Completions,
        Self::Responses,
        Self::Messages,
        Self::Embeddings,
        Self::Tokenize,
        Self::Detokenize,
        Self::Models,
        Self::Health,
        Self::Inference,
        Self::Engine,
    ];

    /// By the path, without its query.
    pub(crate) fn of(method: &Method, path: &str) -> Self {
        match path.trim_end_matches('/') {
            "/v1/chat/completions" => Self::Chat,
            "/v1/completions" => Self::Completions,
            "/v1/responses" => Self::Responses,
            "/v1/messages" => Self::Messages,
            "/v1/embeddings" => Self::Embeddings,
            "/tokenize" | "/v1/tokenize" => Self::Tokenize,
            "/detokenize" | "/v1/detokenize" => Self::Detokenize,
            "/v1/models" if method == Method::GET => Self::Models,
            "/health" | "/healthz" | "/ping" if method == Method::GET => Self::Health,
            path if CHANGES.contains(&path) => Self::Engine,
            path if path.starts_with("/v1/") && is_plain(path) => Self::Inference,
            path if INFERENCE.contains(&path) => Self::Inference,
            _ => Self::Engine,
        }
    }

    /// Its name in metrics and logs.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat_completions",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Embeddings => "embeddings",
            Self::Tokenize => "tokenize",
            Self::Detokenize => "detokenize",
            Self::Models => "models",
            Self::Health => "health",
            Self::Inference => "other",
            Self::Engine => "engine",
        }
    }

    /// What a caller has to be for it.
    pub(crate) fn needs(self) -> Role {
        if self == Self::Engine { Role::Admin } else { Role::Infer }
    }

    pub(crate) fn dialect(self) -> Dialect {
        if self == Self::Messages { Dialect::Anthropic } else { Dialect::OpenAi }
    }

    /// Whether its body has to be an object with a model.
    pub(crate) fn names_model(self) -> bool {
        matches!(self, Self::Chat | Self::Completions | Self::Responses | Self::Messages | Self::Embeddings)
    }

    /// Whether its engines take a `cache_salt`. Where they do not, tenants could share blocks.
    pub(crate) fn takes_salt(self) -> bool {
        matches!(self, Self::Chat | Self::Completions | Self::Responses)
    }

    /// Whether it computes nothing from a cache.
    pub(crate) fn is_cacheless(self) -> bool {
        matches!(self, Self::Tokenize | Self::Detokenize | Self::Models | Self::Health)
    }

    /// How its prompt is read.
    pub(crate) fn prompt(self) -> inference::Api {
        match self {
            Self::Chat => inference::Api::Chat,
            Self::Completions => inference::Api::Completions,
            _ => inference::Api::Other,
        }
    }

    /// Whether it takes `stream_options`.
    pub(crate) fn has_stream_options(self) -> bool {
        matches!(self, Self::Chat | Self::Completions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let of = |path| Api::of(&Method::POST, path);
        assert_eq!(of("/v1/chat/completions"), Api::Chat);
        assert_eq!(of("/v1/completions/"), Api::Completions);
        for inference in
            ["/v1/audio/speech", "/score", "/v1/models/a/b", "/v1/models/a%2Fb", "/v1/responses/r-1"]
        {
            assert_eq!(of(inference), Api::Inference, "{inference}");
        }
        for admin in [
            "/reset_prefix_cache",
            "/v1/load_lora_adapter",
            "/",
            "/sleep",
            "/v1",
            "/V1/models",
            "/v1/../sleep",
            "/v1/load%5flora_adapter",
            "/v1/%6Coad_lora_adapter",
            "/v1/%2e%2e/sleep",
            "/v1/..",
            "/v1/./load_lora_adapter",
            "/v1//load_lora_adapter",
            "/v1\\load_lora_adapter",
            "/v1/x;/../load_lora_adapter",
            "/v1/chat%2fcompletions",
            "/v1/models/..%2fload_lora_adapter",
            "/v1/models/%2e%2e/load_lora_adapter",
            "/v2",
            "/server_info",
            "/metrics",
            "/health",
        ] {
            assert_eq!(of(admin).needs(), Role::Admin, "{admin}");
        }
        assert_eq!(Api::of(&Method::GET, "/v1/models"), Api::Models);
        assert_eq!(Api::of(&Method::GET, "/health"), Api::Health);
    }
}
