//! Prefixes that were asked for before: what an infinite cache would hold.
//!
//! Two generations of hashes. When the younger is full, the elder is forgotten: what is said is never too
//! much, and may be too little for what was not asked for in a long time.

use rustc_hash::FxHashSet;

/// What was asked for.
#[derive(Debug)]
pub struct History {
    young: FxHashSet<u64>,
    old: FxHashSet<u64>,
    limit: usize,
}

impl History {
    /// Keeps at least `limit` prefixes, and twice that at most.
    pub fn new(limit: usize) -> Self {
        Self { young: FxHashSet::default(), old: FxHashSet::default(), limit }
    }

    /// Tokens of the longest of these prefixes (depth and hash, shortest first) that was seen before; now
    /// they are all seen.
    pub fn meet(&mut self, prefixes: impl DoubleEndedIterator<Item = (u64, u64)> + Clone) -> u64 {
        let known = |&(_, hash): &(u64, u64)| self.young.contains(&hash) || self.old.contains(&hash);
        let ceiling = prefixes.clone().rev().find(known).map_or(0, |(depth, _)| depth);
        for (_, hash) in prefixes {
            if self.young.len() >= self.limit {
                self.old = std::mem::take(&mut self.young);
            }
            self.young.insert(hash);
        }
        ceiling
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_that_was_seen_is_the_ceiling() {
        let mut history = History::new(4);
        let meet = |history: &mut History, prefixes: &[(u64, u64)]| history.meet(prefixes.iter().copied());
        assert_eq!(meet(&mut history, &[(64, 1), (128, 2)]), 0);
        assert_eq!(meet(&mut history, &[(64, 1), (128, 2), (192, 3)]), 128);
        assert_eq!(meet(&mut history, &[(64, 1), (128, 9)]), 64);
        for other in 100..120 {
            meet(&mut history, &[(64, other)]);
            assert!(history.young.len() <= 4 && history.old.len() <= 4);
        }
        assert_eq!(meet(&mut history, &[(64, 1)]), 0, "forgotten");
    }
}
