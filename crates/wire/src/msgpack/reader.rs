//! Reading values from a borrowed slice.

/// Why a value could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Fault {
    /// The bytes end before the value does.
    #[error("value ends early")]
    Truncated,
    /// A byte that no value begins with.
    #[error("not msgpack")]
    NotMsgpack,
    /// A value, but of another type than was asked for. Nothing was consumed.
    #[error("value of another type")]
    Mismatch,
}

/// An integer of any msgpack form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Integer {
    /// The 64-bit pattern; two's complement when negative.
    pub bits: u64,
    /// Whether the value is below zero.
    pub negative: bool,
}

impl Integer {
    /// The value, unless it exceeds `i64`.
    pub fn as_i64(self) -> Option<i64> {
        if self.negative { Some(self.bits as i64) } else { i64::try_from(self.bits).ok() }
    }

    /// The value, unless it is negative or exceeds `u32`.
    pub fn as_u32(self) -> Option<u32> {
        if self.negative { None } else { u32::try_from(self.bits).ok() }
    }

    fn unsigned(bits: u64) -> Self {
        Self { bits, negative: false }
    }

    fn signed(value: i64) -> Self {
        Self { bits: value as u64, negative: value < 0 }
    }
}

/// A position in a slice.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'f> {
    pub(super) rest: &'f [u8],
    whole: &'f [u8],
}

impl<'f> Reader<'f> {
    /// A reader at the start of `bytes`.
    pub fn new(bytes: &'f [u8]) -> Self {
        Self { rest: bytes, whole: bytes }
    }

    /// How many bytes were consumed.
    pub fn position(&self) -> usize {
        self.whole.len() - self.rest.len()
    }

    /// Goes to a position; to the end if it lies beyond.
    pub fn seek(&mut self, position: usize) {
        self.rest = self.whole.get(position..).unwrap_or_default();
    }

    /// What is still to be read.
    pub fn rest(&self) -> &'f [u8] {
        self.rest
    }

    /// The first byte of the next value.
    pub fn peek(&self) -> Result<u8, Fault> {
        self.rest.first().copied().ok_or(Fault::Truncated)
    }

    /// Consumes a nil if one is next.
    pub fn take_nil(&mut self) -> bool {
        if let [0xc0, rest @ ..] = self.rest {
            self.rest = rest;
            return true;
        }
        false
    }

    /// The number of elements of an array.
    pub fn array_len(&mut self) -> Result<usize, Fault> {
        match self.rest {
            [head @ 0x90..=0x9f, rest @ ..] => {
                self.rest = rest;
                Ok(usize::from(head & 0x0f))
            }
            [0xdc, ..] => self.length::<2>(),
            [0xdd, ..] => self.length::<4>(),
            _ => Err(self.mismatch()),
        }
    }

    /// The number of pairs of a map.
    pub fn map_len(&mut self) -> Result<usize, Fault> {
        match self.rest {
            [head @ 0x80..=0x8f, rest @ ..] => {
                self.rest = rest;
                Ok(usize::from(head & 0x0f))
            }
            [0xde, ..] => self.length::<2>(),
            [0xdf, ..] => self.length::<4>(),
            _ => Err(self.mismatch()),
        }
    }

    /// The bytes of a text; whether they are utf-8 is left to the caller.
    #[inline]
    pub fn text(&mut self) -> Result<&'f [u8], Fault> {
        let mut ahead = *self;
        let length = match ahead.rest {
            [head @ 0xa0..=0xbf, rest @ ..] => {
                ahead.rest = rest;
                usize::from(head & 0x1f)
            }
            [0xd9, ..] => ahead.length::<1>()?,
            [0xda, ..] => ahead.length::<2>()?,
            [0xdb, ..] => ahead.length::<4>()?,
            _ => return Err(self.mismatch()),
        };
        let bytes = ahead.take(length)?;
        *self = ahead;
        Ok(bytes)
    }

    /// The bytes of a binary value.
    #[inline]
    pub fn binary(&mut self) -> Result<&'f [u8], Fault> {
        let mut ahead = *self;
        let length = match ahead.rest {
            [0xc4, ..] => ahead.length::<1>()?,
            [0xc5, ..] => ahead.length::<2>()?,
            [0xc6, ..] => ahead.length::<4>()?,
            _ => return Err(self.mismatch()),
        };
        let bytes = ahead.take(length)?;
        *self = ahead;
        Ok(bytes)
    }

    /// Consumes an unsigned integer of full width if one is next: the form of most hashes.
    #[inline]
    pub fn take_u64(&mut self) -> Option<u64> {
        let (0xcf, rest) = self.rest.split_first()? else { return None };
        let (bytes, rest) = rest.split_first_chunk()?;
        self.rest = rest;
        Some(u64::from_be_bytes(*bytes))
    }

    /// An integer.
    pub fn integer(&mut self) -> Result<Integer, Fault> {
        match self.rest {
            [value @ 0..=0x7f, rest @ ..] => {
                self.rest = rest;
                Ok(Integer::unsigned(u64::from(*value)))
            }
            [value @ 0xe0..=0xff, rest @ ..] => {
                self.rest = rest;
                Ok(Integer::signed(i64::from(*value as i8)))
            }
            [0xcc, ..] => self.fixed().map(|b| Integer::unsigned(u64::from(u8::from_be_bytes(b)))),
            [0xcd, ..] => self.fixed().map(|b| Integer::unsigned(u64::from(u16::from_be_bytes(b)))),
            [0xce, ..] => self.fixed().map(|b| Integer::unsigned(u64::from(u32::from_be_bytes(b)))),
            [0xcf, ..] => self.fixed().map(|b| Integer::unsigned(u64::from_be_bytes(b))),
            [0xd0, ..] => self.fixed().map(|b| Integer::signed(i64::from(i8::from_be_bytes(b)))),
            [0xd1, ..] => self.fixed().map(|b| Integer::signed(i64::from(i16::from_be_bytes(b)))),
            [0xd2, ..] => self.fixed().map(|b| Integer::signed(i64::from(i32::from_be_bytes(b)))),
            [0xd3, ..] => self.fixed().map(|b| Integer::signed(i64::from_be_bytes(b))),
            _ => Err(self.mismatch()),
        }
    }

    /// A number of any form.
    pub fn number(&mut self) -> Result<f64, Fault> {
        match self.rest {
            [0xcb, ..] => self.fixed().map(f64::from_be_bytes),
            [0xca, ..] => self.fixed().map(|b| f64::from(f32::from_be_bytes(b))),
            _ => self.integer().map(|i| if i.negative { i.bits as i64 as f64 } else { i.bits as f64 }),
        }
    }

    /// Passes over one value with all that is in it. No recursion: only the number of values to come is kept.
    pub fn skip_value(&mut self) -> Result<(), Fault> {
        let mut rest = self.rest;
        let mut pending: usize = 1;
        while pending > 0 {
            let (&head, after) = rest.split_first().ok_or(Fault::Truncated)?;
            let (body, nested) = extent(head, after)?;
            rest = after.get(body..).ok_or(Fault::Truncated)?;
            pending = (pending - 1).saturating_add(nested);
            if pending > rest.len() {
                return Err(Fault::Truncated);
            }
        }
        self.rest = rest;
        Ok(())
    }

    /// Passes over `count` values.
    pub fn skip_values(&mut self, count: usize) -> Result<(), Fault> {
        (0..count).try_for_each(|_| self.skip_value())
    }

    /// Passes over one value and returns its bytes.
    pub fn raw_value(&mut self) -> Result<&'f [u8], Fault> {
        let start = self.rest;
        self.skip_value()?;
        Ok(&start[..start.len() - self.rest.len()])
    }

    /// Why the next value is not what was asked for.
    #[cold]
    fn mismatch(&self) -> Fault {
        match self.rest {
            [] => Fault::Truncated,
            [0xc1, ..] => Fault::NotMsgpack,
            _ => Fault::Mismatch,
        }
    }

    fn take(&mut self, length: usize) -> Result<&'f [u8], Fault> {
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Fault::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// The `N` bytes after the head byte.
    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let bytes = self.rest.get(1..).and_then(<[u8]>::first_chunk::<N>).ok_or(Fault::Truncated)?;
        self.rest = &self.rest[1 + N..];
        Ok(*bytes)
    }

    /// A length of `N` bytes after the head byte.
    fn length<const N: usize>(&mut self) -> Result<usize, Fault> {
        Ok(self.fixed::<N>()?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)))
    }
}

/// How many bytes of its own follow a head byte, and how many values are nested in it.
fn extent(head: u8, after: &[u8]) -> Result<(usize, usize), Fault> {
    let length = |width: usize| -> Result<usize, Fault> {
        let bytes = after.get(..width).ok_or(Fault::Truncated)?;
        Ok(bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)))
    };
    Ok(match head {
        0..=0x7f | 0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => (0, 0),
        0x80..=0x8f => (0, 2 * usize::from(head & 0x0f)),
        0x90..=0x9f => (0, usize::from(head & 0x0f)),
        0xa0..=0xbf => (usize::from(head & 0x1f), 0),
        0xc1 => return Err(Fault::NotMsgpack),
        0xc4 | 0xd9 => (1 + length(1)?, 0),
        0xc5 | 0xda => (2 + length(2)?, 0),
        0xc6 | 0xdb => (4usize.saturating_add(length(4)?), 0),
        0xc7 => (2 + length(1)?, 0),
        0xc8 => (3 + length(2)?, 0),
        0xc9 => (5usize.saturating_add(length(4)?), 0),
        0xcc | 0xd0 => (1, 0),
        0xcd | 0xd1 | 0xd4 => (2, 0),
        0xca | 0xce | 0xd2 => (4, 0),
        0xcb | 0xcf | 0xd3 => (8, 0),
        0xd5 => (3, 0),
        0xd6 => (5, 0),
        0xd7 => (9, 0),
        0xd8 => (17, 0),
        0xdc => (2, length(2)?),
        0xdd => (4, length(4)?),
        0xde => (2, length(2)?.saturating_mul(2)),
        0xdf => (4, length(4)?.saturating_mul(2)),
    })
}
