//! What is shipped beside the binary and made from its own command line: completions and manual pages.

use std::path::Path;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;

use super::Failure;
use super::page::print;
use crate::args::Args;

pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    // Made before it is printed: clap's own writing panics where the reader has gone.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "kvplane", &mut script);
    print(&String::from_utf8(script).context("the completion script is not text")?)
}

/// A page for the program and one for every command that is not hidden.
pub(crate) fn manual(directory: &Path) -> Result<(), Failure> {
    let written = std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Args::command(), directory));
    written.with_context(|| format!("{}: cannot write the manual pages", directory.display()))?;
    Ok(())
}
