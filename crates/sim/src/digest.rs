//! Block hashes as an engine makes them: a chain over tokens and extra keys.

use kvplane_wire::{OwnedExtraKey, OwnedHash};
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Bytes of a digest.
const WIDTH: usize = 32;

/// A block's hash within one simulated engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; WIDTH]);

/// How block hashes are written on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HashForm {
    /// An unsigned 64-bit integer: vLLM since 0.10.2.
    #[default]
    Unsigned,
    /// A signed one: vLLM before that.
    Signed,
    /// 16 bytes: xxhash without the integer option.
    Bytes16,
    /// 32 bytes: sha256 without the integer option.
    Bytes32,
}

impl Digest {
    /// The digest of a block that follows `parent`. `keys` is whatever else the engine mixes in.
    pub fn of(seed: u64, parent: Option<&Digest>, tokens: &[u32], keys: &[OwnedExtraKey]) -> Self {
        let mut bytes = Vec::with_capacity(WIDTH + 4 * tokens.len());
        if let Some(parent) = parent {
            bytes.extend_from_slice(&parent.0);
        }
        bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        for key in keys {
            match key {
                OwnedExtraKey::Text(text) => bytes.extend_from_slice(text.as_bytes()),
                OwnedExtraKey::Bytes(digest) => bytes.extend_from_slice(digest),
                OwnedExtraKey::Integer(number) => bytes.extend_from_slice(&number.to_le_bytes()),
                OwnedExtraKey::Multimodal(id, offset) => {
                    bytes.extend_from_slice(id.as_bytes());
                    // No UTF-8 text holds this byte either.
                    bytes.push(0xfe);
                    bytes.extend_from_slice(&offset.to_le_bytes());
                }
            }
            // No UTF-8 text holds this byte, so two texts never read as one.
            bytes.push(0xff);
        }
        let mut digest = [0; WIDTH];
        for (half, seed) in digest.chunks_mut(WIDTH / 2).zip([seed, !seed]) {
            half.copy_from_slice(&xxh3_128_with_seed(&bytes, seed).to_be_bytes());
        }
        Self(digest)
    }

    /// The whole digest.
    pub fn bytes(&self) -> &[u8; WIDTH] {
        &self.0
    }

    /// The 64 bits by which a consumer knows the block: the last eight bytes, in every form.
    pub fn bits(&self) -> u64 {
        self.0[WIDTH - 8..].iter().fold(0, |bits, byte| (bits << 8) | u64::from(*byte))
    }

    /// The hash as it goes on the wire.
    pub fn in_form(&self, form: HashForm) -> OwnedHash {
        match form {
            HashForm::Unsigned => OwnedHash::Unsigned(self.bits()),
            HashForm::Signed => OwnedHash::Signed(self.bits().cast_signed()),
            HashForm::Bytes16 => OwnedHash::Bytes(self.0[WIDTH - 16..].to_vec()),
            HashForm::Bytes32 => OwnedHash::Bytes(self.0.to_vec()),
        }
    }
}
