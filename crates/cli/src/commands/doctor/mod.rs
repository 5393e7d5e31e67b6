//! `kvplane doctor`.

mod listed;
mod plane;
mod setup;
mod view;

use std::io::IsTerminal as _;

use anyhow::anyhow;
use kvplane_doctor::{Finding, Severity};

use super::page::{print, print_as_it_is};
use super::progress::while_waiting;
use super::{Failure, usage};
use crate::args::{DoctorArgs, TableOutput};

/// Nobody waits longer for an engine to speak.
const LONGEST_LISTEN: std::time::Duration = std::time::Duration::from_mins(10);

/// What was looked at.
#[derive(Debug, Default)]
struct Looked {
    engines: Vec<String>,
    plane: Option<String>,
    findings: Vec<Finding>,
}

pub(crate) async fn run(args: DoctorArgs) -> Result<(), Failure> {
    if args.listen.0 > LONGEST_LISTEN {
        return Err(usage(anyhow!("--listen {}: at most {} s", args.listen, LONGEST_LISTEN.as_secs())));
    }
    let mut looked = Looked::default();
    let has_set_up = args.config.is_some() || !args.engine.is_empty();
    if has_set_up {
        while_waiting("looking at engines", setup::look(&args, &mut looked)).await?;
    }
    if args.server.is_some() || !has_set_up {
        while_waiting("looking at kvplane and its engines", plane::look(&args, &mut looked)).await?;
    }
    looked.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    match args.output {
        TableOutput::Json => print(&format!("{}\n", view::json(&looked)))?,
        // The words are made harmless there; the colours are ours.
        TableOutput::Table => print_as_it_is(&view::page(&looked, std::io::stdout().is_terminal()))?,
    }
    let counted = |severity| looked.findings.iter().filter(|finding| finding.severity == severity).count();
    let (errors, warnings) = (counted(Severity::Error), counted(Severity::Warning));
    match (errors, warnings) {
        (0, 0) => Ok(()),
        (0, warnings) if args.strict => {
            Err(anyhow!("{}, and --strict", view::counted(warnings, "warning")).into())
        }
        (0, _) => Ok(()),
        (errors, _) => Err(anyhow!("{}", view::counted(errors, "error")).into()),
    }
}
