//! The native part of `Client`: a copy of a plane's streams, and answers from it.

use std::time::Duration;

use kvplane_core::Tier;
use kvplane_embed::{Bearer, Client as Embedded, ClientSettings, Followed, engine_of};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::arguments;
use crate::changes::Changes;
use crate::errors::{Argument, bad_type, bad_value, detached, public};
use crate::pick;
use crate::process::Own;
use crate::question::{Answer, credit, question, read};

/// Out of reach for longer is `down`, where nobody says otherwise.
const DOWN_AFTER: Duration = Duration::from_secs(10);

/// Follows a plane until it is closed.
#[pyclass(frozen, module = "kvplane._native")]
pub(crate) struct Client {
    embedded: Own<Embedded>,
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (address, *, token=None, ca=None, engine=None, credit=None, down_after=None, max_silence=None))]
    #[expect(clippy::too_many_arguments, reason = "they are the keywords of the Python constructor")]
    fn new(
        py: Python<'_>,
        address: &Bound<'_, PyAny>,
        token: Option<&Bound<'_, PyAny>>,
        ca: Option<&Bound<'_, PyAny>>,
        engine: Option<&Bound<'_, PyAny>>,
        credit: Option<&Bound<'_, PyAny>>,
        down_after: Option<&Bound<'_, PyAny>>,
        max_silence: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let settings = ClientSettings {
            address: arguments::text(Argument::new("address"), address)?,
            bearer: token.map_or_else(|| Ok(Bearer::default()), bearer)?,
            ca: ca.map(certificates).transpose()?,
            engine: engine.map(|engine| arguments::text(Argument::new("engine"), engine)).transpose()?,
            credit: self::credit(credit)?,
            down_after: down_after.map_or(Ok(DOWN_AFTER), |down_after| {
                arguments::seconds(Argument::new("down_after"), down_after)
            })?,
            max_silence: max_silence
                .map(|max_silence| arguments::seconds(Argument::new("max_silence"), max_silence))
                .transpose()?,
        };
        let embedded = detached(py, || Embedded::start(settings))?.map_err(public)?;
        Ok(Self { embedded: Own::new(embedded) })
    }

    /// Who holds how much of a prompt, from the copy.
    #[pyo3(signature = (model, token_ids=None, **details))]
    fn query(
        &self,
        py: Python<'_>,
        model: &Bound<'_, PyAny>,
        token_ids: Option<&Bound<'_, PyAny>>,
        details: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Answer> {
        let question = question(model, token_ids, details)?;
        let groups = question.groups == Some(true);
        let name = |found: &kvplane_catalog::Match<'_>| engine_of(found).to_owned();
        let embedded = self.embedded.get()?;
        let found = detached(py, || embedded.ask(&question, |answer| read(answer, groups, name)))?;
        Answer::new(py, found.map_err(public)?)
    }

    /// The ids of a prompt that is given as text, as the plane computes them.
    #[pyo3(signature = (model, **details))]
    fn tokenize<'py>(
        &self,
        py: Python<'py>,
        model: &Bound<'_, PyAny>,
        details: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (request, within) = pick::text(model, details)?;
        let embedded = self.embedded.get()?;
        let answer = detached(py, || embedded.tokenize(request, within))?.map_err(public)?;
        pick::tokenized(py, answer)
    }

    /// Where a prompt should go, as the plane decides.
    #[pyo3(signature = (model, token_ids=None, **details))]
    fn pick<'py>(
        &self,
        py: Python<'py>,
        model: &Bound<'_, PyAny>,
        token_ids: Option<&Bound<'_, PyAny>>,
        details: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (request, within) = pick::request(model, token_ids, details)?;
        let embedded = self.embedded.get()?;
        let answer = detached(py, || embedded.pick(request, within))?.map_err(public)?;
        pick::picked(py, &answer)
    }

    /// How far a request is, or what was delivered.
    #[pyo3(signature = (id, **details))]
    fn report<'py>(
        &self,
        py: Python<'py>,
        id: &Bound<'_, PyAny>,
        details: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (report, within) = pick::report(id, details)?;
        let embedded = self.embedded.get()?;
        let account = detached(py, || embedded.report(report, within))?.map_err(public)?;
        pick::account(py, &account)
    }

    /// How the way to the plane is.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let embedded = self.embedded.get()?;
        let (link, ready) = detached(py, || Ok((embedded.link()?, embedded.is_ready()?)))?.map_err(public)?;
        let dict = PyDict::new(py);
        dict.set_item("connected", link.connected)?;
        dict.set_item("ready", ready)?;
        dict.set_item("plane", link.plane.as_ref().map(ToString::to_string))?;
        dict.set_item("trouble", link.trouble.map(kvplane_core::LinkTrouble::as_str))?;
        dict.set_item("connects", link.connects)?;
        let voids = PyDict::new(py);
        for (reason, count) in link.voids {
            voids.set_item(reason, count)?;
        }
        dict.set_item("voids", voids)?;
        Ok(dict)
    }

    /// The streams that are followed.
    fn streams<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let embedded = self.embedded.get()?;
        let followed = detached(py, || {
            let followed = embedded.streams()?;
            let looked = followed.into_iter().map(|one| (one.stream.status(), one.stream.is_current(), one));
            Ok(looked.collect::<Vec<_>>())
        })?;
        let list = PyList::empty(py);
        for (status, current, Followed { engine, model, stream }) in followed.map_err(public)? {
            let dict = PyDict::new(py);
            dict.set_item("engine", engine)?;
            dict.set_item("rank", stream.id().rank)?;
            dict.set_item("model", model)?;
            dict.set_item("current", current)?;
            dict.set_item("continuity", status.continuity.as_str())?;
            dict.set_item("trust", status.trust.level().as_str())?;
            let reasons: Vec<&str> = status.trust.active().iter().map(|one| one.reason.as_str()).collect();
            dict.set_item("reasons", reasons)?;
            dict.set_item("age_ms", status.age.map(kvplane_catalog::age_ms))?;
            dict.set_item("epoch", status.epoch.as_u64())?;
            dict.set_item("sequence", status.cursor.sequence)?;
            dict.set_item("engine_sequence", status.engine_sequence)?;
            dict.set_item("digest", status.digest.to_string())?;
            let blocks = PyDict::new(py);
            for tier in Tier::ALL {
                blocks.set_item(tier.as_str(), status.blocks[tier.index()])?;
            }
            dict.set_item("blocks", blocks)?;
            dict.set_item("block_size", status.block_size)?;
            list.append(dict)?;
        }
        Ok(list)
    }

    /// Waits until all that the plane had is here. Says whether it is.
    fn wait_ready(&self, py: Python<'_>, timeout: &Bound<'_, PyAny>) -> PyResult<bool> {
        let timeout = arguments::seconds(Argument::new("timeout"), timeout)?;
        let embedded = self.embedded.get()?;
        detached(py, || embedded.wait_ready(Some(timeout)))?.map_err(public)
    }

    /// What happens from now on: to the link, and to the streams if they are wanted.
    fn changes(&self, py: Python<'_>, streams: bool) -> PyResult<Changes> {
        let embedded = self.embedded.get()?;
        let changes = detached(py, || embedded.changes(streams))?.map_err(public)?;
        Ok(Changes::new(changes))
    }

    /// Follows nothing any more. A second time changes nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.embedded.here().map_or(Ok(()), |embedded| detached(py, || embedded.close()))
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.embedded.here().is_none_or(Embedded::is_closed)
    }
}

fn bearer(token: &Bound<'_, PyAny>) -> PyResult<Bearer> {
    let argument = Argument::new("token");
    Bearer::new(&arguments::text(argument, token)?).map_err(|unfit| bad_value(argument, unfit))
}

fn certificates(ca: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let bytes = ca.cast::<PyBytes>().map_err(|_| bad_type(Argument::new("ca"), "bytes", ca))?;
    Ok(bytes.as_bytes().to_vec())
}
