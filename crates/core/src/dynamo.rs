//! The marks that Dynamo's vLLM workers put among a block's keys, so that its routers can tell them from
//! other texts.

/// What Dynamo writes before a cache salt. vLLM sends both as one text, with a prompt's first block.
const SALT_MARK: &str = "dynamo-cache-salt:";

/// The salt in a key that Dynamo marked. A mark without a salt is a text like any other.
pub fn dynamo_salt(key: &str) -> Option<&str> {
    key.strip_prefix(SALT_MARK).filter(|salt| !salt.is_empty())
}

/// The key as which Dynamo's routers recognise a salt.
pub fn dynamo_salt_key(salt: &str) -> String {
    format!("{SALT_MARK}{}", dynamo_salt(salt).unwrap_or(salt))
}

/// The number of an image that Dynamo's frontend marked: 16 hexadecimal digits and 48 zeros in the place of a
/// digest.
pub(crate) fn dynamo_image(key: &str) -> Option<u64> {
    let (digits, zeros) = key.as_bytes().split_at_checked(16)?;
    let marked = zeros.len() == 48
        && zeros.iter().all(|&digit| digit == b'0')
        && digits.iter().all(u8::is_ascii_hexdigit);
    marked.then(|| u64::from_str_radix(&key[..16], 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn salts_are_distinguished_from_other_texts() {
        assert_eq!(dynamo_salt("dynamo-cache-salt:tenant-a"), Some("tenant-a"));
        assert_eq!(dynamo_salt("dynamo-cache-salt:dynamo-cache-salt:"), Some("dynamo-cache-salt:"));
        for text in ["dynamo-cache-salt:", "dynamo-cache-salt", "tenant-a", "Dynamo-cache-salt:a", ""] {
            assert_eq!(dynamo_salt(text), None, "{text}");
        }
        assert_eq!(dynamo_salt_key("a"), "dynamo-cache-salt:a");
        assert_eq!(dynamo_salt_key("dynamo-cache-salt:a"), "dynamo-cache-salt:a");
    }

    #[test]
    fn images_are_distinguished_from_other_digests() {
        let zeros = "0".repeat(48);
        assert_eq!(dynamo_image(&format!("0123456789abcdef{zeros}")), Some(0x0123_4567_89ab_cdef));
        assert_eq!(dynamo_image(&format!("0123456789ABCDEF{zeros}")), Some(0x0123_4567_89ab_cdef));
        assert_eq!(dynamo_image(&"0".repeat(64)), Some(0));
        for text in [
            format!("+123456789abcdef{zeros}"),
            format!("0123456789abcdeg{zeros}"),
            format!("0123456789abcdef{}1", &zeros[1..]),
            format!("0123456789abcdef{}", &zeros[1..]),
            format!("0123456789abcdef0{zeros}"),
            format!("ä{}{zeros}", "0".repeat(14)),
            "0".repeat(15) + "ä" + &"0".repeat(47),
            String::new(),
        ] {
            assert_eq!(dynamo_image(&text), None, "{text}");
        }
    }
}
