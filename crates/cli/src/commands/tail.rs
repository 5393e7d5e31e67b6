//! `kvplane tail`: live events as lines or JSON, or where replicas made of them stand.

mod replica;

use anyhow::Context as _;
use kvplane_proto::kvplane::v1::{Start, StreamSelector, SubscribeRequest};

use super::{Failure, connect, refused, stop_signal};
use crate::args::{From, Output, TailArgs};
use crate::output::{Printer, Written};

pub(crate) async fn run(args: TailArgs) -> Result<(), Failure> {
    let stop = stop_signal(args.seconds)?;
    if args.replica {
        return replica::run(args, stop).await;
    }
    let mut client = connect(&args.plane).await?.calls();
    let selectors =
        args.engine.into_iter().map(|engine| StreamSelector { engine, rank: args.rank, resume: None });
    let start = match args.from {
        From::Live => Start::Live,
        From::Snapshot => Start::Snapshot,
    };
    let request =
        SubscribeRequest { streams: selectors.collect(), start: start.into(), ..Default::default() };
    let subscription =
        client.subscribe(request).await.map_err(|status| refused(args.plane.place(), &status))?;
    let mut messages = subscription.into_inner();
    let mut printer = Printer::new(args.output == Output::Json, args.tokens);
    loop {
        let message = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            message = messages.message() => message,
        };
        let message =
            message.map_err(|status| anyhow::anyhow!("the subscription ended: {}", status.message()))?;
        let Some(message) = message else { return Ok(()) };
        // The reader has closed the pipe: not an error.
        if printer.print(&message).context("cannot print")? == Written::ReaderGone {
            return Ok(());
        }
    }
}
