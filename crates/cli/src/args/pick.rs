//! The arguments of `kvplane pick` and `kvplane ledger`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::{ServerArgs, TableOutput};

#[derive(Debug, ClapArgs)]
pub(crate) struct PickArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Token ids: a JSON list, or numbers separated by commas or white space; "-" is standard input
    #[arg(default_value = "-", value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The model
    #[arg(long)]
    pub(crate) model: String,
    /// LoRA adapter of the prompt
    #[arg(long, value_name = "NAME")]
    pub(crate) lora_name: Option<String>,
    /// Cache salt of the prompt
    #[arg(long, value_name = "SALT")]
    pub(crate) cache_salt: Option<String>,
    /// Session of the request, for the policy `session`
    #[arg(long, value_name = "NAME")]
    pub(crate) session: Option<String>,
    /// Routing policy [default: work]
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: Option<String>,
    /// Endpoints in the answer [default: 3]
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u32>,
    /// Book the best endpoint, and open a receipt
    #[arg(long)]
    pub(crate) book: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = TableOutput::Table)]
    pub(crate) output: TableOutput,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct LedgerArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Show this receipt
    #[arg(value_name = "RECEIPT")]
    pub(crate) receipt: Option<String>,
    /// Number of receipts to list, largest loss first
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(..=64))]
    pub(crate) worst: u32,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = TableOutput::Table)]
    pub(crate) output: TableOutput,
}
