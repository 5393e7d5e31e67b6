//! `serve_recovery`: a recorder's recovery over HTTP.

use kvplane_embed::RecoveryServer as Server;
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::arguments;
use crate::errors::{Argument, bad_value, detached, no_server};
use crate::log;
use crate::process::Own;
use crate::recorder::Recorder;

/// A server that answers until it is shut down.
#[pyclass(frozen, module = "kvplane")]
pub(crate) struct RecoveryServer {
    host: String,
    port: u16,
    /// Gone once it is shut down.
    server: Own<Mutex<Option<Server>>>,
}

/// Serves `/kv_recover` of a recorder from a thread of its own.
#[pyfunction]
#[pyo3(signature = (recorder, host=None, port=None))]
pub(crate) fn serve_recovery(
    py: Python<'_>,
    recorder: &Bound<'_, PyAny>,
    host: Option<&Bound<'_, PyAny>>,
    port: Option<&Bound<'_, PyAny>>,
) -> PyResult<RecoveryServer> {
    let recorder = Recorder::given(recorder)?.clone();
    let stream = recorder.stream().id().clone();
    let host = host.map(|host| arguments::text(Argument::new("host"), host)).transpose()?;
    let host = host.unwrap_or_else(|| "127.0.0.1".to_owned());
    let argument = Argument::new("port");
    let port = port.map_or(Ok(0), |port| arguments::unsigned_32(argument, port))?;
    let port = u16::try_from(port).map_err(|_| bad_value(argument, "must be from 0 to 65535"))?;
    let server = detached(py, || Server::start(recorder, &host, port))?.map_err(|error| no_server(&error))?;
    let address = server.address();
    if !address.ip().is_loopback() {
        log::warn(py, format!("anybody who reaches {address} can read what {stream} holds"))?;
    }
    Ok(RecoveryServer {
        host: address.ip().to_string(),
        port: address.port(),
        server: Own::new(Mutex::new(Some(server))),
    })
}

#[pymethods]
impl RecoveryServer {
    /// The address that it listens on.
    #[getter]
    fn host(&self) -> &str {
        &self.host
    }

    /// The port that it listens on.
    #[getter]
    fn port(&self) -> u16 {
        self.port
    }

    /// Where recovery is asked for.
    #[getter]
    fn url(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        format!("http://{host}:{}/kv_recover", self.port)
    }

    /// Answers what is being asked, then ends. A second time changes nothing.
    fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        let Some(server) = self.server.here() else { return Ok(()) };
        detached(py, || {
            let server = server.lock().take();
            drop(server); // waits for its thread
        })
    }

    fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.shutdown(py)
    }

    fn __repr__(&self) -> String {
        format!("<kvplane.RecoveryServer at {}>", self.url())
    }
}
