//! A digest of a stream's resident state: two that hold the same have the same, whatever the order in which
//! they learnt it.
//!
//! ```text
//! place    = xxh3_64( field(medium) || field(locality) || field(ownership) || group )
//!            field(absent) = 00        field(text) = 01 | u32 LE length | utf-8
//!            group absent  = 00        group g     = 01 | u32 LE g
//! low      = mix( mix(hash XOR place) + copies )            for every (place, hash) with copies > 0
//! high     = mix( low XOR 9e3779b97f4a7c15 )
//! digest   = (sum of all low, sum of all high)              wrapping; an empty state has 0, 0
//! mix(x)   : x ^= x >> 30; x *= bf58476d1ce4e5b9; x ^= x >> 27; x *= 94d049bb133111eb; x ^= x >> 31
//! ```
//!
//! `hash` is the 64 bits that identify a block within its stream. Sums, because then one change costs one
//! addition and one subtraction.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A place, as it enters a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaceSeed(u64);

impl PlaceSeed {
    /// The seed of a place, by the engine's own words for it.
    pub fn new(
        medium: Option<&str>,
        locality: Option<&str>,
        ownership: Option<&str>,
        group: Option<u32>,
    ) -> Self {
        let mut bytes = Vec::new();
        for text in [medium, locality, ownership] {
            match text {
                None => bytes.push(0),
                Some(text) => {
                    bytes.push(1);
                    bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
                    bytes.extend_from_slice(text.as_bytes());
                }
            }
        }
        match group {
            None => bytes.push(0),
            Some(group) => {
                bytes.push(1);
                bytes.extend_from_slice(&group.to_le_bytes());
            }
        }
        Self(xxh3_64(&bytes))
    }
}

/// An order-independent digest of (place, hash, copies).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct StateDigest {
    low: u64,
    high: u64,
}

impl StateDigest {
    /// A digest that somebody else computed.
    pub fn from_parts(low: u64, high: u64) -> Self {
        Self { low, high }
    }

    /// The two sums.
    pub fn parts(self) -> (u64, u64) {
        (self.low, self.high)
    }

    /// A place's copies of a block went from `old` to `new`.
    pub fn change(&mut self, place: PlaceSeed, hash: u64, old: u32, new: u32) {
        if old > 0 {
            let (low, high) = term(place, hash, old);
            self.low = self.low.wrapping_sub(low);
            self.high = self.high.wrapping_sub(high);
        }
        if new > 0 {
            let (low, high) = term(place, hash, new);
            self.low = self.low.wrapping_add(low);
            self.high = self.high.wrapping_add(high);
        }
    }

    /// The digest of two disjoint states together.
    #[must_use]
    pub fn combine(self, other: Self) -> Self {
        Self { low: self.low.wrapping_add(other.low), high: self.high.wrapping_add(other.high) }
    }
}

fn term(place: PlaceSeed, hash: u64, copies: u32) -> (u64, u64) {
    let low = mix(mix(hash ^ place.0).wrapping_add(u64::from(copies)));
    (low, mix(low ^ GOLDEN))
}

/// The finaliser of splitmix64: every bit of the input reaches every bit of the output.
fn mix(mut x: u64) -> u64 {
    x ^= x >> 30;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl fmt::Display for StateDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.high, self.low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_does_not_matter_and_everything_else_does() {
        let gpu = PlaceSeed::new(Some("GPU"), None, None, Some(0));
        let cpu = PlaceSeed::new(Some("CPU"), None, None, Some(0));
        assert_ne!(gpu, PlaceSeed::new(Some("GPU"), None, None, None));
        let of = |changes: &[(PlaceSeed, u64, u32, u32)]| {
            let mut digest = StateDigest::default();
            for &(place, hash, old, new) in changes {
                digest.change(place, hash, old, new);
            }
            digest
        };
        let one = of(&[(gpu, 1, 0, 1), (cpu, 2, 0, 1), (gpu, 1, 1, 2)]);
        assert_eq!(one, of(&[(gpu, 1, 0, 2), (gpu, 9, 0, 1), (cpu, 2, 0, 1), (gpu, 9, 1, 0)]));
        for other in [
            of(&[(gpu, 1, 0, 1), (cpu, 2, 0, 1)]),
            of(&[(cpu, 1, 0, 2), (cpu, 2, 0, 1)]),
            of(&[(gpu, 2, 0, 2), (cpu, 1, 0, 1)]),
        ] {
            assert_ne!(one, other);
        }
        assert_eq!(of(&[(gpu, 1, 0, 3), (gpu, 1, 3, 0)]), StateDigest::default());
    }

    #[test]
    fn a_vector_for_other_implementations() {
        let mut digest = StateDigest::default();
        digest.change(PlaceSeed::new(Some("GPU"), None, None, Some(0)), 1, 0, 1);
        assert_eq!(digest.to_string(), "daf3adef57ab50b23d079632edd0ab86");
    }
}
