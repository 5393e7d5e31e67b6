//! The tokens of one block, once, for all that keep it.
//!
//! A block's tokens are kept by the state, by the entry that announced it and by whoever republishes it. So they are
//! shared, behind a pointer of one word, and packed: vocabularies have fewer than 2^24 tokens, so that three bytes
//! are enough for nearly all of them.
//!
//! ```text
//!   3 n bytes            n tokens below 2^24, three bytes each, little-endian
//!   4 n or 4 n + 1       others, four bytes each; one byte is added where the length could be taken for the above
//! ```

use smallvec::SmallVec;
use triomphe::ThinArc;

use crate::persist::{Damaged, Persist, Source};

/// Bytes of a token that is below 2^24.
const NARROW: usize = 3;
/// Bytes of any token.
const WIDE: usize = 4;

/// Room for the tokens of usual blocks, outside of the heap.
type Unpacked = SmallVec<[u32; 64]>;

/// The tokens of a block; none where only its content is known.
#[derive(Clone, Default)]
pub struct Tokens(Option<ThinArc<(), u8>>);

impl Tokens {
    fn bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |packed| &packed.slice)
    }

    /// How many bytes each takes.
    fn width(&self) -> usize {
        if self.bytes().len().is_multiple_of(NARROW) { NARROW } else { WIDE }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.bytes().len() / self.width()
    }

    /// Whether none are known.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// In their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u32> + Clone {
        self.bytes().chunks_exact(self.width()).map(|token| match *token {
            [a, b, c] => u32::from_le_bytes([a, b, c, 0]),
            [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
            _ => 0,
        })
    }

    /// In a list of their own.
    pub fn to_vec(&self) -> Vec<u32> {
        self.iter().collect()
    }

    /// In a list of their own, which is not on the heap for blocks of usual sizes.
    pub fn unpacked(&self) -> Unpacked {
        self.iter().collect()
    }

    /// Bytes of their allocation before it is rounded up.
    pub(crate) fn heap_len(&self) -> usize {
        const COUNT_AND_LENGTH: usize = 16;
        self.0.as_ref().map_or(0, |packed| COUNT_AND_LENGTH + packed.slice.len())
    }
}

impl From<&[u32]> for Tokens {
    fn from(tokens: &[u32]) -> Self {
        if tokens.is_empty() {
            return Self(None);
        }
        let mut bytes: SmallVec<[u8; 256]> = SmallVec::new();
        if tokens.iter().all(|&token| token >> 24 == 0) {
            bytes.reserve(NARROW * tokens.len());
            for token in tokens {
                let [a, b, c, _] = token.to_le_bytes();
                bytes.extend_from_slice(&[a, b, c]);
            }
        } else {
            bytes.reserve(WIDE * tokens.len() + 1);
            for token in tokens {
                bytes.extend_from_slice(&token.to_le_bytes());
            }
            if bytes.len().is_multiple_of(NARROW) {
                bytes.push(0);
            }
        }
        Self(Some(ThinArc::from_header_and_slice((), &bytes)))
    }
}

impl From<Vec<u32>> for Tokens {
    fn from(tokens: Vec<u32>) -> Self {
        Self::from(&tokens[..])
    }
}

impl<const N: usize> From<[u32; N]> for Tokens {
    fn from(tokens: [u32; N]) -> Self {
        Self::from(&tokens[..])
    }
}

impl PartialEq for Tokens {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Tokens {}

impl PartialEq<[u32]> for Tokens {
    fn eq(&self, other: &[u32]) -> bool {
        self.iter().eq(other.iter().copied())
    }
}

/// Prompts are shown to nobody who did not ask for them.
impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} tokens", self.len())
    }
}

impl Persist for Tokens {
    fn save(&self, out: &mut Vec<u8>) {
        let count = u32::try_from(self.len()).unwrap_or(u32::MAX);
        count.save(out);
        self.iter().for_each(|token| token.save(out));
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        let count = from.length()?;
        let mut tokens = Unpacked::new();
        for _ in 0..count {
            tokens.push(u32::load(from)?);
        }
        Ok(Self::from(&tokens[..]))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_packed_comes_back(
            tokens in proptest::collection::vec(prop_oneof![0..200_000_u32, any::<u32>()], 0..70)
        ) {
            let packed = Tokens::from(&tokens[..]);
            prop_assert_eq!(packed.len(), tokens.len());
            prop_assert_eq!(packed.is_empty(), tokens.is_empty());
            prop_assert!(packed == tokens[..]);
            prop_assert_eq!(packed.to_vec(), tokens);
            let mut saved = Vec::new();
            packed.save(&mut saved);
            prop_assert!(Tokens::load(&mut Source::new(&saved)).unwrap() == packed);
        }
    }

    #[test]
    fn a_usual_block_takes_one_word_and_three_bytes_a_token() {
        assert_eq!(size_of::<Tokens>(), 8);
        let narrow: Vec<u32> = (0..16).map(|at| 128_000 + at).collect();
        assert_eq!(Tokens::from(narrow).heap_len(), 64);
        for count in 1..9 {
            let wide = vec![u32::MAX - 1; count];
            assert_eq!(Tokens::from(&wide[..]).to_vec(), wide);
        }
    }

    #[test]
    fn tokens_are_not_shown() {
        assert_eq!(format!("{:?}", Tokens::from([7, 8])), "2 tokens");
    }
}
