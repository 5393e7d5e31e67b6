//! What a simulated engine is.

use std::net::SocketAddr;
use std::time::Duration;

use kvplane_socket::{Endpoint, PublishContext};
use kvplane_wire::Profile;

use crate::digest::HashForm;
use crate::fault::Fault;
use crate::pool::PoolConfig;

/// A simulated engine's configuration. The default is a small engine on free loopback ports.
#[derive(Debug, Clone)]
pub struct SimConfig {
    /// Which vLLM it speaks like.
    pub profile: Profile,
    /// Model name, as clients ask for it.
    pub model: String,
    /// Adapter names that clients may ask for instead of the model.
    pub loras: Vec<String>,
    /// Tokens per block.
    pub block_size: usize,
    /// Blocks per rank that can be used. `/metrics` says one more, as vLLM does: its null block.
    pub blocks: usize,
    /// Data-parallel ranks. Rank r publishes at the event port + r, unless that is 0.
    pub ranks: u32,
    /// Where events are published.
    pub events: Endpoint,
    /// Where replay is served; `None` for an engine without. Offset by the rank as well.
    pub replay: Option<String>,
    /// Topic of every message.
    pub topic: String,
    /// Batches that can be replayed.
    pub buffer_steps: usize,
    /// Messages held per slow subscriber and per asker.
    pub hwm: i32,
    /// Determines hashes and generated tokens.
    pub seed: u64,
    /// How hashes are written.
    pub hash_form: HashForm,
    /// Where HTTP is served; `None` for none.
    pub http: Option<SocketAddr>,
    /// How long a generated token takes over HTTP; blocks are held for as long.
    pub token_delay: Duration,
    /// What goes wrong from the start, on every rank.
    pub faults: Vec<Fault>,
    /// The libzmq context of the sockets. Share one between many engines: each costs two threads.
    pub context: PublishContext,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            profile: Profile::Vllm0_32,
            model: "sim".to_owned(),
            loras: Vec::new(),
            block_size: 16,
            blocks: 256,
            ranks: 1,
            events: Endpoint::Bind("tcp://127.0.0.1:0".to_owned()),
            replay: Some("tcp://127.0.0.1:0".to_owned()),
            topic: String::new(),
            buffer_steps: 10_000,
            hwm: 100_000,
            seed: 0,
            hash_form: HashForm::default(),
            http: None,
            token_delay: Duration::ZERO,
            faults: Vec::new(),
            context: PublishContext::new(),
        }
    }
}

impl SimConfig {
    pub(crate) fn pool(&self) -> PoolConfig {
        PoolConfig {
            block_size: self.block_size.max(1),
            blocks: self.blocks,
            seed: self.seed,
            hash_form: self.hash_form,
        }
    }
}

/// The address of a rank: the port moves by the rank, unless the system chooses it.
pub(crate) fn address_of_rank(address: &str, rank: u32) -> String {
    let split = address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u32>().ok()?)));
    match split {
        Some((host, port)) if port != 0 => format!("{host}:{}", port + rank),
        _ => address.to_owned(),
    }
}

/// The same for an address with a direction.
pub(crate) fn endpoint_of_rank(endpoint: &Endpoint, rank: u32) -> Endpoint {
    match endpoint {
        Endpoint::Bind(address) => Endpoint::Bind(address_of_rank(address, rank)),
        Endpoint::Connect(address) => Endpoint::Connect(address_of_rank(address, rank)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_moves_the_port_unless_the_system_chooses_it() {
        assert_eq!(address_of_rank("tcp://*:5557", 2), "tcp://*:5559");
        assert_eq!(address_of_rank("tcp://[::1]:5557", 1), "tcp://[::1]:5558");
        assert_eq!(address_of_rank("tcp://127.0.0.1:0", 3), "tcp://127.0.0.1:0");
        assert_eq!(address_of_rank("ipc:///tmp/x", 0), "ipc:///tmp/x");
    }
}
