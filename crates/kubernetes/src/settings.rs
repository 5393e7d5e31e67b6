//! What a `[[discover]]` entry says about the pods that it finds.

use kvplane_core::EngineKind;

/// Used where a pod does not say otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    /// The engines' software; vLLM when absent.
    pub kind: Option<EngineKind>,
    /// The model that they serve.
    pub model: ModelRule,
    /// The port of their HTTP servers.
    pub http: Option<u16>,
    /// Ports of an `InferencePool`'s endpoints, one of each rank.
    pub target_ports: Vec<u16>,
    /// Their ranks.
    pub ranks: Option<u32>,
    /// Topic prefix.
    pub topic: Option<String>,
}

/// Where a model's name comes from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ModelRule {
    /// The engine is asked.
    #[default]
    Ask,
    /// All serve this one.
    Is(String),
    /// A label's value.
    Label(String),
    /// An annotation's value.
    Annotation(String),
    /// The namespace's name.
    Namespace,
}

impl ModelRule {
    /// Reads `label:KEY`, `annotation:KEY`, `namespace`, or a model's name.
    pub fn parse(text: &str) -> Self {
        match text.split_once(':') {
            Some(("label", key)) => Self::Label(key.to_owned()),
            Some(("annotation", key)) => Self::Annotation(key.to_owned()),
            _ if text == "namespace" => Self::Namespace,
            _ if text.is_empty() => Self::Ask,
            _ => Self::Is(text.to_owned()),
        }
    }
}

impl Settings {
    /// Labels and annotations that the settings name.
    pub fn keys(&self) -> Vec<&str> {
        match &self.model {
            ModelRule::Label(key) | ModelRule::Annotation(key) => vec![key],
            _ => Vec::new(),
        }
    }
}
