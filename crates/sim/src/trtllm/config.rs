//! What a simulated server is.

use std::net::SocketAddr;
use std::time::Duration;

use kvplane_wire::trtllm::encode::HashAlgo;

use super::fault::TrtFault;
use crate::operate::Conduct;

/// A simulated server's configuration. The default is a small server on a free loopback port.
#[derive(Debug, Clone)]
pub struct TrtConfig {
    /// Model name, as clients ask for it.
    pub model: String,
    /// Tokens per full block.
    pub block_size: usize,
    /// Blocks of each cache level, per rank and window: device, host, disk. A block that is pushed out of
    /// one goes to the next that has any.
    pub levels: Vec<usize>,
    /// Attention windows: each has a pool of its own, in which every request is stored.
    pub windows: Vec<u32>,
    /// Attention-DP ranks. With one, events name none.
    pub ranks: u32,
    /// Events that are kept per rank until somebody drains them; 0 for a server without events.
    pub event_buffer: usize,
    /// How hashes are made by the second cache manager, which says so in its events and names layer groups.
    /// `None` for the first one.
    pub hash_algo: Option<HashAlgo>,
    /// Whether a part of a block can be reused.
    pub partial_reuse: bool,
    /// How long a drain waits before it answers: two seconds in old servers.
    pub drain_wait: Duration,
    /// Determines generated tokens.
    pub seed: u64,
    /// Where HTTP is served.
    pub http: SocketAddr,
    /// What goes wrong from the start.
    pub faults: Vec<TrtFault>,
    /// How operations go from the start.
    pub conduct: Conduct,
}

impl Default for TrtConfig {
    fn default() -> Self {
        Self {
            model: "sim".to_owned(),
            block_size: 32,
            levels: vec![256, 0],
            windows: vec![4096],
            ranks: 1,
            event_buffer: 16_384,
            hash_algo: None,
            partial_reuse: true,
            drain_wait: Duration::ZERO,
            seed: 0,
            http: SocketAddr::from(([127, 0, 0, 1], 0)),
            faults: Vec::new(),
            conduct: Conduct::default(),
        }
    }
}
