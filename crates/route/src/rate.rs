//! How fast an engine prefills, learned from its first tokens.
//!
//! The shape is given, `u*a + t*u*(L - u/2)` for `u` uncached of `L` tokens, and one factor is learned on
//! both constants: the median of what first tokens took by what was expected, where each counts by the work
//! in it. A small prefill says more of the engine's steps than of its speed, and a plain median of many small
//! ones would take long prompts for slower than they are.

use std::collections::VecDeque;

/// Samples with fewer uncached tokens say nothing of the engine's prefill.
const MIN_TOKENS: u64 = 256;
/// The median is of the last this many samples: one that waited for something else does not move it.
const SAMPLES: usize = 32;
/// With fewer samples the assumed speed is used.
const ENOUGH: usize = 5;

/// What is known of one engine.
#[derive(Debug, Clone)]
pub(crate) struct Rate {
    factor: f64,
    /// What was expected, and the ratio of what it took to that.
    samples: VecDeque<(f64, f64)>,
}

impl Default for Rate {
    fn default() -> Self {
        Self { factor: 1.0, samples: VecDeque::new() }
    }
}

/// Seconds of prefill at the assumed speed.
pub(crate) fn assumed(prompt: u64, uncached: u64, a: f64, t: f64) -> f64 {
    let (length, uncached) = (prompt as f64, uncached as f64);
    uncached * a + t * uncached * (length - uncached / 2.0)
}

impl Rate {
    /// By how much the engine is slower than assumed.
    pub(crate) fn factor(&self) -> f64 {
        self.factor
    }

    /// A request found an empty queue and had its first token after `took` seconds; `expected` at the assumed speed.
    pub(crate) fn learn(&mut self, uncached: u64, expected: f64, took: f64) {
        if uncached < MIN_TOKENS || expected <= 0.0 || !took.is_finite() || took <= 0.0 {
            return;
        }
        self.samples.truncate(SAMPLES - 1);
        self.samples.push_front((expected, (took / expected).clamp(1.0 / 64.0, 64.0)));
        if self.samples.len() >= ENOUGH {
            self.factor = self.median();
        }
    }

    fn median(&self) -> f64 {
        let mut sorted: Vec<(f64, f64)> = self.samples.iter().copied().collect();
        sorted.sort_by(|one, other| one.1.total_cmp(&other.1));
        let mut left = sorted.iter().map(|(work, _)| work).sum::<f64>() / 2.0;
        let middle = sorted.iter().find(|(work, _)| {
            left -= work;
            left <= 0.0
        });
        middle.map_or(self.factor, |(_, ratio)| *ratio)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_factor_follows_the_engine_and_ignores_what_is_odd() {
        let mut rate = Rate::default();
        let expected = assumed(8_000, 8_000, 1.0 / 16_000.0, 0.6e-9);
        let is =
            |rate: &Rate, factor: f64| assert!((rate.factor() - factor).abs() < 1e-9, "{}", rate.factor());
        for _ in 0..4 {
            rate.learn(8_000, expected, expected * 3.0);
        }
        is(&rate, 1.0);
        rate.learn(8_000, expected, expected * 3.0);
        is(&rate, 3.0);
        for _ in 0..2 {
            rate.learn(100, 0.01, 5.0);
            rate.learn(8_000, expected, f64::NAN);
            rate.learn(8_000, expected, 0.0);
            rate.learn(8_000, expected, 1e9);
        }
        is(&rate, 3.0);
        for _ in 0..40 {
            rate.learn(8_000, expected, expected / 2.0);
        }
        is(&rate, 0.5);
        assert_eq!(rate.samples.len(), SAMPLES);
    }

    #[test]
    fn many_small_prefills_do_not_make_an_engine_slow_at_long_ones() {
        let mut rate = Rate::default();
        let expected = |tokens: u64| assumed(tokens, tokens, 1.0 / 16_000.0, 0.6e-9);
        // Every step takes 30 ms beside the prefill.
        for round in 0..32 {
            let tokens = if round % 4 == 0 { 20_000 } else { 300 };
            rate.learn(tokens, expected(tokens), expected(tokens) + 0.03);
        }
        assert!((1.0..1.05).contains(&rate.factor()), "{}", rate.factor());
    }
}
