//! Protobuf's wire format, as far as any message has it: numbered fields, one after the other.

/// What is wrong with a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The bytes end before the field does.
    Truncated,
    /// No field begins like this.
    NotProtobuf,
    /// A whole value, of another type than it must have.
    Mismatch,
}

/// A field's value, as its wire type tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value<'f> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    /// Text, bytes, a message or packed numbers.
    Bytes(&'f [u8]),
}

/// The fields of one message, in order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'f> {
    rest: &'f [u8],
}

// === impl Fields ===

impl<'f> Fields<'f> {
    pub(crate) fn of(message: &'f [u8]) -> Self {
        Self { rest: message }
    }

    /// Bytes that follow the last field that was read.
    pub(crate) fn rest(&self) -> &'f [u8] {
        self.rest
    }

    /// The next field and its number; `None` at the end.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<(u32, Value<'f>)>, Fault> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = varint(&mut self.rest)?;
        let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0).ok_or(Fault::NotProtobuf)?;
        let value = match key & 7 {
            0 => Value::Varint(varint(&mut self.rest)?),
            1 => Value::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let length = usize::try_from(varint(&mut self.rest)?).map_err(|_| Fault::Truncated)?;
                let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Fault::Truncated)?;
                self.rest = rest;
                Value::Bytes(bytes)
            }
            5 => Value::Fixed32(u32::from_le_bytes(self.array()?)),
            // Groups went out of use before this contract came to be.
            _ => return Err(Fault::NotProtobuf),
        };
        Ok(Some((number, value)))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(Fault::Truncated)?;
        self.rest = rest;
        Ok(*array)
    }
}

// === impl Value ===

impl<'f> Value<'f> {
    pub(crate) fn varint(self) -> Result<u64, Fault> {
        if let Self::Varint(bits) = self { Ok(bits) } else { Err(Fault::Mismatch) }
    }

    /// A number that is not negative and not too large.
    pub(crate) fn number(self) -> Result<u32, Fault> {
        u32::try_from(self.varint()?).map_err(|_| Fault::Mismatch)
    }

    pub(crate) fn bytes(self) -> Result<&'f [u8], Fault> {
        if let Self::Bytes(bytes) = self { Ok(bytes) } else { Err(Fault::Mismatch) }
    }

    pub(crate) fn text(self) -> Result<&'f str, Fault> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Fault::Mismatch)
    }

    /// Numbers of a repeated field: one by itself, or many packed.
    #[inline]
    pub(crate) fn varints<E: From<Fault>>(self, mut take: impl FnMut(u64) -> Result<(), E>) -> Result<(), E> {
        match self {
            Self::Varint(bits) => take(bits),
            Self::Bytes(mut packed) => {
                while !packed.is_empty() {
                    take(varint(&mut packed)?)?;
                }
                Ok(())
            }
            Self::Fixed64(_) | Self::Fixed32(_) => Err(Fault::Mismatch.into()),
        }
    }
}

/// A number in groups of seven bits, lowest first.
#[inline]
fn varint(rest: &mut &[u8]) -> Result<u64, Fault> {
    let mut bits = 0;
    for (at, &byte) in rest.iter().enumerate().take(10) {
        bits |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            *rest = &rest[at + 1..];
            return Ok(bits);
        }
    }
    Err(if rest.len() < 10 { Fault::Truncated } else { Fault::NotProtobuf })
}
