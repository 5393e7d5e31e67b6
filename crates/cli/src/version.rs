//! What this program is: its version, and the commit that it was built from.

#[cfg(test)]
#[path = "../build/commit.rs"]
mod commit;
#[cfg(test)]
mod tests;

/// The commit that it was built from, as build.rs found it: `unknown` where the sources do not say.
pub(crate) const COMMIT: &str = env!("KVPLANE_COMMIT");

/// As `--version` prints it.
pub(crate) const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("KVPLANE_COMMIT"), ")");
