//! The fields of events: their values, and which of them there were.

use crate::event::{RejectReason, bounded};
use crate::hash::Hash;

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
            Ok(bits) => return Ok(Hash::integer(bits, false)),
            Err(Fault::Mismatch) => {}
            Err(fault) => return Err(fault.into()),
        }
        let digits = match self.reader.text() {
            Err(Fault::Mismatch) => return Err(bad_hash),
            text => text?.bytes,
        };
        Hash::from_hex(digits, &mut self.sink.scratch.digests).ok_or(bad_hash)
    }

    /// A text that an event keeps.
    pub(super) fn text(&mut self) -> Result<&'f str, Trouble> {
        let raw: Raw<'f> = self.reader.text()?;
        let text = self.texts.read(raw).ok_or(Trouble::Unfit(RejectReason::BadType))?;
        bounded(text).map_err(Trouble::Unfit)
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
