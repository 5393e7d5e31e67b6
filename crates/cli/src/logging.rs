//! Logs: to standard error, one line per state change.

use std::io::IsTerminal as _;

use anyhow::{Context as _, bail};
use tracing_subscriber::EnvFilter;

use crate::args::{LogArgs, LogFormat};
use crate::suggest::did_you_mean;

/// The levels, and words that turn logs off.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Sends logs where the arguments say.
pub(crate) fn start(args: &LogArgs) -> anyhow::Result<()> {
    let filter = filter(&args.log)?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match args.log_format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
    Ok(())
}

/// The filter of a text. A word that is neither a level nor `target=level` would be taken as a target, and
/// log nothing but that: it is rejected.
fn filter(text: &str) -> anyhow::Result<EnvFilter> {
    for directive in text.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
        let is_level = LEVELS.iter().any(|level| level.eq_ignore_ascii_case(directive))
            || directive.parse::<u8>().is_ok_and(|level| level <= 5);
        if !is_level && !directive.contains(['=', '[']) {
            let hint = did_you_mean(directive, LEVELS);
            bail!(
                "--log {text:?}: {directive:?} is not a level{hint}; write one of {}, or target=level such as kvplane=debug",
                LEVELS.join(", ")
            );
        }
    }
    EnvFilter::builder()
        .parse(text)
        .with_context(|| format!("--log {text:?} is not a filter (try info, or kvplane=debug)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_would_log_nothing_is_an_error() {
        for good in
            ["info", "WARN", "kvplane=debug", "info,kvplane_stream=trace", "off", "3", "kvplane[span]=info"]
        {
            assert!(filter(good).is_ok(), "{good}");
        }
        for (bad, words) in [
            ("inof", "did you mean \"info\"?"),
            ("kvplane", "is not a level"),
            ("kvplane=loud", "is not a filter"),
        ] {
            let error = format!("{:#}", filter(bad).unwrap_err());
            assert!(error.contains(words), "{error}");
        }
    }
}
