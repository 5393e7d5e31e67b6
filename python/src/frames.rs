//! Frames in and out, for tests and tools.

use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{Decoder, OwnedEvent};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::arguments;
use crate::errors::{Argument, bad_value, detached, undecodable, unfit};
use crate::events;

/// The events of a published message, as dictionaries with the engine's own names.
#[pyfunction]
#[pyo3(signature = (payload, /))]
pub(crate) fn decode<'py>(py: Python<'py>, payload: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    let payload = arguments::payload(payload)?;
    let bytes = payload.as_bytes();
    let mut decoder = Decoder::default();
    let batch = detached(py, || decoder.decode(bytes))?.map_err(undecodable)?;
    if let Some(broken) = batch.broken {
        return Err(undecodable(broken));
    }
    let list = PyList::empty(py);
    for event in &batch.events {
        list.append(events::to_dict(py, &batch, event)?)?;
    }
    let dict = PyDict::new(py);
    dict.set_item("timestamp", batch.timestamp)?;
    dict.set_item("rank", batch.rank)?;
    dict.set_item("events", list)?;
    dict.set_item("unknown_fields", batch.unknown_fields)?;
    Ok(dict)
}

/// The message that an engine of some release would publish. What its release does not know is not sent.
#[pyfunction]
#[pyo3(signature = (events, /, *, timestamp=None, rank=None, profile=None))]
pub(crate) fn encode<'py>(
    py: Python<'py>,
    events: &Bound<'py, PyAny>,
    timestamp: Option<&Bound<'py, PyAny>>,
    rank: Option<&Bound<'py, PyAny>>,
    profile: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let argument = Argument::new("timestamp");
    let timestamp = timestamp.map_or(Ok(0.0), |timestamp| arguments::float(argument, timestamp))?;
    let argument = Argument::new("profile");
    let profile: Profile = match profile {
        Some(name) => arguments::text(argument, name)?
            .parse()
            .map_err(|error| bad_value(argument, format_args!("{error}")))?,
        None => Profile::Vllm0_32,
    };
    let rank = rank.map(|rank| arguments::unsigned_32(Argument::new("rank"), rank)).transpose()?;
    let mut owned: Vec<OwnedEvent> = Vec::new();
    arguments::elements(Argument::new("events"), events, "a sequence of dicts", |at, event| {
        let within = format!("events[{at}]");
        let event = events::from_dict(&within, event)?;
        // Nobody could read it otherwise.
        let checked = Decoder::default().assemble(timestamp, std::slice::from_ref(&event)).map(drop);
        checked.map_err(|reason| unfit(&format!("{within}."), reason))?;
        owned.push(event);
        Ok(())
    })?;
    let bytes = detached(py, || encode_batch(profile, timestamp, rank, &owned))?;
    Ok(PyBytes::new(py, &bytes))
}
