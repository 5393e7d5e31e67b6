//! What is wrong with a configuration beside its engines.

use kvplane_socket::SocketError;

use crate::seen::{OpenSocket, SetUp};
use crate::{Code, Finding, Severity};

/// Descriptors for a stream: the connection to its events, a replay under way, the engine's HTTP server.
const PER_STREAM: u64 = 3;
/// Descriptors for everything else: listeners, threads, files, and some hundred consumers.
const BESIDES: u64 = 512;

/// What is wrong with the configuration.
pub fn judge_set_up(seen: &SetUp) -> Vec<Finding> {
    let mut found: Vec<Finding> = seen.open.iter().map(open_socket).collect();
    found.extend(descriptors(seen));
    found
}

/// The finding about a socket that is open to everybody.
pub(super) fn open_socket(open: &OpenSocket) -> Finding {
    let todo = if open.on_purpose {
        "let nobody reach it who may not read prompts: choose another address, or a firewall"
    } else {
        "give callers roles in [auth], or listen on loopback; kvplane does not start like this without --insecure"
    };
    Finding::new(
        Code::OpenListenerWithoutRoles,
        if open.on_purpose { Severity::Warning } else { Severity::Error },
        &open.key,
        format!("{} is beyond loopback without authentication", open.address),
        todo,
    )
}

/// Descriptors that a plane with this many streams needs.
pub(super) fn descriptors_for(streams: usize) -> u64 {
    streams as u64 * PER_STREAM + BESIDES
}

/// The finding about sockets that the doctor could not open at all.
pub(crate) fn no_sockets(error: &SocketError) -> Finding {
    short_of_descriptors(format!("no engine could be looked at: {error}"))
}

/// The finding about a doctor that could not look at everything.
pub(super) fn short_of_descriptors(seen: String) -> Finding {
    let todo = "raise the limit of the doctor's own process (ulimit -n), and run it again";
    Finding::new(Code::DescriptorLimit, Severity::Error, "descriptors", seen, todo)
}

/// Only the limit of this process is known, and kvplane may be started with another: a hint.
fn descriptors(seen: &SetUp) -> Option<Finding> {
    let (limit, needed) = (seen.descriptors?, descriptors_for(seen.streams));
    (limit < needed).then(|| {
        Finding::new(
            Code::DescriptorLimit,
            Severity::Info,
            "descriptors",
            format!(
                "the doctor itself may have {limit} open; {} streams and their consumers need about {needed}. A kvplane that is started elsewhere may have another limit",
                seen.streams
            ),
            format!("see that kvplane has {needed} or more: LimitNOFILE={needed} in its unit, or ulimit -n {needed} where it is started"),
        )
    })
}
