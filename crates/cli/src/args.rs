//! The command line, as clap reads it.

mod config;
#[cfg(feature = "sim")]
mod demo;
mod doctor;
mod journal;
mod key;
mod operate;
mod pick;
mod picker;
mod query;
mod report;
#[cfg(feature = "sim")]
mod route_sim;
#[cfg(feature = "sim")]
mod sim;
mod status;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::config::Span;

pub(crate) use config::{ConfigArgs, ConfigCommand};
#[cfg(feature = "sim")]
pub(crate) use demo::DemoArgs;
pub(crate) use doctor::DoctorArgs;
pub(crate) use journal::{JournalArgs, JournalCommand, JournalDir};
pub(crate) use key::KeyArgs;
pub(crate) use operate::{
    Consent, FlushArgs, OperateCommand, OperationArgs, ProfileCommand, StartProfileArgs,
};
pub(crate) use pick::{LedgerArgs, PickArgs};
pub(crate) use picker::{EnvoyConfigArgs, PickerArgs, PickerCommand};
pub(crate) use query::QueryArgs;
pub(crate) use report::{ReportArgs, with_two_dashes};
#[cfg(feature = "sim")]
pub(crate) use route_sim::RouteSimArgs;
#[cfg(feature = "sim")]
pub(crate) use sim::{SimArgs, SimHash, SimHostEvents, SimProfile, SimService, SimWithout};
pub(crate) use status::{StatusArgs, StatusOutput, TopArgs, TopSort};

/// Heading of the flags that say where kvplane is and how to sign in.
const CONNECTION: &str = "Connection";

/// The KV-cache event plane for LLM fleets: tells any router which engine holds which prompt prefix, and how
/// sure it is. Every answer is exact, or says how it is not.
#[derive(Debug, Parser)]
#[command(name = "kvplane", version = crate::version::VERSION, about, propagate_version = true, arg_required_else_help = true)]
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
    #[cfg(feature = "sim")]
    /// Run a simulated engine: the real wire format, a real prefix cache, faults on request
    #[command(after_help = "Examples:\n  \
        kvplane sim --profile sglang-0.5.22 --host-blocks 4096 --load 5\n  \
        kvplane sim --groups sliding:128,sliding:128,full --load 5\n  \
        kvplane sim --host-blocks 4096 --host-chunk 64 --host-events self-describing --load 5\n  \
        kvplane sim --events tcp://127.0.0.1:5557 --replay tcp://127.0.0.1:5558 --http 127.0.0.1:8000\n  \
        curl -s 127.0.0.1:8000/v1/completions -H 'content-type: application/json' -d '{\"model\":\"sim\",\"prompt\":[1,2,3,4],\"max_tokens\":64}'\n  \
        curl -s 127.0.0.1:8000/sim/fault -H 'content-type: application/json' -d '{\"drop\":1}'")]
    Sim(SimArgs),
    /// Show the health of the fleet on one screen
    #[command(after_help = "Examples:\n  \
        kvplane status\n  \
        kvplane status --watch\n  \
        kvplane status -o wide --server http://10.0.0.5:8090\n  \
        kvplane status -o json | jq '.healthy, .problems[].code'")]
    Status(StatusArgs),
    /// Watch the fleet live in the terminal: sort, filter, scroll
    #[command(
        after_help = "Keys: q quit, s sort, r reverse, / filter, Esc clear the filter, p pause, arrows and PgUp/PgDn scroll\n\n\
        Examples:\n  kvplane top\n  kvplane top --sort rate --filter llama\n  kvplane top --server http://10.0.0.5:8090 --interval 1s"
    )]
    Top(TopArgs),
    /// Follow streams of a running kvplane, live
    #[command(
        after_help = "Examples:\n  kvplane tail\n  kvplane tail --engine vllm-0 --from snapshot -o json | jq .\n  \
        kvplane tail --replica --seconds 10"
    )]
    Tail(TailArgs),
    /// Print the blocks of one stream
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
    /// Show where a running kvplane discovers engines, and which rule set each value
    #[command(after_help = "Examples:\n  \
        kvplane discover\n  \
        kvplane discover explain vllm-0\n  \
        kvplane discover -o json | jq '.pods[] | select(.verdict != \"engine\")'")]
    Discover(DiscoverArgs),
    /// Check whether a running kvplane is ready; see the exit code
    #[command(after_help = "Examples:\n  \
        kvplane ready\n  \
        kvplane ready --strict --server https://127.0.0.1:8090 --ca ca.pem\n  \
        kvplane ready --config /etc/kvplane/kvplane.toml\n  \
        until kvplane ready; do sleep 1; done")]
    Ready(ReadyArgs),
    /// Diagnose a configuration, engines, or a running kvplane
    #[command(after_help = doctor::AFTER_HELP)]
    Doctor(DoctorArgs),
    #[command(flatten)]
    Operate(OperateCommand),
    /// Show which engines hold how much of a prompt
    #[command(after_help = "Examples:\n  \
        echo '[1, 2, 3, 4]' | kvplane query --model llama\n  \
        kvplane query --model llama --cache-salt tenant-a prompt.json -o json\n  \
        kvplane query --model llama --multimodal image-1:3:200 prompt.json\n  \
        kvplane query --model llama --hashes --block-size 16 hashes.txt\n  \
        kvplane query --model llama --tenant default --scheme vllm --block-size 16 prompt.json")]
    Query(QueryArgs),
    /// Decide which engine should serve a prompt
    #[command(after_help = "Examples:\n  \
        echo '[1, 2, 3, 4]' | kvplane pick --model llama\n  \
        kvplane pick --model llama --policy prefix_hash prompt.json -o json\n  \
        kvplane pick --model llama --book prompt.json")]
    Pick(PickArgs),
    /// Run `serve` with an endpoint picker for Envoy and Gateway API gateways
    #[command(after_help = "Examples:\n  \
        kvplane picker --engine vllm=http://10.0.0.1:8000,id=vllm-0,model=llama --endpoint 10.0.0.1:8000=vllm-0\n  \
        kvplane picker --config kvplane.toml --endpoints-file endpoints.yaml --config-file epp.yaml\n  \
        kvplane picker envoy-config --config kvplane.toml > envoy.yaml")]
    Picker(PickerArgs),
    /// Compare predicted with delivered cached tokens, by cause of loss
    #[command(after_help = "Examples:\n  \
        kvplane ledger\n  \
        kvplane ledger --worst 3 -o json | jq .lost\n  \
        kvplane ledger 5f2c1a07-1b")]
    Ledger(LedgerArgs),
    /// Report one engine to an inference-cache server, in place of its subscriber
    #[command(after_help = "Flags may have one dash, as in Go.\n\nExamples:\n  \
        kvplane report --engine-endpoint tcp://127.0.0.1:5557 --replay tcp://127.0.0.1:5558 --topic '' \\\n    \
        --server 127.0.0.1:9090 --replica-id pod-0 --model-id llama --tenant-id team-a\n  \
        kvplane report --replica-id pod-0 --model-id llama --tenant-id team-a --metrics-listen 127.0.0.1:9091\n  \
        curl -s 127.0.0.1:9091/metrics | grep kvplane_report")]
    Report(ReportArgs),
    /// Look at a durable journal: verify it, list it, print it
    #[command(after_help = "Examples:\n  \
        kvplane journal verify /var/lib/kvplane/journal\n  \
        kvplane journal ls /var/lib/kvplane/journal -o json | jq .streams\n  \
        kvplane journal cat /var/lib/kvplane/journal --engine vllm-0")]
    Journal(JournalArgs),
    /// Print the configuration's schema
    #[command(after_help = "Examples:\n  kvplane config schema > kvplane.schema.json")]
    Config(ConfigArgs),
    #[cfg(feature = "sim")]
    /// Run a one-minute tour: simulated engines of every kind, three ways to route, five faults
    #[command(after_help = "Examples:\n  \
        kvplane demo\n  \
        kvplane demo --pause --stay\n  \
        kvplane demo --seconds 20 --plain\n  \
        kvplane demo --trace conversation_trace.jsonl\n  \
        kvplane demo --seconds 10 -o json | jq '.routed.share, .round_robin.share, .false_hits'")]
    Demo(DemoArgs),
    #[cfg(feature = "sim")]
    /// Run routing policies over traces and populations, against simulated engines in virtual time
    #[command(after_help = "Examples:\n  \
        kvplane route-sim\n  \
        kvplane route-sim --populations documents,bursts --policies work,affinity,prefix_hash --scale 0.3\n  \
        kvplane route-sim conversation_trace.jsonl --speed 2.2 -o json | jq '.policies[] | [.policy, .ttft_mean_s]'")]
    RouteSim(RouteSimArgs),
    /// Print a completion script for a shell
    #[command(after_help = "Examples:\n  \
        kvplane completions bash > ~/.local/share/bash-completion/completions/kvplane\n  \
        kvplane completions zsh > ~/.zfunc/_kvplane\n  \
        kvplane completions fish > ~/.config/fish/completions/kvplane.fish")]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages into a directory
    #[command(after_help = "Example:\n  kvplane man ~/.local/share/man/man1")]
    Man {
        /// The directory; created if it does not exist
        directory: PathBuf,
    },
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
    /// A table, or lines, for people
    #[value(name = "table", alias = "text")]
    Text,
    /// JSON, one object per line
    Json,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ServeArgs {
    /// Configuration file (TOML)
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// An engine, in addition to those of the file: KIND=EVENTS[,replay=ADDRESS][,model=NAME][,key=value …].
    /// With http://HOST:PORT as EVENTS kvplane asks the engine where it publishes
    #[arg(long, value_name = "ENGINE")]
    pub(crate) engine: Vec<String>,
    /// Set any other configuration key: `--set journal.max_batches=5000`
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Peer indexers (Dynamo's or kvplane's) that a stream with an unknown past is recovered from; the first
    /// one that knows the worker is used
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub(crate) peers: Vec<String>,
    /// HTTP address [default: 127.0.0.1:8090]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) http: Option<SocketAddr>,
    /// gRPC address [default: 127.0.0.1:50090]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) grpc: Option<SocketAddr>,
    /// Time for calls in progress after SIGTERM, calls through fronts included [default: 30s]
    #[arg(long, value_name = "DURATION")]
    pub(crate) drain_timeout: Option<Span>,
    /// Allow listeners beyond loopback without authentication, if [auth] has no keys
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
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// gRPC address of kvplane [default: the one that --server names]
    #[arg(help_heading = CONNECTION, long, value_name = "URL")]
    pub(crate) plane: Option<String>,
}

impl PlaneArgs {
    /// The address that was given.
    pub(crate) fn place(&self) -> &str {
        self.plane.as_deref().unwrap_or(&self.server.server)
    }
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ServerArgs {
    /// HTTP address of kvplane
    #[arg(
        help_heading = CONNECTION,
        long,
        global = true,
        env = "KVPLANE_SERVER",
        default_value = "http://127.0.0.1:8090",
        value_name = "URL"
    )]
    pub(crate) server: String,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ReadyArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Check the local kvplane that runs with this configuration, at its `listen.http`, with TLS if it has
    /// `listen.tls`. Its certificate is not verified, and no token is sent
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["server", "token_file", "ca", "cert", "key"])]
    pub(crate) config: Option<PathBuf>,
    /// Require every stream to be live and exact, instead of known to be live or down
    #[arg(long)]
    pub(crate) strict: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DiscoverArgs {
    #[command(subcommand)]
    pub(crate) command: Option<DiscoverCommand>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Output format
    #[arg(long, short, global = true, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DiscoverCommand {
    /// List sources, and every pod with its verdict (also without a command)
    #[command(visible_alias = "ls")]
    List,
    /// Explain one pod: every value, and the rule that set it
    #[command(after_help = "Example:\n  kvplane discover explain inference/vllm-0")]
    Explain {
        /// Name of the pod, with or without the namespace, or id of the engine
        pod: String,
    },
}

#[derive(Debug, ClapArgs)]
pub(crate) struct EnginesArgs {
    #[command(subcommand)]
    pub(crate) command: Option<EnginesCommand>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Output format
    #[arg(long, short, global = true, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EnginesCommand {
    /// List engines (also without a command)
    #[command(visible_alias = "ls")]
    List,
    /// Add an engine until kvplane restarts; to keep it, add it to the configuration
    #[command(after_help = "Example:\n  \
        kvplane engines add vllm-3 --engine vllm=tcp://10.0.0.3:5557,replay=tcp://10.0.0.3:5558,model=llama")]
    Add {
        /// Id of the engine
        id: String,
        /// The engine, as for serve: KIND=EVENTS[,replay=ADDRESS][,model=NAME][,key=value …]
        #[arg(long, value_name = "ENGINE")]
        engine: String,
    },
    /// Remove an engine: ends its subscriptions and drops its blocks
    #[command(visible_alias = "rm", after_help = "Example:\n  kvplane engines remove vllm-3")]
    Remove {
        /// Id of the engine
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
    /// Only this rank of the engine
    #[arg(long, requires = "engine")]
    pub(crate) rank: Option<u32>,
    /// Start with a snapshot, or with the next event
    #[arg(long, value_enum, default_value_t = From::Live)]
    pub(crate) from: From,
    /// Keep a replica of each stream and print its state, at most twice a second, instead of every event; its
    /// digest equals that of /v1/status at the same sequence
    #[arg(long, conflicts_with_all = ["from", "tokens"])]
    pub(crate) replica: bool,
    /// Show token ids, which are the text of prompts
    #[arg(long)]
    pub(crate) tokens: bool,
    /// Output format
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
    /// Stop after this number of seconds
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
    /// The engine; optional if there is only one
    #[arg(long)]
    pub(crate) engine: Option<String>,
    /// The rank; optional if there is only one
    #[arg(long)]
    pub(crate) rank: Option<u32>,
    /// Show token ids, which are the text of prompts
    #[arg(long)]
    pub(crate) tokens: bool,
    /// Output format
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
