//! What is worth a line in the log, by Python's own logging, as `kvplane`.

use kvplane_core::{Reason, StreamId, Trust};
use kvplane_stream::{Happening, PassedOver};
use pyo3::intern;
use pyo3::prelude::*;

/// A line about a stream, after the batch of that number.
pub(crate) fn tell(py: Python<'_>, stream: &StreamId, number: u64, happening: Happening) -> PyResult<()> {
    let (level, line) = match happening {
        Happening::Standing(standing) => ("info", format!("continuity is {standing}")),
        Happening::Trust(Trust::Exact, _) => ("info", "trust is exact".to_owned()),
        Happening::Trust(trust, reason) => {
            ("warning", format!("trust is {trust}: {}", reason.map_or("none", Reason::as_str)))
        }
        Happening::Lost(reason) => ("warning", format!("events before this one are missing: {reason}")),
        Happening::PassedOver(PassedOver { kind, reason, count }) => {
            ("warning", format!("event passed over: {kind}, {reason}, {count} so far"))
        }
        // Sources of other kinds have them.
        Happening::Epoch(..)
        | Happening::ForeignReplay
        | Happening::UnprovenFlush
        | Happening::Void(_)
        | Happening::Undecodable { .. } => return Ok(()),
    };
    let logger = py.import(intern!(py, "logging"))?.call_method1(intern!(py, "getLogger"), ("kvplane",))?;
    logger.call_method1(level, ("%s at %d: %s", stream.to_string(), number, line))?;
    Ok(())
}
