//! `Recorder`: what an engine's own process hands over.

use std::sync::Arc;

use kvplane_core::{EngineKind, StreamId, Tier};
use kvplane_embed::{NotAnswered, Recorder as Embedded, Settings};
use kvplane_ingest::{HandedOver, NotHandedOver};
use kvplane_stream::{OnGap, Recovery};
use kvplane_wire::{OwnedEvent, OwnedRemoved, OwnedStored};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments::{self, Fields};
use crate::errors::{Argument, bad_type, bad_value, detached, not_recorded, public};
use crate::events::{REMOVED_DETAILS, STORED_DETAILS, removed_details, stored_details};
use crate::log;
use crate::process::Own;
use crate::snapshot::Snapshot;

/// Records the KV-cache events of one rank inside its engine's process.
#[pyclass(frozen, module = "kvplane")]
pub(crate) struct Recorder {
    embedded: Own<Arc<Embedded>>,
    /// Whose events they are, known in every process.
    id: StreamId,
    worker_id: u64,
}

#[pymethods]
impl Recorder {
    #[new]
    #[pyo3(signature = (
        engine, rank=None, block_size=None, max_events=None, max_bytes=None, *,
        kind=None, worker_id=None, max_state_bytes=None, from_start=None, on_gap=None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are Python's keywords")]
    fn new(
        engine: &Bound<'_, PyAny>,
        rank: Option<&Bound<'_, PyAny>>,
        block_size: Option<&Bound<'_, PyAny>>,
        max_events: Option<&Bound<'_, PyAny>>,
        max_bytes: Option<&Bound<'_, PyAny>>,
        kind: Option<&Bound<'_, PyAny>>,
        worker_id: Option<&Bound<'_, PyAny>>,
        max_state_bytes: Option<&Bound<'_, PyAny>>,
        from_start: Option<&Bound<'_, PyAny>>,
        on_gap: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let mut settings = Settings::new(&arguments::text(Argument::new("engine"), engine)?);
        if let Some(from_start) = from_start {
            settings.from_start = arguments::truth(Argument::new("from_start"), from_start)?;
        }
        if let Some(rank) = rank {
            settings.rank = arguments::unsigned_32(Argument::new("rank"), rank)?;
        }
        if let Some(size) = block_size {
            settings.block_size = Some(arguments::unsigned_32(Argument::new("block_size"), size)?);
        }
        if let Some(id) = worker_id {
            settings.worker_id = Some(arguments::unsigned_64(Argument::new("worker_id"), id)?);
        }
        for (name, value, setting) in [
            ("max_events", max_events, &mut settings.max_events),
            ("max_bytes", max_bytes, &mut settings.max_bytes),
            ("max_state_bytes", max_state_bytes, &mut settings.max_state_bytes),
        ] {
            if let Some(value) = value {
                let number = arguments::unsigned_64(Argument::new(name), value)?;
                *setting = usize::try_from(number).unwrap_or(usize::MAX);
            }
        }
        if let Some(kind) = kind {
            let argument = Argument::new("kind");
            let kind: Result<EngineKind, _> = arguments::text(argument, kind)?.parse();
            settings.kind = kind.map_err(|error| bad_value(argument, error))?;
        }
        if let Some(on_gap) = on_gap {
            let argument = Argument::new("on_gap");
            settings.on_gap = match arguments::text(argument, on_gap)?.as_str() {
                "drop" => OnGap::Drop,
                "keep" => OnGap::Keep,
                _ => return Err(bad_value(argument, "must be 'drop' or 'keep'")),
            };
        }
        let embedded = Embedded::new(&settings).map_err(public)?;
        let (id, worker_id) = (embedded.stream().id().clone(), embedded.worker_id());
        Ok(Self { embedded: Own::new(Arc::new(embedded)), id, worker_id })
    }

    /// Blocks became resident.
    #[pyo3(signature = (event_id, parent, block_hashes, token_ids, **details))]
    fn apply_stored(
        &self,
        py: Python<'_>,
        event_id: &Bound<'_, PyAny>,
        parent: &Bound<'_, PyAny>,
        block_hashes: &Bound<'_, PyAny>,
        token_ids: &Bound<'_, PyAny>,
        details: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<u64> {
        let number = arguments::number(Argument::new("event_id"), event_id)?;
        let fields = Fields { within: "", values: details };
        fields.only(&STORED_DETAILS)?;
        let (token_ids, bigrams) = arguments::tokens(Argument::new("token_ids"), token_ids)?;
        let blocks = OwnedStored {
            block_hashes: arguments::hashes(Argument::new("block_hashes"), block_hashes)?,
            parent: arguments::optional_hash(Argument::new("parent"), parent)?,
            block_size: self.embedded.get()?.block_size().unwrap_or_default(),
            token_ids,
            bigrams,
            ..OwnedStored::default()
        };
        self.apply(py, number, OwnedEvent::Stored(stored_details(&fields, blocks)?))
    }

    /// Copies of blocks went away.
    #[pyo3(signature = (event_id, block_hashes, **details))]
    fn apply_removed(
        &self,
        py: Python<'_>,
        event_id: &Bound<'_, PyAny>,
        block_hashes: &Bound<'_, PyAny>,
        details: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<u64> {
        let number = arguments::number(Argument::new("event_id"), event_id)?;
        let fields = Fields { within: "", values: details };
        fields.only(&REMOVED_DETAILS)?;
        let block_hashes = arguments::hashes(Argument::new("block_hashes"), block_hashes)?;
        let removed = removed_details(&fields, OwnedRemoved { block_hashes, ..OwnedRemoved::default() })?;
        self.apply(py, number, OwnedEvent::Removed(removed))
    }

    /// The engine dropped everything.
    fn apply_cleared(&self, py: Python<'_>, event_id: &Bound<'_, PyAny>) -> PyResult<u64> {
        let number = arguments::number(Argument::new("event_id"), event_id)?;
        self.apply(py, number, OwnedEvent::Cleared)
    }

    /// A message as the engine publishes it.
    fn apply_frame(
        &self,
        py: Python<'_>,
        seq: &Bound<'_, PyAny>,
        payload: &Bound<'_, PyAny>,
    ) -> PyResult<u64> {
        let number = arguments::number(Argument::new("seq"), seq)?;
        let payload = arguments::payload(payload)?;
        let bytes = payload.as_bytes();
        let embedded = self.embedded.get()?;
        let recorded = detached(py, || embedded.apply_frame(number, bytes))?;
        self.recorded(py, recorded)
    }

    /// The answer to a router that recovers: the JSON of `/kv_recover`.
    #[pyo3(signature = (start=None, end=None))]
    fn get_events_json(
        &self,
        py: Python<'_>,
        start: Option<&Bound<'_, PyAny>>,
        end: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<String> {
        let number = |name, value: Option<&Bound<'_, PyAny>>| {
            value.map(|value| arguments::unsigned_64(Argument::new(name), value)).transpose()
        };
        let recovery = Recovery { start: number("start", start)?, end: number("end", end)? };
        let embedded = self.embedded.get()?;
        detached(py, || embedded.recover_json(recovery))?.map_err(closed)
    }

    /// The whole state at one moment.
    fn snapshot(&self, py: Python<'_>) -> PyResult<Snapshot> {
        let embedded = self.embedded.get()?;
        detached(py, || embedded.snapshot())?.map(Snapshot::new).map_err(closed)
    }

    /// Digest of what is resident: two that hold the same have the same.
    fn digest(&self, py: Python<'_>) -> PyResult<String> {
        let embedded = self.embedded.get()?;
        detached(py, || embedded.digest().to_string())
    }

    /// Where the stream stands, what its state is worth, and what was counted.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let embedded = self.embedded.get()?;
        let status = detached(py, || embedded.status())?;
        let dict = PyDict::new(py);
        dict.set_item("continuity", status.continuity.as_str())?;
        dict.set_item("trust", status.trust.level().as_str())?;
        let reasons: Vec<&str> = status.trust.active().iter().map(|one| one.reason.as_str()).collect();
        dict.set_item("reasons", reasons)?;
        dict.set_item("last_event_id", status.engine_sequence)?;
        dict.set_item("known_from", status.known_from)?;
        let blocks = PyDict::new(py);
        for tier in Tier::ALL {
            blocks.set_item(tier.as_str(), status.blocks[tier.index()])?;
        }
        dict.set_item("blocks", blocks)?;
        dict.set_item("digest", status.digest.to_string())?;
        dict.set_item("block_size", status.block_size)?;
        dict.set_item("window_events", status.window_entries)?;
        dict.set_item("window_bytes", status.window_bytes)?;
        dict.set_item("state_bytes", status.state_bytes)?;
        dict.set_item("waiting", status.waiting)?;
        let rejected: u64 = status.journal.rejected.iter().map(|(_, count)| count).sum();
        for (name, count) in [
            ("applied", status.journal.batches),
            ("gaps", status.counters.gaps),
            ("refused", status.counters.refused),
            ("undecodable", status.counters.undecodable),
            ("foreign_rank_batches", status.journal.foreign_rank),
            ("rejected_events", rejected),
            ("unknown_events", status.journal.unknown_events),
            ("unrecorded_blocks", status.journal.unrecorded_blocks),
        ] {
            dict.set_item(name, count)?;
        }
        Ok(dict)
    }

    /// The engine's name.
    #[getter]
    fn engine(&self) -> &str {
        self.id.engine.as_str()
    }

    /// Its data-parallel rank.
    #[getter]
    fn rank(&self) -> u32 {
        self.id.rank
    }

    /// The engine's number in answers.
    #[getter]
    fn worker_id(&self) -> u64 {
        self.worker_id
    }

    /// Lets go of everything. Calls after it raise; a second time changes nothing.
    fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        self.embedded.here().map_or(Ok(()), |embedded| detached(py, || embedded.close()))
    }

    fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.shutdown(py)
    }

    fn __repr__(&self) -> String {
        format!("<kvplane.Recorder of {}>", self.id)
    }
}

impl Recorder {
    /// The recorder that an argument of that name is.
    pub(crate) fn given<'a>(value: &'a Bound<'_, PyAny>) -> PyResult<&'a Arc<Embedded>> {
        let argument = Argument::new("recorder");
        let recorder = value.cast::<Self>().map_err(|_| bad_type(argument, "a kvplane.Recorder", value))?;
        recorder.get().embedded.get()
    }

    fn apply(&self, py: Python<'_>, number: Option<u64>, event: OwnedEvent) -> PyResult<u64> {
        let embedded = self.embedded.get()?;
        let recorded = detached(py, || embedded.apply(number, &[event]))?;
        self.recorded(py, recorded)
    }

    fn recorded(&self, py: Python<'_>, recorded: Result<HandedOver, NotHandedOver>) -> PyResult<u64> {
        let HandedOver { number, happenings } = recorded.map_err(not_recorded)?;
        let mut told = Ok(number);
        for happening in happenings {
            // Each is reported, also after an interruption.
            if let Err(interrupted) = log::tell(py, &self.id, number, happening) {
                told = Err(interrupted);
            }
        }
        told
    }
}

fn closed(error: NotAnswered) -> PyErr {
    public(error.into())
}
