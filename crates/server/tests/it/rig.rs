//! The rigs of these tests.

pub use kvplane_testkit::*;
