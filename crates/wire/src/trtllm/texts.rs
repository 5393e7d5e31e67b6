//! Texts with escapes, taken out of a payload before its events are read.
//!
//! Events borrow their texts. One with a backslash is not in the payload as it reads, so it is written out
//! here first. Salts are the only texts that may have one, and hardly any does.

use std::ops::Range;

use super::json::{Raw, Reader};

/// The unescaped texts of one payload.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    text: String,
    /// Where the text at a position of the payload lies in `text`; `None` if it is no text. Sorted.
    places: Vec<(usize, Option<Range<usize>>)>,
}

/// Bytes and entries that are kept between payloads.
const KEPT: usize = 1 << 16;

impl Texts {
    /// Replaces what is here by the escaped texts of `payload`.
    pub(crate) fn fill(&mut self, payload: &[u8]) {
        self.text.clear();
        self.text.shrink_to(KEPT);
        self.places.clear();
        self.places.shrink_to(KEPT);
        if !payload.contains(&b'\\') {
            return;
        }
        let mut reader = Reader::new(payload);
        while let Some(quote) = reader.rest().iter().position(|byte| *byte == b'"') {
            reader.seek(reader.position() + quote);
            let Ok(raw) = reader.text() else { return };
            if raw.escaped {
                self.add(raw.position, &payload[raw.position..reader.position()]);
            }
        }
    }

    fn add(&mut self, position: usize, quoted: &[u8]) {
        let start = self.text.len();
        let place = serde_json::from_slice::<String>(quoted).ok().map(|text| {
            self.text.push_str(&text);
            start..self.text.len()
        });
        self.places.push((position, place));
    }

    /// A text of the payload as it reads; `None` if it is not UTF-8 or an escape in it is none.
    pub(super) fn read<'f>(&'f self, raw: Raw<'f>) -> Option<&'f str> {
        if !raw.escaped {
            return std::str::from_utf8(raw.bytes).ok();
        }
        let index = self.places.binary_search_by_key(&raw.position, |(position, _)| *position).ok()?;
        self.text.get(self.places[index].1.clone()?)
    }

    /// How many bytes are held on to.
    pub(crate) fn retained_bytes(&self) -> usize {
        self.text.capacity() + self.places.capacity() * size_of::<(usize, Option<Range<usize>>)>()
    }
}
