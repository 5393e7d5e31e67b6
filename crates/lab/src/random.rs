//! Chance for workloads: splitmix64.

#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed ^ 0x5851_F42D_4C95_7F2D)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        value ^ (value >> 31)
    }

    /// From 0 to 1, without 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from + 1)
    }

    /// Exponential: the time between arrivals that know nothing of each other.
    pub(crate) fn wait(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// By Zipf's law with exponent `s`: 0 is the most popular.
    pub(crate) fn zipf(&mut self, count: usize, s: f64) -> usize {
        let weight = |rank: usize| (rank as f64 + 1.0).powf(-s);
        let mut left = self.unit() * (0..count).map(weight).sum::<f64>();
        for rank in 0..count {
            left -= weight(rank);
            if left < 0.0 {
                return rank;
            }
        }
        count - 1
    }
}
