//! JSON from a borrowed slice: as much of a reader as events need.

use super::token;

/// Why a value could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The bytes end before the value does.
    Truncated,
    /// Bytes that no JSON has there, or nested deeper than anything an engine sends.
    NotJson,
    /// A value, but of another type than was asked for. Nothing was consumed but white space.
    Mismatch,
}

/// A text between its quotes, as it stands there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Raw<'f> {
    pub(super) bytes: &'f [u8],
    /// Where its opening quote is.
    pub(super) position: usize,
    /// Whether a backslash is in it, so that the bytes are not yet the text.
    pub(super) escaped: bool,
}

/// A position in a slice.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'f> {
    rest: &'f [u8],
    whole: &'f [u8],
}

/// How far an object or a list was read.
#[derive(Debug)]
pub(super) struct Items {
    close: u8,
    first: bool,
}

impl<'f> Reader<'f> {
    pub(super) fn new(bytes: &'f [u8]) -> Self {
        Self { rest: bytes, whole: bytes }
    }

    pub(super) fn position(&self) -> usize {
        self.whole.len() - self.rest.len()
    }

    /// Goes to a position; to the end if it lies beyond.
    pub(super) fn seek(&mut self, position: usize) {
        self.rest = self.whole.get(position..).unwrap_or_default();
    }

    /// Goes on with what is left of the rest.
    pub(super) fn seek_rest(&mut self, rest: &'f [u8]) {
        self.rest = rest;
    }

    /// What is still to be read.
    pub(super) fn rest(&self) -> &'f [u8] {
        self.rest
    }

    /// The first byte of what comes next. White space before it is consumed.
    #[inline]
    pub(super) fn peek(&mut self) -> Result<u8, Fault> {
        while let [b' ' | b'\n' | b'\r' | b'\t', rest @ ..] = self.rest {
            self.rest = rest;
        }
        self.rest.first().copied().ok_or(Fault::Truncated)
    }

    /// Consumes a byte if it is the next one.
    #[inline]
    pub(super) fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Ok(byte);
        if found {
            self.rest = &self.rest[1..];
        }
        found
    }

    /// Consumes a null if one is next.
    pub(super) fn take_null(&mut self) -> bool {
        let found = self.peek().is_ok() && self.rest.starts_with(b"null");
        if found {
            self.rest = &self.rest[4..];
        }
        found
    }

    /// Enters an object or a list, by its opening bracket.
    #[inline]
    pub(super) fn enter(&mut self, open: u8) -> Result<Items, Fault> {
        if self.take(open) {
            // Closing brackets stand two places behind opening ones in ASCII.
            Ok(Items { close: open + 2, first: true })
        } else {
            Err(self.mismatch())
        }
    }

    /// Whether another item follows; consumes the comma before it, or the closing bracket.
    #[inline]
    pub(super) fn next(&mut self, items: &mut Items) -> Result<bool, Fault> {
        let byte = self.peek()?;
        let first = std::mem::take(&mut items.first);
        if byte == items.close {
            self.rest = &self.rest[1..];
            Ok(false)
        } else if first {
            Ok(true)
        } else if byte == b',' {
            self.rest = &self.rest[1..];
            Ok(true)
        } else {
            Err(Fault::NotJson)
        }
    }

    /// The next key of an object, without its quotes; `None` at the object's end.
    #[inline]
    pub(super) fn next_key(&mut self, items: &mut Items) -> Result<Option<&'f [u8]>, Fault> {
        if !self.next(items)? {
            return Ok(None);
        }
        let key = match self.text() {
            Err(Fault::Mismatch) => return Err(Fault::NotJson),
            key => key?.bytes,
        };
        if self.peek()? != b':' {
            return Err(Fault::NotJson);
        }
        self.rest = &self.rest[1..];
        Ok(Some(key))
    }

    /// A text.
    #[inline]
    pub(super) fn text(&mut self) -> Result<Raw<'f>, Fault> {
        if self.peek()? != b'"' {
            return Err(self.mismatch());
        }
        let position = self.position();
        let inner = &self.rest[1..];
        let mut escaped = false;
        let mut at = 0;
        loop {
            match inner.get(at) {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    at += 2;
                }
                Some(_) => at += 1,
                None => return Err(Fault::Truncated),
            }
        }
        self.rest = &inner[at + 1..];
        Ok(Raw { bytes: &inner[..at], position, escaped })
    }

    /// A number without sign, fraction or exponent, of at most 64 bits.
    #[inline]
    pub(super) fn unsigned(&mut self) -> Result<u64, Fault> {
        self.peek()?;
        let mut value = Some(0u64);
        let mut at = 0;
        while let Some(digit) = self.rest.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|d| *d < 10) {
            value = value.and_then(|value| value.checked_mul(10)?.checked_add(u64::from(digit)));
            at += 1;
        }
        let is_whole = at > 0 && !matches!(self.rest.get(at), Some(b'.' | b'e' | b'E'));
        match value.filter(|_| is_whole) {
            Some(value) => {
                self.rest = &self.rest[at..];
                Ok(value)
            }
            None => Err(self.mismatch()),
        }
    }

    /// Passes over one value. Inside of it only brackets and quotes are looked at.
    pub(super) fn skip_value(&mut self) -> Result<(), Fault> {
        match self.peek()? {
            b'"' => self.text().map(|_| ()),
            b'{' | b'[' => self.skip_nested(),
            byte if begins_word(byte) => {
                let is_word = |byte: &u8| begins_word(*byte) || matches!(byte, b'.' | b'+');
                let length = self.rest.iter().take_while(|byte| is_word(byte)).count();
                self.rest = &self.rest[length..];
                Ok(())
            }
            _ => Err(Fault::NotJson),
        }
    }

    fn skip_nested(&mut self) -> Result<(), Fault> {
        /// What an engine sends is nested seven deep.
        const MAX_DEPTH: u32 = 64;
        // A bit per open bracket, the innermost lowest: set for an object.
        let mut open = 0u64;
        let mut depth = 0;
        loop {
            let Some((&byte, rest)) = self.rest.split_first() else { return Err(Fault::Truncated) };
            match byte {
                b'"' => {
                    self.text()?;
                    continue;
                }
                b'{' | b'[' => {
                    // Tokens are nearly all of a body.
                    if let Some((_, rest)) = token::plain(self.rest) {
                        self.rest = rest;
                    } else {
                        if depth == MAX_DEPTH {
                            return Err(Fault::NotJson);
                        }
                        depth += 1;
                        open = open << 1 | u64::from(byte == b'{');
                        self.rest = rest;
                        continue;
                    }
                }
                b'}' | b']' => {
                    if open & 1 != u64::from(byte == b'}') {
                        return Err(Fault::NotJson);
                    }
                    depth -= 1;
                    open >>= 1;
                    self.rest = rest;
                }
                _ => {
                    self.rest = rest;
                    continue;
                }
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// What it means that the next value is not the one that was asked for.
    fn mismatch(&self) -> Fault {
        match self.rest.first() {
            None => Fault::Truncated,
            Some(b'"' | b'{' | b'[') => Fault::Mismatch,
            Some(byte) if begins_word(*byte) => Fault::Mismatch,
            Some(_) => Fault::NotJson,
        }
    }
}

/// Whether a number, `null`, `true`, `false` or one of Python's words for odd numbers begins so.
fn begins_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}
