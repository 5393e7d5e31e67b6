//! Reads a JSON object field by field.
//!
//! A question is one long list of numbers and a few short fields. The list is read here, straight into the
//! caller's vector; every other value is left to serde. Neither ever reads a value twice.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::short_numbers;

/// What is wrong with a body, or with a value in it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) String);

/// A whole number as written: digits with or without a sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Whole {
    pub(super) negative: bool,
    pub(super) magnitude: u64,
}

/// Why a list could not be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ListError {
    /// It is not a list of whole numbers; the element that is not, where it is one.
    Element(usize),
    /// It is not a list at all.
    NotAList,
    /// It goes on after as many elements as there may be.
    TooLong,
}

/// The fields of one object.
#[derive(Debug)]
pub(super) struct Fields<'b> {
    bytes: &'b [u8],
    at: usize,
    first: bool,
}

impl<'b> Fields<'b> {
    /// Begins to read a body that holds one object.
    pub(super) fn open(bytes: &'b [u8]) -> Result<Self, Malformed> {
        let mut fields = Self { bytes, at: 0, first: true };
        if fields.peek() != Some(b'{') {
            return Err(Malformed("is not a JSON object".to_owned()));
        }
        fields.at += 1;
        Ok(fields)
    }

    /// The next field's name; its value must be read before the next call. `None` after the last.
    pub(super) fn next(&mut self) -> Result<Option<Cow<'b, str>>, Malformed> {
        match self.peek() {
            Some(b'}') => {
                self.at += 1;
                return match self.peek() {
                    None => Ok(None),
                    Some(_) => Err(self.unexpected()),
                };
            }
            Some(b',') if !self.first => self.at += 1,
            Some(_) if self.first => {}
            _ => return Err(self.unexpected()),
        }
        self.first = false;
        let name = match self.value::<Name<'b>>()? {
            Name(name) if self.peek() == Some(b':') => name,
            Name(_) => return Err(self.unexpected()),
        };
        self.at += 1;
        Ok(Some(name))
    }

    /// A value of any other kind.
    pub(super) fn value<T: Deserialize<'b>>(&mut self) -> Result<T, Malformed> {
        let mut values = serde_json::Deserializer::from_slice(&self.bytes[self.at..]).into_iter::<T>();
        let value = values.next();
        let read = values.byte_offset();
        match value {
            Some(Ok(value)) => {
                self.at += read;
                Ok(value)
            }
            // serde's own words may quote the value, and values are prompts.
            Some(Err(error)) if error.is_data() => Err(Malformed("has the wrong type".to_owned())),
            _ => Err(self.unexpected()),
        }
    }

    /// A value that nobody wants.
    pub(super) fn skip(&mut self) -> Result<(), Malformed> {
        self.value::<IgnoredAny>().map(|_| ())
    }

    /// A list of at most `max` whole numbers, each handed to `take`, which may refuse it, and may then be
    /// asked once more; `false` for null. Numbers may be written as text: readers that know only floats
    /// cannot write 64 bits otherwise.
    pub(super) fn numbers(
        &mut self,
        max: usize,
        mut take: impl FnMut(Whole) -> bool,
    ) -> Result<bool, ListError> {
        match self.peek() {
            Some(b'[') => self.at += 1,
            Some(b'n') => return self.value::<()>().map(|()| false).map_err(|_| ListError::NotAList),
            _ => return Err(ListError::NotAList),
        }
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(true);
        }
        // What can be read fast, then the rest with care.
        let (mut count, read) = short_numbers::read(&self.bytes[self.at..], max, |magnitude| {
            take(Whole { negative: false, magnitude })
        });
        self.at += read;
        loop {
            if count == max {
                return Err(ListError::TooLong);
            }
            if !self.whole().is_some_and(&mut take) {
                return Err(ListError::Element(count));
            }
            count += 1;
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(true);
                }
                // What looked like a whole number goes on: a fraction, an exponent, a missing comma.
                _ => return Err(ListError::Element(count - 1)),
            }
        }
    }

    fn whole(&mut self) -> Option<Whole> {
        let quoted = self.peek() == Some(b'"');
        self.at += usize::from(quoted);
        let negative = self.bytes.get(self.at) == Some(&b'-');
        self.at += usize::from(negative);
        let digits = &self.bytes[self.at..];
        let mut magnitude = 0_u64;
        let mut length = 0;
        while let Some(digit @ b'0'..=b'9') = digits.get(length) {
            magnitude = magnitude.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
            length += 1;
        }
        // JSON has no leading zeros.
        if length == 0 || (length > 1 && digits[0] == b'0') {
            return None;
        }
        self.at += length;
        if quoted {
            if self.bytes.get(self.at) != Some(&b'"') {
                return None;
            }
            self.at += 1;
        }
        Some(Whole { negative, magnitude })
    }

    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\n' | b'\t' | b'\r') = self.bytes.get(self.at) {
            self.at += 1;
        }
        self.bytes.get(self.at).copied()
    }

    fn unexpected(&self) -> Malformed {
        Malformed(format!("is not JSON, at byte {}", self.at))
    }
}

/// A field's name: borrowed, unless it is written with escapes.
#[derive(Deserialize)]
struct Name<'b>(#[serde(borrow)] Cow<'b, str>);

#[cfg(test)]
mod differential;

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(text: &str, max: usize) -> Result<Vec<i128>, ListError> {
        let body = format!("{{\"list\":{text}}}");
        let mut fields = Fields::open(body.as_bytes()).unwrap();
        assert_eq!(fields.next().unwrap().as_deref(), Some("list"));
        let mut read = Vec::new();
        fields.numbers(max, |number| {
            let magnitude = i128::from(number.magnitude);
            read.push(if number.negative { -magnitude } else { magnitude });
            true
        })?;
        assert_eq!(fields.next(), Ok(None));
        Ok(read)
    }

    #[test]
    fn lists_of_numbers() {
        assert_eq!(numbers("[]", 0), Ok(vec![]));
        assert_eq!(numbers(" [ 1 ,\n2,\t0 ] ", 3), Ok(vec![1, 2, 0]));
        assert_eq!(numbers("null", 0), Ok(vec![]));
        assert_eq!(numbers("[18446744073709551615,\"7\",-3]", 3), Ok(vec![u64::MAX.into(), 7, -3]));
        assert_eq!(numbers("[1,2]", 1), Err(ListError::TooLong));
        for wrong in
            ["[1,]", "[1 2]", "[1.5]", "[1e3]", "[01]", "[-]", "[true]", "[\"1]", "[18446744073709551616]"]
        {
            assert!(matches!(numbers(wrong, 9), Err(ListError::Element(_))), "{wrong}");
        }
        // Long enough to be read fast at first.
        let many = "7, 1234567,".repeat(40);
        let read = [7, 1_234_567].repeat(40);
        assert_eq!(numbers(&format!("[{many}-3,8]"), 99), Ok([&read[..], &[-3, 8]].concat()));
        assert_eq!(numbers(&format!("[{many}8]"), 81), Ok([&read[..], &[8]].concat()));
        assert_eq!(numbers(&format!("[{many}8]"), 80), Err(ListError::TooLong));
        assert_eq!(numbers(&format!("[{many}8]"), 3), Err(ListError::TooLong));
        assert_eq!(numbers(&format!("[{many}]"), 99), Err(ListError::Element(80)));
        assert_eq!(numbers(&format!("[{many}x,{many}1]"), 999), Err(ListError::Element(80)));
        for wrong in ["1", "{}", "nul", "\"1\""] {
            assert_eq!(numbers(wrong, 9), Err(ListError::NotAList), "{wrong}");
        }
    }

    #[test]
    fn fields_come_one_by_one_and_nothing_follows() {
        let body = br#" {"a" : "x\n", "\u0062":null,"c":{"d":[1,{}]} , "e":[3]} "#;
        let mut fields = Fields::open(body).unwrap();
        assert_eq!(fields.next().unwrap().as_deref(), Some("a"));
        assert_eq!(fields.value::<String>().unwrap(), "x\n");
        assert_eq!(fields.next().unwrap().as_deref(), Some("b"));
        assert_eq!(fields.value::<Option<String>>().unwrap(), None);
        assert_eq!(fields.next().unwrap().as_deref(), Some("c"));
        fields.skip().unwrap();
        assert_eq!(fields.next().unwrap().as_deref(), Some("e"));
        assert_eq!(fields.numbers(9, |_| true), Ok(true));
        assert_eq!(fields.next(), Ok(None));
        for wrong in [
            "",
            "[]",
            "{",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{,\"a\":1}",
            "{\"a\":1}x",
            "{\"a\":1 \"b\":2}",
        ] {
            let read = || -> Result<(), Malformed> {
                let mut fields = Fields::open(wrong.as_bytes())?;
                while fields.next()?.is_some() {
                    fields.skip()?;
                }
                Ok(())
            };
            assert!(read().is_err(), "{wrong}");
        }
    }
}
