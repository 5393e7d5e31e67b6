//! Sizes and durations as people write them.
//!
//! Sizes are not `bytesize`'s: that takes `64MB` for 64,000,000 bytes and what is too large for the largest number, and
//! writes `64.0 MiB`. Here a size has one meaning, and reads back as it was written.

use std::fmt;
use std::str::FromStr;

pub(crate) use kvplane_server::Span;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Bytes: `65536`, `"64KiB"`, `"64MiB"`, `"1GiB"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) usize);

const BYTE_UNITS: [(&str, usize); 4] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("B", 1)];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (number, unit) = BYTE_UNITS
            .iter()
            .find_map(|&(suffix, unit)| text.strip_suffix(suffix).map(|number| (number, unit)))
            .unwrap_or((text, 1));
        let number: usize =
            number.trim().parse().map_err(|_| format!("{text:?} is not a size; write \"64MiB\""))?;
        number.checked_mul(unit).map(Self).ok_or_else(|| format!("{text:?} is too large"))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole =
            BYTE_UNITS.iter().rev().skip(1).find(|&&(_, unit)| self.0 >= unit && self.0.is_multiple_of(unit));
        match whole {
            Some(&(suffix, unit)) => write!(f, "{}{suffix}", self.0 / unit),
            None => write!(f, "{}B", self.0),
        }
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(usize),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(bytes) => Ok(Self(bytes)),
            Written::Text(text) => text.parse().map_err(de::Error::custom),
        }
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_and_read_back() {
        for (text, bytes) in
            [("64MiB", 64 << 20), ("1GiB", 1 << 30), ("1000B", 1000), ("12", 12), ("2KiB", 2048)]
        {
            let size: ByteSize = text.parse().unwrap();
            assert_eq!(size.0, bytes);
            assert_eq!(size.to_string().parse::<ByteSize>().unwrap(), size);
        }
        for (text, ms) in [("500ms", 500), ("10s", 10_000), ("2m", 120_000)] {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.0.as_millis(), ms);
            assert_eq!(span.to_string().parse::<Span>().unwrap(), span);
        }
        assert!("64 apples".parse::<ByteSize>().is_err());
        assert!("10".parse::<Span>().is_err());
        assert!("99999999999999GiB".parse::<ByteSize>().is_err());
    }
}
