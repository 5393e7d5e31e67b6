//! Clocks, and what is made of several measurements of the same thing.

use rustix::time::{ClockId, clock_gettime};

/// CPU seconds of the whole process, all threads together, while something was done.
pub(crate) fn process_seconds(work: impl FnOnce()) -> f64 {
    seconds(ClockId::ProcessCPUTime, work)
}

/// CPU seconds of this thread while something was done. What else runs on the machine is not counted.
pub(crate) fn thread_seconds(work: impl FnOnce()) -> f64 {
    seconds(ClockId::ThreadCPUTime, work)
}

fn seconds(clock: ClockId, work: impl FnOnce()) -> f64 {
    let start = clock_gettime(clock);
    work();
    let end = clock_gettime(clock);
    (end.tv_sec - start.tv_sec) as f64 + (end.tv_nsec - start.tv_nsec) as f64 / 1e9
}

/// The value below which a share of all lies. The list gets sorted.
pub(crate) fn quantile<T: Copy + PartialOrd>(values: &mut [T], share: f64) -> Option<T> {
    values.sort_unstable_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    let last = values.len().checked_sub(1)?;
    values.get((last as f64 * share).round() as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles() {
        assert_eq!(quantile(&mut [3.0, 1.0, 2.0], 0.5), Some(2.0));
        assert_eq!(quantile(&mut [5, 4, 3, 2, 1], 1.0), Some(5));
        assert_eq!(quantile::<u32>(&mut [], 0.5), None);
    }
}
