//! Operations on the fleet, with a verdict for each rank.
//!
//! ```text
//!  selection ──> targets ──> FanOut: at most 32 servers asked at a time ──> answers ──┐
//!                  │ a watch on every stream before its engine is asked                ├──> verdicts
//!                  └──────────> Proving: until the stream shows it, outside the slots ─┘
//! ```
//!
//! An operation runs in a task of its own and tells what happens as [`Update`]s, which HTTP and gRPC render.
//! When nobody listens any more, nobody else is asked; what was asked is watched to its end all the same, so
//! that no stream stays fenced. Every operation ends with a line in the log (target `kvplane::audit`).
//!
//! Several operations may run at the same time, also on the same engines: flushes of one stream are proven
//! together.

mod input;
mod operation;
mod plan;
mod proof;
mod remark;
mod report;
mod selection;
mod tally;
mod verdict;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use kvplane_core::{ErrorCode, PublicError};
use kvplane_ingest::Plane;
use kvplane_ops::{Profile, ProfileIds, Verb};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

pub(crate) use kvplane_ops::ProfileId as Id;

pub(crate) use input::{positive_seconds, seconds};
pub(crate) use report::{Outcome, Phase, Plan, PlannedRank, RankReport, Summary, Update};
pub(crate) use selection::Selection;
pub(crate) use tally::Counters;
pub(crate) use verdict::Verdict;

use kvplane_access::Caller;

/// Operations at the same time: people and their scripts need a few, and each may have 32 connections. Those
/// that change something have as many places again, so that nobody who only reads can keep them waiting.
const OPERATIONS_MAX: usize = 16;
/// Updates on their way to a listener.
const UPDATES_MAX: usize = 64;
/// How long to wait for the stream to show a flush, unless somebody says otherwise.
pub(crate) const PROOF_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts operations on a plane's engines, and counts them.
#[derive(Debug)]
pub(crate) struct Operations {
    plane: Arc<Plane>,
    stop: CancellationToken,
    ids: ProfileIds,
    reading: Arc<Semaphore>,
    changing: Arc<Semaphore>,
    counters: Counters,
}

impl Operations {
    /// Operations end with `stop`.
    pub(crate) fn new(plane: Arc<Plane>, stop: CancellationToken) -> Self {
        let places = || Arc::new(Semaphore::new(OPERATIONS_MAX));
        let (reading, changing) = (places(), places());
        let ids = ProfileIds::new(plane.id().clone());
        Self { plane, stop, ids, reading, changing, counters: Counters::default() }
    }

    /// Begins an operation. Nothing is sent to any engine if this is an error.
    pub(crate) fn start(
        self: &Arc<Self>,
        caller: Option<Caller>,
        request: Request,
    ) -> Result<mpsc::Receiver<Update>, PublicError> {
        let engines = request.selection.of(&self.plane.engines())?;
        let places = if request.verb.name().changes() { &self.changing } else { &self.reading };
        let Ok(place) = places.clone().try_acquire_owned() else {
            let message = format!("{OPERATIONS_MAX} such operations are in progress");
            return Err(
                PublicError::new(ErrorCode::LimitReached, message).with_next("try again when one has ended")
            );
        };
        let (updates, listener) = mpsc::channel(UPDATES_MAX);
        let run = operation::run(self.clone(), caller, request, engines, updates, Arc::new(place));
        // A front has a runtime of its own, which may end before the operation does.
        kvplane_runtime::spawn_on(self.plane.runtime(), "fleet operation", run);
        Ok(listener)
    }

    /// The name of an operation, and of what it records.
    pub(crate) fn mint(&self) -> Id {
        self.ids.mint()
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Operations under way, and those whose streams are still watched.
    pub(crate) fn in_flight(&self) -> usize {
        let taken = |places: &Semaphore| OPERATIONS_MAX - places.available_permits();
        taken(&self.reading) + taken(&self.changing)
    }
}

/// What somebody wants done.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: Id,
    pub(crate) verb: Verb,
    pub(crate) selection: Selection,
    /// How long one server may take in all; absent: what the verb usually needs.
    pub(crate) deadline: Option<Duration>,
    /// How long to wait for the stream to show a flush.
    pub(crate) proof_timeout: Duration,
    /// Send an engine that publishes only with its next step a request.
    pub(crate) nudge: bool,
    /// Say what would be asked, and ask nothing.
    pub(crate) dry_run: bool,
}

impl Request {
    /// Of every engine, with the usual times.
    pub(crate) fn new(id: Id, verb: Verb) -> Self {
        Self {
            id,
            verb,
            selection: Selection::default(),
            deadline: None,
            proof_timeout: PROOF_TIMEOUT,
            nudge: false,
            dry_run: false,
        }
    }

    /// What is set, for the audit line. Where engines write to is an operator's own word.
    fn options(&self) -> String {
        let mut options = String::new();
        let mut put = |name: &str, value: &dyn std::fmt::Debug| {
            // Writing to a string cannot fail.
            let _ = write!(options, "{}{name}={value:?}", if options.is_empty() { "" } else { " " });
        };
        match &self.verb {
            Verb::Flush(flush) => {
                put("timeout", &flush.timeout);
                put("proof_timeout", &self.proof_timeout);
                let flags = [
                    ("nudge", self.nudge),
                    ("reset_running", flush.reset_running),
                    ("reset_external", flush.reset_external),
                ];
                flags.iter().filter(|(_, set)| *set).for_each(|(name, set)| put(name, set));
            }
            Verb::StartProfile(Profile { output_dir: Some(folder), .. }) => put("output_dir", folder),
            _ => {}
        }
        if let Some(deadline) = &self.deadline {
            put("deadline", deadline);
        }
        options
    }
}
