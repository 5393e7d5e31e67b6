//! The fields of events: their values, and which of them there were.

use crate::event::{Hash, RejectReason};

use super::decode::{Parser, Trouble};
use super::json::{Fault, Items, Raw};

/// The fields of an object that were read already.
#[derive(Default)]
pub(super) struct Seen(u32);

impl<'f> Parser<'_, '_, 'f> {
    /// A block's hash: a number, or a digest in hexadecimal digits, known by its first eight bytes.
    pub(super) fn hash(&mut self) -> Result<Hash, Trouble> {
        let bad_hash = Trouble::Unfit(RejectReason::BadHash);
        match self.reader.unsigned() {
            Ok(bits) => return Ok(Hash { bits, wide_start: 0, wide_len: 0, negative: false }),
            Err(Fault::Mismatch) => {}
            Err(fault) => return Err(fault.into()),
        }
        let digits = match self.reader.text() {
            Err(Fault::Mismatch) => return Err(bad_hash),
            text => text?.bytes,
        };
        let digests = &mut self.sink.scratch.digests;
        let start = digests.len();
        let digest = hex_bytes(digits, digests).and_then(|()| digests[start..].first_chunk::<8>().copied());
        match (digest, u32::try_from(start), u16::try_from(digests.len() - start)) {
            (Some(head), Ok(wide_start), Ok(wide_len)) => {
                Ok(Hash { bits: u64::from_be_bytes(head), wide_start, wide_len, negative: false })
            }
            _ => Err(bad_hash),
        }
    }

    /// A text that an event keeps.
    pub(super) fn text(&mut self) -> Result<&'f str, Trouble> {
        let raw: Raw<'f> = self.reader.text()?;
        self.texts.read(raw).ok_or(Trouble::Unfit(RejectReason::BadType))
    }

    pub(super) fn optional_u32(&mut self) -> Result<Option<u32>, Trouble> {
        if self.reader.take_null() {
            return Ok(None);
        }
        let number = self.reader.unsigned()?;
        u32::try_from(number).map(Some).map_err(|_| Trouble::Unfit(RejectReason::BadType))
    }

    /// Notes a field, by its number in its object; true, and counted, if it was there before. The last one
    /// counts.
    pub(super) fn is_again(&mut self, seen: &mut Seen, field: u32) -> bool {
        let again = seen.0 & 1 << field != 0;
        seen.0 |= 1 << field;
        if again {
            self.count_unknown();
        }
        again
    }

    /// Passes over a field that is known but says nothing that is needed.
    pub(super) fn skip_known(&mut self, seen: &mut Seen, field: u32) -> Result<(), Trouble> {
        self.is_again(seen, field);
        Ok(self.reader.skip_value()?)
    }

    /// Passes over a field that is not known, and counts it.
    pub(super) fn skip_unknown(&mut self) -> Result<(), Trouble> {
        self.count_unknown();
        Ok(self.reader.skip_value()?)
    }

    /// Enters a list whose items are of a kind that a fault is named after.
    pub(super) fn list(&mut self, reason: RejectReason) -> Result<Items, Trouble> {
        match self.reader.enter(b'[') {
            Err(Fault::Mismatch) => Err(Trouble::Unfit(reason)),
            items => Ok(items?),
        }
    }

    fn count_unknown(&mut self) {
        self.out.unknown_fields = self.out.unknown_fields.saturating_add(1);
    }
}

/// Appends the bytes that pairs of digits stand for. `None` if they do not, or if no digest is that long.
fn hex_bytes(digits: &[u8], out: &mut Vec<u8>) -> Option<()> {
    /// `SHA-256` has 64 digits; what has less than 64 bits tells no blocks apart.
    const DIGITS: std::ops::RangeInclusive<usize> = 16..=128;
    if !DIGITS.contains(&digits.len()) || !digits.len().is_multiple_of(2) {
        return None;
    }
    for pair in digits.chunks_exact(2) {
        let value = |digit: u8| char::from(digit).to_digit(16);
        out.push((value(pair[0])? << 4 | value(pair[1])?) as u8);
    }
    Some(())
}
