//! The arguments of operations on engines: `flush`, `profile`, `info`, `loads`, `health`.

use clap::{Args as ClapArgs, Subcommand};

use super::{PlaneArgs, TableOutput};
use crate::config::Span;

#[derive(Debug, Subcommand)]
pub(crate) enum OperateCommand {
    /// Flush engines' caches, and verify it in their event streams
    #[command(after_help = "Exit code: 0 if every rank is proven or done, 3 if some are, 1 if none is.\n\n\
        Examples:\n  \
        kvplane flush --all\n  \
        kvplane flush --model llama --timeout 30s --nudge\n  \
        kvplane flush --engine vllm-0 --engine vllm-1 --reset-external -o json | jq .summary\n  \
        kvplane flush --kind sglang --dry-run")]
    Flush(FlushArgs),
    /// Start or stop profiling
    #[command(
        subcommand,
        after_help = "Example:\n  kvplane profile start --engine sglang-0 && sleep 10 && kvplane profile stop --engine sglang-0"
    )]
    Profile(ProfileCommand),
    /// Show what engines report about themselves
    #[command(after_help = "Example:\n  kvplane info --engine sglang-0 -o json | jq '.ranks[0].detail'")]
    Info(OperationArgs),
    /// Show the load of engines
    #[command(after_help = "Example:\n  kvplane loads --model llama")]
    Loads(OperationArgs),
    /// Check the health of engines
    #[command(
        after_help = "Exit code: 0 only if every engine is healthy.\n\nExample:\n  kvplane health --deadline 2s"
    )]
    Health(OperationArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum ProfileCommand {
    /// Start profiling
    #[command(
        after_help = "Options that are not set are left to the engine. An engine that does not support a given option is skipped.\n\n\
        Example:\n  \
        kvplane profile start --engine sglang-0 --output-dir /traces --num-steps 20 --activity CPU --activity GPU"
    )]
    Start(StartProfileArgs),
    /// Stop profiling and write the traces
    #[command(after_help = "Example:\n  kvplane profile stop --engine sglang-0")]
    Stop(OperationArgs),
}

/// What every operation takes.
#[derive(Debug, ClapArgs)]
pub(crate) struct OperationArgs {
    #[command(flatten)]
    pub(crate) plane: PlaneArgs,
    /// Only this engine; repeatable [default: all engines; flush needs a selection or --all]
    #[arg(long, value_name = "ID")]
    pub(crate) engine: Vec<String>,
    /// Only engines of this model; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Vec<String>,
    /// Only engines of this kind: vllm, sglang, tokenspeed, trtllm, grpc, kvplane; repeatable
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Vec<String>,
    /// Deadline for each server [default: depends on the operation]
    #[arg(long, value_name = "DURATION")]
    pub(crate) deadline: Option<Span>,
    /// Show what would be sent, without sending it
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Output format of the results
    #[arg(long, short, value_enum, default_value_t = TableOutput::Table)]
    pub(crate) output: TableOutput,
    /// Print lines instead of a live table (also when standard error is not a terminal)
    #[arg(long)]
    pub(crate) plain: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct FlushArgs {
    #[command(flatten)]
    pub(crate) operation: OperationArgs,
    #[command(flatten)]
    pub(crate) consent: Consent,
    /// How long to retry a busy engine; 0s tries once
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub(crate) timeout: Span,
    /// How long to wait for the event stream to confirm the flush after the engine's answer [default: 30s]
    #[arg(long, value_name = "DURATION")]
    pub(crate) proof_timeout: Option<Span>,
    /// Send a one-token request to idle engines that publish a flush only with their next step
    #[arg(long)]
    pub(crate) nudge: bool,
    /// vllm: preempt running requests; they are recomputed
    #[arg(long)]
    pub(crate) reset_running: bool,
    /// Also flush the tiers behind the device
    #[arg(long)]
    pub(crate) reset_external: bool,
}

/// What keeps a flush from happening by mistake.
#[derive(Debug, ClapArgs)]
pub(crate) struct Consent {
    /// Flush every engine; otherwise select engines with --engine, --model or --kind
    #[arg(long, conflicts_with_all = ["engine", "model", "kind"])]
    pub(crate) all: bool,
    /// Do not ask for confirmation on a terminal
    #[arg(long, short)]
    pub(crate) yes: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct StartProfileArgs {
    #[command(flatten)]
    pub(crate) operation: OperationArgs,
    /// Directory for traces, on the engine's machine
    #[arg(long, value_name = "FOLDER")]
    pub(crate) output_dir: Option<String>,
    /// Prefix of trace file names
    #[arg(long, value_name = "TEXT")]
    pub(crate) prefix: Option<String>,
    /// Steps to skip first
    #[arg(long, value_name = "N")]
    pub(crate) start_step: Option<u32>,
    /// Steps to record [default: until stopped]
    #[arg(long, value_name = "N")]
    pub(crate) num_steps: Option<u32>,
    /// Activity to record, as the engine names it: CPU, GPU, MEM, RPD; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) activity: Vec<String>,
    /// Record source locations
    #[arg(long, value_name = "BOOL")]
    pub(crate) with_stack: Option<bool>,
    /// Record input shapes
    #[arg(long, value_name = "BOOL")]
    pub(crate) record_shapes: Option<bool>,
    /// Record prefill and decode separately
    #[arg(long)]
    pub(crate) by_stage: bool,
    /// Only this stage; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) stage: Vec<String>,
    /// Merge the ranks into one trace
    #[arg(long)]
    pub(crate) merge: bool,
}
