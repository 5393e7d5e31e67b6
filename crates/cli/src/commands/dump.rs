//! `kvplane dump`: what one stream holds now.

use anyhow::{Context as _, anyhow};
use kvplane_client::Calls;
use kvplane_proto::kvplane::v1::subscribe_response::Item;
use kvplane_proto::kvplane::v1::{EngineStatus, Start, StatusRequest, StreamSelector, SubscribeRequest};

use super::{Failure, connect, refused, usage};
use crate::args::{DumpArgs, Output};
use crate::output::{Printer, Written};

pub(crate) async fn run(args: DumpArgs) -> Result<(), Failure> {
    let mut client = connect(&args.plane).await?.calls();
    let selector = select(&mut client, &args).await?;
    let request =
        SubscribeRequest { streams: vec![selector], start: Start::Snapshot.into(), ..Default::default() };
    let subscription =
        client.subscribe(request).await.map_err(|status| refused(args.plane.place(), &status))?;
    let mut messages = subscription.into_inner();
    let mut printer = Printer::new(args.output == Output::Json, args.tokens);
    loop {
        let message = messages
            .message()
            .await
            .map_err(|status| anyhow!("the snapshot ended early: {}; try again", status.message()))?;
        let message = message.context("the snapshot ended early; try again")?;
        match &message.item {
            // Another life began while the snapshot was on its way: what was printed is void.
            Some(Item::Reset(_)) => {}
            Some(Item::Snapshot(chunk)) => {
                let last = chunk.last;
                if printer.print_state(&message).context("cannot print")? == Written::ReaderGone || last {
                    return Ok(());
                }
            }
            _ => return Ok(()),
        }
    }
}

/// The stream that is meant: the only one, where nothing is said.
async fn select(client: &mut Calls, args: &DumpArgs) -> Result<StreamSelector, Failure> {
    let status = client.status(StatusRequest { engine: args.engine.clone(), brief: false }).await;
    let status = status.map_err(|status| refused(args.plane.place(), &status))?.into_inner();
    let found = match &status.engines[..] {
        [only] => only,
        [] => return Err(anyhow!("the plane has no engines; add one with `kvplane engines add`").into()),
        several => {
            let names: Vec<&str> = several.iter().map(|engine| engine.id.as_str()).collect();
            return Err(usage(anyhow!(
                "there are several engines: choose one with --engine: {}",
                names.join(", ")
            )));
        }
    };
    let rank = rank(args.rank, found)?;
    Ok(StreamSelector { engine: found.id.clone(), rank: Some(rank), resume: None })
}

/// The rank that was named, or the only one, whatever its number is: instances may register rank 3 alone.
fn rank(named: Option<u32>, engine: &EngineStatus) -> Result<u32, Failure> {
    match (named, &engine.ranks[..]) {
        (Some(rank), _) => Ok(rank),
        (None, [only]) => Ok(only.rank),
        (None, ranks) => {
            Err(usage(anyhow!("engine {} has {} ranks: choose one with --rank", engine.id, ranks.len())))
        }
    }
}

#[cfg(test)]
mod tests {
    use kvplane_proto::kvplane::v1::RankStatus;

    use super::*;

    #[test]
    fn the_only_rank_is_meant_whatever_its_number() {
        let engine = |ranks: &[u32]| {
            let ranks = ranks.iter().map(|&rank| RankStatus { rank, ..RankStatus::default() });
            EngineStatus { id: "a".to_owned(), ranks: ranks.collect(), ..EngineStatus::default() }
        };
        assert_eq!(rank(None, &engine(&[3])).unwrap(), 3);
        assert_eq!(rank(Some(1), &engine(&[0, 1])).unwrap(), 1);
        for several in [&[][..], &[0, 1]] {
            assert_eq!(rank(None, &engine(several)).unwrap_err().code, 2);
        }
    }
}
