//! Block hashes as engines send them: integers, bytes and hexadecimal digits.

use std::ops::RangeInclusive;

/// An engine's own block hash.
///
/// `bits` is what parents and removals are resolved by: an integer as its 64-bit pattern, a digest by eight
/// of its bytes (big-endian), as its engine itself shortens it: vLLM, which sends bytes, by the last eight;
/// TensorRT-LLM, which sends hexadecimal digits, by the first eight. The whole digest stays reachable through
/// [`Batch::wide`](crate::Batch::wide).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hash {
    /// The 64 bits that identify the block within its stream.
    pub bits: u64,
    /// Where the full digest lies among the batch's digests; empty for integer hashes.
    pub(crate) wide_start: u32,
    pub(crate) wide_len: u16,
    /// True for integers that were negative on the wire.
    pub negative: bool,
    /// True for digests that were sent as hexadecimal digits.
    pub(crate) hex: bool,
}

/// How long a digest may be, in bytes. vLLM sends 16 or 32, TensorRT-LLM 32; what has less than 64 bits tells
/// no blocks apart.
const DIGEST_BYTES: RangeInclusive<usize> = 8..=64;

impl Hash {
    /// A hash that is an integer.
    #[inline]
    pub(crate) fn integer(bits: u64, negative: bool) -> Self {
        Self { bits, wide_start: 0, wide_len: 0, negative, hex: false }
    }

    /// A hash that is a digest, which is added to `digests`; `None` if it is too short or too long.
    pub(crate) fn from_bytes(bytes: &[u8], digests: &mut Vec<u8>) -> Option<Self> {
        let tail = bytes.last_chunk().filter(|_| DIGEST_BYTES.contains(&bytes.len()))?;
        let wide_start = u32::try_from(digests.len()).ok()?;
        let wide_len = u16::try_from(bytes.len()).ok()?;
        digests.extend_from_slice(bytes);
        Some(Self { bits: u64::from_be_bytes(*tail), wide_start, wide_len, negative: false, hex: false })
    }

    /// The same for a digest in hexadecimal digits; `None` also if it is none.
    pub(crate) fn from_hex(digits: &[u8], digests: &mut Vec<u8>) -> Option<Self> {
        let start = digests.len();
        let wide_start = u32::try_from(start).ok()?;
        let wide_len = u16::try_from(digits.len() / 2).ok()?;
        if !is_hex_digest(digits) {
            return None;
        }
        digests.extend(digits.chunks_exact(2).map(|pair| nibble(pair[0]) << 4 | nibble(pair[1])));
        let bits = digests[start..].first_chunk().map(|head| u64::from_be_bytes(*head))?;
        Some(Self { bits, wide_start, wide_len, negative: false, hex: true })
    }

    /// The same for a digest that an engine would send in hexadecimal digits.
    pub(crate) fn from_hex_bytes(bytes: &[u8], digests: &mut Vec<u8>) -> Option<Self> {
        let head = *bytes.first_chunk()?;
        Self::from_bytes(bytes, digests).map(|hash| Self {
            bits: u64::from_be_bytes(head),
            hex: true,
            ..hash
        })
    }

    /// Whether the engine sent a digest as hexadecimal digits.
    pub fn is_hex(self) -> bool {
        self.hex
    }

    /// Whether the engine sent a whole digest rather than an integer.
    pub fn is_wide(self) -> bool {
        self.wide_len > 0
    }
}

/// Whether a text is a digest in hexadecimal digits.
pub(crate) fn is_hex_digest(digits: &[u8]) -> bool {
    digits.len().is_multiple_of(2)
        && DIGEST_BYTES.contains(&(digits.len() / 2))
        && digits.iter().all(u8::is_ascii_hexdigit)
}

/// The value of a hexadecimal digit.
fn nibble(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20).wrapping_sub(b'a').wrapping_add(10),
    }
}
