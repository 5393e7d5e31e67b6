//! How the durable journal is.

use kvplane_ingest::{Durable, DurableStatus, Off};
use schemars::JsonSchema;
use serde::Serialize;

/// The durable journal.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct JournalStatus {
    /// `on`, or `off` until kvplane is started again: streams then begin anew.
    state: &'static str,
    /// Why it is off: `full`, `limit`, `failed`, `slow` or `damaged`.
    reason: Option<&'static str>,
    /// Bytes of its files.
    bytes: u64,
    segments: u64,
    /// Bytes that wait to be written.
    queued_bytes: u64,
    steps: u64,
    compactions: u64,
    /// Streams that the start found whole, and how many of them have no engine yet.
    restored_streams: usize,
    waiting_streams: usize,
    /// Streams of which the start found a part missing: they began anew.
    void_streams: usize,
    /// Consumers may have been told more than the journal has (the machine lost its power): streams went on
    /// in a new epoch.
    incomplete: bool,
    /// How long the start took to read it.
    restore_seconds: f64,
}

impl JournalStatus {
    pub(super) fn of(durable: &Durable) -> Self {
        let DurableStatus { off, counted, restored, waiting } = durable.status();
        Self {
            state: if off.is_none() { "on" } else { "off" },
            reason: off.map(Off::as_str),
            bytes: counted.bytes,
            segments: counted.segments,
            queued_bytes: counted.queued_bytes,
            steps: counted.steps,
            compactions: counted.compactions,
            restored_streams: restored.streams,
            waiting_streams: waiting,
            void_streams: restored.void,
            incomplete: restored.incomplete,
            restore_seconds: restored.took.as_secs_f64(),
        }
    }
}
