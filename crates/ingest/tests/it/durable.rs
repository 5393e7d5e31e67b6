//! Streams that are kept in a durable journal, on a disk that does as a test says.

use std::future::Future as _;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use kvplane_core::{Continuity, EngineId, EngineKind, StateDigest};
use kvplane_discovery::{DiscoverySpec, FoundRank, Overrides};
use kvplane_ingest::{
    Discovered, Durable, DurableOptions, DurableSpec, EngineSpec, Off, Plane, PlaneOptions, Source, Stream,
};
use kvplane_store::memory::MemoryFiles;
use kvplane_stream::{Ask, Now, Recorder};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{OwnedEvent, OwnedHash, OwnedStored};

/// Far beyond what anything takes on a busy machine.
const DEADLINE: Duration = Duration::from_mins(1);

/// A plane with one engine, which is fed by hand: where it publishes is never found out, so that nothing else feeds it.
fn plane(files: &MemoryFiles, options: DurableOptions) -> (Arc<Plane>, Arc<Stream>) {
    let spec = DurableSpec { dir: "memory".into(), options };
    let durable = Arc::new(Durable::over(&spec, Arc::new(files.clone())));
    let asked = DiscoverySpec { http: None, grpc: None, overrides: Overrides::default(), usual: None };
    let ranks = vec![FoundRank { replay: Some("tcp://127.0.0.1:9".to_owned()), ..FoundRank::unknown(0) }];
    let source = Source::Discovered(Discovered { spec: asked, ranks });
    let engine = EngineSpec::new(EngineId::new("e"), EngineKind::Vllm, "m", source);
    let max_silence = Duration::from_hours(1);
    let options = PlaneOptions { durable: Some(durable), max_silence, ..PlaneOptions::default() };
    let plane = Plane::start(vec![engine], &options).unwrap();
    let stream = plane.engine("e").unwrap().streams[0].clone();
    (plane, stream)
}

fn payload(n: u64) -> Bytes {
    let stored = OwnedStored {
        block_hashes: vec![OwnedHash::Unsigned(n + 1)],
        token_ids: vec![n as u32; 4],
        block_size: 4,
        medium: Some("GPU".into()),
        ..OwnedStored::default()
    };
    Bytes::from(encode_batch(Profile::Vllm0_24, 1.0, Some(0), &[OwnedEvent::Stored(stored)]))
}

/// The engine is there, and its ring has what is given.
fn connect(stream: &Stream, (first, end): (u64, u64)) {
    let mut asks = stream.feed(Recorder::connected).asks;
    while let Some(ask) = asks.pop() {
        if let Ask::Replay { id, from } = ask {
            let answer = |recorder: &mut Recorder, now: Now| {
                for sequence in first.max(from)..end {
                    recorder.replayed(now, id, sequence, payload(sequence));
                }
                recorder.replay_ended(now, id, true);
            };
            asks.extend(stream.feed(answer).asks);
        }
    }
    // As an answer to a heartbeat does.
    stream.feed(|recorder, now| recorder.prove(now, now.mono));
}

fn publish(stream: &Stream, n: u64) {
    stream.feed(|recorder, now| recorder.live(now, n, payload(n)));
    stream.announce();
}

async fn eventually(what: &str, is: impl Fn() -> bool) {
    let waiting = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(DEADLINE, waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

#[tokio::test]
async fn nobody_learns_what_is_not_written() {
    let files = MemoryFiles::default();
    let (plane, stream) = plane(&files, DurableOptions::default());
    connect(&stream, (0, 0));
    publish(&stream, 0);
    eventually("written", || stream.reported_cursor() == stream.cursor()).await;
    let before = stream.cursor();
    files.hold(true);
    publish(&stream, 1);
    // It is heard and counts, but nobody has it.
    assert_eq!((stream.status().engine_sequence, plane.catalog().stats()[0].stats.blocks), (Some(1), 2));
    assert_eq!((stream.reported_cursor(), stream.read_after(before, 9).unwrap().len()), (before, 0));
    let mut context = Context::from_waker(Waker::noop());
    let (mut snapshot, mut news) =
        (std::pin::pin!(stream.snapshot()), std::pin::pin!(stream.next_after(before, 9)));
    assert!(snapshot.as_mut().poll(&mut context).is_pending());
    assert!(news.as_mut().poll(&mut context).is_pending());
    files.hold(false);
    let entries = tokio::time::timeout(DEADLINE, news).await.unwrap().unwrap();
    assert_eq!(entries[0].engine_sequence, Some(1));
    let snapshot = tokio::time::timeout(DEADLINE, snapshot).await.unwrap();
    assert_eq!((snapshot.cursor, snapshot.engine_digest), (stream.cursor(), entries[0].engine_digest));
    assert!(snapshot.engine_digest.is_some());
    tokio::task::spawn_blocking(move || plane.shutdown()).await.unwrap();
}

#[tokio::test]
async fn a_disk_that_hangs_holds_up_nobody_for_long() {
    let files = MemoryFiles::default();
    let options = DurableOptions { max_stall: Duration::from_millis(50), ..DurableOptions::default() };
    let (plane, stream) = plane(&files, options);
    connect(&stream, (0, 0));
    files.hold(true);
    publish(&stream, 0);
    let Poll::Pending = std::pin::pin!(stream.snapshot()).poll(&mut Context::from_waker(Waker::noop()))
    else {
        panic!("told before it was written")
    };
    tokio::time::timeout(DEADLINE, stream.snapshot()).await.unwrap();
    assert_eq!(plane.durable().unwrap().status().off, Some(Off::Slow));
    publish(&stream, 1);
    assert_eq!(stream.reported_cursor(), stream.cursor());
    files.hold(false);
    tokio::task::spawn_blocking(move || plane.shutdown()).await.unwrap();
}

#[tokio::test]
async fn a_plane_that_was_killed_goes_on_where_it_was() {
    let files = MemoryFiles::default();
    let (first, before) = plane(&files, DurableOptions::default());
    connect(&before, (0, 0));
    (0..50).for_each(|n| publish(&before, n));
    eventually("written", || before.reported_cursor() == before.cursor()).await;
    let killed = files.copied();
    let (second, after) = plane(&killed, DurableOptions::default());
    let (was, is) = (before.status(), after.status());
    assert_eq!((is.epoch, is.digest, was.continuity), (was.epoch, was.digest, Continuity::Live));
    // The only news is that the engine is not heard yet, as after a cut.
    eventually("written", || after.reported_cursor() == is.cursor).await;
    let [news] = after.read_after(was.cursor, 9).unwrap().try_into().expect("one entry");
    assert_eq!((news.continuity, news.changes.len()), (Some(Continuity::Recovering), 0));
    assert_eq!((is.trust.level(), is.continuity), (was.trust.level(), Continuity::Recovering));
    // It is in the index, and its window reaches back.
    assert_eq!(second.catalog().stats()[0].stats.blocks, 50);
    assert_eq!(after.first_cursor(), before.first_cursor());
    connect(&after, (40, 60));
    let now = after.status();
    assert_eq!((now.epoch, now.engine_sequence, now.continuity), (was.epoch, Some(59), Continuity::Live));
    eventually("written", || after.reported_cursor() == after.cursor()).await;
    assert!(after.read_after(was.cursor, 99).unwrap().len() >= 10);
    for plane in [first, second] {
        tokio::task::spawn_blocking(move || plane.shutdown()).await.unwrap();
    }
    let (third, _) = plane(&killed, DurableOptions::default());
    assert_eq!(third.durable().unwrap().status().restored.streams, 1);
}

#[tokio::test]
async fn a_stream_that_is_configured_otherwise_or_removed_begins_anew() {
    let files = MemoryFiles::default();
    let (first, stream) = plane(&files, DurableOptions::default());
    connect(&stream, (0, 0));
    publish(&stream, 0);
    first.remove("e").unwrap();
    eventually("removed", || {
        let found = kvplane_store::read(Arc::new(files.copied())).unwrap();
        found.streams.values().all(|stream| stream.gone)
    })
    .await;
    let (second, stream) = plane(&files.copied(), DurableOptions::default());
    assert_eq!(
        (second.durable().unwrap().status().restored.streams, stream.status().digest),
        (0, StateDigest::default())
    );
}
