//! The heaviest prefixes in bounded memory: the *space-saving* sketch.
//!
//! A prefix that is not in a full table takes the place of the lightest one and inherits its count, which is
//! kept as the most by which its own count may be too high. What is heavier than the lightest entry is never
//! missed.

use std::collections::HashMap;

use super::TopPrefix;

/// Entries of the table.
const CAPACITY: usize = 512;
/// A prefix is listed at the longest length that this many tenths of its questions share.
const SHARED_TENTHS: u64 = 8;

/// A prefix of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) hash: u64,
    pub(super) tokens: u64,
}

#[derive(Debug)]
struct Entry {
    point: Point,
    /// The next shorter prefix of the same prompt.
    parent: Option<u64>,
    model: Box<str>,
    found: u64,
    /// `found` may be too high by this.
    over: u64,
}

/// The table.
#[derive(Debug, Default)]
pub(super) struct Sketch {
    entries: Vec<Entry>,
    by_hash: HashMap<u64, usize>,
}

impl Sketch {
    /// Counts a prompt of which all these prefixes were found, shortest first.
    pub(super) fn add(&mut self, points: &[Point], model: &str) {
        let mut parent = None;
        for point in points {
            self.add_one(*point, parent, model);
            parent = Some(point.hash);
        }
    }

    fn add_one(&mut self, point: Point, parent: Option<u64>, model: &str) {
        if let Some(&at) = self.by_hash.get(&point.hash) {
            self.entries[at].found += point.tokens;
            return;
        }
        let mut entry = Entry { point, parent, model: model.into(), found: point.tokens, over: 0 };
        if self.entries.len() < CAPACITY {
            self.by_hash.insert(point.hash, self.entries.len());
            self.entries.push(entry);
            return;
        }
        let lightest = self.entries.iter_mut().enumerate().min_by_key(|(_, entry)| entry.found);
        let Some((at, lightest)) = lightest else { return };
        entry.over = lightest.found;
        entry.found += lightest.found;
        self.by_hash.remove(&lightest.point.hash);
        self.by_hash.insert(point.hash, at);
        *lightest = entry;
    }

    /// The heaviest prefixes, each at its longest shared length.
    pub(super) fn top(&self, count: usize) -> Vec<TopPrefix> {
        let mut continued: HashMap<u64, u64> = HashMap::new();
        for entry in &self.entries {
            if let Some(parent) = entry.parent {
                let most = continued.entry(parent).or_default();
                *most = (*most).max(entry.questions());
            }
        }
        let is_shared_further = |entry: &Entry| {
            let further = continued.get(&entry.point.hash).copied().unwrap_or(0);
            further.saturating_mul(10) >= entry.questions().saturating_mul(SHARED_TENTHS)
        };
        let mut top: Vec<&Entry> = self.entries.iter().filter(|entry| !is_shared_further(entry)).collect();
        top.sort_by_key(|entry| (std::cmp::Reverse(entry.found), entry.point.hash));
        top.truncate(count);
        top.into_iter().map(Entry::listed).collect()
    }
}

impl Entry {
    /// Questions that found it, at most.
    fn questions(&self) -> u64 {
        self.found / self.point.tokens.max(1)
    }

    fn listed(&self) -> TopPrefix {
        TopPrefix {
            prefix: format!("{:016x}", self.point.hash),
            model: self.model.to_string(),
            tokens: self.point.tokens,
            tokens_found: self.found,
            over_by_at_most: self.over,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(first: u64, lengths: &[u64]) -> Vec<Point> {
        lengths.iter().map(|tokens| Point { hash: first ^ (tokens << 32), tokens: *tokens }).collect()
    }

    #[test]
    fn a_prefix_is_listed_at_its_longest_shared_length() {
        let mut sketch = Sketch::default();
        for user in 0..100_u64 {
            // All share 128 tokens; each goes on by itself.
            let mut points = chain(1, &[64, 128]);
            points.push(Point { hash: 0xabc0_0000 + user, tokens: 256 });
            sketch.add(&points, "m");
        }
        let top = sketch.top(1);
        assert_eq!((top[0].tokens, top[0].tokens_found, top[0].over_by_at_most), (128, 12_800, 0));
    }

    #[test]
    fn heavy_prefixes_survive_any_number_of_light_ones_and_the_error_is_bounded() {
        let mut sketch = Sketch::default();
        for light in 0..20_000_u64 {
            sketch.add(&[Point { hash: 1 << 40 | light, tokens: 64 }], "m");
            if light % 10 == 0 {
                sketch.add(&[Point { hash: 7, tokens: 1_024 }], "m");
            }
        }
        assert_eq!(sketch.entries.len(), CAPACITY);
        assert_eq!(sketch.by_hash.len(), CAPACITY);
        let top = &sketch.top(1)[0];
        assert_eq!(top.prefix, "0000000000000007");
        let truth = 2_000 * 1_024;
        assert!(top.tokens_found >= truth && top.tokens_found - top.over_by_at_most <= truth, "{top:?}");
    }
}
