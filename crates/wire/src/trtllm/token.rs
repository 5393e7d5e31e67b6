//! A token as servers write nearly all of them, read by its bytes.
//!
//! A token id of five digits takes sixty bytes, so tokens are nearly all of a body. Comparing what does not
//! change between them is several times as fast as reading an object.

const HEAD: &[u8] = br#"{"type":"unique_token","token_id":"#;
const TAIL: &[u8] = br#","token_extra_id":0}"#;

/// Digits that fit into 32 bits whatever they are. Longer ids are left to the reader of objects.
const SAFE_DIGITS: usize = 9;

/// The token that `bytes` begin with, and what follows it. `None` for anything but a plain number without
/// an extra id, written without spaces.
#[inline]
pub(super) fn plain(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let bytes = bytes.strip_prefix(HEAD)?;
    let mut id = 0;
    let mut at = 0;
    while at < SAFE_DIGITS {
        let digit = bytes.get(at)?.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        id = id * 10 + u32::from(digit);
        at += 1;
    }
    if at == 0 {
        return None;
    }
    Some((id, bytes[at..].strip_prefix(TAIL)?))
}
