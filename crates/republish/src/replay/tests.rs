//! A replay never holds up the thread that publishes for every engine.

use std::sync::mpsc;
use std::time::Duration;

use kvplane_core::{EngineId, StreamId};
use kvplane_socket::PublishContext;
use kvplane_stream::{JournalOptions, Options};

use super::*;

/// Only a hang reaches it.
const DEADLINE: Duration = Duration::from_mins(1);

fn stream() -> Arc<Stream> {
    let id = StreamId::new(EngineId::new("e"), 0);
    Arc::new(Stream::in_process(id, Options::default(), JournalOptions::default()))
}

fn router() -> RouterSocket {
    RouterSocket::bind(&PublishContext::default(), "tcp://127.0.0.1:0", 1000).unwrap()
}

fn request() -> ReplayRequestIn {
    // Nobody has this name: what is sent is dropped.
    ReplayRequestIn { identity: b"nobody".to_vec(), start: 0 }
}

#[test]
fn a_state_is_sent_in_slices_while_its_stream_is_busy() {
    let (stream, cursor) = (stream(), stream().cursor());
    let ((begin, begun), (end, ended)) = (mpsc::sync_channel(1), mpsc::sync_channel::<()>(1));
    let busy = {
        let stream = stream.clone();
        std::thread::spawn(move || {
            stream.feed(|_, _| {
                begin.send(()).unwrap();
                let _ = ended.recv();
            });
        })
    };
    begun.recv().unwrap();
    let (step, stepped) = mpsc::sync_channel(8);
    let stepping = std::thread::spawn(move || {
        let batches = vec![Bytes::from_static(b"batch"); 2 * BURST + 1].into();
        let phase = Phase::State(State { batches, first: 1, cursor });
        let (mut replay, router) = (Replay { request: request(), phase }, router());
        while let Phase::State(state) = &replay.phase {
            let before = state.batches.len();
            assert!(matches!(replay.step(&stream, &router, b"topic"), Step::GoesOn));
            let left = if let Phase::State(state) = &replay.phase { state.batches.len() } else { 0 };
            step.send(before - left).unwrap();
        }
    });
    let slices = (0..3).map(|_| stepped.recv_timeout(DEADLINE).expect("it does not wait for the stream"));
    assert_eq!(slices.collect::<Vec<_>>(), [BURST, BURST, 1]);
    end.send(()).unwrap();
    stepping.join().unwrap();
    busy.join().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn states_are_made_aside_and_few_at_a_time() {
    let building = Building::new(Handle::current());
    let (stream, router) = (stream(), router());
    let taken = building.places.clone().acquire_many_owned(BUILDS as u32).await.unwrap();
    let mut replay = Replay::begin(&stream, request(), &building);
    assert!(matches!(replay.step(&stream, &router, b"topic"), Step::Waits), "there is no place for it");
    drop(taken);
    let ends = async {
        while !matches!(replay.step(&stream, &router, b"topic"), Step::Ended) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, ends).await.unwrap();
}
