//! Objects belong to the process that made them.
//!
//! Threads do not come along into a fork, and a lock that one of them held there is never given back. So
//! nothing that was made before the fork is touched after it: calls raise, and what goes is not ended, but
//! forgotten.

use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::prelude::*;

use crate::errors::{aside, elsewhere};

/// How often this process was forked off one that had the package. Looking at it costs less than asking for
/// the process.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Has the interpreter tell of every fork. Where there is none, it has no such function.
pub(crate) fn watch_forks(py: Python<'_>) -> PyResult<()> {
    let os = py.import("os")?;
    if !os.hasattr("register_at_fork")? {
        return Ok(());
    }
    let forked = wrap_pyfunction!(forked, py)?;
    let arguments = pyo3::types::PyDict::new(py);
    arguments.set_item("after_in_child", forked)?;
    os.call_method("register_at_fork", (), Some(&arguments)).map(drop)
}

#[pyfunction]
fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// What an object of Python holds. It goes without the interpreter's lock: that may take a while.
pub(crate) struct Own<T: Send> {
    made: u32,
    /// Gone once the object goes.
    held: Option<T>,
}

impl<T: Send> Own<T> {
    pub(crate) fn new(held: T) -> Self {
        Self { made: FORKS.load(Ordering::Relaxed), held: Some(held) }
    }

    /// What is held, in the process that made it.
    pub(crate) fn here(&self) -> Option<&T> {
        self.held.as_ref().filter(|_| self.is_here())
    }

    /// The same for a call that cannot do without.
    pub(crate) fn get(&self) -> PyResult<&T> {
        self.here().ok_or_else(elsewhere)
    }

    fn is_here(&self) -> bool {
        self.made == FORKS.load(Ordering::Relaxed)
    }
}

impl<T: Send> Drop for Own<T> {
    fn drop(&mut self) {
        let held = self.held.take();
        if self.is_here() {
            aside(|| drop(held));
        } else {
            std::mem::forget(held);
        }
    }
}
