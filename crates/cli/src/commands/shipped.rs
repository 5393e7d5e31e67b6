//! What is shipped beside the binary and made from its own command line: completions and manual pages.

use std::io;
use std::path::Path;

use anyhow::Context as _;
use clap::{Command, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;

use super::Failure;
use super::page::print;
use crate::args::Args;

pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    // Made before it is printed: clap's own writing panics where the reader has gone.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "kvplane", &mut script);
    print(&String::from_utf8(script).context("the completion script is not text")?)
}

/// A page for the program and one for every command.
pub(crate) fn manual(directory: &Path) -> Result<(), Failure> {
    let mut program = Args::command().disable_help_subcommand(true);
    program.build();
    let written = std::fs::create_dir_all(directory).and_then(|()| write_pages(&program, directory));
    written.with_context(|| format!("{}: cannot write the manual pages", directory.display()))?;
    Ok(())
}

fn write_pages(command: &Command, directory: &Path) -> io::Result<()> {
    for below in command.get_subcommands() {
        write_pages(below, directory)?;
    }
    let page = Man::new(command.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    // What stands below a command's help has a heading of its own here, and clap's says nothing.
    let text = String::from_utf8_lossy(&text).replace(".SH EXTRA\n", ".SH NOTES\n");
    std::fs::write(directory.join(page.get_filename()), text)
}
