//! From Python's values to ours. Whatever does not fit is refused under its name.

use std::time::Duration;

use kvplane_wire::{OwnedExtraKey, OwnedHash};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyList, PyMapping, PyMemoryView, PyString, PyTuple, PyType,
};

use crate::errors::{Argument, bad_type, bad_value, unknown_keyword};

/// How long a digest may be: engines send 16 or 32 bytes.
const DIGEST_BYTES: [usize; 2] = [16, 32];

/// An integer within the bounds of its type, which `bounds` tells.
fn integer<'py, T>(argument: Argument<'_>, value: &Bound<'py, PyAny>, bounds: &str) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    // A truth value is an int to Python; here it is a mistake.
    if value.is_instance_of::<PyBool>() {
        return Err(bad_type(argument, "an int", value));
    }
    value.extract().map_err(|error: PyErr| {
        if error.is_instance_of::<PyOverflowError>(value.py()) {
            bad_value(argument, bounds)
        } else if error.is_instance_of::<PyTypeError>(value.py()) {
            bad_type(argument, "an int", value)
        } else {
            error // of the value's own code
        }
    })
}

pub(crate) fn unsigned_64(argument: Argument<'_>, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    integer(argument, value, "must be from 0 to 2**64 - 1")
}

pub(crate) fn unsigned_32(argument: Argument<'_>, value: &Bound<'_, PyAny>) -> PyResult<u32> {
    integer(argument, value, "must be from 0 to 2**32 - 1")
}

fn signed_64(argument: Argument<'_>, value: &Bound<'_, PyAny>) -> PyResult<i64> {
    integer(argument, value, "must be from -2**63 to 2**63 - 1")
}

/// A number that may be left to us.
pub(crate) fn number(argument: Argument<'_>, value: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    if value.is_none() { Ok(None) } else { unsigned_64(argument, value).map(Some) }
}

pub(crate) fn text(argument: Argument<'_>, value: &Bound<'_, PyAny>) -> PyResult<String> {
    let text = value.cast::<PyString>().map_err(|_| bad_type(argument, "a str", value))?;
    text.extract().map_err(|_| bad_value(argument, "must be text that can be written as UTF-8"))
}

/// A time in seconds.
pub(crate) fn seconds(argument: Argument<'_>, value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    Duration::try_from_secs_f64(float(argument, value)?)
        .map_err(|_| bad_value(argument, "must be a number of seconds, 0 or more"))
}

pub(crate) fn float(argument: Argument<'_>, value: &Bound<'_, PyAny>) -> PyResult<f64> {
    if value.is_instance_of::<PyBool>() {
        return Err(bad_type(argument, "a float", value));
    }
    value.extract().map_err(|error: PyErr| {
        if error.is_instance_of::<PyOverflowError>(value.py()) {
            bad_value(argument, "must be a number that a float can be")
        } else if error.is_instance_of::<PyTypeError>(value.py()) {
            bad_type(argument, "a float", value)
        } else {
            error // of the value's own code
        }
    })
}

pub(crate) fn truth(argument: Argument<'_>, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    value.extract().map_err(|_| bad_type(argument, "a bool", value))
}

/// Calls `each` with every element of something that has them in an order. Texts and bytes have elements too,
/// but never those that are meant; those of a set or a mapping come in an order that nobody chose.
pub(crate) fn elements<'py>(
    argument: Argument<'_>,
    value: &Bound<'py, PyAny>,
    wanted: &str,
    mut each: impl FnMut(usize, &Bound<'py, PyAny>) -> PyResult<()>,
) -> PyResult<()> {
    if let Ok(list) = value.cast::<PyList>() {
        return list.iter().enumerate().try_for_each(|(at, element)| each(at, &element));
    }
    if value.cast::<PyMapping>().is_ok() || is_set(value)? {
        return Err(bad_type(argument, wanted, value));
    }
    members(argument, value, wanted, each)
}

/// The same where no order is needed.
pub(crate) fn members<'py>(
    argument: Argument<'_>,
    value: &Bound<'py, PyAny>,
    wanted: &str,
    mut each: impl FnMut(usize, &Bound<'py, PyAny>) -> PyResult<()>,
) -> PyResult<()> {
    let whole = value.is_instance_of::<PyString>()
        || value.is_instance_of::<PyBytes>()
        || value.is_instance_of::<PyByteArray>()
        || value.is_instance_of::<PyMemoryView>();
    let iterator = value.try_iter().ok().filter(|_| !whole);
    let iterator = iterator.ok_or_else(|| bad_type(argument, wanted, value))?;
    iterator.enumerate().try_for_each(|(at, element)| each(at, &element?))
}

/// A set of any kind, also the keys of a mapping.
fn is_set(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    static SET: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    value.is_instance(SET.import(value.py(), "collections.abc", "Set")?)
}

/// A block hash: an int of 64 bits, with or without a sign, or a digest as bytes or hexadecimal digits.
fn hash(argument: Argument<'_>, value: &Bound<'_, PyAny>) -> PyResult<OwnedHash> {
    if let Ok(digest) = value.cast::<PyBytes>() {
        let digest = digest.as_bytes();
        return if DIGEST_BYTES.contains(&digest.len()) {
            Ok(OwnedHash::Bytes(digest.to_vec()))
        } else {
            Err(bad_value(argument, format_args!("must have 16 or 32 bytes, not {}", digest.len())))
        };
    }
    if value.is_instance_of::<PyString>() {
        let digits = text(argument, value)?;
        return from_hex(&digits).map(OwnedHash::Hex).ok_or_else(|| {
            bad_value(argument, "must have 32 or 64 hexadecimal digits, or be an int or bytes")
        });
    }
    if value.is_instance_of::<PyBool>() {
        return Err(bad_type(argument, "an int, bytes or a str", value));
    }
    match value.extract::<u64>() {
        Ok(bits) => Ok(OwnedHash::Unsigned(bits)),
        Err(error) if error.is_instance_of::<PyTypeError>(value.py()) => {
            Err(bad_type(argument, "an int, bytes or a str", value))
        }
        Err(_) => integer(argument, value, "must be from -2**63 to 2**64 - 1").map(OwnedHash::Signed),
    }
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.as_bytes();
    if !DIGEST_BYTES.contains(&(digits.len() / 2)) || !digits.len().is_multiple_of(2) {
        return None;
    }
    let nibble = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    digits.chunks_exact(2).map(|pair| Some(nibble(pair[0])? << 4 | nibble(pair[1])?)).collect()
}

pub(crate) fn optional_hash(argument: Argument<'_>, value: &Bound<'_, PyAny>) -> PyResult<Option<OwnedHash>> {
    if value.is_none() { Ok(None) } else { hash(argument, value).map(Some) }
}

pub(crate) fn hashes(argument: Argument<'_>, value: &Bound<'_, PyAny>) -> PyResult<Vec<OwnedHash>> {
    let mut hashes = Vec::new();
    elements(argument, value, "a sequence of hashes", |at, element| {
        hashes.push(hash(argument.element(at), element)?);
        Ok(())
    })?;
    Ok(hashes)
}

/// Token ids, and whether each position is a pair of them.
pub(crate) fn tokens(argument: Argument<'_>, value: &Bound<'_, PyAny>) -> PyResult<(Vec<u32>, bool)> {
    let (mut ids, mut pairs) = (Vec::new(), false);
    elements(argument, value, "a sequence of ints", |at, element| {
        let argument = argument.element(at);
        let pair = element.cast::<PyTuple>().ok().filter(|pair| pair.len() == 2);
        if at == 0 {
            pairs = pair.is_some();
        }
        match pair {
            Some(pair) if pairs => {
                for id in pair.iter() {
                    ids.push(unsigned_32(argument, &id)?);
                }
            }
            _ if pairs => return Err(bad_type(argument, "a pair of ints, as the first is", element)),
            _ => ids.push(unsigned_32(argument, element)?),
        }
        Ok(())
    })?;
    Ok((ids, pairs))
}

/// What blocks are made of beside tokens: a list for each, or none.
pub(crate) fn extra_keys(
    argument: Argument<'_>,
    value: &Bound<'_, PyAny>,
) -> PyResult<Vec<Option<Vec<OwnedExtraKey>>>> {
    let mut blocks = Vec::new();
    elements(argument, value, "a sequence with a list or None for each block", |at, element| {
        let argument = argument.element(at);
        if element.is_none() {
            blocks.push(None);
            return Ok(());
        }
        let mut keys = Vec::new();
        elements(argument, element, "a list of keys or None", |_, key| {
            keys.push(extra_key(argument, key)?);
            Ok(())
        })?;
        blocks.push(Some(keys));
        Ok(())
    })?;
    Ok(blocks)
}

fn extra_key(argument: Argument<'_>, value: &Bound<'_, PyAny>) -> PyResult<OwnedExtraKey> {
    if value.is_instance_of::<PyString>() {
        return text(argument, value).map(OwnedExtraKey::Text);
    }
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(OwnedExtraKey::Bytes(bytes.as_bytes().to_vec()));
    }
    if let Ok(pair) = value.cast::<PyTuple>()
        && pair.len() == 2
    {
        let id = text(argument, &pair.get_item(0)?)?;
        return Ok(OwnedExtraKey::Multimodal(id, signed_64(argument, &pair.get_item(1)?)?));
    }
    signed_64(argument, value).map(OwnedExtraKey::Integer)
}

/// The bytes of a payload: as they are, or copied if they could change meanwhile.
pub(crate) fn payload<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(bytes.clone());
    }
    if value.is_instance_of::<PyByteArray>() || value.is_instance_of::<PyMemoryView>() {
        let copy = value.py().get_type::<PyBytes>().call1((value,))?;
        return Ok(copy.cast_into()?);
    }
    Err(bad_type(Argument::new("payload"), "bytes, a bytearray or a memoryview", value))
}

/// Arguments by keyword, or the fields of an event.
pub(crate) struct Fields<'a, 'py> {
    pub(crate) within: &'a str,
    pub(crate) values: Option<&'a Bound<'py, PyDict>>,
}

impl<'py> Fields<'_, 'py> {
    /// Refuses whatever is not among `known`.
    pub(crate) fn only(&self, known: &[&str]) -> PyResult<()> {
        let Some(values) = self.values else { return Ok(()) };
        for name in values.keys() {
            let name = text(Argument { within: self.within, name: "keys", at: None }, &name)?;
            if !known.contains(&name.as_str()) {
                return Err(unknown_keyword(self.argument(&name)));
            }
        }
        Ok(())
    }

    pub(crate) fn argument<'n>(&'n self, name: &'n str) -> Argument<'n> {
        Argument { within: self.within, name, at: None }
    }

    /// The field's value, read by `read`; `None` if it is absent or None.
    pub(crate) fn get<T>(
        &self,
        name: &str,
        read: impl FnOnce(Argument<'_>, &Bound<'py, PyAny>) -> PyResult<T>,
    ) -> PyResult<Option<T>> {
        let Some(values) = self.values else { return Ok(None) };
        match values.get_item(name)? {
            Some(value) if !value.is_none() => read(self.argument(name), &value).map(Some),
            _ => Ok(None),
        }
    }

    /// The same for a field that must be there.
    pub(crate) fn need<T>(
        &self,
        name: &str,
        read: impl FnOnce(Argument<'_>, &Bound<'py, PyAny>) -> PyResult<T>,
    ) -> PyResult<T> {
        self.get(name, read)?.ok_or_else(|| bad_value(self.argument(name), "is missing"))
    }

    pub(crate) fn text(&self, name: &str) -> PyResult<Option<String>> {
        self.get(name, text)
    }

    pub(crate) fn unsigned_32(&self, name: &str) -> PyResult<Option<u32>> {
        self.get(name, unsigned_32)
    }

    pub(crate) fn signed_64(&self, name: &str) -> PyResult<Option<i64>> {
        self.get(name, signed_64)
    }
}
