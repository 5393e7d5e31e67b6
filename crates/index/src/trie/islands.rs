//! What lanes hold of an extent behind their first hole. Rare, and of no account in an answer until the hole
//! is filled.

use smallvec::SmallVec;

/// Stretches of blocks, ascending, not touching each other: from (inclusive), to (exclusive).
type Stretches = SmallVec<[(u32, u32); 2]>;

/// By lane.
#[derive(Debug, Default)]
pub(crate) struct Islands(Vec<(u32, Stretches)>);

impl Islands {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One past the last block that any lane holds here.
    pub(crate) fn end(&self) -> u32 {
        self.0.iter().filter_map(|(_, stretches)| stretches.last()).map(|(_, to)| *to).max().unwrap_or(0)
    }

    pub(crate) fn of(&self, lane: u32) -> &[(u32, u32)] {
        self.0.iter().find(|(other, _)| *other == lane).map_or(&[], |(_, stretches)| stretches)
    }

    pub(crate) fn lanes(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().map(|(lane, _)| *lane)
    }

    pub(crate) fn add(&mut self, lane: u32, from: u32, to: u32) {
        if from >= to {
            return;
        }
        let at = self.0.iter().position(|(other, _)| *other == lane).unwrap_or_else(|| {
            self.0.push((lane, Stretches::new()));
            self.0.len() - 1
        });
        let stretches = &mut self.0[at].1;
        let (mut from, mut to) = (from, to);
        stretches.retain(|(a, b)| {
            let touches = *a <= to && from <= *b;
            if touches {
                (from, to) = (from.min(*a), to.max(*b));
            }
            !touches
        });
        let at = stretches.partition_point(|(a, _)| *a < from);
        stretches.insert(at, (from, to));
    }

    pub(crate) fn remove(&mut self, lane: u32, from: u32, to: u32) {
        let Some(at) = self.0.iter().position(|(other, _)| *other == lane) else { return };
        let stretches = &mut self.0[at].1;
        let mut left = Stretches::new();
        for &(a, b) in stretches.iter() {
            left.extend([(a, b.min(from)), (a.max(to), b)].into_iter().filter(|(a, b)| a < b));
        }
        if left.is_empty() {
            self.0.swap_remove(at);
        } else {
            *stretches = left;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_join_and_part() {
        let mut islands = Islands::default();
        islands.add(1, 5, 8);
        islands.add(1, 10, 12);
        islands.add(2, 1, 3);
        assert_eq!(islands.of(1), [(5, 8), (10, 12)]);
        islands.add(1, 8, 10);
        assert_eq!(islands.of(1), [(5, 12)]);
        islands.remove(1, 6, 7);
        assert_eq!(islands.of(1), [(5, 6), (7, 12)]);
        assert_eq!(islands.end(), 12);
        islands.remove(1, 0, 100);
        assert_eq!(islands.of(1), []);
        assert_eq!(islands.end(), 3);
        islands.remove(2, 1, 3);
        assert!(islands.is_empty());
    }
}
