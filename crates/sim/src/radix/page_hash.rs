//! How `SGLang` and `TokenSpeed` hash a page.

use kvplane_wire::OwnedHash;
use sha2::{Digest as _, Sha256};

use crate::keys::Keys;

/// A page's place in its chain.
pub(super) type Digest = [u8; 32];

/// Which of the engines' rules holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageHash {
    /// Python's hash of the page's tokens alone: equal pages have one hash wherever they stand (`SGLang` before 0.5.6).
    TokensOnly,
    /// A chain of SHA-256, of which events have the first eight bytes as a signed number.
    Chain {
        /// The chain of a salted prompt begins with the salt (`SGLang` since 0.5.18).
        salted: bool,
        /// Adapter and salt are mixed into the hash of the event, and the adapter is named (`SGLang`'s `dynamo`
        /// format).
        namespaced: bool,
    },
    /// The same chain, written as an unsigned number (`TokenSpeed`).
    UnsignedChain,
}

impl PageHash {
    /// What a chain begins with.
    pub(super) fn seed(self, keys: &Keys) -> Option<Digest> {
        let salt = keys.salt.as_deref().filter(|_| matches!(self, Self::Chain { salted: true, .. }))?;
        Some(sha256(&[b"sglang-cache-salt-v1\0", salt.as_bytes()]))
    }

    /// The digest of a page behind another, or behind the seed.
    pub(super) fn page(self, before: Option<&Digest>, ids: &[u32]) -> Digest {
        let before = before.filter(|_| self != Self::TokensOnly);
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        sha256(&[before.map_or(&[], |digest| &digest[..]), &bytes])
    }

    /// What an event says: the 64 bits of a page.
    pub(super) fn bits(self, digest: &Digest, ids: &[u32], pairs: bool, keys: &Keys) -> u64 {
        match self {
            Self::TokensOnly if pairs => tuple_hash(ids.chunks_exact(2).map(tuple_of_ids)),
            Self::TokensOnly => tuple_of_ids(ids),
            Self::UnsignedChain => head(digest),
            Self::Chain { namespaced, .. } => match namespace(keys).filter(|_| namespaced) {
                Some(namespace) => head(&sha256(&[&namespace, &head(digest).to_be_bytes()])),
                None => head(digest),
            },
        }
    }

    /// Those bits as they are written.
    pub(super) fn written(self, bits: u64) -> OwnedHash {
        match self {
            Self::UnsignedChain => OwnedHash::Unsigned(bits),
            Self::TokensOnly | Self::Chain { .. } => OwnedHash::Signed(bits.cast_signed()),
        }
    }
}

/// What the `dynamo` format mixes in. A byte for presence and the length keep two parts from reading as one.
fn namespace(keys: &Keys) -> Option<Digest> {
    if keys.lora.is_none() && keys.salt.is_none() {
        return None;
    }
    let mut bytes = b"sglang-kv-event-namespace-v1".to_vec();
    for part in [&keys.lora, &keys.salt] {
        match part {
            None => bytes.push(0),
            Some(part) => {
                bytes.push(1);
                bytes.extend((part.len() as u64).to_le_bytes());
                bytes.extend(part.as_bytes());
            }
        }
    }
    Some(sha256(&[&bytes]))
}

fn sha256(parts: &[&[u8]]) -> Digest {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize().into()
}

fn head(digest: &Digest) -> u64 {
    digest[..8].iter().fold(0, |bits, byte| bits << 8 | u64::from(*byte))
}

/// A small integer is its own hash in Python.
fn tuple_of_ids(ids: &[u32]) -> u64 {
    tuple_hash(ids.iter().map(|id| u64::from(*id)))
}

/// The hash that `CPython` gives to a tuple with items of these hashes.
fn tuple_hash(items: impl ExactSizeIterator<Item = u64>) -> u64 {
    const PRIME_1: u64 = 11_400_714_785_074_694_791;
    const PRIME_2: u64 = 14_029_467_366_897_019_727;
    const PRIME_5: u64 = 2_870_177_450_012_600_261;
    const LENGTH_MASK: u64 = PRIME_5 ^ 0x0035_d373;
    /// -1 means an error there, so no tuple hashes to it.
    const INSTEAD_OF_MINUS_ONE: u64 = 1_546_275_796;
    let length = items.len() as u64;
    let mixed = items.fold(PRIME_5, |hash, item| {
        hash.wrapping_add(item.wrapping_mul(PRIME_2)).rotate_left(31).wrapping_mul(PRIME_1)
    });
    match mixed.wrapping_add(length ^ LENGTH_MASK) {
        u64::MAX => INSTEAD_OF_MINUS_ONE,
        hash => hash,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHAIN: PageHash = PageHash::Chain { salted: true, namespaced: false };

    fn keys(lora: Option<&str>, salt: Option<&str>) -> Keys {
        Keys { lora: lora.map(str::to_owned), salt: salt.map(str::to_owned), ..Keys::default() }
    }

    fn two_pages(hash: PageHash, keys: &Keys) -> [i64; 2] {
        let first = hash.page(hash.seed(keys).as_ref(), &[0, 1, 2, 3]);
        let second = hash.page(Some(&first), &[4, 5, 6, 7]);
        [
            hash.bits(&first, &[0, 1, 2, 3], false, keys).cast_signed(),
            hash.bits(&second, &[4, 5, 6, 7], false, keys).cast_signed(),
        ]
    }

    #[test]
    fn pages_hash_as_the_engine_hashes_them() {
        let plain = [-4_977_211_910_723_114_241, 90_435_953_025_800_507];
        assert_eq!(two_pages(CHAIN, &keys(None, None)), plain);
        let salted = [-6_640_336_196_978_890_403, 8_218_329_484_204_927_653];
        assert_eq!(two_pages(CHAIN, &keys(None, Some("tenant-A"))), salted);
        assert_eq!(two_pages(CHAIN, &keys(Some("lora-a"), None)), plain, "adapters are not in the hash");
        let unsalted = PageHash::Chain { salted: false, namespaced: false };
        assert_eq!(two_pages(unsalted, &keys(None, Some("tenant-A"))), plain);
    }

    /// Values of `namespaced_block_hash` and of Python 3.11's `hash`.
    #[test]
    fn namespaces_and_tuples() {
        let namespaced = PageHash::Chain { salted: true, namespaced: true };
        assert_eq!(two_pages(namespaced, &keys(None, None)), two_pages(CHAIN, &keys(None, None)));
        assert_eq!(
            two_pages(namespaced, &keys(Some("lora-a"), None)),
            [7_060_717_882_477_762_915, 3_211_318_025_759_000_499]
        );
        assert_eq!(
            two_pages(namespaced, &keys(Some("lora-a"), Some("tenant-A"))),
            [-7_994_106_416_638_861_193, 8_224_643_263_387_479_243]
        );
        assert_eq!(
            two_pages(PageHash::TokensOnly, &keys(None, None)),
            [-8_281_178_343_658_874_797, 2_940_439_745_926_851_066]
        );
        let pairs = PageHash::TokensOnly.bits(&[0; 32], &[0, 1, 1, 2], true, &keys(None, None));
        assert_eq!(pairs.cast_signed(), -6_656_892_016_142_386_837);
    }
}
