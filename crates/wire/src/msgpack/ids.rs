//! Reading token ids, which are most of what engines send.

use super::reader::{Fault, Reader};

impl Reader<'_> {
    /// Appends `count` integers to `out`, each within `u32`. On a mismatch some may already be there.
    pub fn u32s(&mut self, count: usize, out: &mut Vec<u32>) -> Result<(), Fault> {
        out.reserve(count.min(self.rest.len()));
        let mut left = count;
        while left > 0 {
            left -= self.run(left, out);
            // What stopped the run: another form, or the end of the bytes is near.
            if left > 0 {
                out.push(self.integer()?.as_u32().ok_or(Fault::Mismatch)?);
                left -= 1;
            }
        }
        Ok(())
    }

    /// Appends up to `most` integers as long as they have one of the usual forms; returns how many. The
    /// widths of token ids follow no pattern that a processor could guess, so there is no branch on them.
    #[inline]
    fn run(&mut self, most: usize, out: &mut Vec<u32>) -> usize {
        let mut rest = self.rest;
        let before = out.len();
        for _ in 0..most {
            let Some(id) = ShortId::read(rest) else { break };
            out.push(id.value);
            rest = &rest[id.bytes..];
        }
        self.rest = rest;
        out.len() - before
    }

    /// The same for `count` arrays of two integers each.
    pub fn u32_pairs(&mut self, count: usize, out: &mut Vec<u32>) -> Result<(), Fault> {
        out.reserve(count.saturating_mul(2).min(self.rest.len()));
        let mut left = count;
        while left > 0 {
            left -= self.run_of_pairs(left, out);
            if left > 0 {
                if self.array_len()? != 2 {
                    return Err(Fault::Mismatch);
                }
                self.u32s(2, out)?;
                left -= 1;
            }
        }
        Ok(())
    }

    /// What [`run`](Self::run) is to [`u32s`](Self::u32s). Nearly always a pair begins with the id that the
    /// one before it ended with. Then its width is known without a look at it, and pairs cost little more
    /// than ids.
    #[inline]
    fn run_of_pairs(&mut self, most: usize, out: &mut Vec<u32>) -> usize {
        /// The head of an array of two.
        const PAIR: u8 = 0x92;
        let mut rest = self.rest;
        let before = out.len();
        let mut last: Option<ShortId> = None;
        for _ in 0..most {
            let Some((&PAIR, ids)) = rest.split_first() else { break };
            let first = match last.filter(|last| last.begins(ids)) {
                Some(last) => last,
                None => match ShortId::read(ids) {
                    Some(first) => first,
                    None => break,
                },
            };
            let behind = &ids[first.bytes..];
            let Some(second) = ShortId::read(behind) else { break };
            out.extend([first.value, second.value]);
            rest = &behind[second.bytes..];
            last = Some(second);
        }
        self.rest = rest;
        (out.len() - before) / 2
    }
}

/// How an unsigned integer of up to 32 bits lies in the eight bytes from its head: shift them left to drop
/// the head, then right to drop what follows.
#[derive(Clone, Copy)]
struct Form {
    /// With the head; 0 for anything else.
    bytes: u8,
    left: u8,
    right: u8,
}

/// By head byte.
static FORMS: [Form; 256] = {
    let mut forms = [Form { bytes: 0, left: 0, right: 0 }; 256];
    let mut head = 0;
    while head < 0x80 {
        forms[head] = Form { bytes: 1, left: 0, right: 56 };
        head += 1;
    }
    forms[0xcc] = Form { bytes: 2, left: 8, right: 56 };
    forms[0xcd] = Form { bytes: 3, left: 8, right: 48 };
    forms[0xce] = Form { bytes: 5, left: 8, right: 32 };
    forms
};

/// An integer of one of the usual forms.
#[derive(Clone, Copy)]
struct ShortId {
    value: u32,
    bytes: usize,
    /// Those bytes, the last one lowest.
    raw: u64,
}

impl ShortId {
    /// The integer at the start of `bytes`, of which eight must be there.
    #[inline]
    fn read(bytes: &[u8]) -> Option<Self> {
        let window: &[u8; 8] = bytes.first_chunk()?;
        // From the byte itself: the next integer waits for this.
        let form = FORMS[usize::from(window[0])];
        let window = u64::from_be_bytes(*window);
        let value = (window << form.left >> form.right) as u32;
        let raw = window >> (64 - 8 * u32::from(form.bytes.max(1)));
        (form.bytes > 0).then_some(Self { value, bytes: usize::from(form.bytes), raw })
    }

    /// Whether the same integer is at the start of `bytes`.
    #[inline]
    fn begins(&self, bytes: &[u8]) -> bool {
        let window = bytes.first_chunk().map(|window| u64::from_be_bytes(*window));
        window.is_some_and(|window| window >> (64 - 8 * self.bytes) == self.raw)
    }
}
