//! `kvplane config`: what there is to configure.

use std::io::Write as _;

use anyhow::Context as _;

use super::Failure;
use crate::args::{ConfigArgs, ConfigCommand};
use crate::config::schema;

pub(crate) fn run(args: &ConfigArgs) -> Result<(), Failure> {
    match args.command {
        ConfigCommand::Schema => {
            let text = serde_json::to_string_pretty(&schema()).context("cannot write the schema")?;
            writeln!(std::io::stdout(), "{text}").context("cannot print the schema")?;
            Ok(())
        }
    }
}
