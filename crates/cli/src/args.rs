//! The command line, as clap reads it.

mod operate;
mod query;
mod report;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use kvplane_sim::{GroupSpec, RelayStyle};
use kvplane_wire::encode::{Profile, UnknownProfile};

pub(crate) use operate::{FlushArgs, OperateCommand, OperationArgs, ProfileCommand, StartProfileArgs};
pub(crate) use query::QueryArgs;
pub(crate) use report::{ReportArgs, with_two_dashes};

/// The KV-cache event plane for LLM fleets: hears every engine's KV-cache events, knows exactly where each stream
/// stands, and gives the state to any router. Every answer is exact, or says how it is not.
#[derive(Debug, Parser)]
#[command(name = "kvplane", version, about, propagate_version = true, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Record engines and serve their state
    #[command(after_help = "Examples:\n  \
        kvplane serve --engine vllm=tcp://127.0.0.1:5557,replay=tcp://127.0.0.1:5558,model=llama\n  \
        kvplane serve --engine vllm=http://127.0.0.1:8000,model=llama\n  \
        kvplane serve --config kvplane.toml\n  \
        KVPLANE__LISTEN__HTTP=127.0.0.1:9000 kvplane serve --config kvplane.toml --dump-config")]
    Serve(ServeArgs),
    /// Run a simulated engine: real wire bytes, a real prefix cache, faults on request
    #[command(after_help = "Examples:\n  \
        kvplane sim --profile sglang-0.5.22 --host-blocks 4096 --load 5\n  \
        kvplane sim --groups sliding:128,sliding:128,full --load 5\n  \
        kvplane sim --host-blocks 4096 --host-chunk 64 --host-events self-describing --load 5\n  \
        kvplane sim --events tcp://127.0.0.1:5557 --replay tcp://127.0.0.1:5558 --http 127.0.0.1:8000\n  \
        curl -s 127.0.0.1:8000/v1/completions -H 'content-type: application/json' -d '{\"model\":\"sim\",\"prompt\":[1,2,3,4],\"max_tokens\":64}'\n  \
        curl -s 127.0.0.1:8000/sim/fault -H 'content-type: application/json' -d '{\"drop\":1}'")]
    Sim(SimArgs),
    /// Follow streams of a running kvplane, live
    #[command(
        after_help = "Examples:\n  kvplane tail\n  kvplane tail --engine vllm-0 --from snapshot -o json | jq .\n  \
        kvplane tail --replica --seconds 10"
    )]
    Tail(TailArgs),
    /// Print what one stream holds now
    #[command(
        after_help = "Examples:\n  kvplane dump\n  kvplane dump --engine vllm-0 --rank 1 -o json > state.json"
    )]
    Dump(DumpArgs),
    /// List, add and remove the engines of a running kvplane
    #[command(after_help = "Examples:\n  \
        kvplane engines\n  \
        kvplane engines add vllm-3 --engine vllm=tcp://10.0.0.3:5557,replay=tcp://10.0.0.3:5558,model=llama\n  \
        kvplane engines remove vllm-3\n  \
        kvplane engines list -o json | jq -r '.engines[].id'")]
    Engines(EnginesArgs),
    #[command(flatten)]
    Operate(OperateCommand),
    /// Ask who holds how much of a prompt
    #[command(after_help = "Examples:\n  \
        echo '[1, 2, 3, 4]' | kvplane query --model llama\n  \
        kvplane query --model llama --cache-salt tenant-a prompt.json -o json\n  \
        kvplane query --model llama --multimodal image-1:3:200 prompt.json\n  \
        kvplane query --model llama --hashes --block-size 16 hashes.txt\n  \
        kvplane query --model llama --tenant default --scheme vllm --block-size 16 prompt.json")]
    Query(QueryArgs),
    /// Report one engine to an inference-cache server, in place of its subscriber
    #[command(after_help = "Flags may have one dash, as in Go.\n\nExamples:\n  \
        kvplane report --engine-endpoint tcp://127.0.0.1:5557 --replay tcp://127.0.0.1:5558 --topic '' \\\n    \
        --server 127.0.0.1:9090 --replica-id pod-0 --model-id llama --tenant-id team-a\n  \
        kvplane report --replica-id pod-0 --model-id llama --tenant-id team-a --metrics-listen 127.0.0.1:9091\n  \
        curl -s 127.0.0.1:9091/metrics | grep kvplane_report")]
    Report(ReportArgs),
    /// See it work: three simulated engines, load, a lost frame and a restart
    #[command(after_help = "Examples:\n  kvplane demo\n  kvplane demo --seconds 20 --plain")]
    Demo(DemoArgs),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct LogArgs {
    /// Log level or filter
    #[arg(long, default_value = "info", value_name = "FILTER")]
    pub(crate) log: String,
    /// Log lines as text or as JSON objects
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Lines for people
    Text,
    /// One JSON object a line
    Json,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ServeArgs {
    /// Configuration file (TOML)
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// An engine, instead of or beside the file: KIND=EVENTS[,replay=ADDRESS][,model=NAME][,key=value …]; with http://HOST:PORT
    /// for EVENTS the engine is asked where it publishes
    #[arg(long, value_name = "ENGINE")]
    pub(crate) engine: Vec<String>,
    /// Any other key, as in the file: `--set journal.max_batches=5000`
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// HTTP address [default: 127.0.0.1:8090]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) http: Option<SocketAddr>,
    /// gRPC address [default: 127.0.0.1:50090]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) grpc: Option<SocketAddr>,
    /// Let listeners beyond loopback be open to everybody who reaches them, where [auth] has no keys
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Print the resolved configuration and exit
    #[arg(long)]
    pub(crate) dump_config: bool,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct PlaneArgs {
    /// The kvplane to ask (its gRPC address)
    #[arg(long, default_value = "http://127.0.0.1:50090", value_name = "URL")]
    pub(crate) plane: String,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ServerArgs {
    /// The kvplane to ask (its HTTP address)
    #[arg(long, global = true, default_value = "http://127.0.0.1:8090", value_name = "URL")]
    pub(crate) server: String,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
}

/// Who asks, and who is believed to answer.
#[derive(Debug, ClapArgs)]
pub(crate) struct KeyArgs {
    /// File with the bearer token that the kvplane wants [default: the environment's `KVPLANE_TOKEN`]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Certificates (PEM) to trust for an https address, instead of the public ones
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// A certificate (PEM) to show at an https address
    #[arg(long, global = true, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long, global = true, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct EnginesArgs {
    #[command(subcommand)]
    pub(crate) command: Option<EnginesCommand>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// How to print
    #[arg(long, short, global = true, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EnginesCommand {
    /// List engines (also without a command)
    List,
    /// Add an engine; it is gone when kvplane restarts, unless the configuration has it too
    #[command(after_help = "Example:\n  \
        kvplane engines add vllm-3 --engine vllm=tcp://10.0.0.3:5557,replay=tcp://10.0.0.3:5558,model=llama")]
    Add {
        /// Its name
        id: String,
        /// As for serve: KIND=EVENTS[,replay=ADDRESS][,model=NAME][,key=value …]
        #[arg(long, value_name = "ENGINE")]
        engine: String,
    },
    /// Remove an engine: its subscribers are told, and what it held is forgotten
    #[command(after_help = "Example:\n  kvplane engines remove vllm-3")]
    Remove {
        /// Its name
        id: String,
    },
}

#[derive(Debug, ClapArgs)]
pub(crate) struct TailArgs {
    #[command(flatten)]
    pub(crate) plane: PlaneArgs,
    /// Only this engine
    #[arg(long)]
    pub(crate) engine: Option<String>,
    /// Only this rank of it
    #[arg(long, requires = "engine")]
    pub(crate) rank: Option<u32>,
    /// Begin with a snapshot, or with what happens from now on
    #[arg(long, value_enum, default_value_t = From::Live)]
    pub(crate) from: From,
    /// Keep a replica of each stream and print where it stands, at most twice a second, instead of every event; the
    /// digest equals that of /v1/status at the same sequence
    #[arg(long, conflicts_with_all = ["from", "tokens"])]
    pub(crate) replica: bool,
    /// Show token values: they are prompts
    #[arg(long)]
    pub(crate) tokens: bool,
    /// How to print
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
    /// Stop after so many seconds
    #[arg(long, value_name = "N")]
    pub(crate) seconds: Option<u64>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum From {
    Live,
    Snapshot,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DumpArgs {
    #[command(flatten)]
    pub(crate) plane: PlaneArgs,
    /// The engine; may be left out when there is one
    #[arg(long)]
    pub(crate) engine: Option<String>,
    /// The rank; may be left out when there is one
    #[arg(long)]
    pub(crate) rank: Option<u32>,
    /// Show token values: they are prompts
    #[arg(long)]
    pub(crate) tokens: bool,
    /// How to print
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TableOutput {
    /// A table for people
    Table,
    /// The answer as JSON
    Json,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct SimArgs {
    /// Where to publish: binds; "connect:ADDRESS" connects instead
    #[arg(long, default_value = "tcp://127.0.0.1:5557", value_name = "ADDRESS")]
    pub(crate) events: String,
    /// Replay socket; "off" for none [default: the port after the last rank's events]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) replay: Option<String>,
    /// HTTP address: completions, admin, faults
    #[arg(long, default_value = "127.0.0.1:8000", value_name = "ADDRESS")]
    pub(crate) http: SocketAddr,
    /// SMG's service for this engine, with operations and without events [default: none]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) grpc: Option<SocketAddr>,
    /// grpc, grpc-live: whose service it is
    #[arg(long, value_enum, default_value_t = SimService::Vllm)]
    pub(crate) service: SimService,
    /// vllm: what its server was started without
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',')]
    pub(crate) without: Vec<SimWithout>,
    /// Topic of its messages
    #[arg(long, default_value = "")]
    pub(crate) topic: String,
    /// Which engine, and since which release it speaks like this: vllm-0.9.0, -0.10.2, -0.14, -0.17, -0.20, -0.22, -0.24,
    /// -0.26, -0.29, -0.32; sglang-0.4.6, -0.4.7, -0.5.9, -0.5.18, -0.5.20, -0.5.22; tokenspeed-0.1.1; trtllm-zmq (TensorRT-LLM's
    /// push mode), trtllm-http (TensorRT-LLM, drained over HTTP); grpc (a server of SMG's contract at --events, with a history),
    /// grpc-live (the same without)
    #[arg(long, default_value = "vllm-0.32")]
    pub(crate) profile: SimProfile,
    /// vllm since 0.20: the cache groups of a hybrid model, in the engine's order: full, sliding:WINDOW, mamba, each with
    /// a slash and a block size where that differs [default: full]
    #[arg(long, value_name = "GROUP", value_delimiter = ',')]
    pub(crate) groups: Vec<GroupSpec>,
    /// As with EAGLE: vllm gives up the last block that it finds, sglang caches by pairs of tokens
    #[arg(long)]
    pub(crate) eagle: bool,
    /// sglang since 0.5.22: events in the dynamo format, with adapters named
    #[arg(long)]
    pub(crate) dynamo_format: bool,
    /// vllm: how block hashes look on the wire
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
    /// vllm: what is told of the host tier
    #[arg(long, value_enum, default_value_t = SimHostEvents::Placeholder)]
    pub(crate) host_events: SimHostEvents,
    /// vllm: tokens that the host tier takes and gives back together, a multiple of the block size [default: a block's]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) host_chunk: Option<u32>,
    /// vllm since 0.26: blocks of a storage tier behind the host, which never tells a removal; 0 for none
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) storage_blocks: u32,
    /// Batches in the replay ring; events in the buffer of `trtllm-http`
    #[arg(long, default_value_t = 10_000)]
    pub(crate) buffer_steps: usize,
    /// Seed of everything random
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Requests a second that it sends to itself
    #[arg(long, default_value_t = 0.0, value_name = "RATE")]
    pub(crate) load: f64,
    /// Adapters that clients may ask for instead of the model
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) loras: Vec<String>,
    /// The load has adapters (those of --loras), salts, images and full reports among its requests
    #[arg(long)]
    pub(crate) mixed: bool,
    /// Faults from the start, as the JSON that POST /sim/fault takes
    #[arg(long, value_name = "JSON")]
    pub(crate) fault: Vec<String>,
    /// Stop after so many seconds
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
    /// `VLLM_SERVER_DEV_MODE=1`: no resets, no `/server_info`
    DevMode,
    /// --profiler-config: no recordings
    Profiler,
    /// --enable-server-load-tracking: `/load` is always 0
    LoadTracking,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum SimHostEvents {
    /// Hashes alone (vLLM's default)
    Placeholder,
    /// Hashes, tokens and parents (vLLM since 0.24, when asked to)
    SelfDescribing,
    /// Nothing
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

#[derive(Debug, ClapArgs)]
pub(crate) struct DemoArgs {
    /// Stop after so many seconds
    #[arg(long, value_name = "N")]
    pub(crate) seconds: Option<u64>,
    /// Lines instead of a live view (also when output is not a terminal)
    #[arg(long)]
    pub(crate) plain: bool,
    /// Seed of the load
    #[arg(long, default_value_t = 7)]
    pub(crate) seed: u64,
}
