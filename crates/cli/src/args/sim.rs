//! The arguments of `kvplane sim`.

use std::net::SocketAddr;
use std::str::FromStr;

use clap::{Args as ClapArgs, ValueEnum};
use kvplane_sim::{GroupSpec, RelayStyle};
use kvplane_wire::encode::{Profile, UnknownProfile};

use super::LogArgs;

#[derive(Debug, ClapArgs)]
pub(crate) struct SimArgs {
    /// Address to publish at; "connect:ADDRESS" connects instead of binding
    #[arg(long, default_value = "tcp://127.0.0.1:5557", value_name = "ADDRESS")]
    pub(crate) events: String,
    /// Replay socket; "off" for none [default: the port after the last rank's events]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) replay: Option<String>,
    /// HTTP address: completions, admin, faults
    #[arg(long, default_value = "127.0.0.1:8000", value_name = "ADDRESS")]
    pub(crate) http: SocketAddr,
    /// Bearer token that the HTTP server requires: vllm below /v1, sglang and tokenspeed nearly everywhere
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
    /// Address to serve SMG's gRPC service at, with operations and without events [default: none]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) grpc: Option<SocketAddr>,
    /// grpc, grpc-live: the engine's service name [default: vllm]
    #[arg(long, value_enum)]
    pub(crate) service: Option<SimService>,
    /// vllm: start the server without this feature
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',')]
    pub(crate) without: Vec<SimWithout>,
    /// Topic of the messages
    #[arg(long, default_value = "")]
    pub(crate) topic: String,
    /// Engine and the first release with this wire format: vllm-0.9.0, -0.10.2, -0.14, -0.17, -0.20,
    /// -0.22, -0.24, -0.26, -0.29, -0.32; sglang-0.4.6, -0.4.7, -0.5.9, -0.5.18, -0.5.20, -0.5.22;
    /// tokenspeed-0.1.1; trtllm-zmq (TensorRT-LLM's push mode), trtllm-http (TensorRT-LLM, drained over
    /// HTTP); grpc (a server of SMG's contract at --events, with a history), grpc-live (the same without)
    #[arg(long, default_value = "vllm-0.32")]
    pub(crate) profile: SimProfile,
    /// vllm since 0.20: the cache groups of a hybrid model, in the engine's order: full, sliding:WINDOW,
    /// mamba, each with a slash and a block size where that differs [default: full]
    #[arg(long, value_name = "GROUP", value_delimiter = ',')]
    pub(crate) groups: Vec<GroupSpec>,
    /// Simulate EAGLE: vllm drops the last matched block, sglang caches by token pairs
    #[arg(long)]
    pub(crate) eagle: bool,
    /// sglang since 0.5.22: publish events in the dynamo format, which names adapters
    #[arg(long)]
    pub(crate) dynamo_format: bool,
    /// vllm: format of block hashes
    #[arg(long, value_enum, default_value_t = SimHash::Unsigned)]
    pub(crate) hashes: SimHash,
    /// Tokens per block
    #[arg(long, default_value_t = 16)]
    pub(crate) block_size: u32,
    /// Blocks in the cache
    #[arg(long, default_value_t = 1024)]
    pub(crate) blocks: u32,
    /// Data-parallel ranks, at port + rank
    #[arg(long, default_value_t = 1)]
    pub(crate) ranks: u32,
    /// Blocks of the host tier; 0 for none (vllm, sglang, `trtllm-http`)
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) host_blocks: u32,
    /// vllm: content of events about the host tier
    #[arg(long, value_enum, default_value_t = SimHostEvents::Placeholder)]
    pub(crate) host_events: SimHostEvents,
    /// vllm: tokens that the host tier stores and loads together, a multiple of the block size [default: one
    /// block]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) host_chunk: Option<u32>,
    /// vllm since 0.26: blocks of a storage tier behind the host, which never announces removals; 0 for none
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) storage_blocks: u32,
    /// Batches in the replay ring; events in the buffer of `trtllm-http`
    #[arg(long, default_value_t = 10_000)]
    pub(crate) buffer_steps: usize,
    /// Random seed
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Synthetic requests per second
    #[arg(long, default_value_t = 0.0, value_name = "RATE")]
    pub(crate) load: f64,
    /// Served model name, for engines that publish [default: sim]
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// LoRA adapters that requests may use as the model
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) loras: Vec<String>,
    /// Mix adapters (those of --loras), salts, images and full reports into the load
    #[arg(long)]
    pub(crate) mixed: bool,
    /// Tokens of prompts that it computes in a second, one prompt after the other [default: at once]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) prefill_rate: Option<f64>,
    /// Milliseconds that each generated token takes [default: none]
    #[arg(long, value_name = "MS")]
    pub(crate) token_ms: Option<f64>,
    /// Requests at the same time; more are answered with 503 [default: any number]
    #[arg(long, value_name = "N")]
    pub(crate) max_requests: Option<usize>,
    /// Fault to start with, as JSON for POST /sim/fault
    #[arg(long, value_name = "JSON")]
    pub(crate) fault: Vec<String>,
    /// Stop after this many seconds
    #[arg(long, value_name = "N")]
    pub(crate) seconds: Option<u64>,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// Which engine is simulated.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SimProfile {
    /// One that publishes, with the shape of its messages.
    Published(Profile),
    /// TensorRT-LLM, drained over HTTP.
    Drained,
    /// A server that is subscribed to over gRPC.
    Subscribed(RelayStyle),
}

impl FromStr for SimProfile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "trtllm-http" => Ok(Self::Drained),
            "grpc" => Ok(Self::Subscribed(RelayStyle::Keeps)),
            "grpc-live" => Ok(Self::Subscribed(RelayStyle::LiveOnly)),
            published => published.parse().map(Self::Published),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SimService {
    Vllm,
    Sglang,
    Tokenspeed,
    Trtllm,
    /// Without events
    Mlx,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SimWithout {
    /// Without `VLLM_SERVER_DEV_MODE=1`: no resets, no `/server_info`
    DevMode,
    /// Without --profiler-config: no profiles
    Profiler,
    /// Without --enable-server-load-tracking: `/load` is always 0
    LoadTracking,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum SimHostEvents {
    /// Hashes only (vLLM's default)
    Placeholder,
    /// Hashes, tokens and parents (vLLM since 0.24, if enabled)
    SelfDescribing,
    /// No events
    None,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum SimHash {
    /// 64-bit unsigned integers (today's default)
    Unsigned,
    /// Signed integers (vLLM up to 0.10.1)
    Signed,
    /// 16-byte digests
    Bytes16,
    /// 32-byte digests
    Bytes32,
}
