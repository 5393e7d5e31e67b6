//! What is said about a prefix: hashes and counts, nothing else.

use std::sync::Arc;

/// Where a replica holds a prefix. Lower is warmer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CacheTier(u8);

impl CacheTier {
    /// The engine's device memory.
    pub const T1: CacheTier = CacheTier(1);
    /// Behind the device.
    pub const T2: CacheTier = CacheTier(2);
    /// On another machine.
    pub const T3: CacheTier = CacheTier(3);
    /// A number that cannot be; colder than all.
    const NONSENSE: CacheTier = CacheTier(u8::MAX);

    /// From the wire: unspecified is T1, unknown tiers stay as cold as they say.
    pub fn from_wire(number: i32) -> Self {
        match number {
            0 => Self::T1,
            ..0 => Self::NONSENSE,
            1.. => Self(number.min(i32::from(u8::MAX) - 1) as u8),
        }
    }

    /// As a number that orders tiers: lower is warmer.
    pub(crate) fn warmth(self) -> u8 {
        self.0
    }

    /// The tier of a number that [`Self::warmth`] gave.
    pub(crate) fn of_warmth(number: u8) -> Self {
        Self(number)
    }

    /// For the wire.
    pub fn to_wire(self) -> i32 {
        if self == Self::NONSENSE { 0 } else { i32::from(self.0) }
    }
}

/// The hash of a prefix, as reported. Eight bytes nearly always: a fingerprint in big-endian.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PrefixHash {
    /// Eight bytes.
    Fingerprint(u64),
    /// Any other width.
    Wide(Box<[u8]>),
}

impl PrefixHash {
    /// Longer hashes are kept nowhere: no hash is, and they would be a way to fill memory.
    pub const MAX_BYTES: usize = 256;

    /// From the wire.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        match <[u8; 8]>::try_from(bytes) {
            Ok(eight) => Self::Fingerprint(u64::from_be_bytes(eight)),
            Err(_) => Self::Wide(bytes.into()),
        }
    }

    /// For the wire.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.with_bytes(<[u8]>::to_vec)
    }

    /// Lends the bytes that are sent.
    pub(crate) fn with_bytes<T>(&self, read: impl FnOnce(&[u8]) -> T) -> T {
        match self {
            Self::Fingerprint(fingerprint) => read(&fingerprint.to_be_bytes()),
            Self::Wide(bytes) => read(bytes),
        }
    }
}

/// A prefix that a report names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What it hashes to.
    pub hash: PrefixHash,
    /// Its tokens, from the start of the prompt.
    pub tokens: u32,
    /// Where it lies.
    pub tier: CacheTier,
    /// The adapter that it was computed with; empty for none.
    pub adapter: Arc<str>,
}

/// A prefix that ends with a block of an engine that kvplane hears itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix {
    /// What it hashes to, adapter and salt left out.
    pub fingerprint: u64,
    /// Its tokens, from the start of the prompt.
    pub tokens: u32,
    /// Tokens of its last block.
    pub block: u32,
    /// The warmest place where it lies.
    pub tier: CacheTier,
    /// The engine itself says so, and says when it ends. Else nobody will: it is worth telling once, and
    /// receivers forget it in time.
    pub sure: bool,
    /// The adapter that it was computed with; empty for none.
    pub adapter: Arc<str>,
}

/// What changed for one replica. Notes are changes: a prefix is held until it is gone, or until nothing is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// It is held now, or lies elsewhere now.
    Held(Prefix),
    /// It is not held any more.
    Gone {
        /// What it hashes to.
        fingerprint: u64,
        /// The adapter that it was computed with; empty for none.
        adapter: Arc<str>,
    },
    /// Nothing is held any more, or nothing that could be vouched for.
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_keep_their_order_and_nonsense_is_coldest() {
        assert_eq!(CacheTier::from_wire(0), CacheTier::T1);
        assert!(CacheTier::T1 < CacheTier::T2 && CacheTier::T3 < CacheTier::from_wire(9));
        assert!(CacheTier::from_wire(i32::MAX) < CacheTier::from_wire(-1));
        assert_eq!(CacheTier::from_wire(-1).to_wire(), 0);
        assert_eq!(CacheTier::from_wire(9).to_wire(), 9);
    }

    #[test]
    fn a_hash_comes_back_as_it_was_reported() {
        for bytes in [&[][..], &[1; 8], &[7; 32], &[0; 7]] {
            assert_eq!(PrefixHash::from_bytes(bytes).to_bytes(), bytes);
        }
        assert_eq!(PrefixHash::from_bytes(&[0, 0, 0, 0, 0, 0, 1, 2]), PrefixHash::Fingerprint(258));
    }
}
