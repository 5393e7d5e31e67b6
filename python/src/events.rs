//! Events as dictionaries with the names that engines themselves use, and back.

use kvplane_wire::{
    Batch, Event, ExtraKey, Hash, OwnedEvent, OwnedRemoved, OwnedStored, Removed, Stored, Tokens,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::arguments::{self, Fields};
use crate::errors::{Argument, bad_type, bad_value};

pub(crate) const STORED: &str = "BlockStored";
pub(crate) const REMOVED: &str = "BlockRemoved";
pub(crate) const CLEARED: &str = "AllBlocksCleared";

/// What a store may say beside its blocks, their parent and their tokens.
pub(crate) const STORED_DETAILS: [&str; 12] = [
    "block_size",
    "lora_id",
    "lora_name",
    "cache_salt",
    "medium",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "locality",
    "ownership",
    "session_id",
];

/// What a removal may say beside its blocks.
pub(crate) const REMOVED_DETAILS: [&str; 4] = ["medium", "group_idx", "locality", "ownership"];

/// A store whose blocks, parent and tokens are given by `blocks`, and the rest by fields.
pub(crate) fn stored_details(fields: &Fields<'_, '_>, blocks: OwnedStored) -> PyResult<OwnedStored> {
    Ok(OwnedStored {
        block_size: fields.unsigned_32("block_size")?.unwrap_or(blocks.block_size),
        lora_id: fields.signed_64("lora_id")?,
        lora_name: fields.text("lora_name")?,
        cache_salt: fields.text("cache_salt")?,
        medium: fields.text("medium")?,
        extra_keys: fields.get("extra_keys", arguments::extra_keys)?,
        group: fields.unsigned_32("group_idx")?,
        spec_kind: fields.text("kv_cache_spec_kind")?,
        sliding_window: fields.unsigned_32("kv_cache_spec_sliding_window")?,
        locality: fields.text("locality")?,
        ownership: fields.text("ownership")?,
        session_id: fields.text("session_id")?,
        ..blocks
    })
}

/// The same for a removal.
pub(crate) fn removed_details(fields: &Fields<'_, '_>, blocks: OwnedRemoved) -> PyResult<OwnedRemoved> {
    Ok(OwnedRemoved {
        medium: fields.text("medium")?,
        group: fields.unsigned_32("group_idx")?,
        locality: fields.text("locality")?,
        ownership: fields.text("ownership")?,
        ..blocks
    })
}

/// The event that a dictionary tells.
pub(crate) fn from_dict(within: &str, value: &Bound<'_, PyAny>) -> PyResult<OwnedEvent> {
    let argument = Argument { within, name: "", at: None };
    let values = value.cast::<PyDict>().map_err(|_| bad_type(argument, "a dict", value))?;
    let within = format!("{within}.");
    let fields = Fields { within: &within, values: Some(values) };
    let kind = fields.need("type", arguments::text)?;
    match kind.as_str() {
        STORED => {
            let mut known = vec!["type", "block_hashes", "parent_block_hash", "token_ids"];
            known.extend(STORED_DETAILS);
            fields.only(&known)?;
            let (token_ids, bigrams) = fields.need("token_ids", arguments::tokens)?;
            let blocks = OwnedStored {
                block_hashes: fields.need("block_hashes", arguments::hashes)?,
                parent: fields.get("parent_block_hash", arguments::optional_hash)?.flatten(),
                token_ids,
                bigrams,
                ..OwnedStored::default()
            };
            stored_details(&fields, blocks).map(OwnedEvent::Stored)
        }
        REMOVED => {
            let mut known = vec!["type", "block_hashes"];
            known.extend(REMOVED_DETAILS);
            fields.only(&known)?;
            let block_hashes = fields.need("block_hashes", arguments::hashes)?;
            let blocks = OwnedRemoved { block_hashes, ..OwnedRemoved::default() };
            removed_details(&fields, blocks).map(OwnedEvent::Removed)
        }
        CLEARED => fields.only(&["type"]).map(|()| OwnedEvent::Cleared),
        _ => Err(bad_value(
            fields.argument("type"),
            format_args!("must be {STORED}, {REMOVED} or {CLEARED}, not {kind:?}"),
        )),
    }
}

/// A decoded event as a dictionary.
pub(crate) fn to_dict<'py>(
    py: Python<'py>,
    batch: &Batch<'_, '_>,
    event: &Event<'_>,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    match event {
        Event::Stored(stored) => {
            dict.set_item("type", STORED)?;
            describe_stored(&dict, batch, stored)?;
        }
        Event::Removed(removed) => {
            dict.set_item("type", REMOVED)?;
            describe_removed(&dict, batch, removed)?;
        }
        Event::Cleared { ownership } => {
            dict.set_item("type", CLEARED)?;
            if ownership.is_some() {
                dict.set_item("ownership", ownership)?;
            }
        }
        Event::Unknown { kind } => {
            dict.set_item("type", kind)?;
            dict.set_item("unknown", true)?;
        }
        Event::Rejected(rejected) => {
            dict.set_item("type", py.None())?;
            dict.set_item("rejected", rejected.kind.as_str())?;
            dict.set_item("reason", rejected.reason.as_str())?;
        }
        // Other dialects have them; published messages do not.
        Event::Moved(_) | Event::Created(_) => {
            dict.set_item("type", py.None())?;
            dict.set_item("unknown", true)?;
        }
    }
    Ok(dict)
}

fn describe_stored<'f>(dict: &Bound<'_, PyDict>, batch: &Batch<'_, 'f>, stored: &Stored<'f>) -> PyResult<()> {
    let py = dict.py();
    dict.set_item("block_hashes", hashes(py, batch, batch.stored_hashes(stored))?)?;
    let parent = stored.parent.map(|parent| hash(py, batch, parent)).transpose()?;
    dict.set_item("parent_block_hash", parent)?;
    match batch.tokens(stored) {
        Tokens::Flat(ids) => dict.set_item("token_ids", ids)?,
        Tokens::Bigrams(ids) => {
            let pairs: Vec<(u32, u32)> = ids.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
            dict.set_item("token_ids", pairs)?;
        }
    }
    dict.set_item("block_size", stored.block_size)?;
    dict.set_item("lora_id", stored.lora_id)?;
    dict.set_item("lora_name", stored.lora_name)?;
    dict.set_item("cache_salt", stored.cache_salt)?;
    dict.set_item("medium", stored.medium)?;
    let keys = if stored.names_keys() {
        let blocks = batch.stored_hashes(stored).len();
        let lists = (0..blocks).map(|at| extra_keys(py, batch.extra_keys(stored, at)));
        Some(lists.collect::<PyResult<Vec<_>>>()?)
    } else {
        None
    };
    dict.set_item("extra_keys", keys)?;
    dict.set_item("group_idx", stored.group)?;
    dict.set_item("kv_cache_spec_kind", stored.spec_kind)?;
    dict.set_item("kv_cache_spec_sliding_window", stored.sliding_window)?;
    dict.set_item("locality", stored.locality)?;
    dict.set_item("ownership", stored.ownership)?;
    dict.set_item("session_id", stored.session_id)
}

fn describe_removed<'f>(
    dict: &Bound<'_, PyDict>,
    batch: &Batch<'_, 'f>,
    removed: &Removed<'f>,
) -> PyResult<()> {
    dict.set_item("block_hashes", hashes(dict.py(), batch, batch.removed_hashes(removed))?)?;
    dict.set_item("medium", removed.medium)?;
    dict.set_item("group_idx", removed.group)?;
    dict.set_item("locality", removed.locality)?;
    dict.set_item("ownership", removed.ownership)
}

fn hashes<'py>(py: Python<'py>, batch: &Batch<'_, '_>, all: &[Hash]) -> PyResult<Bound<'py, PyList>> {
    let all = all.iter().map(|one| hash(py, batch, *one)).collect::<PyResult<Vec<_>>>()?;
    PyList::new(py, all)
}

/// As the engine sent it.
fn hash<'py>(py: Python<'py>, batch: &Batch<'_, '_>, hash: Hash) -> PyResult<Bound<'py, PyAny>> {
    Ok(match batch.wide(hash) {
        Some(digest) if hash.is_hex() => {
            let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            PyString::new(py, &digits).into_any()
        }
        Some(digest) => PyBytes::new(py, digest).into_any(),
        None if hash.negative => (hash.bits as i64).into_pyobject(py)?.into_any(),
        None => hash.bits.into_pyobject(py)?.into_any(),
    })
}

/// A block's keys as a list; None if it has none.
fn extra_keys<'py>(py: Python<'py>, keys: &[ExtraKey<'_>]) -> PyResult<Bound<'py, PyAny>> {
    if keys.is_empty() {
        return Ok(py.None().into_bound(py));
    }
    let list = PyList::empty(py);
    for key in keys {
        match *key {
            ExtraKey::Text(text) => list.append(text)?,
            // A value of unknown shape is passed on as its msgpack.
            ExtraKey::Bytes(bytes) | ExtraKey::Other(bytes) => list.append(PyBytes::new(py, bytes))?,
            ExtraKey::Integer(number) => list.append(number)?,
            ExtraKey::Multimodal { id, offset } => {
                let item = [id.into_pyobject(py)?.into_any(), offset.into_pyobject(py)?.into_any()];
                list.append(PyTuple::new(py, item)?)?;
            }
        }
    }
    Ok(list.into_any())
}
