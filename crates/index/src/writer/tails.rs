//! The blocks that a stream stored last: the likely parents of the next ones. Finding one here spares a look at the map.

/// How many are kept: about as many as an engine has prompts that grow at the same time.
const TAILS: usize = 64;

/// Blocks by hash, each in the one slot that its hash names.
#[derive(Debug)]
pub(super) struct Tails(Box<[(u64, u32); TAILS]>);

/// No place.
const NONE: u32 = u32::MAX;

impl Default for Tails {
    fn default() -> Self {
        Self(Box::new([(0, NONE); TAILS]))
    }
}

#[inline]
fn slot(hash: u64) -> usize {
    (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - TAILS.ilog2())) as usize
}

impl Tails {
    #[inline]
    pub(super) fn get(&self, hash: u64) -> Option<u32> {
        let (known, place) = self.0[slot(hash)];
        (known == hash && place != NONE).then_some(place)
    }

    #[inline]
    pub(super) fn set(&mut self, hash: u64, place: u32) {
        self.0[slot(hash)] = (hash, place);
    }

    /// The block lies there no more.
    #[inline]
    pub(super) fn forget(&mut self, hash: u64) {
        let entry = &mut self.0[slot(hash)];
        if entry.0 == hash {
            entry.1 = NONE;
        }
    }
}
