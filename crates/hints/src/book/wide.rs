//! Hashes of any other width than eight bytes: each gets a number, so that everything else has numbers alone.

use std::collections::HashMap;
use std::sync::Arc;

/// Numbers of wide hashes, as long as somebody uses them.
#[derive(Debug, Default)]
pub(super) struct Wide {
    numbers: HashMap<Arc<[u8]>, u64>,
    used: HashMap<u64, (Arc<[u8]>, u32)>,
    next: u64,
    bytes: usize,
}

/// Two map entries and a shared slice, roughly.
const ENTRY_BYTES: usize = 128;

impl Wide {
    pub(super) fn find(&self, hash: &[u8]) -> Option<u64> {
        self.numbers.get(hash).copied()
    }

    /// The number of a hash, with or without users.
    pub(super) fn number(&mut self, hash: &[u8]) -> u64 {
        if let Some(number) = self.find(hash) {
            return number;
        }
        let number = self.next;
        self.next += 1;
        let shared: Arc<[u8]> = hash.into();
        self.bytes += hash.len() + ENTRY_BYTES;
        self.numbers.insert(shared.clone(), number);
        self.used.insert(number, (shared, 0));
        number
    }

    /// One more prefix has this hash.
    pub(super) fn hold(&mut self, number: u64) {
        if let Some((_, users)) = self.used.get_mut(&number) {
            *users += 1;
        }
    }

    /// One less. The last one takes it away.
    pub(super) fn release(&mut self, number: u64) {
        let Some((hash, users)) = self.used.get_mut(&number) else { return };
        *users = users.saturating_sub(1);
        if *users == 0 {
            self.bytes -= hash.len() + ENTRY_BYTES;
            self.numbers.remove(&**hash);
            self.used.remove(&number);
            if self.numbers.capacity() > 64 && self.numbers.len() * 8 < self.numbers.capacity() {
                self.numbers.shrink_to(self.numbers.len() * 2);
                self.used.shrink_to(self.used.len() * 2);
            }
        }
    }

    pub(super) fn hash(&self, number: u64) -> Option<&[u8]> {
        self.used.get(&number).map(|(hash, _)| &**hash)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_that_nobody_uses_is_gone() {
        let mut wide = Wide::default();
        let number = wide.number(b"abc");
        wide.hold(number);
        wide.hold(number);
        assert_eq!(wide.number(b"abc"), number);
        wide.release(number);
        assert_eq!(wide.find(b"abc"), Some(number));
        assert_eq!(wide.hash(number), Some(&b"abc"[..]));
        wide.release(number);
        assert_eq!((wide.find(b"abc"), wide.hash(number), wide.bytes()), (None, None, 0));
        assert_ne!(wide.number(b"abc"), number, "numbers never come back");
    }
}
