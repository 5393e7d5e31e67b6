//! The native part of the Python package `kvplane`: types of Python around those of the other rooms.
//!
//! Nothing is decided here. Arguments are checked and named, the interpreter's lock is released while the
//! other rooms work, and what goes wrong becomes an exception with a stable code.

mod arguments;
mod changes;
mod client;
mod errors;
mod events;
mod frames;
mod index;
mod log;
mod pick;
mod process;
mod question;
mod recorder;
mod serve;
mod snapshot;

use pyo3::pymodule;

/// For what lies in these rooms alone: Python's own objects are where they always were. Recording is made of
/// small allocations.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The module `kvplane._native`. `kvplane/__init__.py` says what of it is public.
#[pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::changes::{Change, Changes};
    #[pymodule_export]
    use super::client::Client;
    #[pymodule_export]
    use super::frames::{decode, encode};
    #[pymodule_export]
    use super::index::Index;
    #[pymodule_export]
    use super::question::{Answer, Match, NotCredited};
    #[pymodule_export]
    use super::recorder::Recorder;
    #[pymodule_export]
    use super::serve::{RecoveryServer, serve_recovery};
    #[pymodule_export]
    use super::snapshot::Snapshot;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::process::watch_forks(module.py())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
