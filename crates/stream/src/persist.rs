//! How a recorder's memory becomes bytes, and comes back.
//!
//! Every type that a recorder keeps implements [`Persist`], by [`persist!`] beside its definition. The macro
//! names every field, either as saved or as made anew with the value that it gets: a field that it does not
//! name does not compile. So nothing can be added to a recorder without deciding whether it survives a
//! restart.
//!
//! Numbers up to 32 bits are LEB128, larger ones fixed and little-endian; lists and texts have their length
//! in front. Nothing is allocated by a length alone.

mod foreign;

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use smallvec::{Array, SmallVec};

/// Bytes that are no memory of this format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a memory of this format: {0}")]
pub struct Damaged(pub(crate) &'static str);

impl Damaged {
    /// There is no memory at all.
    pub const NOTHING: Self = Self("there is nothing");
}

/// Bytes that are being read.
pub(crate) struct Source<'b> {
    rest: &'b [u8],
}

impl<'b> Source<'b> {
    pub(crate) fn new(bytes: &'b [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn take(&mut self, bytes: usize) -> Result<&'b [u8], Damaged> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(Damaged("it ends too early"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Damaged("it ends too early"))?;
        self.rest = rest;
        Ok(*taken)
    }

    fn varint(&mut self) -> Result<u32, Damaged> {
        let mut number = 0_u32;
        for shift in (0..35).step_by(7) {
            let [byte] = self.fixed()?;
            let bits = u32::from(byte & 0x7f);
            number |= bits.checked_shl(shift).filter(|value| value >> shift == bits).ok_or(TOO_LARGE)?;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(TOO_LARGE)
    }

    /// The length of a list, of which every element takes at least one byte.
    pub(crate) fn length(&mut self) -> Result<usize, Damaged> {
        let length = self.varint()? as usize;
        if length > self.rest.len() { Err(Damaged("a list is longer than what is left")) } else { Ok(length) }
    }
}

const TOO_LARGE: Damaged = Damaged("a number is too large");

fn save_varint(mut number: u32, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn save_length(length: usize, out: &mut Vec<u8>) {
    // All lists are bounded far below.
    save_varint(u32::try_from(length).unwrap_or(u32::MAX), out);
}

/// What survives a restart.
pub(crate) trait Persist: Sized {
    fn save(&self, out: &mut Vec<u8>);
    fn load(from: &mut Source<'_>) -> Result<Self, Damaged>;
}

/// `persist!(Type { saved, saved; made: value, made: value })` names every field of a struct. Fields behind the
/// semicolon are not saved: they get the value that is given.
macro_rules! persist {
    ($name:ident { $($saved:ident),* $(,)? $(; $($made:ident: $value:expr),* $(,)?)? }) => {
        impl $crate::persist::Persist for $name {
            fn save(&self, out: &mut Vec<u8>) {
                let Self { $($saved,)* $($($made: _,)*)? } = self;
                $($crate::persist::Persist::save($saved, out);)*
            }

            fn load(from: &mut $crate::persist::Source<'_>) -> Result<Self, $crate::persist::Damaged> {
                $(let $saved = $crate::persist::Persist::load(from)?;)*
                Ok(Self { $($saved,)* $($($made: $value,)*)? })
            }
        }
    };
    // A struct with one field that has no name.
    ($name:ident(_)) => {
        impl $crate::persist::Persist for $name {
            fn save(&self, out: &mut Vec<u8>) {
                $crate::persist::Persist::save(&self.0, out);
            }

            fn load(from: &mut $crate::persist::Source<'_>) -> Result<Self, $crate::persist::Damaged> {
                Ok(Self($crate::persist::Persist::load(from)?))
            }
        }
    };
}

/// `persist_enum!(Type { Variant = 0, Other(a, b) = 1, Third { c } = 2 })` names every variant, with a number
/// that never changes.
macro_rules! persist_enum {
    ($name:ty { $($variant:ident $(($($tuple:ident),*))? $({ $($field:ident),* })? = $number:literal),* $(,)? }) => {
        impl $crate::persist::Persist for $name {
            fn save(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $(($($tuple),*))? $({ $($field),* })? => {
                        out.push($number);
                        $($($crate::persist::Persist::save($tuple, out);)*)?
                        $($($crate::persist::Persist::save($field, out);)*)?
                    })*
                }
            }

            fn load(from: &mut $crate::persist::Source<'_>) -> Result<Self, $crate::persist::Damaged> {
                let number: u8 = $crate::persist::Persist::load(from)?;
                match number {
                    $($number => {
                        $($(let $tuple = $crate::persist::Persist::load(from)?;)*)?
                        $($(let $field = $crate::persist::Persist::load(from)?;)*)?
                        Ok(Self::$variant $(($($tuple),*))? $({ $($field),* })?)
                    })*
                    _ => Err($crate::persist::Damaged("an unknown variant")),
                }
            }
        }
    };
}

pub(crate) use {persist, persist_enum};

macro_rules! fixed {
    ($($number:ty),*) => {
        $(impl Persist for $number {
            fn save(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
                Ok(Self::from_le_bytes(from.fixed()?))
            }
        })*
    };
}

fixed!(u8, u64, i64, u128, f64);

macro_rules! variable {
    ($($number:ty),*) => {
        $(impl Persist for $number {
            fn save(&self, out: &mut Vec<u8>) {
                save_varint(u32::from(*self), out);
            }

            fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
                Self::try_from(from.varint()?).map_err(|_| TOO_LARGE)
            }
        })*
    };
}

variable!(u16, u32);

impl Persist for usize {
    fn save(&self, out: &mut Vec<u8>) {
        (*self as u64).save(out);
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        Self::try_from(u64::load(from)?).map_err(|_| TOO_LARGE)
    }
}

impl Persist for bool {
    fn save(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        match u8::load(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Damaged("neither true nor false")),
        }
    }
}

impl Persist for Duration {
    fn save(&self, out: &mut Vec<u8>) {
        self.as_secs().save(out);
        self.subsec_nanos().save(out);
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        let (seconds, nanos) = (u64::load(from)?, u32::load(from)?);
        if nanos < 1_000_000_000 { Ok(Self::new(seconds, nanos)) } else { Err(TOO_LARGE) }
    }
}

fn save_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    save_length(bytes.len(), out);
    out.extend_from_slice(bytes);
}

fn load_bytes<'b>(from: &mut Source<'b>) -> Result<&'b [u8], Damaged> {
    let length = from.length()?;
    from.take(length)
}

fn load_text<'b>(from: &mut Source<'b>) -> Result<&'b str, Damaged> {
    std::str::from_utf8(load_bytes(from)?).map_err(|_| Damaged("a text is not UTF-8"))
}

macro_rules! texts {
    ($($text:ty),*) => {
        $(impl Persist for $text {
            fn save(&self, out: &mut Vec<u8>) {
                save_bytes(self.as_bytes(), out);
            }

            fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
                load_text(from).map(Self::from)
            }
        })*
    };
}

texts!(String, Box<str>);

impl Persist for Bytes {
    fn save(&self, out: &mut Vec<u8>) {
        save_bytes(self, out);
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        load_bytes(from).map(Self::copy_from_slice)
    }
}

impl Persist for Arc<[u8]> {
    fn save(&self, out: &mut Vec<u8>) {
        save_bytes(self, out);
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        load_bytes(from).map(Self::from)
    }
}

/// Tokens of a block.
impl Persist for Arc<[u32]> {
    fn save(&self, out: &mut Vec<u8>) {
        save_length(self.len(), out);
        for &token in self.iter() {
            save_varint(token, out);
        }
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        let mut tokens: SmallVec<[u32; 128]> = SmallVec::new();
        for _ in 0..from.length()? {
            tokens.push(from.varint()?);
        }
        Ok(Self::from(&tokens[..]))
    }
}

impl<T: Persist> Persist for Option<T> {
    fn save(&self, out: &mut Vec<u8>) {
        self.is_some().save(out);
        if let Some(value) = self {
            value.save(out);
        }
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        if bool::load(from)? { T::load(from).map(Some) } else { Ok(None) }
    }
}

impl<T: Persist> Persist for Box<[T]> {
    fn save(&self, out: &mut Vec<u8>) {
        save_length(self.len(), out);
        for item in &**self {
            item.save(out);
        }
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        Vec::load(from).map(Vec::into_boxed_slice)
    }
}

impl<T: Persist> Persist for Box<T> {
    fn save(&self, out: &mut Vec<u8>) {
        (**self).save(out);
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        T::load(from).map(Self::new)
    }
}

impl<T: Persist> Persist for Arc<T> {
    fn save(&self, out: &mut Vec<u8>) {
        (**self).save(out);
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        T::load(from).map(Self::new)
    }
}

macro_rules! lists {
    ($($list:ty, $item:ident, [$($bound:tt)*], $push:ident);*) => {
        $(impl<$($bound)*> Persist for $list {
            fn save(&self, out: &mut Vec<u8>) {
                save_length(self.len(), out);
                for item in self.iter() {
                    item.save(out);
                }
            }

            fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
                let mut list = Self::default();
                for _ in 0..from.length()? {
                    list.$push(Persist::load(from)?);
                }
                Ok(list)
            }
        })*
    };
}

lists! {
    Vec<T>, T, [T: Persist], push;
    VecDeque<T>, T, [T: Persist], push_back;
    SmallVec<A>, A, [A: Array<Item: Persist>], push;
    HashSet<T, S>, T, [T: Persist + Eq + Hash, S: BuildHasher + Default], insert
}

impl<K: Persist + Eq + Hash, V: Persist, S: BuildHasher + Default> Persist for HashMap<K, V, S> {
    fn save(&self, out: &mut Vec<u8>) {
        save_length(self.len(), out);
        for (key, value) in self {
            key.save(out);
            value.save(out);
        }
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        let mut map = Self::default();
        for _ in 0..from.length()? {
            let key = K::load(from)?;
            map.insert(key, V::load(from)?);
        }
        Ok(map)
    }
}

impl<A: Persist, B: Persist> Persist for (A, B) {
    fn save(&self, out: &mut Vec<u8>) {
        self.0.save(out);
        self.1.save(out);
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        Ok((A::load(from)?, B::load(from)?))
    }
}

impl<T: Persist + Default + std::marker::Copy, const N: usize> Persist for [T; N] {
    fn save(&self, out: &mut Vec<u8>) {
        for item in self {
            item.save(out);
        }
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        let mut items = [T::default(); N];
        for item in &mut items {
            *item = T::load(from)?;
        }
        Ok(items)
    }
}
