//! `serve_recovery`: a recorder's recovery over HTTP.

use kvplane_embed::RecoveryServer as Server;
use parking_lot::Mutex;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use crate::arguments;
use crate::errors::{Argument, aside, bad_value, detached};
use crate::recorder::Recorder;

/// A server that answers until it is shut down.
#[pyclass(frozen, module = "kvplane")]
pub(crate) struct RecoveryServer {
    host: String,
    port: u16,
    /// Gone once it is shut down.
    server: Mutex<Option<Server>>,
}

/// Serves `/kv_recover` of a recorder from a thread of its own.
#[pyfunction]
#[pyo3(signature = (recorder, host=None, port=None))]
pub(crate) fn serve_recovery(
    py: Python<'_>,
    recorder: &Recorder,
    host: Option<&Bound<'_, PyAny>>,
    port: Option<&Bound<'_, PyAny>>,
) -> PyResult<RecoveryServer> {
    let host = host.map(|host| arguments::text(Argument::new("host"), host)).transpose()?;
    let host = host.unwrap_or_else(|| "127.0.0.1".to_owned());
    let argument = Argument::new("port");
    let port = port.map_or(Ok(0), |port| arguments::unsigned_32(argument, port))?;
    let port = u16::try_from(port).map_err(|_| bad_value(argument, "must be from 0 to 65535"))?;
    let embedded = recorder.embedded.clone();
    let server = detached(py, || Server::start(embedded, &host, port))?
        .map_err(|error| PyOSError::new_err(error.to_string()))?;
    let address = server.address();
    Ok(RecoveryServer {
        host: address.ip().to_string(),
        port: address.port(),
        server: Mutex::new(Some(server)),
    })
}

impl Drop for RecoveryServer {
    fn drop(&mut self) {
        let server = self.server.get_mut().take();
        aside(|| drop(server)); // waits for its thread
    }
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
        detached(py, || {
            let server = self.server.lock().take();
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
