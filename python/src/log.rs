//! What is worth a line in the log, by Python's own logging, as `kvplane`. Such lines are rare: a stream
//! stands elsewhere, is worth more or less than before, or passed something over, and of the latter ever
//! fewer.

use kvplane_core::{Reason, StreamId, Trust};
use kvplane_stream::{Happening, PassedOver};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::intern;
use pyo3::prelude::*;

/// A line about a stream, after the batch of that number. The batch is recorded, whatever a handler or a
/// filter makes of the line: what they raise is reported as unraisable. Only somebody who interrupts the
/// program is let through.
pub(crate) fn tell(py: Python<'_>, stream: &StreamId, number: u64, happening: Happening) -> PyResult<()> {
    let (level, line) = match happening {
        Happening::Continuity(continuity) => ("info", format!("continuity is {continuity}")),
        Happening::Trust(Trust::Exact, _) => ("info", "trust is exact".to_owned()),
        Happening::Trust(trust, reason) => {
            ("warning", format!("trust is {trust}: {}", reason.map_or("none", Reason::as_str)))
        }
        Happening::Lost(reason) => ("warning", format!("events before this one are missing: {reason}")),
        Happening::PassedOver(PassedOver { kind, reason, count }) => {
            ("warning", format!("event skipped: {kind}, {reason}, {count} so far"))
        }
        Happening::ForeignRank(rank) => (
            "warning",
            format!("the batch names rank {rank}; this is said once, and all such batches are counted"),
        ),
        // Sources of other kinds have them.
        Happening::Epoch(..)
        | Happening::CaughtUp { .. }
        | Happening::ForeignReplay
        | Happening::UnprovenFlush
        | Happening::Void(_)
        | Happening::Misdirected(_)
        | Happening::Undecodable { .. } => return Ok(()),
    };
    write(py, level, format!("{stream} at {number}: {line}"))
}

/// A warning. What goes wrong with it is as with any other line.
pub(crate) fn warn(py: Python<'_>, line: String) -> PyResult<()> {
    write(py, "warning", line)
}

fn write(py: Python<'_>, level: &str, line: String) -> PyResult<()> {
    let logging = py.import(intern!(py, "logging"));
    let logger = logging.and_then(|logging| logging.call_method1(intern!(py, "getLogger"), ("kvplane",)));
    // Not as the format itself: names may have a percent sign.
    match logger.and_then(|logger| logger.call_method1(level, ("%s", line))) {
        Err(error) if error.is_instance_of::<PyKeyboardInterrupt>(py) => Err(error),
        Err(error) => {
            error.write_unraisable(py, None);
            Ok(())
        }
        Ok(_) => Ok(()),
    }
}
