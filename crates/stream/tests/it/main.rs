//! Any history of an engine against naive models, and what real engines published.

#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "tests")]

mod captures;
mod copy;
mod drain;
mod followers;
mod handed;
mod hybrid;
mod identity;
mod journal;
mod levels;
mod mirror;
mod model;
mod offload;
mod reader;
mod relay;
mod restarts;
mod rig;
mod silence;

/// The usual number of cases, scaled by `PROPTEST_CASES`: proptest's own default is 256.
fn cases(usual: u32) -> u32 {
    (usual * proptest::test_runner::Config::default().cases / 256).max(1)
}
