//! One pass over a body of JSON: whether it is valid, and where the values of its outermost object are.
//!
//! Nothing is built and no text is copied. A key that comes twice in one object is refused at any depth:
//! readers of JSON disagree about which of the two counts, and what routed a request would not be what the
//! engine computes.

use std::borrow::Cow;
use std::ops::Range;

use memchr::memchr2;

/// Containers within one another; `serde_json`'s bound, too.
const MAX_DEPTH: usize = 128;
/// Keys of all objects that are open at the same time.
const MAX_KEYS: usize = 64 << 10;
/// Objects with more keys are compared sorted.
const FEW_KEYS: usize = 16;

/// What is wrong, and where. Quotes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub(crate) struct Fault {
    what: &'static str,
    at: usize,
}

/// One field of the outermost object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Field<'b> {
    pub(crate) name: Cow<'b, str>,
    /// Where its value is.
    pub(crate) value: Range<usize>,
}

/// A valid object.
#[derive(Debug)]
pub(crate) struct Scanned<'b> {
    text: &'b str,
    fields: Vec<Field<'b>>,
    /// Behind its first brace.
    inside: usize,
}

/// Scans a body that is to be an object.
pub(crate) fn scan(body: &[u8]) -> Result<Scanned<'_>, Fault> {
    let text = std::str::from_utf8(body)
        .map_err(|error| Fault { what: "the body is not UTF-8", at: error.valid_up_to() })?;
    let mut scanner =
        Scanner { text, bytes: body, at: 0, open: Vec::new(), keys: Vec::new(), fields: Vec::new() };
    scanner.space();
    if scanner.peek() != Some(b'{') {
        return Err(scanner.fault("the body is not a JSON object"));
    }
    let inside = scanner.at + 1;
    scanner.document()?;
    scanner.space();
    if scanner.at < body.len() {
        return Err(scanner.fault("unexpected data after the JSON object"));
    }
    Ok(Scanned { text, fields: scanner.fields, inside })
}

impl<'b> Scanned<'b> {
    /// The value of a field, as it is written.
    pub(crate) fn get(&self, name: &str) -> Option<&'b str> {
        self.span(name).map(|span| &self.text[span])
    }

    /// Where the value of a field is.
    pub(crate) fn span(&self, name: &str) -> Option<Range<usize>> {
        self.fields.iter().find(|field| field.name == name).map(|field| field.value.clone())
    }

    /// Where another field can be put in, before all others.
    pub(crate) fn inside(&self) -> usize {
        self.inside
    }

    /// Whether it has no field.
    pub(crate) fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }
}

/// A container that is not closed.
#[derive(Debug, Clone, Copy)]
enum Open {
    Array,
    /// Its keys begin here among those of all.
    Object(usize),
}

struct Scanner<'b> {
    text: &'b str,
    bytes: &'b [u8],
    at: usize,
    open: Vec<Open>,
    keys: Vec<Cow<'b, str>>,
    fields: Vec<Field<'b>>,
}

impl Scanner<'_> {
    fn fault(&self, what: &'static str) -> Fault {
        Fault { what, at: self.at }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    fn document(&mut self) -> Result<(), Fault> {
        self.begin(b'{')?;
        // The container's first item may be its end instead.
        let mut first = true;
        while let Some(&open) = self.open.last() {
            self.space();
            let close = if matches!(open, Open::Array) { b']' } else { b'}' };
            if first && self.peek() == Some(close) {
                self.close(open)?;
                self.after()?;
                first = false;
                continue;
            }
            if matches!(open, Open::Object(_)) {
                self.key()?;
            }
            self.space();
            if self.open.len() == 1
                && let Some(name) = self.keys.last()
            {
                self.fields.push(Field { name: name.clone(), value: self.at..self.at });
            }
            match self.peek() {
                Some(bracket @ (b'{' | b'[')) => {
                    self.begin(bracket)?;
                    first = true;
                    continue;
                }
                Some(b'"') => drop(self.string()?),
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(b't') => self.word("true")?,
                Some(b'f') => self.word("false")?,
                Some(b'n') => self.word("null")?,
                _ => return Err(self.fault("a value is missing")),
            }
            self.after()?;
            first = false;
        }
        Ok(())
    }

    /// Behind a value: what is closed with it, up to the next comma or the end of all.
    fn after(&mut self) -> Result<(), Fault> {
        loop {
            if self.open.len() == 1
                && let Some(field) = self.fields.last_mut()
            {
                field.value.end = self.at;
            }
            let Some(&open) = self.open.last() else { return Ok(()) };
            self.space();
            match (self.peek(), open) {
                (Some(b','), _) => {
                    self.at += 1;
                    return Ok(());
                }
                (Some(b']'), Open::Array) | (Some(b'}'), Open::Object(_)) => self.close(open)?,
                _ => return Err(self.fault("a comma or the end of a list or object is missing")),
            }
        }
    }

    fn begin(&mut self, bracket: u8) -> Result<(), Fault> {
        if self.open.len() == MAX_DEPTH {
            return Err(self.fault("lists and objects are nested too deeply"));
        }
        self.at += 1;
        self.open.push(if bracket == b'[' { Open::Array } else { Open::Object(self.keys.len()) });
        Ok(())
    }

    fn close(&mut self, open: Open) -> Result<(), Fault> {
        self.at += 1;
        self.open.pop();
        let Open::Object(from) = open else { return Ok(()) };
        let keys = &mut self.keys[from..];
        let twice = if keys.len() <= FEW_KEYS {
            keys.iter().enumerate().any(|(at, key)| keys[..at].contains(key))
        } else {
            keys.sort_unstable();
            keys.windows(2).any(|pair| pair[0] == pair[1])
        };
        if twice {
            return Err(self.fault("a key comes twice in the object that ends"));
        }
        self.keys.truncate(from);
        Ok(())
    }

    fn key(&mut self) -> Result<(), Fault> {
        if self.peek() != Some(b'"') {
            return Err(self.fault("a key is missing"));
        }
        if self.keys.len() == MAX_KEYS {
            return Err(self.fault("there are too many keys"));
        }
        let (from, escaped) = (self.at, self.string()?);
        let key = if escaped {
            let decoded = serde_json::from_str::<String>(&self.text[from..self.at]);
            Cow::Owned(decoded.map_err(|_| self.fault("a key is not text"))?)
        } else {
            Cow::Borrowed(&self.text[from + 1..self.at - 1])
        };
        self.keys.push(key);
        self.space();
        if self.peek() != Some(b':') {
            return Err(self.fault("a colon is missing"));
        }
        self.at += 1;
        Ok(())
    }

    /// Whether anything in it is escaped.
    fn string(&mut self) -> Result<bool, Fault> {
        self.at += 1;
        let mut escaped = false;
        loop {
            let rest = &self.bytes[self.at..];
            let Some(end) = memchr2(b'"', b'\\', rest) else {
                self.at = self.bytes.len();
                return Err(self.fault("a string has no end"));
            };
            if rest[..end].iter().any(|byte| *byte < 0x20) {
                return Err(self.fault("a control character in a string is not escaped"));
            }
            self.at += end + 1;
            if rest[end] == b'"' {
                return Ok(escaped);
            }
            escaped = true;
            match self.peek() {
                Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
                Some(b'u') => {
                    let digits = self.bytes.get(self.at + 1..self.at + 5);
                    if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
                        return Err(self.fault("an escape in a string is none"));
                    }
                    self.at += 5;
                }
                _ => return Err(self.fault("an escape in a string is none")),
            }
        }
    }

    fn number(&mut self) -> Result<(), Fault> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits()?,
            _ => return Err(self.fault("a number is none")),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Fault> {
        let rest = &self.bytes[self.at..];
        let count = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
        if count == 0 {
            return Err(self.fault("a number is none"));
        }
        self.at += count;
        Ok(())
    }

    fn word(&mut self, word: &str) -> Result<(), Fault> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(self.fault("a value is missing"));
        }
        self.at += word.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
