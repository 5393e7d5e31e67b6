//! `kvplane tail --replica`: keeps replicas of streams and prints where they stand, so that two can be
//! compared.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write as _};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use kvplane_client::{
    BlockCounts, Connection, Continuity, Cursor, Following, ReplicaView, Selection, StateDigest, StreamId,
    Tier, TrustReport,
};
use serde_json::{Value, json};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::args::{Output, TailArgs};
use crate::commands::page::harmless;
use crate::commands::{Failure, connect};
use crate::output::Written;

/// At most two lines a second for each stream.
const LOOK_EVERY: Duration = Duration::from_millis(500);

pub(super) async fn run(args: TailArgs, stop: CancellationToken) -> Result<(), Failure> {
    let client = connect(&args.plane).await?;
    let following = client.follow(match (args.engine, args.rank) {
        (None, _) => Selection::All,
        (Some(engine), None) => Selection::Engines(vec![engine.as_str().into()]),
        (Some(engine), Some(rank)) => Selection::Stream(engine.as_str().into(), rank),
    });
    let json = args.output == Output::Json;
    let written = watch(&following, &stop, json).await.context("cannot print")?;
    let last: Vec<(StreamId, Look)> = looks(&following).collect();
    following.close().await;
    if written == Written::Yes {
        for (stream, look) in &last {
            look.print(stream, json, true).context("cannot print")?;
        }
    }
    if last.is_empty() {
        return Err(
            anyhow!("no stream could be followed; `kvplane engines list` says which there are").into()
        );
    }
    Ok(())
}

/// Prints what changed, until it is stopped or the reader closes the pipe.
async fn watch(following: &Following, stop: &CancellationToken, json: bool) -> io::Result<Written> {
    let mut shown: BTreeMap<StreamId, Look> = BTreeMap::new();
    let mut connection = Connection::Connecting;
    let mut tick = tokio::time::interval(LOOK_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(Written::Yes),
            _ = tick.tick() => {}
        }
        let now = following.connection();
        if now != connection {
            if let Connection::Waiting { reason } = &now {
                eprintln!("kvplane: waiting for the plane: {}", harmless(reason));
            }
            connection = now;
        }
        for (stream, look) in looks(following) {
            if shown.get(&stream).is_some_and(|before| !look.differs(before)) {
                continue;
            }
            if look.print(&stream, json, false)? == Written::ReaderGone {
                return Ok(Written::ReaderGone);
            }
            shown.insert(stream, look);
        }
    }
}

/// Every replica that has been loaded once.
fn looks(following: &Following) -> impl Iterator<Item = (StreamId, Look)> {
    following
        .replicas()
        .into_iter()
        .filter_map(|stream| Some((stream.clone(), Look::at(&following.replica(&stream)?)?)))
}

/// A replica at one moment.
struct Look {
    connected: bool,
    current: bool,
    cursor: Cursor,
    continuity: Continuity,
    trust: TrustReport,
    blocks: BlockCounts,
    digest: StateDigest,
}

impl Look {
    fn at(view: &ReplicaView) -> Option<Self> {
        let connected = view.connected();
        view.read(|replica| {
            Some(Self {
                connected,
                current: connected && replica.is_current(),
                cursor: replica.cursor()?,
                continuity: replica.continuity(),
                trust: replica.trust().clone(),
                blocks: replica.blocks(),
                digest: replica.digest(),
            })
        })
    }

    /// Whether it holds something else, or the same is worth something else.
    fn differs(&self, before: &Self) -> bool {
        self.digest != before.digest
            || self.cursor.epoch != before.cursor.epoch
            || (self.continuity, &self.trust) != (before.continuity, &before.trust)
            || self.current != before.current
    }

    fn print(&self, stream: &StreamId, json: bool, last: bool) -> io::Result<Written> {
        let line = if json { self.json(stream, last).to_string() } else { self.text(stream, last) };
        match writeln!(io::stdout(), "{}", harmless(&line)) {
            Ok(()) => Ok(Written::Yes),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Written::ReaderGone),
            Err(error) => Err(error),
        }
    }

    fn text(&self, stream: &StreamId, last: bool) -> String {
        let Self { cursor, continuity, trust, digest, .. } = self;
        let mut line = format!("{stream} epoch {} sequence {} {continuity} ", cursor.epoch, cursor.sequence);
        line.push_str(trust.level.as_str());
        let reasons: Vec<&str> = trust.reasons.iter().map(|one| one.reason.as_str()).collect();
        if !reasons.is_empty() {
            line.push_str(&format!(" ({})", reasons.join(", ")));
        }
        for (tier, blocks) in self.blocks.iter().filter(|&(tier, n)| tier == Tier::Device || n > 0) {
            line.push_str(&format!(" {tier} {blocks}"));
        }
        line.push_str(&format!(" digest {digest}"));
        match (self.connected, self.current) {
            (false, _) => line.push_str(" (not connected)"),
            (true, false) => line.push_str(" (void, a snapshot is on its way)"),
            (true, true) => {}
        }
        if last {
            line.push_str(" (final)");
        }
        line
    }

    fn json(&self, stream: &StreamId, last: bool) -> Value {
        let reasons = self.trust.reasons.iter();
        let reasons = reasons.map(|one| json!({"reason": one.reason, "since_ms": one.since_ms}));
        let blocks: BTreeMap<&str, u64> =
            self.blocks.iter().map(|(tier, blocks)| (tier.as_str(), blocks)).collect();
        json!({
            "engine": stream.engine.as_str(),
            "rank": stream.rank,
            "epoch": self.cursor.epoch.as_u64(),
            // Beyond 2^53.
            "sequence": self.cursor.sequence.to_string(),
            "continuity": self.continuity.as_str(),
            "trust": { "level": self.trust.level.as_str(), "reasons": reasons.collect::<Vec<_>>() },
            "blocks": blocks,
            "digest": self.digest.to_string(),
            "connected": self.connected,
            "current": self.current,
            "final": last,
        })
    }
}
