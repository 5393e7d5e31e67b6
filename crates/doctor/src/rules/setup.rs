//! What is wrong with a configuration beside its engines.

use crate::seen::SetUp;
use crate::{Code, Finding, Severity};

/// Descriptors for a stream: the event socket with its monitor, a replay under way, the engine's HTTP server.
const PER_STREAM: u64 = 8;
/// Descriptors for everything else: listeners, threads, files, and some hundred consumers.
const BESIDES: u64 = 512;

/// What is wrong with the configuration.
pub fn judge_set_up(seen: &SetUp) -> Vec<Finding> {
    let mut found: Vec<Finding> = seen
        .open
        .iter()
        .map(|open| {
            let todo = if open.on_purpose {
                "let nobody reach it who may not read prompts: choose another address, or a firewall"
            } else {
                "give callers roles in [auth], or listen on loopback; kvplane does not start like this without --insecure"
            };
            Finding::new(
                Code::OpenListenerWithoutRoles,
                if open.on_purpose { Severity::Warning } else { Severity::Error },
                &open.key,
                format!("{} is beyond loopback, and asks nobody who they are", open.address),
                todo,
            )
        })
        .collect();
    found.extend(descriptors(seen));
    found
}

fn descriptors(seen: &SetUp) -> Option<Finding> {
    let (limit, needed) = (seen.descriptors?, seen.streams as u64 * PER_STREAM + BESIDES);
    (limit < needed).then(|| {
        Finding::new(
            Code::DescriptorLimit,
            Severity::Warning,
            "descriptors",
            format!(
                "a process may have {limit} open here; {} streams and their consumers need about {needed}",
                seen.streams
            ),
            format!("raise it: ulimit -n {needed}, or LimitNOFILE={needed} in the unit"),
        )
    })
}
