//! `Index`: who holds how much of a prompt, among recorders of this process.

use kvplane_embed::Index as Embedded;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments;
use crate::errors::{Argument, detached, public};
use crate::process::Own;
use crate::question::{Answer, credit, question, read};
use crate::recorder::Recorder;

/// What recorders of this process hold, by content.
#[pyclass(frozen, module = "kvplane")]
pub(crate) struct Index {
    embedded: Own<Embedded>,
}

#[pymethods]
impl Index {
    #[new]
    #[pyo3(signature = (*, credit=None))]
    fn new(py: Python<'_>, credit: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let credit = self::credit(credit)?;
        let embedded = detached(py, || Embedded::new(credit))?.map_err(public)?;
        Ok(Self { embedded: Own::new(embedded) })
    }

    /// Puts a recorder in, with whatever it has recorded by now.
    fn add(&self, py: Python<'_>, recorder: &Bound<'_, PyAny>, model: &Bound<'_, PyAny>) -> PyResult<()> {
        let recorder = Recorder::given(recorder)?;
        let model = arguments::text(Argument::new("model"), model)?;
        let embedded = self.embedded.get()?;
        detached(py, || embedded.add(recorder, &model))?.map_err(public)
    }

    /// Takes a recorder out. Says whether it was in.
    fn remove(&self, py: Python<'_>, recorder: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (embedded, recorder) = (self.embedded.get()?, Recorder::given(recorder)?);
        detached(py, || embedded.remove(recorder))
    }

    /// Who holds how much of a prompt.
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
        let name = |found: &kvplane_catalog::Match<'_>| found.member.id.engine.to_string();
        let embedded = self.embedded.get()?;
        let found = detached(py, || embedded.ask(&question, |answer| read(answer, groups, name)))?;
        Answer::new(py, found.map_err(public)?)
    }

    /// The models that recorders were put in with.
    fn models(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let embedded = self.embedded.get()?;
        detached(py, || embedded.models())
    }
}
