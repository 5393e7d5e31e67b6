//! `Snapshot`: a state at one moment, kept outside of Python until somebody looks.

use std::ops::Deref;
use std::sync::Arc;

use kvplane_embed::Moment;
use kvplane_stream::{BlockImage, Parent, Snapshot as Taken};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::errors::{aside, detached};

/// What a recorder held at one moment.
#[pyclass(frozen, module = "kvplane")]
pub(crate) struct Snapshot {
    taken: Arc<Kept>,
}

/// A moment that Python holds. Freeing the last reference does not block other threads.
struct Kept(Moment);

impl Deref for Kept {
    type Target = Taken;

    fn deref(&self) -> &Taken {
        &self.0.snapshot
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let image = std::mem::take(&mut self.0.snapshot.image);
        aside(|| drop(image));
    }
}

impl Snapshot {
    pub(crate) fn new(moment: Moment) -> Self {
        Self { taken: Arc::new(Kept(moment)) }
    }

    fn held(&self) -> usize {
        self.taken.image.blocks.iter().filter(|block| !block.holdings.is_empty()).count()
    }
}

#[pymethods]
impl Snapshot {
    /// The last number that is part of it; None before the first.
    #[getter]
    fn last_event_id(&self) -> Option<u64> {
        self.taken.engine_sequence
    }

    /// Digest of what is resident.
    #[getter]
    fn digest(&self) -> String {
        self.taken.digest.to_string()
    }

    /// What it is worth.
    #[getter]
    fn trust(&self) -> &'static str {
        self.taken.trust.level().as_str()
    }

    /// Why it is not exact.
    #[getter]
    fn reasons(&self) -> Vec<&'static str> {
        self.taken.trust.active().iter().map(|one| one.reason.as_str()).collect()
    }

    /// Tokens per block, configured or learned.
    #[getter]
    fn block_size(&self) -> Option<u32> {
        self.taken.block_size
    }

    /// The same as `/kv_recover` would answer at that moment.
    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        detached(py, || self.taken.0.recover_json())
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        detached(py, || self.held())
    }

    fn __iter__(&self, py: Python<'_>) -> PyResult<Blocks> {
        let order = detached(py, || self.taken.parents_first())?;
        Ok(Blocks { taken: self.taken.clone(), order: order.into_iter() })
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let number = self.taken.engine_sequence;
        let at = number.map_or_else(|| "the beginning".to_owned(), |number| number.to_string());
        let (stream, blocks) = (&self.taken.0.stream, self.__len__(py)?);
        Ok(format!("<kvplane.Snapshot of {stream} at {at}, {blocks} blocks>"))
    }
}

/// The blocks of a snapshot, parents before children. Each is made when it is asked for.
#[pyclass(module = "kvplane")]
pub(crate) struct Blocks {
    taken: Arc<Kept>,
    order: std::vec::IntoIter<u32>,
}

#[pymethods]
impl Blocks {
    fn __iter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        // A hole that others build on is not held.
        let held = self.order.find_map(|at| {
            self.taken.image.blocks.get(at as usize).filter(|block| !block.holdings.is_empty())
        });
        held.map(|block| describe(py, &self.taken, block)).transpose()
    }
}

fn describe<'py>(py: Python<'py>, taken: &Taken, block: &BlockImage) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("block_hash", block.hash)?;
    if let (Some(chain), _) = taken.chains_of(block) {
        let parent = match chain.parent() {
            Parent::Block(parent) => Some(parent),
            Parent::Root => None,
        };
        dict.set_item("parent_block_hash", parent)?;
        dict.set_item("tokens_hash", chain.attached.then_some(chain.content))?;
        dict.set_item("token_ids", chain.tokens.to_vec())?;
        dict.set_item("block_size", chain.block_size)?;
        dict.set_item("lora_name", chain.attributes.lora_name.as_deref())?;
        dict.set_item("cache_salt", chain.attributes.cache_salt.as_deref())?;
    }
    let copies = PyList::empty(py);
    for holding in &block.holdings {
        let Some(place) = taken.image.places.get(usize::from(holding.place)) else { continue };
        let held = PyDict::new(py);
        held.set_item("tier", place.tier.as_str())?;
        held.set_item("medium", place.medium.as_deref())?;
        held.set_item("group_idx", place.group)?;
        held.set_item("copies", holding.copies)?;
        copies.append(held)?;
    }
    dict.set_item("held", copies)?;
    Ok(dict)
}
