//! What a run came to.

use std::fmt::Write as _;

/// One request's times.
#[derive(Debug, Clone, Copy, Default)]
pub struct Row {
    /// Seconds to the first token.
    pub first: f64,
    /// Seconds to the end.
    pub whole: f64,
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Tokens that were cached.
    pub cached: u64,
}

/// One policy over one workload.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Summary {
    /// Requests that were served.
    pub requests: usize,
    /// Mean seconds to the first token.
    pub mean: f64,
    /// Their median.
    pub p50: f64,
    /// Their 99th percentile.
    pub p99: f64,
    /// Mean seconds to the end.
    pub whole: f64,
    /// The part of all prompt tokens that was cached.
    pub hit_rate: f64,
    /// The busiest engine's time by the mean of all.
    pub balance: f64,
}

impl Summary {
    pub(crate) fn of(rows: &[Row], busy: &[f64]) -> Self {
        let count = rows.len().max(1) as f64;
        let mut first: Vec<f64> = rows.iter().map(|row| row.first).collect();
        first.sort_by(f64::total_cmp);
        let at =
            |share: f64| first.get(((first.len() as f64 - 1.0) * share) as usize).copied().unwrap_or(0.0);
        let prompt: u64 = rows.iter().map(|row| row.prompt).sum();
        let cached: u64 = rows.iter().map(|row| row.cached).sum();
        let mean_busy = busy.iter().sum::<f64>() / busy.len().max(1) as f64;
        Self {
            requests: rows.len(),
            mean: first.iter().sum::<f64>() / count,
            p50: at(0.5),
            p99: at(0.99),
            whole: rows.iter().map(|row| row.whole).sum::<f64>() / count,
            hit_rate: cached as f64 / prompt.max(1) as f64,
            balance: busy.iter().copied().fold(0.0, f64::max) / mean_busy.max(1e-9),
        }
    }
}

/// A table for people.
pub fn table(rows: &[(String, Summary)]) -> String {
    let mut out = format!(
        "{:<16} {:>8} {:>10} {:>10} {:>10} {:>10} {:>8} {:>8}\n",
        "policy", "requests", "ttft mean", "p50", "p99", "end to end", "cached", "balance"
    );
    for (name, row) in rows {
        let _ = writeln!(
            out,
            "{name:<16} {:>8} {:>9.3}s {:>9.3}s {:>9.3}s {:>9.3}s {:>7.1}% {:>8.2}",
            row.requests,
            row.mean,
            row.p50,
            row.p99,
            row.whole,
            row.hit_rate * 100.0,
            row.balance
        );
    }
    out
}
