//! `kvplane flush`, `profile`, `info`, `loads` and `health`: operations on the engines of a running kvplane.

mod course;
mod result;
mod view;

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use kvplane_client::Operations;
use kvplane_proto::kvplane::v1::{
    EngineSelection, FlushRequest, OperationRequest, Progress, StartProfileRequest,
};
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status, Streaming};

use self::course::Course;
use self::result::{Ending, document, table, verdict};
use self::view::View;
use super::page::{harmless, print};
use super::{Failure, connect, refused, stop_signal, usage};
use crate::args::{
    Consent, FlushArgs, OperateCommand, OperationArgs, ProfileCommand, StartProfileArgs, TableOutput,
};
use crate::config::Span;

/// How often the live table is drawn.
const REFRESH: Duration = Duration::from_millis(100);

/// A call that is not made yet.
enum Call {
    Flush(FlushRequest),
    StartProfile(StartProfileRequest),
    StopProfile(OperationRequest),
    Info(OperationRequest),
    Loads(OperationRequest),
    Health(OperationRequest),
}

pub(crate) async fn run(command: OperateCommand) -> Result<(), Failure> {
    if let OperateCommand::Flush(args) = &command {
        allow_flush(args)?;
    }
    let (call, args) = call(command);
    let stop = stop_signal(None)?;
    let began = kvplane_runtime::now();
    let asking = async {
        let mut operations = connect(&args.plane).await?.operations();
        call.make(&mut operations).await.map_err(|status| refused(args.plane.place(), &status))
    };
    let Some(answer) = stop.run_until_cancelled(asking).await else {
        return verdict(&Course::default(), &Ending::Interrupted);
    };
    let progress = answer?.into_inner();
    let mut view = View::new(!args.plain && std::io::stderr().is_terminal());
    let mut course = Course::default();
    let ending = follow(progress, &args, &mut course, &mut view, &stop).await?;
    view.end();
    print(&match args.output {
        TableOutput::Json => format!("{}\n", document(&course, &ending)),
        TableOutput::Table => table(&course, &ending, began.elapsed()),
    })?;
    verdict(&course, &ending)
}

/// Refuses a flush that names no engines, and asks for confirmation on a terminal.
fn allow_flush(args: &FlushArgs) -> Result<(), Failure> {
    let OperationArgs { engine, model, kind, dry_run, .. } = &args.operation;
    let Consent { all, yes } = args.consent;
    let named: Vec<&str> = engine.iter().chain(model).chain(kind).map(String::as_str).collect();
    if named.is_empty() && !all && !dry_run {
        return Err(usage(anyhow!(
            "flush empties caches: select engines with --engine, --model or --kind, or use --all"
        )));
    }
    if yes || *dry_run || !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return Ok(());
    }
    let target = if all { "every engine".to_owned() } else { named.join(", ") };
    let mut stderr = std::io::stderr();
    write!(stderr, "Empty the KV cache of {}? [y/N] ", harmless(&target)).context("cannot ask")?;
    stderr.flush().context("cannot ask")?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context("cannot read the answer")?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(anyhow!("not confirmed: nothing was flushed (--yes skips the question)").into()),
    }
}

/// What to ask, and what every operation takes.
fn call(command: OperateCommand) -> (Call, OperationArgs) {
    match command {
        OperateCommand::Flush(args) => flush(args),
        OperateCommand::Profile(ProfileCommand::Start(args)) => start_profile(args),
        OperateCommand::Profile(ProfileCommand::Stop(args)) => (Call::StopProfile(operation(&args)), args),
        OperateCommand::Info(args) => (Call::Info(operation(&args)), args),
        OperateCommand::Loads(args) => (Call::Loads(operation(&args)), args),
        OperateCommand::Health(args) => (Call::Health(operation(&args)), args),
    }
}

fn flush(args: FlushArgs) -> (Call, OperationArgs) {
    let request = FlushRequest {
        operation: Some(operation(&args.operation)),
        timeout_s: seconds(args.timeout),
        proof_timeout_s: args.proof_timeout.map(seconds),
        nudge: args.nudge,
        reset_running: args.reset_running,
        reset_external: args.reset_external,
    };
    (Call::Flush(request), args.operation)
}

fn start_profile(args: StartProfileArgs) -> (Call, OperationArgs) {
    let request = StartProfileRequest {
        operation: Some(operation(&args.operation)),
        output_dir: args.output_dir,
        prefix: args.prefix,
        start_step: args.start_step,
        num_steps: args.num_steps,
        activities: args.activity,
        with_stack: args.with_stack,
        record_shapes: args.record_shapes,
        by_stage: args.by_stage,
        stages: args.stage,
        merge: args.merge,
    };
    (Call::StartProfile(request), args.operation)
}

fn operation(args: &OperationArgs) -> OperationRequest {
    let selection = EngineSelection {
        engines: args.engine.clone(),
        models: args.model.clone(),
        kinds: args.kind.clone(),
    };
    OperationRequest {
        selection: Some(selection),
        deadline_s: args.deadline.map(seconds),
        dry_run: args.dry_run,
    }
}

fn seconds(span: Span) -> f64 {
    span.0.as_secs_f64()
}

impl Call {
    async fn make(self, plane: &mut Operations) -> Result<Response<Streaming<Progress>>, Status> {
        match self {
            Self::Flush(request) => plane.flush(request).await,
            Self::StartProfile(request) => plane.start_profile(request).await,
            Self::StopProfile(request) => plane.stop_profile(request).await,
            Self::Info(request) => plane.info(request).await,
            Self::Loads(request) => plane.loads(request).await,
            Self::Health(request) => plane.health(request).await,
        }
    }
}

/// Reads the plane's progress until the end. A refusal before the plan refuses the whole operation.
async fn follow(
    mut progress: Streaming<Progress>,
    args: &OperationArgs,
    course: &mut Course,
    view: &mut View,
    stop: &CancellationToken,
) -> Result<Ending, Failure> {
    let mut ticks = tokio::time::interval(REFRESH);
    loop {
        let message = tokio::select! {
            () = stop.cancelled() => return Ok(Ending::Interrupted),
            _ = ticks.tick() => {
                view.tick(course);
                continue;
            }
            message = progress.message() => message,
        };
        match message {
            Ok(Some(update)) => match course.take(update) {
                // Its plan is all that it is made for.
                Ok(_) if args.dry_run => return Ok(Ending::DryRun),
                Ok(rank) => view.changed(course, rank),
                Err(error) => return Ok(Ending::BrokeOff(error.to_string())),
            },
            Ok(None) if course.summary.is_some() => return Ok(Ending::Complete),
            Ok(None) => {
                return Ok(Ending::BrokeOff("kvplane did not report the end of the operation".to_owned()));
            }
            Err(status) if course.verb.is_empty() => return Err(refused(args.plane.place(), &status)),
            Err(status) => return Ok(Ending::BrokeOff(status.message().to_owned())),
        }
    }
}
