//! Where the figures come from.

use std::fs;
use std::thread;

/// One line: processor, cores, and how busy the machine is besides.
pub(crate) fn describe() -> String {
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let processor = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split(':').nth(1)?.trim().to_owned())
    });
    let load = fs::read_to_string("/proc/loadavg").ok();
    let load = load.and_then(|text| Some(text.split(' ').nth(1)?.to_owned()));
    format!(
        "{cores} cores, {}, mean load of the last five minutes {}.",
        processor.as_deref().unwrap_or("unknown processor"),
        load.as_deref().unwrap_or("unknown"),
    )
}
