//! What happens to a plane that is followed.

use std::sync::Arc;

use kvplane_core::{Cursor, Epoch};
use kvplane_embed::{Change as PlaneChange, Changes as Embedded, Happened, Stop};
use kvplane_stream::{Change as Event, Entry, Parent, Place, StoredChange, Tokens};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::arguments;
use crate::errors::{Argument, detached};
use crate::process::Own;

/// Changes for one reader.
#[pyclass(frozen, module = "kvplane._native")]
pub(crate) struct Changes {
    reader: Own<Reader>,
}

/// Who holds it keeps a client's threads, also one that was closed meanwhile.
struct Reader {
    embedded: Mutex<Embedded>,
    stop: Stop,
}

impl Changes {
    pub(crate) fn new(embedded: Embedded) -> Self {
        Self { reader: Own::new(Reader { stop: embedded.stop(), embedded: Mutex::new(embedded) }) }
    }
}

#[pymethods]
impl Changes {
    /// Waits for the next changes, at most `max`. None: there will be no more. An empty list: none within the
    /// time.
    fn wait(
        &self,
        py: Python<'_>,
        limit: usize,
        timeout: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Vec<Change>>> {
        let timeout = arguments::seconds(Argument::new("timeout"), timeout)?;
        let reader = self.reader.get()?;
        let next = detached(py, || reader.embedded.lock().wait(limit, timeout))?;
        Ok(next.map(|told| told.into_iter().map(Change).collect()))
    }

    /// Ends every wait: there will be no more changes.
    fn close(&self) {
        if let Some(reader) = self.reader.here() {
            reader.stop.now();
        }
    }
}

/// Something that happened, reported after the copy has applied it.
#[pyclass(frozen, module = "kvplane")]
pub(crate) struct Change(PlaneChange);

#[pymethods]
impl Change {
    /// What happened, in one word.
    #[getter]
    fn kind(&self) -> &'static str {
        match &self.0 {
            PlaneChange::Connected => "connected",
            PlaneChange::Disconnected { .. } => "disconnected",
            PlaneChange::Stream { happened, .. } => match happened {
                Happened::Loaded(_) => "loaded",
                Happened::Reset => "reset",
                Happened::Batch(_) => "batch",
                Happened::Continuity => "standing",
                Happened::Lagged(_) => "lagged",
                Happened::Gone => "gone",
            },
        }
    }

    /// What keeps the plane from being followed, in one word.
    #[getter]
    fn trouble(&self) -> Option<&'static str> {
        match self.0 {
            PlaneChange::Disconnected { trouble } => Some(trouble.as_str()),
            _ => None,
        }
    }

    /// The engine's name, if it happened to a stream.
    #[getter]
    fn engine(&self) -> Option<&str> {
        match &self.0 {
            PlaneChange::Stream { engine, .. } => Some(engine),
            _ => None,
        }
    }

    /// Its rank.
    #[getter]
    fn rank(&self) -> Option<u32> {
        match &self.0 {
            PlaneChange::Stream { rank, .. } => Some(*rank),
            _ => None,
        }
    }

    /// The stream's continuity when this was reported.
    #[getter]
    fn continuity(&self) -> Option<&'static str> {
        match &self.0 {
            PlaneChange::Stream { continuity, .. } => Some(continuity.as_str()),
            _ => None,
        }
    }

    /// The stream's trust when this was reported.
    #[getter]
    fn trust(&self) -> Option<&'static str> {
        match &self.0 {
            PlaneChange::Stream { trust, .. } => Some(trust.as_str()),
            _ => None,
        }
    }

    /// The publisher's life.
    #[getter]
    fn epoch(&self) -> Option<u64> {
        self.cursor().map(|at| at.epoch.as_u64())
    }

    /// The plane's own number.
    #[getter]
    fn sequence(&self) -> Option<u64> {
        self.cursor().map(|at| at.sequence)
    }

    /// The engine's own number of the batch.
    #[getter]
    fn engine_sequence(&self) -> Option<u64> {
        self.entry().and_then(|entry| entry.engine_sequence)
    }

    /// When the engine published the batch, in seconds.
    #[getter]
    fn timestamp(&self) -> Option<f64> {
        self.entry().map(|entry| entry.timestamp)
    }

    /// What a batch did, in order. Made anew with every call.
    #[getter]
    fn events<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for event in self.entry().into_iter().flat_map(|entry| &entry.changes) {
            list.append(describe(py, event)?)?;
        }
        Ok(list)
    }

    fn __repr__(&self) -> String {
        let stream = match (self.engine(), self.rank()) {
            (Some(engine), Some(rank)) => format!(" {engine}/{rank}"),
            _ => String::new(),
        };
        let at = self.sequence().map_or_else(String::new, |sequence| format!(" at {sequence}"));
        format!("<kvplane.Change {}{stream}{at}>", self.kind())
    }
}

impl Change {
    fn entry(&self) -> Option<&Arc<Entry>> {
        match &self.0 {
            PlaneChange::Stream { happened: Happened::Batch(entry), .. } => Some(entry),
            _ => None,
        }
    }

    fn cursor(&self) -> Option<Cursor> {
        match &self.0 {
            PlaneChange::Stream { happened: Happened::Loaded(at) | Happened::Lagged(at), .. } => Some(*at),
            _ => self.entry().map(|entry| Cursor { epoch: entry.epoch, sequence: entry.sequence }),
        }
        .filter(|at| at.epoch != Epoch::UNKNOWN)
    }
}

fn describe<'py>(py: Python<'py>, event: &Event) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    match event {
        Event::Stored(stored) => describe_stored(&dict, stored)?,
        Event::Removed { place, blocks } => {
            dict.set_item("type", "removed")?;
            describe_place(&dict, place)?;
            let list = PyList::empty(py);
            for block in blocks {
                let one = PyDict::new(py);
                one.set_item("block_hash", block.hash)?;
                one.set_item("copies", block.copies)?;
                list.append(one)?;
            }
            dict.set_item("blocks", list)?;
        }
        Event::Cleared { places, .. } => {
            dict.set_item("type", "cleared")?;
            let list = PyList::empty(py);
            for place in places {
                let one = PyDict::new(py);
                describe_place(&one, place)?;
                list.append(one)?;
            }
            dict.set_item("places", list)?;
        }
        Event::Dropped { reason, .. } => {
            dict.set_item("type", "dropped")?;
            dict.set_item("reason", reason.as_str())?;
        }
    }
    Ok(dict)
}

fn describe_stored(dict: &Bound<'_, PyDict>, stored: &StoredChange) -> PyResult<()> {
    dict.set_item("type", "stored")?;
    describe_place(dict, &stored.place)?;
    dict.set_item("block_size", stored.block_size)?;
    dict.set_item("parent_block_hash", stored.parent)?;
    dict.set_item("lora_name", stored.attributes.lora_name.as_deref())?;
    dict.set_item("cache_salt", stored.attributes.cache_salt.as_deref())?;
    let list = PyList::empty(dict.py());
    for block in &stored.blocks {
        let one = PyDict::new(dict.py());
        one.set_item("block_hash", block.hash)?;
        one.set_item("copies", block.copies)?;
        let parent = match block.parent() {
            Some(Parent::Block(parent)) => Some(parent),
            Some(Parent::Root) | None => None,
        };
        one.set_item("parent_block_hash", parent)?;
        one.set_item("tokens_hash", block.content())?;
        one.set_item("token_ids", block.tokens().map(Tokens::to_vec))?;
        list.append(one)?;
    }
    dict.set_item("blocks", list)
}

fn describe_place(dict: &Bound<'_, PyDict>, place: &Place) -> PyResult<()> {
    dict.set_item("tier", place.tier.as_str())?;
    dict.set_item("medium", place.medium.as_deref())?;
    dict.set_item("group_idx", place.group)
}
