//! What a block is: hashes that kvplane derives itself, so that they compare between engines.
//!
//! ```text
//! seed      = 1337 + xxh3_64(adapter name, seed 0) + xxh3_64(cache salt, seed 1)      (wrapping; absent = + 0)
//! content   = xxh3_64(tokens as u32 LE, seed)                                       plain blocks
//! content   = xxh3_64(tokens as u32 LE || key || key ..., seed)                      blocks with further keys
//! chain     : p0 = c0;  p_i = xxh3_64(p_(i-1) LE || c_i LE, seed 1337)
//! ```
//!
//! An adapter that is known by its number alone has the name `lora_id:<n>`. A further key is anything else
//! the engine mixed into the block: multimodal items, prompt embeddings, or a key that this build cannot
//! name; `keys` tells them from the names. Each is appended as one tag byte, a length and its bytes, in the
//! engine's order, so that no two different lists give the same bytes:
//!
//! ```text
//! multimodal   01 | u32 LE length of id | id | i64 LE offset relative to the block
//! bytes        02 | u32 LE length | bytes                 (a prompt-embedding digest)
//! text         03 | u32 LE length | utf-8
//! integer      04 | i64 LE
//! ```
//!
//! An image that Dynamo's frontend marked (16 hexadecimal digits and 48 zeros) has neither tag nor offset:
//! the numbers of all such images of a block follow as u64 LE, sorted, behind every other key. So these
//! blocks hash as in Dynamo.
//!
//! Bigram tokens (EAGLE) hash as their two tokens, one after the other.

use crate::dynamo::dynamo_image;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128};

const SEED: u64 = 1337;

/// What makes equal tokens different blocks: adapter and cache salt, folded into a seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Namespace(u64);

impl Namespace {
    /// No adapter, no salt.
    pub const PLAIN: Namespace = Namespace(SEED);

    /// The namespace of an adapter and a salt. Empty text is the same as absent.
    pub fn new(adapter: Option<&str>, salt: Option<&str>) -> Self {
        let part = |text: Option<&str>, seed| {
            text.filter(|t| !t.is_empty()).map_or(0, |t| xxh3_64_with_seed(t.as_bytes(), seed))
        };
        Self(SEED.wrapping_add(part(adapter, 0)).wrapping_add(part(salt, 1)))
    }

    /// The seed itself.
    pub fn seed(self) -> u64 {
        self.0
    }
}

/// A key beside the tokens that the engine mixed into a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKey<'a> {
    /// An image, audio clip or other item that covers part of the block.
    Multimodal {
        /// The item's identity.
        id: &'a str,
        /// Where the item begins, relative to the block's first token; negative when it began earlier.
        offset: i64,
    },
    /// Bytes: in vLLM the digest of prompt embeddings.
    Bytes(&'a [u8]),
    /// Text that is neither the adapter nor the salt.
    Text(&'a str),
    /// A number.
    Integer(i64),
}

/// The content hashes of plain blocks, one after the other; what is left at the end is no block. `block_size`
/// is at least one.
pub fn hash_blocks(tokens: &[u32], block_size: usize, namespace: Namespace, hashes: &mut Vec<u64>) {
    let blocks = tokens.chunks_exact(block_size);
    hashes.extend(blocks.map(|block| hash_plain(block, namespace)));
}

/// The content hash of a plain block.
#[inline]
fn hash_plain(tokens: &[u32], namespace: Namespace) -> u64 {
    if cfg!(target_endian = "little") {
        // The bytes in memory are the ones that are hashed.
        return xxh3_64_with_seed(bytemuck::cast_slice(tokens), namespace.0);
    }
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    xxh3_64_with_seed(&bytes, namespace.0)
}

/// Hashes blocks without allocating per block: it keeps its scratch space.
#[derive(Debug, Default)]
pub struct ContentHasher {
    scratch: Vec<u8>,
    /// The images of a block that Dynamo marked.
    images: Vec<u64>,
}

impl ContentHasher {
    /// The content hash of a plain block.
    pub fn plain(&mut self, tokens: &[u32], namespace: Namespace) -> u64 {
        hash_plain(tokens, namespace)
    }

    /// The content hash of a block with further keys; equal to [`Self::plain`] when there are none.
    pub fn keyed<'a>(
        &mut self,
        tokens: &[u32],
        keys: impl IntoIterator<Item = BlockKey<'a>>,
        namespace: Namespace,
    ) -> u64 {
        self.load(tokens);
        self.images.clear();
        for key in keys {
            match key {
                BlockKey::Multimodal { id: text, .. } | BlockKey::Text(text) => match dynamo_image(text) {
                    Some(image) => self.images.push(image),
                    None => self.push_key(key),
                },
                BlockKey::Bytes(_) | BlockKey::Integer(_) => self.push_key(key),
            }
        }
        self.images.sort_unstable();
        self.scratch.extend(self.images.iter().flat_map(|image| image.to_le_bytes()));
        xxh3_64_with_seed(&self.scratch, namespace.0)
    }

    fn load(&mut self, tokens: &[u32]) {
        self.scratch.clear();
        self.scratch.extend(tokens.iter().flat_map(|t| t.to_le_bytes()));
    }

    fn push_key(&mut self, key: BlockKey<'_>) {
        match key {
            BlockKey::Multimodal { id, offset } => {
                self.push_field(1, id.as_bytes());
                self.scratch.extend_from_slice(&offset.to_le_bytes());
            }
            BlockKey::Bytes(bytes) => self.push_field(2, bytes),
            BlockKey::Text(text) => self.push_field(3, text.as_bytes()),
            BlockKey::Integer(number) => {
                self.scratch.push(4);
                self.scratch.extend_from_slice(&number.to_le_bytes());
            }
        }
    }

    fn push_field(&mut self, tag: u8, bytes: &[u8]) {
        self.scratch.push(tag);
        self.scratch.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        self.scratch.extend_from_slice(bytes);
    }
}

/// The hash of a whole prefix, from the prefix before it and the block's content.
pub fn chain_hash(previous: Option<u64>, content: u64) -> u64 {
    let Some(previous) = previous else { return content };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&previous.to_le_bytes());
    bytes[8..].copy_from_slice(&content.to_le_bytes());
    xxh3_64_with_seed(&bytes, SEED)
}

/// The identity of a payload: two batches with equal digests are the same batch (timestamps never repeat).
pub fn digest(payload: &[u8]) -> u128 {
    xxh3_128(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(tokens: &[u32], adapter: Option<&str>, salt: Option<&str>) -> u64 {
        ContentHasher::default().plain(tokens, Namespace::new(adapter, salt))
    }

    #[test]
    fn vectors_shared_with_other_routers() {
        let tokens = [0, 1, 2, 3];
        assert_eq!(plain(&tokens, None, None), 9_143_094_415_614_847_814);
        assert_eq!(plain(&tokens, Some("adapter-a"), None), 6_665_157_333_201_000_639);
        assert_eq!(plain(&tokens, None, Some("tenant-a")), 17_009_624_042_690_211_646);
        assert_eq!(plain(&tokens, Some(""), Some("")), plain(&tokens, None, None));
        let first = plain(&tokens, None, None);
        let second = plain(&[4, 5, 6, 7], None, None);
        assert_eq!(chain_hash(Some(chain_hash(None, first)), second), 9_510_318_385_840_434_533);
    }

    #[test]
    fn keys_separate_blocks_and_their_order_and_borders_count() {
        let mut hasher = ContentHasher::default();
        let tokens = [1, 2, 3, 4];
        let mut hash = |keys: &[BlockKey<'_>]| hasher.keyed(&tokens, keys.iter().copied(), Namespace::PLAIN);
        let lists: [&[BlockKey<'_>]; 8] = [
            &[],
            &[BlockKey::Multimodal { id: "image", offset: 0 }],
            &[BlockKey::Multimodal { id: "image", offset: -3 }],
            &[BlockKey::Text("image")],
            &[BlockKey::Bytes(b"image")],
            &[BlockKey::Text("im"), BlockKey::Text("age")],
            &[BlockKey::Text("age"), BlockKey::Text("im")],
            &[BlockKey::Integer(7)],
        ];
        let all: Vec<u64> = lists.iter().map(|keys| hash(keys)).collect();
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b), "{:?}", lists[i]);
        }
    }
}
