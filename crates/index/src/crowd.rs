//! Sets of lanes, one bit each: the lanes that share a cutoff, and the lanes that are alive.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// A set of lanes that one writer changes and anyone reads.
#[derive(Debug)]
pub(crate) struct Bits {
    words: Box<[AtomicU64]>,
}

impl Bits {
    pub(crate) fn new(words: usize) -> Self {
        Self { words: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The same set, with room for more lanes.
    pub(crate) fn widened(&self, words: usize) -> Self {
        let wide = Self::new(words.max(self.words.len()));
        for (to, from) in wide.words.iter().zip(&self.words) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        wide
    }

    pub(crate) fn words(&self) -> usize {
        self.words.len()
    }

    #[inline]
    pub(crate) fn word(&self, at: usize) -> u64 {
        self.words.get(at).map_or(0, |word| word.load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn has(&self, lane: u32) -> bool {
        self.word(lane as usize / 64) >> (lane % 64) & 1 == 1
    }

    pub(crate) fn set(&self, lane: u32) {
        let word = &self.words[lane as usize / 64];
        word.store(word.load(Ordering::Relaxed) | 1 << (lane % 64), Ordering::Release);
    }

    pub(crate) fn clear(&self, lane: u32) {
        let word = &self.words[lane as usize / 64];
        word.store(word.load(Ordering::Relaxed) & !(1 << (lane % 64)), Ordering::Release);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.words.len()).flat_map(|at| ones(self.word(at), at))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.words.len() * size_of::<u64>()
    }
}

/// The lanes of one word of a set.
#[inline]
pub(crate) fn ones(word: u64, at: usize) -> impl Iterator<Item = u32> {
    let mut rest = word;
    std::iter::from_fn(move || {
        (rest != 0).then(|| {
            let bit = rest.trailing_zeros();
            rest &= rest - 1;
            at as u32 * 64 + bit
        })
    })
}

/// Lanes that hold the same number of an extent's first blocks.
#[derive(Debug)]
pub(crate) struct Crowd {
    /// How many they hold. Never changes.
    pub(crate) upto: u32,
    pub(crate) lanes: Bits,
    /// How many bits are set: the writer's count.
    members: AtomicU32,
}

impl Crowd {
    pub(crate) fn new(upto: u32, words: usize) -> Self {
        Self { upto, lanes: Bits::new(words), members: AtomicU32::new(0) }
    }

    /// The same crowd, with room for more lanes.
    pub(crate) fn widened(&self, words: usize) -> Self {
        Self {
            upto: self.upto,
            lanes: self.lanes.widened(words),
            members: AtomicU32::new(self.members.load(Ordering::Relaxed)),
        }
    }

    #[inline]
    pub(crate) fn has(&self, lane: u32) -> bool {
        self.lanes.has(lane)
    }

    pub(crate) fn fits(&self, lane: u32) -> bool {
        (lane as usize / 64) < self.lanes.words()
    }

    pub(crate) fn add(&self, lane: u32) {
        if !self.has(lane) {
            self.lanes.set(lane);
            self.members.store(self.members() + 1, Ordering::Relaxed);
        }
    }

    pub(crate) fn remove(&self, lane: u32) {
        if self.has(lane) {
            self.lanes.clear(lane);
            self.members.store(self.members() - 1, Ordering::Relaxed);
        }
    }

    pub(crate) fn members(&self) -> u32 {
        self.members.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.lanes.bytes()
    }
}
