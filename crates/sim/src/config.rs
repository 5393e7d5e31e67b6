//! What a simulated engine is.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

use kvplane_core::EngineKind;
use kvplane_socket::{Endpoint, PublishContext};
use kvplane_wire::Profile;

use crate::digest::HashForm;
use crate::fault::Fault;
use crate::operate::Conduct;
use crate::pool::{GroupKind, GroupSpec, Groups, Habits, HostConfig, HostForm, PoolConfig};
use crate::radix::{EventStyle, PageHash, RadixConfig};
use crate::service::Pace;

/// A simulated engine's configuration. The default is a small engine on free loopback ports.
#[derive(Debug, Clone)]
pub struct SimConfig {
    /// Which engine it is, and how it speaks.
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
    /// Batches that wait for the publisher. Beyond them the engine waits, or loses them (TensorRT-LLM).
    pub queue: usize,
    /// Messages held per slow subscriber and per asker.
    pub hwm: i32,
    /// Determines hashes and generated tokens.
    pub seed: u64,
    /// How vLLM's hashes are written. Other engines have one form each.
    pub hash_form: HashForm,
    /// What only vLLM knows.
    pub vllm: VllmOptions,
    /// What only `SGLang` knows.
    pub sglang: SglangOptions,
    /// Where HTTP is served; `None` for none.
    pub http: Option<SocketAddr>,
    /// What callers of the HTTP server have to send as a bearer token, where the engine asks for one.
    pub api_key: Option<String>,
    /// How fast it is over HTTP, and how much it takes; blocks are held for as long.
    pub pace: Pace,
    /// Where SMG's service for this engine is served, with operations and without events; `None` for nowhere.
    pub grpc: Option<SocketAddr>,
    /// What goes wrong from the start, on every rank.
    pub faults: Vec<Fault>,
    /// How operations go from the start.
    pub conduct: Conduct,
    /// The thread of the sockets. Share it between many engines.
    pub context: PublishContext,
}

/// Options of a simulated vLLM.
#[derive(Debug, Clone, Default)]
pub struct VllmOptions {
    /// The cache groups of a hybrid model, in the engine's order; none for a model with one that keeps everything.
    pub groups: Vec<GroupSpec>,
    /// The last block that is found is computed again, as with EAGLE.
    pub eagle: bool,
    /// The host tier.
    pub host: HostOptions,
    /// What its server was started without.
    pub without: Without,
}

/// What operators find only on a vLLM whose server was started with it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Without {
    /// `VLLM_SERVER_DEV_MODE=1`: resets, `/server_info`.
    pub dev_mode: bool,
    /// `--profiler-config`: recordings.
    pub profiler: bool,
    /// `--enable-server-load-tracking`: `/load` counts.
    pub load_tracking: bool,
}

/// vLLM's tiers behind the device.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostOptions {
    /// Blocks of the host tier; 0 for none.
    pub blocks: usize,
    /// Tokens that are written and given back together; a block's without.
    pub chunk: Option<usize>,
    /// What is published of it.
    pub events: HostEvents,
    /// Blocks of a storage tier behind it, which never tells a removal; 0 for none.
    pub storage_blocks: usize,
}

/// What is published of a host tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HostEvents {
    /// Hashes alone, as vLLM does by default; see [`HostEvents`].
    #[default]
    Placeholder,
    /// All that the device tells, but no extra keys (vLLM since 0.24).
    SelfDescribing,
    /// Nothing.
    None,
}

/// Options of a simulated `SGLang`.
#[derive(Debug, Clone, Copy, Default)]
pub struct SglangOptions {
    /// Prompts are cached by pairs of tokens, as with EAGLE.
    pub eagle: bool,
    /// Pages of the host tier; 0 for none.
    pub host_pages: usize,
    /// Events in the `dynamo` format (0.5.22): adapters are named, and they and salts are in the hashes.
    pub dynamo_format: bool,
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
            queue: 4096,
            hwm: 100_000,
            seed: 0,
            hash_form: HashForm::default(),
            vllm: VllmOptions::default(),
            sglang: SglangOptions::default(),
            http: None,
            api_key: None,
            pace: Pace::default(),
            grpc: None,
            faults: Vec::new(),
            conduct: Conduct::default(),
            context: PublishContext::new(),
        }
    }
}

impl SimConfig {
    /// Whether the options go together.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let is_vllm = self.profile.engine() == EngineKind::Vllm;
        let groups = &self.vllm.groups;
        let size = |group: &GroupSpec| group.block_size.unwrap_or(self.block_size);
        let is_even = groups.windows(2).all(|pair| size(&pair[0]) == size(&pair[1]));
        if !groups.is_empty() && !self.profile.is_at_least(Profile::Vllm0_20) {
            return Err("only vLLM since 0.20 has cache groups");
        }
        if self.vllm.eagle && !is_vllm {
            return Err("this is not vLLM");
        }
        if self.vllm.eagle && (!is_even || groups.iter().any(|group| group.kind == GroupKind::Mamba)) {
            return Err("EAGLE is simulated for groups of one block size, and without states");
        }
        self.check_host()
    }

    fn check_host(&self) -> Result<(), &'static str> {
        let host = self.vllm.host;
        let is_whole =
            host.chunk.is_none_or(|chunk| chunk > 0 && chunk.is_multiple_of(self.block_size.max(1)));
        if host.blocks == 0 && host.storage_blocks == 0 {
            return Ok(());
        }
        if !self.profile.is_at_least(Profile::Vllm0_10) {
            return Err("only vLLM since 0.10.2 has these tiers");
        }
        if host.events == HostEvents::SelfDescribing && !self.profile.is_at_least(Profile::Vllm0_24) {
            return Err("a host tier describes itself since vLLM 0.24");
        }
        if host.storage_blocks > 0 && (host.blocks == 0 || !self.profile.is_at_least(Profile::Vllm0_26)) {
            return Err("storage is behind a host tier, since vLLM 0.26");
        }
        if !is_whole {
            return Err("a chunk is of whole blocks");
        }
        if !self.vllm.groups.is_empty() || self.vllm.eagle {
            return Err("a host tier is simulated for a model with one group, and without EAGLE");
        }
        Ok(())
    }

    /// Whether callers of a page have to show the key, if there is one. vLLM asks for it below `/v1` only;
    /// `SGLang` and `TokenSpeed` everywhere but for health and metrics.
    pub(crate) fn asks_for_key(&self, path: &str) -> bool {
        match self.profile.engine() {
            EngineKind::Sglang | EngineKind::Tokenspeed => {
                !path.starts_with("/health") && !path.starts_with("/metrics")
            }
            _ => path.starts_with("/v1"),
        }
    }

    /// Tokens between two places where a request may go on.
    pub(crate) fn step(&self) -> usize {
        Groups::new(&self.vllm.groups, self.block_size.max(1)).unit
    }

    pub(crate) fn pool(&self) -> PoolConfig {
        PoolConfig {
            block_size: self.block_size.max(1),
            groups: self.vllm.groups.clone(),
            eagle: self.vllm.eagle,
            host: self.host(),
            keeps_tails_only: self.profile.is_at_least(Profile::Vllm0_22),
            keeps_partial: self.profile.is_at_least(Profile::Vllm0_24),
            blocks: self.blocks,
            seed: self.seed,
            hash_form: self.hash_form,
            habits: match self.profile.engine() {
                EngineKind::Trtllm => Habits::Trtllm,
                _ => Habits::Vllm,
            },
        }
    }

    fn host(&self) -> Option<HostConfig> {
        let HostOptions { blocks, chunk, events, storage_blocks } = self.vllm.host;
        let block_size = self.block_size.max(1);
        let chunk = chunk.unwrap_or(block_size);
        // What the releases before 0.24 say of a block's size.
        let announced_size = if self.profile.is_at_least(Profile::Vllm0_20) { 0 } else { chunk as u32 };
        (blocks > 0).then_some(HostConfig {
            block_size,
            chunk,
            chunks: blocks * block_size / chunk,
            stored_chunks: storage_blocks * block_size / chunk,
            storage_medium: if self.profile.is_at_least(Profile::Vllm0_29) { "STORAGE" } else { "FS" },
            style: match events {
                HostEvents::None => HostForm::Nothing,
                HostEvents::SelfDescribing => HostForm::SelfDescribing,
                HostEvents::Placeholder if self.profile.is_at_least(Profile::Vllm0_24) => {
                    HostForm::Placeholders
                }
                HostEvents::Placeholder => HostForm::Raw { block_size: announced_size },
            },
            hash_form: self.hash_form,
            seed: self.seed,
        })
    }

    pub(crate) fn radix(&self) -> RadixConfig {
        let is_sglang = self.profile.engine() == EngineKind::Sglang;
        let hash = match self.profile {
            Profile::Sglang0_4_6 | Profile::Sglang0_4_7 => PageHash::TokensOnly,
            _ if !is_sglang => PageHash::UnsignedChain,
            _ => PageHash::Chain {
                salted: self.profile.is_at_least(Profile::Sglang0_5_18),
                namespaced: self.sglang.dynamo_format && self.profile.is_at_least(Profile::Sglang0_5_22),
            },
        };
        RadixConfig {
            page_size: self.block_size.max(1),
            pages: self.blocks,
            host_pages: if is_sglang { self.sglang.host_pages } else { 0 },
            style: EventStyle {
                pairs: is_sglang && self.sglang.eagle,
                hash,
                coalesced: !is_sglang || self.profile.is_at_least(Profile::Sglang0_5_18),
                clears: is_sglang,
            },
        }
    }

    /// With ports in a row instead of those that the system would choose, where the engine tells only the first.
    pub(crate) fn with_ports(mut self) -> std::io::Result<Self> {
        let tells_each = self.profile.engine() == EngineKind::Vllm;
        let Endpoint::Bind(events) = &self.events else { return Ok(self) };
        let is_open = |address: &str| address.ends_with(":0");
        let replay_is_open = self.replay.as_deref().is_none_or(is_open);
        if self.ranks < 2 || tells_each || !is_open(events) || !replay_is_open {
            return Ok(self);
        }
        let ranks = u16::try_from(self.ranks).map_err(|_| ErrorKind::AddrNotAvailable)?;
        let first = free_ports(ranks.saturating_mul(2))?;
        let at = |address: &str, port: u16| format!("{}:{port}", address.trim_end_matches(":0"));
        self.replay = self.replay.as_deref().map(|address| at(address, first + ranks));
        self.events = Endpoint::Bind(at(events, first));
        Ok(self)
    }
}

/// How often a run of free ports is looked for.
const PORT_ATTEMPTS: usize = 100;

/// Below the ports that systems give to outgoing connections: one of those could take a port between this
/// look and its use.
const PORTS: std::ops::Range<u16> = 10_000..15_000;

/// The first of this many free ports in a row on the loopback interface, from a place that differs from call to call.
pub fn free_ports(count: u16) -> std::io::Result<u16> {
    let mut failed = ErrorKind::AddrNotAvailable.into();
    for _ in 0..PORT_ATTEMPTS {
        let random = RandomState::new().build_hasher().finish();
        let places = u64::from((PORTS.end - PORTS.start).saturating_sub(count).max(1));
        let first = PORTS.start + (random % places) as u16;
        let bound = (0..count).map(|offset| TcpListener::bind(("127.0.0.1", first + offset)));
        match bound.collect::<std::io::Result<Vec<_>>>() {
            Ok(_) => return Ok(first),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// A free address on the loopback interface.
pub fn free_address() -> std::io::Result<SocketAddr> {
    Ok(([127, 0, 0, 1], free_ports(1)?).into())
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
