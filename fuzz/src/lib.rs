//! What the fuzz targets share: structured values, read off the fuzzer's bytes.

use std::time::Duration;

use kvplane_stream::Now;

/// The fuzzer's bytes. Past the end every value is zero, so that any input is a whole scenario.
#[derive(Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// All of the bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether everything was read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// A number below a bound, which is not zero.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound
    }

    /// Yes or no.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// One of several values.
    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// A number that is small nearly always, and otherwise one at which sums overflow, or anything.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            byte @ 0..=247 => u64::from(byte),
            248 => u64::from(u32::MAX),
            249 => 1 << 32,
            250 => i64::MAX as u64,
            251 => 1 << 63,
            252 => u64::MAX - 1,
            253 => u64::MAX,
            _ => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
        }
    }

    /// A number at which sums overflow, every other time.
    pub fn extreme(&mut self) -> u64 {
        if self.flag() {
            self.pick(&[u64::MAX, u64::MAX - 1, 1 << 63, i64::MAX as u64])
        } else {
            self.number()
        }
    }

    /// A number as [`Self::number`] has it, cut to 32 bits.
    pub fn number32(&mut self) -> u32 {
        self.number() as u32
    }

    /// Up to so many bytes, as they are.
    pub fn bytes(&mut self, max: usize) -> &'a [u8] {
        let wanted = usize::from(self.byte()) | usize::from(self.byte()) << 8;
        let (taken, rest) = self.0.split_at(wanted.min(max).min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// A clock that scenarios move.
#[derive(Debug)]
pub struct Clock(Duration);

impl Default for Clock {
    fn default() -> Self {
        Self(Duration::from_secs(1))
    }
}

impl Clock {
    /// The time.
    pub fn now(&self) -> Now {
        Now { mono: self.0, unix_ms: 1_700_000_000_000 + self.0.as_millis() as u64 }
    }

    /// Time passes.
    pub fn pass(&mut self, time: Duration) {
        self.0 += time;
    }
}
