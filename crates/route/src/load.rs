//! What an engine reports of its own load.

/// As an engine's metrics or its `GetLoads` say.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Load {
    /// Requests that run.
    pub running: u32,
    /// Requests that wait.
    pub waiting: u32,
    /// Tokens of the waiting ones that are not cached, where the engine says so.
    pub waiting_tokens: Option<u64>,
    /// The part of its KV cache that is in use, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Tokens that its KV cache holds.
    pub kv_capacity: Option<u64>,
}
