//! A prompt as hashes of some of its prefixes.
//!
//! Two prompts share a prefix up to the deepest point whose hash they share. The depths are the same for
//! every prompt: each unit up to [`DENSE`] tokens, then a sixteenth further each time. So an outline of 128 k
//! tokens has about 100 points, and what it says is at most a sixteenth short of the truth, never beyond it.
//! It holds no tokens.

use kvplane_core::{Namespace, chain_hash};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Tokens of a unit where a prompt is given as token ids.
const UNIT: usize = 64;
/// Up to here every unit is a point.
const DENSE: u64 = 1_024;
/// Where [`Outline::lead`] ends: what `prefix_hash` goes by.
const LEAD: u64 = 1_024;

/// Hashes of prefixes, shortest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outline {
    points: Vec<Point>,
    lead: Option<u64>,
    tokens: u64,
}

/// The hash of a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Point {
    /// Tokens of the prefix.
    pub(crate) depth: u64,
    pub(crate) hash: u64,
}

impl Outline {
    /// The outline of token ids. A rest that fills no unit is left out.
    pub fn of_tokens(ids: &[u32], namespace: Namespace) -> Self {
        let seed = namespace.seed();
        let units = ids.chunks_exact(UNIT).map(|unit| xxh3_64_with_seed(bytemuck::cast_slice(unit), seed));
        let mut outline = Self::of_units(units, UNIT as u64);
        outline.tokens = ids.len() as u64;
        outline
    }

    /// The outline of blocks of `size` tokens, each given by the hash of its own content.
    pub fn of_units(contents: impl IntoIterator<Item = u64>, size: u64) -> Self {
        let mut outline = Self::default();
        let (mut chain, mut depth, mut next) = (None, 0, 0);
        for content in contents {
            let hash = chain_hash(chain, content);
            chain = Some(hash);
            depth += size;
            if depth <= LEAD || outline.lead.is_none() {
                outline.lead = Some(hash);
            }
            if depth >= next {
                outline.points.push(Point { depth, hash });
                next = if depth < DENSE { depth } else { depth + depth / 16 };
            }
        }
        outline.tokens = depth;
        outline
    }

    /// The prompt's tokens.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The hash of its beginning: 1,024 tokens, or as many whole units as there are.
    pub fn lead(&self) -> Option<u64> {
        self.lead
    }

    /// The hashes of its prefixes, shortest first.
    pub(crate) fn hashes(&self) -> Box<[u64]> {
        self.points.iter().map(|point| point.hash).collect()
    }

    /// Whether nothing is known of the prompt.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    pub(crate) fn points(&self) -> &[Point] {
        &self.points
    }

    /// The depth and the hash of every point, shortest prefix first.
    pub fn prefixes(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + Clone + '_ {
        self.points.iter().map(|point| (point.depth, point.hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_share_points_as_far_as_they_are_equal_and_no_further() {
        let long: Vec<u32> = (0..100_000).collect();
        let whole = Outline::of_tokens(&long, Namespace::PLAIN);
        assert!(whole.points().len() < 110, "{}", whole.points().len());
        for equal in [0, 63, 64, 1_000, 1_024, 5_000, 70_000] {
            let mut other = long.clone();
            other[equal] = 7_777_777;
            let other = Outline::of_tokens(&other, Namespace::PLAIN);
            let shared = whole.points().iter().zip(other.points()).take_while(|(one, two)| one == two);
            let depth = shared.map(|(point, _)| point.depth).last().unwrap_or(0);
            assert!(depth <= equal as u64);
            assert!(depth + UNIT as u64 + depth / 15 >= equal as u64, "{depth} of {equal}");
        }
        assert_ne!(Outline::of_tokens(&long, Namespace::new(Some("a"), None)).lead(), whole.lead());
    }

    #[test]
    fn the_lead_is_the_first_thousand_tokens() {
        let ids: Vec<u32> = (0..4_000).collect();
        let of = |length: usize| Outline::of_tokens(&ids[..length], Namespace::PLAIN).lead();
        assert_eq!(of(1_024), of(4_000));
        assert_ne!(of(960), of(1_024));
        assert_eq!(of(63), None);
    }
}
