//! The flags of `kvplane report`: those of inference-cache's subscriber, and some of our own.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use clap::Args as ClapArgs;

use super::{KeyArgs, LogArgs};
use crate::config::CacheTierName;

#[derive(Debug, ClapArgs)]
pub(crate) struct ReportArgs {
    /// Where the engine publishes its events
    #[arg(long, default_value = "tcp://127.0.0.1:5557", value_name = "ADDRESS")]
    pub(crate) engine_endpoint: String,
    /// The engine's replay socket; without it, lost messages and a late start cannot be recovered
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) replay: Option<String>,
    /// Topic of its events; empty for all
    #[arg(long, default_value = "kv-events")]
    pub(crate) topic: String,
    /// The server: host:port, http://… or https://…
    #[arg(long, default_value = "127.0.0.1:9090", value_name = "ADDRESS")]
    pub(crate) server: String,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
    /// The engine's name at the server
    #[arg(long, value_name = "ID")]
    pub(crate) replica_id: String,
    /// The model's name at the server
    #[arg(long, value_name = "ID")]
    pub(crate) model_id: String,
    /// Tenant of the engine's prompts; lookups without a tenant get no hint
    #[arg(long, default_value = "", value_name = "ID")]
    pub(crate) tenant_id: String,
    /// Hash scheme at the server, vllm or sglang; also selects the engine's metric names
    #[arg(long, default_value = "vllm", value_name = "NAME")]
    pub(crate) hash_scheme: String,
    /// How long to batch changes
    #[arg(long, default_value = "100ms", value_name = "DURATION")]
    pub(crate) window: GoDuration,
    /// How often to report every block again: servers expire blocks after 30 minutes
    #[arg(long, default_value = "10m", value_name = "DURATION")]
    pub(crate) refresh: GoDuration,
    /// URL of the engine's metrics; empty for none
    #[arg(long, default_value = "http://127.0.0.1:8000/metrics", value_name = "URL")]
    pub(crate) engine_metrics_url: String,
    /// How often to read the metrics
    #[arg(long, default_value = "10s", value_name = "DURATION")]
    pub(crate) stats_interval: GoDuration,
    /// Bytes of the engine's cache; 0 if unknown
    #[arg(long, default_value_t = 0, value_name = "BYTES")]
    pub(crate) engine_cache_size_bytes: u64,
    /// Number of running and waiting requests that counts as full load
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_concurrency_ceiling: u32,
    /// Source of the cache fullness
    #[arg(long, value_enum, default_value_t = CacheTierName::Auto)]
    pub(crate) cache_tier: CacheTierName,
    /// Only read metrics with this `model_name`; empty for all
    #[arg(long, default_value = "", value_name = "NAME")]
    pub(crate) engine_model_name: String,
    /// The engine moves removed blocks to another tier without announcing it: report removed blocks as T2
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true",
        action = clap::ArgAction::Set, value_name = "BOOL")]
    pub(crate) ignore_block_removed: bool,
    /// Names of adapters that the engine announces by number: 1=sql-lora,2=chat-lora
    #[arg(long, default_value = "", value_name = "ID=NAME,…")]
    pub(crate) lora_adapter_names: String,
    /// Address to serve /metrics, /healthz and /readyz at [default: none]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics_listen: Option<SocketAddr>,
    /// Allow --metrics-listen beyond loopback, without authentication
    #[arg(long)]
    pub(crate) insecure: bool,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// A duration as Go writes it: `100ms`, `1m30s`, `1.5h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GoDuration(pub(crate) Duration);

impl FromStr for GoDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a duration; write 100ms, 10s or 1m30s");
        let mut rest = text;
        let mut sum = Duration::ZERO;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
            let (number, after) = rest.split_at(digits);
            let letters = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
            let (unit, after) = after.split_at(letters);
            let unit = match unit {
                "ns" => 1e-9,
                "us" | "µs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3_600.0,
                _ => return Err(wrong()),
            };
            let number: f64 = number.parse().map_err(|_| wrong())?;
            let part = Duration::try_from_secs_f64(number * unit).map_err(|_| wrong())?;
            sum = sum.checked_add(part).ok_or_else(wrong)?;
            rest = after;
        }
        if text.is_empty() { Err(wrong()) } else { Ok(Self(sum)) }
    }
}

/// Go programs accept `-flag` for `--flag`; so does this one, as a drop-in replacement.
pub(crate) fn with_two_dashes(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.collect();
    if words.get(1).is_some_and(|command| command == "report") {
        for word in words.iter_mut().skip(2) {
            if is_long_flag(word) {
                let mut two = OsString::from("-");
                two.push(&*word);
                *word = two;
            }
        }
    }
    words
}

/// One dash and more than a letter.
fn is_long_flag(word: &OsStr) -> bool {
    let bytes = word.as_encoded_bytes();
    matches!(bytes, [b'-', first, second, ..] if first.is_ascii_lowercase() && *second != b'=')
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[test]
    fn durations_are_as_in_go() {
        for (text, ms) in
            [("100ms", 100), ("10s", 10_000), ("1m30s", 90_000), ("1.5h", 5_400_000), ("500us", 0)]
        {
            assert_eq!(text.parse::<GoDuration>().unwrap().0.as_millis(), ms, "{text}");
        }
        for text in ["", "10", "s", "10x", "-1s", "1..2s"] {
            assert!(text.parse::<GoDuration>().is_err(), "{text}");
        }
    }

    #[test]
    fn one_dash_is_as_good_as_two() {
        let words = [
            "kvplane",
            "report",
            "-replica-id=r",
            "-model-id",
            "m",
            "--window",
            "1s",
            "-ignore-block-removed",
        ];
        let words = with_two_dashes(words.into_iter().map(OsString::from));
        let super::super::Command::Report(args) = super::super::Args::try_parse_from(words).unwrap().command
        else {
            panic!("another command")
        };
        assert_eq!((args.replica_id.as_str(), args.model_id.as_str()), ("r", "m"));
        assert!(args.ignore_block_removed);
        assert_eq!(args.window.0, Duration::from_secs(1));
        let other = ["kvplane", "serve", "-cx"].map(OsString::from);
        assert_eq!(with_two_dashes(other.clone().into_iter()), other);
    }
}
