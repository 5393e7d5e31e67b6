//! `SGLang`'s own hash of a page, which kvplane never uses as a key, only to see whether an engine hashes like this.

use sha2::{Digest as _, Sha256};

/// The digest of a page: `sha256(digest of the page before || token ids as u32 LE)`, as `SGLang` has it since 0.5.6. A salted
/// chain begins with [`sglang_salt_digest`] instead of nothing. Pairs of tokens go in as both their ids.
pub fn sglang_page_digest(before: Option<&[u8; 32]>, ids: &[u32]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    if let Some(before) = before {
        hasher.update(before);
    }
    for id in ids {
        hasher.update(id.to_le_bytes());
    }
    hasher.finalize().into()
}

/// What a salted chain begins with.
pub fn sglang_salt_digest(salt: &str) -> [u8; 32] {
    let mut hasher = Sha256::new();
    hasher.update(b"sglang-cache-salt-v1\0");
    hasher.update(salt.as_bytes());
    hasher.finalize().into()
}

/// The 64 bits of a page's digest that events carry: the first eight bytes.
pub fn sglang_event_hash(digest: &[u8; 32]) -> i64 {
    digest.first_chunk().map_or(0, |first| i64::from_be_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_as_the_engine_does() {
        let first = sglang_page_digest(None, &[0, 1, 2, 3]);
        let second = sglang_page_digest(Some(&first), &[4, 5, 6, 7]);
        let hashes = [first, second].map(|digest| sglang_event_hash(&digest));
        assert_eq!(hashes, [-4_977_211_910_723_114_241, 90_435_953_025_800_507]);
        let first = sglang_page_digest(Some(&sglang_salt_digest("tenant-A")), &[0, 1, 2, 3]);
        let second = sglang_page_digest(Some(&first), &[4, 5, 6, 7]);
        let hashes = [first, second].map(|digest| sglang_event_hash(&digest));
        assert_eq!(hashes, [-6_640_336_196_978_890_403, 8_218_329_484_204_927_653]);
    }
}
