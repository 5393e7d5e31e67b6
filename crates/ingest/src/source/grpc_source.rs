//! `SubscribeKvEvents` of an engine, or of a relay before one: one subscription per engine, for all of its
//! ranks.
//!
//! What messages mean is decided by the ranks' recorders, and when to subscribe again by [`Link`]. Here calls
//! are made, each with a deadline on its set-up, and messages are carried to the ranks that they are about.

mod call;
mod carrier;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _};
use kvplane_core::Trouble;
use kvplane_stream::{Ask, Ended, JournalOptions, Link, Next, Now, Recorder, RelayOptions};
use kvplane_transport::grpc::{GrpcSpec, Watch};
use tokio::time::{Interval, MissedTickBehavior};
use tonic::{Status, Streaming};
use tracing::{info, warn};

use crate::check::AddError;
use crate::shared_source::{Ranks, share};
use crate::source::{Opening, RankSpec, SharedRanks, SourceKind};
use crate::spec::PlaneOptions;
use call::Caller;
use carrier::{Carried, Carrier};

/// How often the ranks get a tick.
const TICK: Duration = Duration::from_millis(100);
/// Messages that are carried at a time ...
const BURST_MESSAGES: usize = 256;
/// ... and their bytes.
const BURST_BYTES: usize = 4 << 20;
/// A burst of this size is applied off the runtime's threads.
const LARGE_BURST: usize = 64 << 10;

/// A server for all ranks that keeps batches and is subscribed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relayed {
    /// The server.
    pub server: GrpcSpec,
    /// Its ranks, as far as they are known.
    pub ranks: SharedRanks,
}

impl SourceKind for Relayed {
    fn ranks(&self) -> Vec<RankSpec> {
        self.ranks.at(&self.server.url)
    }

    fn server(&self) -> Option<&str> {
        Some(&self.server.url)
    }

    fn shared_ranks(&mut self) -> Option<&mut SharedRanks> {
        Some(&mut self.ranks)
    }

    fn recorder(&self, options: &PlaneOptions, keep: JournalOptions, rank: u32, now: Now) -> Recorder {
        let follow = RelayOptions {
            on_gap: options.on_gap,
            down_after: options.down_after,
            ..RelayOptions::default()
        };
        Recorder::of_relay(follow, JournalOptions { relayed: true, ..keep }, rank, now)
    }

    fn open(&self, opening: Opening<'_>) -> Result<(), AddError> {
        let server = self.server.clone();
        share(opening, "relay", move |ranks, max_silence| run(server, ranks, max_silence));
        Ok(())
    }
}

/// Follows an engine until it is cancelled.
async fn run(spec: GrpcSpec, ranks: Arc<Ranks>, max_silence: Duration) {
    // An answer that is late by less than half of the bound ends nothing.
    let watch = Watch { every: max_silence / 4, within: max_silence / 2 };
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let link = Link::new(spec.services.len());
    let mut source = Source { caller: Caller::new(spec, watch), link, ranks, ticks, trouble: None };
    loop {
        let pause = source.subscribe().await;
        ticking(&mut source.ticks, &source.ranks, tokio::time::sleep(pause)).await;
    }
}

struct Source {
    caller: Caller,
    link: Link,
    ranks: Arc<Ranks>,
    ticks: Interval,
    trouble: Option<Trouble>,
}

/// Why a call is over.
enum Over {
    /// It ended, or could not be made.
    Ended(Ended),
    /// A rank wants another one.
    Again,
}

impl Source {
    /// Makes a call and follows it to its end; says when to make the next one.
    async fn subscribe(&mut self) -> Duration {
        let feeders = self.ranks.all();
        let mut start = 0;
        match &feeders[..] {
            [only] => only.tell(|recorder, _| start = recorder.relay_start()),
            several => {
                for feeder in several {
                    feeder.tell(Recorder::relay_accompanied);
                }
            }
        }
        self.link.calling(start);
        let call = self.caller.subscribe(self.link.name(), start);
        let over = match ticking(&mut self.ticks, &self.ranks, call).await {
            Ok(messages) => {
                self.taken();
                let mut carrier = Carrier::new(self.ranks.clone(), start);
                for feeder in &feeders {
                    carrier.tell(feeder);
                }
                self.follow(messages, carrier).await
            }
            Err(how) => Over::Ended(how),
        };
        match over {
            Over::Again => self.link.again(),
            Over::Ended(how) => {
                let Next { tell, after } = self.link.ended(how);
                if tell {
                    self.over(how, after);
                }
                after
            }
        }
    }

    async fn follow(&mut self, mut messages: Streaming<Bytes>, mut carrier: Carrier) -> Over {
        loop {
            let first = tokio::select! {
                message = messages.next() => message,
                _ = self.ticks.tick() => {
                    // A connection that answers no ping is ended.
                    if let Some(proven_at) = kvplane_runtime::now().checked_sub(self.caller.proven_within()) {
                        self.prove(proven_at);
                    }
                    if tick(&self.ranks) {
                        return Over::Again;
                    }
                    continue;
                }
            };
            let arrived = kvplane_runtime::now();
            let (burst, end) = gather(first, &mut messages);
            let is_empty = burst.is_empty();
            // It fails when the process ends.
            let Ok((back, carried)) = carry(carrier, burst).await else { return Over::Ended(Ended::Other) };
            carrier = back;
            // The end of a call is not from the engine: mostly it is how a broken connection looks.
            if !is_empty && !carried.nonsense {
                self.prove(arrived);
            }
            if carried.advanced {
                self.link.advanced();
            }
            if carried.again {
                return Over::Again;
            }
            match end {
                _ if carried.nonsense => return Over::Ended(Ended::Other),
                None => {}
                // A method that took the call is there, whatever it says.
                Some(Ended::Unimplemented) => return Over::Ended(Ended::Other),
                Some(how) => return Over::Ended(how),
            }
        }
    }

    fn prove(&self, at: Instant) {
        for feeder in self.ranks.all() {
            feeder.prove(at);
        }
    }

    /// The server took the call.
    fn taken(&mut self) {
        self.prove(kvplane_runtime::now());
        self.link.taken();
        if let Some(over) = self.trouble.take() {
            info!(engine = %self.ranks.engine(), %over, "event subscription recovered");
        }
        for feeder in self.ranks.all() {
            feeder.stream().set_trouble(None);
        }
    }

    /// A call ended, and the next one is made after a pause.
    fn over(&mut self, how: Ended, after: Duration) {
        // What begins anew at once is no trouble.
        let trouble = (!after.is_zero()).then_some(how.trouble());
        if let Some(trouble) = trouble.filter(|trouble| self.trouble != Some(*trouble)) {
            self.trouble = Some(trouble);
            warn!(engine = %self.ranks.engine(), %trouble, "event subscription failed");
        }
        for feeder in self.ranks.all() {
            // In this order: who sees the trouble sees the continuity that it made.
            feeder.tell(|recorder, now| recorder.relay_ended(now, how));
            feeder.stream().set_trouble(trouble);
        }
    }
}

/// What has arrived by now, and how the call ended if it did.
fn gather(
    first: Option<Result<Bytes, Status>>,
    messages: &mut Streaming<Bytes>,
) -> (Vec<Bytes>, Option<Ended>) {
    let mut burst = Vec::new();
    let mut bytes = 0;
    let mut next = Some(first);
    while let Some(message) = next {
        match message {
            None => return (burst, Some(Ended::Ok)),
            Some(Err(status)) => return (burst, Some(call::ended(&status))),
            Some(Ok(message)) => {
                bytes += message.len();
                burst.push(message);
            }
        }
        let full = burst.len() >= BURST_MESSAGES || bytes >= BURST_BYTES;
        next = if full { None } else { messages.next().now_or_never() };
    }
    (burst, None)
}

/// Applies a burst, where it delays nobody.
async fn carry(
    mut carrier: Carrier,
    burst: Vec<Bytes>,
) -> Result<(Carrier, Carried), tokio::task::JoinError> {
    let large = burst.iter().map(Bytes::len).sum::<usize>() >= LARGE_BURST;
    let carry = move || {
        let carried = carrier.carry(burst);
        (carrier, carried)
    };
    if large { tokio::task::spawn_blocking(carry).await } else { Ok(carry()) }
}

/// Waits for something while time passes for the ranks.
async fn ticking<T>(ticks: &mut Interval, ranks: &Ranks, awaited: impl Future<Output = T>) -> T {
    let mut awaited = std::pin::pin!(awaited);
    loop {
        tokio::select! {
            done = &mut awaited => return done,
            _ = ticks.tick() => { tick(ranks); }
        }
    }
}

/// Tells the ranks that time passed. True if one wants another subscription.
fn tick(ranks: &Ranks) -> bool {
    let mut again = false;
    for feeder in ranks.all() {
        again |= feeder.feed(Recorder::tick).contains(&Ask::Resubscribe);
        feeder.stream().announce();
    }
    again
}
