//! Hash maps over numbers and names that an engine chooses: an engine must not be able to make them collide.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;

/// A map whose keys come from outside.
pub(crate) type SeededMap<K, V> = HashMap<K, V, Seeded>;

/// A set whose members come from outside.
pub(crate) type SeededSet<K> = HashSet<K, Seeded>;

/// Seeds of this process. One pair is enough: nothing of it can be observed.
static SEEDS: LazyLock<[u64; 2]> = LazyLock::new(|| {
    let random = RandomState::new();
    // Odd: no bit of a key is lost.
    [random.hash_one(0_u8), random.hash_one(1_u8) | 1]
});

/// Makes hashers with the seeds of this process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seeded([u64; 2]);

impl Default for Seeded {
    fn default() -> Self {
        Self(*SEEDS)
    }
}

impl BuildHasher for Seeded {
    type Hasher = Folded;

    fn build_hasher(&self) -> Folded {
        Folded { state: self.0[0], factor: self.0[1] }
    }
}

/// The golden ratio's bits.
const MIXING: u64 = 0x9e37_79b9_7f4a_7c15;

fn fold(number: u64, factor: u64) -> u64 {
    let product = u128::from(number) * u128::from(factor);
    (product as u64) ^ (product >> 64) as u64
}

/// Folds each word into the state by a full multiplication.
#[derive(Debug)]
pub(crate) struct Folded {
    state: u64,
    factor: u64,
}

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        // Once more, by a factor that is known to mix: with some seeds one multiplication leaves keys close
        // together.
        fold(self.state, MIXING)
    }

    fn write(&mut self, bytes: &[u8]) {
        for word in bytes.chunks(8) {
            let mut padded = [0; 8];
            padded[..word.len()].copy_from_slice(word);
            self.write_u64(u64::from_le_bytes(padded));
        }
        self.write_u64(bytes.len() as u64);
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(u64::from(number));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.state = fold(self.state ^ number, self.factor);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_share_their_low_or_high_bits_are_spread() {
        let seeded = Seeded::default();
        // The process's own seeds, and some that spread badly without the last multiplication.
        let weak = [Seeded([1, 1]), Seeded([0, 1 << 40 | 1])];
        for (seeds, shift) in
            [seeded].into_iter().chain(weak).flat_map(|seeds| [0, 20, 44].map(|by| (seeds, by)))
        {
            let buckets: HashSet<u64> =
                (0..4096_u64).map(|number| seeds.hash_one(number << shift) & 0xffff).collect();
            assert!(
                buckets.len() > 3500,
                "{} of 4096 buckets by {seeds:?}, shifted by {shift}",
                buckets.len()
            );
        }
        assert_ne!(seeded.hash_one("ab"), seeded.hash_one("ab\0"));
    }
}
