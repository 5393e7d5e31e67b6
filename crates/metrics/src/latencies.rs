//! How long things took: a histogram that costs two additions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts by how long something took.
#[derive(Debug)]
pub struct Latencies {
    /// Upper ends of the buckets, in seconds.
    bounds: &'static [f64],
    /// One a bound; the last is everything above the last bound.
    counts: Box<[AtomicU64]>,
    nanoseconds: AtomicU64,
}

/// A histogram at one moment.
#[derive(Debug)]
pub struct LatenciesRead {
    /// Seconds in all.
    pub sum: f64,
    /// How many in all.
    pub count: u64,
    /// Upper ends and counts; the last end is infinite.
    pub buckets: Vec<(f64, u64)>,
}

impl Latencies {
    /// With buckets up to these bounds.
    pub fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, nanoseconds: AtomicU64::new(0) }
    }

    /// Counts one.
    pub fn record(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = self.bounds.partition_point(|bound| *bound < seconds);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }

    /// What was counted up to now.
    pub fn read(&self) -> LatenciesRead {
        let ends = self.bounds.iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<_> =
            ends.zip(self.counts.iter().map(|count| count.load(Ordering::Relaxed))).collect();
        LatenciesRead {
            sum: Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed)).as_secs_f64(),
            count: buckets.iter().map(|(_, count)| count).sum(),
            buckets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_fall_into_their_buckets() {
        let latencies = Latencies::new(&[0.0001, 0.001]);
        for took in
            [Duration::ZERO, Duration::from_micros(100), Duration::from_micros(101), Duration::from_secs(1)]
        {
            latencies.record(took);
        }
        let LatenciesRead { sum, count, buckets } = latencies.read();
        assert!((sum - 1.000_201).abs() < 1e-9, "{sum}");
        assert_eq!((count, buckets), (4, vec![(0.0001, 2), (0.001, 1), (f64::INFINITY, 1)]));
    }
}
