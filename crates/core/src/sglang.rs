//! `SGLang`'s own hash of a page, which kvplane never uses as a key, only to see whether an engine hashes
//! like this.

use sha2::{Digest as _, Sha256};

/// The digest of a page: `sha256(digest of the page before || token ids as u32 LE)`, as `SGLang` has it since
/// 0.5.6. A salted chain begins with [`sglang_salt_digest`] instead of nothing. Pairs of tokens go in as both
/// their ids.
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

/// A page's hash as events of the `dynamo` format have it (since 0.5.22), where a request has an adapter or a
/// salt: both are mixed in once more.
pub fn sglang_namespaced_hash(hash: i64, adapter: Option<&str>, salt: Option<&str>) -> i64 {
    let mut names = Sha256::new();
    names.update(b"sglang-kv-event-namespace-v1");
    for name in [adapter, salt] {
        names.update([u8::from(name.is_some())]);
        if let Some(name) = name {
            names.update((name.len() as u64).to_le_bytes());
            names.update(name.as_bytes());
        }
    }
    let mut hasher = Sha256::new();
    hasher.update(names.finalize());
    hasher.update(hash.to_be_bytes());
    sglang_event_hash(&hasher.finalize().into())
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

    #[test]
    fn namespaces_as_the_engine_does() {
        let plain = sglang_event_hash(&sglang_page_digest(None, &[0, 1, 2, 3]));
        assert_eq!(sglang_namespaced_hash(plain, Some("lora-a"), None), 7_060_717_882_477_762_915);
        let salt = sglang_salt_digest("tenant-A");
        let salted = sglang_event_hash(&sglang_page_digest(Some(&salt), &[0, 1, 2, 3]));
        let both = sglang_namespaced_hash(salted, Some("lora-a"), Some("tenant-A"));
        assert_eq!(both, -7_994_106_416_638_861_193);
    }
}
