//! What goes in and out of an outbox.

use std::sync::Arc;
use std::time::Duration;

use kvplane_hints::{CacheTier, Stats};

use super::holdings::SlotId;

/// How changes are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutboxOptions {
    /// Changes are collected for this long.
    pub window: Duration,
    /// This many adds are reported at once, before the window is over.
    pub max_batch: usize,
    /// Bytes of one message's entries: gRPC servers refuse more than 4 MiB.
    pub max_message: usize,
    /// Evictions under way at a time.
    pub concurrency: usize,
    /// Every prefix is refreshed about this often; at worst after twice this, while a cache grows fast.
    pub refresh: Duration,
    /// Evictions that may wait. Beyond it everything is cleared and reported again, which costs less.
    pub max_evictions: usize,
}

impl Default for OutboxOptions {
    fn default() -> Self {
        Self {
            window: Duration::from_millis(100),
            max_batch: 4_096,
            // The rest is for names, which are checked to be short.
            max_message: (4 << 20) - (64 << 10),
            concurrency: 16,
            refresh: Duration::from_mins(10),
            max_evictions: 65_536,
        }
    }
}

/// What to say to the server.
#[derive(Debug, Clone, PartialEq)]
pub enum Saying {
    /// The replica holds nothing.
    Clear,
    /// The replica holds these.
    Adds(Vec<Add>),
    /// The replica does not hold this.
    Eviction {
        /// What it hashes to.
        fingerprint: u64,
        /// Its adapter; the server takes none for all of them.
        adapter: Arc<str>,
    },
    /// What the replica says of itself.
    Stats(Stats),
}

/// A prefix that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Add {
    /// What it hashes to.
    pub fingerprint: u64,
    /// Its tokens, from the start of the prompt.
    pub tokens: u32,
    /// Where it lies.
    pub tier: CacheTier,
    /// Its adapter; empty for none.
    pub adapter: Arc<str>,
}

/// A call that is to be made. Its ticket is handed back when it has ended.
#[derive(Debug)]
pub struct Call {
    /// What to say.
    pub saying: Saying,
    /// What the call is about.
    pub ticket: Ticket,
}

/// What a call is about.
#[derive(Debug)]
pub struct Ticket {
    pub(super) link: u32,
    pub(super) life: u32,
    pub(super) issued: Issued,
}

#[derive(Debug)]
pub(super) enum Issued {
    Clear,
    Adds(Vec<(SlotId, CacheTier)>),
    Eviction { id: SlotId, fingerprint: u64, adapter: u32 },
    Stats,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The server took it.
    Taken,
    /// The server answered that it will not take it.
    Refused,
    /// An error: it may have been taken.
    Failed,
    /// No answer: it may have been taken, or may still be.
    Unanswered,
}

/// What comes next.
#[derive(Debug)]
pub enum Next {
    /// A call.
    Call(Call),
    /// Nothing before this time, unless something happens.
    Wait(Option<Duration>),
}

/// What happened, counted since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutboxCounts {
    /// Adds that the server took, repeated ones included.
    pub reported_blocks: u64,
    /// Evictions that the server took.
    pub evicted_blocks: u64,
    /// Adds that were only refreshes.
    pub refreshed_blocks: u64,
    /// Adds that the server refused: they wait for their refresh.
    pub refused_blocks: u64,
    /// Times that everything was cleared.
    pub clears: u64,
    /// Times that everything was reported again, because the connection was new.
    pub resyncs: u64,
    /// Times that too many evictions waited.
    pub collapses: u64,
    /// Calls that failed, and whose content is reported again.
    pub retries: u64,
}

/// What waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pending {
    /// Prefixes to add.
    pub adds: usize,
    /// Prefixes to evict.
    pub evictions: usize,
    /// Everything has to be cleared first.
    pub clear: bool,
    /// Prefixes that the server may hold.
    pub maybe_reported: usize,
}
