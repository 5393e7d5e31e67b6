//! How the gateway behaves.

use std::collections::HashMap;
use std::time::Duration;

use crate::health::HealthOptions;
use crate::limits::Limits;
use crate::trace::TraceOptions;

/// Whether engines are sent token ids in the place of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Forward {
    /// Never.
    #[default]
    Text,
    /// Wherever a prompt has ids and the engine takes them.
    Ids,
    /// Where engines have shown that they compute the same ids, and that they take them.
    Auto,
}

/// How the gateway behaves.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The policy to decide by; absent: the router's.
    pub policy: Option<String>,
    /// Whether engines are sent token ids.
    pub forward: Forward,
    /// How long a prompt may take to become ids, before a millisecond for every 4 KiB of it. Then the load decides.
    pub tokenize_timeout: Duration,
    /// The longest body of a request.
    pub max_body: usize,
    /// Bodies that are held at the same time, in bytes.
    pub max_bodies: usize,
    /// The longest time that a body may take to arrive.
    pub body_timeout: Duration,
    /// Connections of clients.
    pub max_connections: usize,
    /// Requests at the same time.
    pub max_requests: usize,
    /// How long a connection to an engine may take.
    pub connect_timeout: Duration,
    /// How long an engine may take to answer, up to the first byte; absent: as long as the client waits.
    pub first_byte_timeout: Option<Duration>,
    /// The longest silence within an answer.
    pub idle_timeout: Duration,
    /// Endpoints that a request is sent to, at most, one after the other.
    pub attempts: u32,
    /// Retries, as a share of the requests.
    pub retry_budget: f64,
    /// Uncached tokens from which on a prompt is prefilled elsewhere, where its engine only decodes; 0: never.
    pub prefill_from: u64,
    /// When endpoints are left alone.
    pub health: HealthOptions,
    /// How often endpoints are probed.
    pub probe_every: Duration,
    /// What callers are allowed, by name. Callers that are not here are allowed everything.
    pub callers: HashMap<String, Limits>,
    /// A line for each request.
    pub access_log: bool,
    /// Where traces go; absent: nowhere.
    pub traces: Option<TraceOptions>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            policy: None,
            forward: Forward::Text,
            tokenize_timeout: Duration::from_millis(50),
            max_body: 64 << 20,
            max_bodies: 512 << 20,
            body_timeout: Duration::from_mins(1),
            max_connections: 16_384,
            max_requests: 16_384,
            connect_timeout: Duration::from_secs(2),
            first_byte_timeout: None,
            idle_timeout: Duration::from_mins(5),
            attempts: 3,
            retry_budget: 0.2,
            prefill_from: 16,
            health: HealthOptions::default(),
            probe_every: Duration::from_secs(5),
            callers: HashMap::new(),
            access_log: false,
            traces: None,
        }
    }
}

impl Options {
    /// Whether any caller's prompts are kept apart.
    pub(crate) fn has_tenants(&self) -> bool {
        self.callers.values().any(|limits| limits.tenant.is_some())
    }

    /// How long a prompt of a given number of bytes may take.
    pub(crate) fn tokenize_within(&self, bytes: usize) -> Duration {
        const PER_MILLISECOND: usize = 4 << 10;
        self.tokenize_timeout + Duration::from_millis((bytes / PER_MILLISECOND) as u64)
    }
}
