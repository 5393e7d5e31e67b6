//! Block hashes as the two cache managers make them.

use kvplane_wire::OwnedExtraKey;
use kvplane_wire::trtllm::encode::{HashAlgo, TrtHash};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::digest::Digest;

/// A block's hash within one simulated server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockHash {
    V1(u64),
    /// Stands in for SHA-256: as wide, and nobody can tell.
    V2(Digest),
}

impl BlockHash {
    /// The hash of a block that follows `parent`. `keys` is whatever else makes it what it is.
    pub(super) fn of(
        algo: HashAlgo,
        parent: Option<&BlockHash>,
        tokens: &[u32],
        keys: &[OwnedExtraKey],
    ) -> Self {
        match algo {
            HashAlgo::V1BlockKey => {
                let parent = match parent {
                    Some(Self::V1(parent)) => *parent,
                    _ => 0,
                };
                Self::V1(v1(parent, tokens, keys))
            }
            HashAlgo::V2Sha256 | HashAlgo::V2Sha256Short => {
                let parent = match parent {
                    Some(Self::V2(parent)) => Some(parent),
                    _ => None,
                };
                Self::V2(Digest::of(0, parent, tokens, keys))
            }
        }
    }

    /// The hash as it goes on the wire.
    pub(super) fn written(&self, algo: HashAlgo) -> TrtHash {
        let digest = match self {
            Self::V1(bits) => return TrtHash::Number(*bits),
            Self::V2(digest) => digest.bytes(),
        };
        if algo == HashAlgo::V2Sha256 {
            TrtHash::Digest(digest.iter().map(|byte| format!("{byte:02x}")).collect())
        } else {
            TrtHash::Number(digest[..8].iter().fold(0, |bits, byte| bits << 8 | u64::from(*byte)))
        }
    }
}

/// `v1_block_key`. Texts enter as the server's standard library hashes text, which nobody can foretell:
/// any other hash of the text does as well here.
fn v1(parent: u64, tokens: &[u32], keys: &[OwnedExtraKey]) -> u64 {
    const PARENT_FACTOR: u64 = 0xbf58_476d_1ce4_e5b9;
    const GOLDEN: u32 = 0x9e37_79b9;
    let spread = |seed: u64| (seed << 6).wrapping_add(seed >> 2);
    let mut seed = tokens.len() as u64 ^ parent.wrapping_mul(PARENT_FACTOR);
    for token in tokens {
        // The sum is of 32 bits before it becomes one of 64.
        let mixed = mix(*token).wrapping_add(GOLDEN);
        seed ^= u64::from(mixed).wrapping_add(spread(seed));
    }
    for key in keys {
        let hash = match key {
            OwnedExtraKey::Text(text) => xxh3_64(text.as_bytes()),
            OwnedExtraKey::Bytes(bytes) => xxh3_64(bytes),
            OwnedExtraKey::Integer(number) => number.cast_unsigned(),
            OwnedExtraKey::Multimodal(id, offset) => xxh3_64_with_seed(id.as_bytes(), offset.cast_unsigned()),
        };
        seed ^= hash.wrapping_add(u64::from(GOLDEN)).wrapping_add(spread(seed));
    }
    seed
}

fn mix(token: u32) -> u32 {
    const FACTOR: u32 = 0x45d_9f3b;
    let once = ((token >> 16) ^ token).wrapping_mul(FACTOR);
    let twice = ((once >> 16) ^ once).wrapping_mul(FACTOR);
    (twice >> 16) ^ twice
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_managers_hashes_are_its_own() {
        let first = v1(0, &[0, 1, 2, 3], &[]);
        assert_eq!((first, v1(first, &[4, 5, 6, 7], &[])), (733_356_887_393_045, 6_310_903_394_565_074_474));
        assert_ne!(v1(0, &[0, 1, 2, 3], &[OwnedExtraKey::Text("a".into())]), first);
    }

    #[test]
    fn a_digest_is_written_whole_or_by_its_head() {
        let hash = BlockHash::of(HashAlgo::V2Sha256, None, &[1, 2], &[]);
        let TrtHash::Digest(digits) = hash.written(HashAlgo::V2Sha256) else { panic!() };
        assert_eq!(digits.len(), 64);
        let head = u64::from_str_radix(&digits[..16], 16).unwrap();
        assert_eq!(hash.written(HashAlgo::V2Sha256Short), TrtHash::Number(head));
    }
}
