//! A listener that is sent a state never holds up the thread that publishes for every engine.

use std::sync::mpsc;
use std::time::Duration;

use kvplane_core::{EngineId, StreamId};
use kvplane_stream::{JournalOptions, Options};

use super::*;

/// Only a hang reaches it.
const DEADLINE: Duration = Duration::from_mins(1);

fn source(form: Form) -> Source {
    let id = StreamId::new(EngineId::new("e"), 0);
    let stream = Arc::new(Stream::in_process(id, Options::default(), JournalOptions::default()));
    let cursor = stream.cursor();
    Source { stream, form, published: cursor, encoded_after: cursor }
}

#[test]
fn a_state_is_sent_in_slices_while_its_stream_is_busy() {
    let source = source(Form::Copies);
    let ((begin, begun), (end, ended)) = (mpsc::sync_channel(1), mpsc::sync_channel::<()>(1));
    let busy = {
        let stream = source.stream.clone();
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
        let state = State { batches, first: 1, cursor: source.published };
        let mut feed = Feed { phase: Phase::State(state) };
        while let Phase::State(_) = &feed.phase {
            let mut sent = 0;
            let send = |_: u64, _: &[u8]| {
                sent += 1;
                Delivery::Queued
            };
            assert_eq!(feed.step(&source, send), Step::GoesOn);
            step.send(sent).unwrap();
        }
    });
    let slices = (0..3).map(|_| stepped.recv_timeout(DEADLINE).expect("it does not wait for the stream"));
    assert_eq!(slices.collect::<Vec<_>>(), [BURST, BURST, 1]);
    end.send(()).unwrap();
    stepping.join().unwrap();
    busy.join().unwrap();
}

#[test]
fn a_listener_that_takes_no_more_is_sent_the_rest_later() {
    let source = source(Form::Presence);
    let batches = (0..4_u8).map(|n| Bytes::from(vec![n])).collect();
    let mut feed = Feed { phase: Phase::State(State { batches, first: 7, cursor: source.published }) };
    let mut taken = Vec::new();
    for (room, expected) in [(0, Step::Waits), (3, Step::GoesOn), (0, Step::Waits), (3, Step::GoesOn)] {
        let mut room = room;
        let step = feed.step(&source, |sequence, payload| {
            if room == 0 {
                return Delivery::Full;
            }
            room -= 1;
            taken.push((sequence, payload[0]));
            Delivery::Queued
        });
        assert_eq!(step, expected);
    }
    assert_eq!(taken, [(7, 0), (8, 1), (9, 2), (10, 3)]);
    assert_eq!(feed.step(&source, |_, _| Delivery::Queued), Step::CaughtUp);
    let mut feed = Feed {
        phase: Phase::State(State { batches: [Bytes::new()].into(), first: 1, cursor: source.published }),
    };
    assert_eq!(feed.step(&source, |_, _| Delivery::Gone), Step::Broken);
}

#[test]
fn a_tail_ends_with_what_was_published_and_with_its_life() {
    let mut source = source(Form::Presence);
    let ahead = Cursor { sequence: source.published.sequence + 1, ..source.published };
    let mut feed = Feed { phase: Phase::Tail(ahead) };
    assert_eq!(feed.step(&source, |_, _| Delivery::Queued), Step::Waits, "the state is ahead");
    source.stream.go_beyond(source.published);
    let mut behind = Feed { phase: Phase::Tail(source.published) };
    assert_eq!(behind.step(&source, |_, _| panic!("not published")), Step::CaughtUp);
    source.published = source.stream.cursor();
    assert_eq!(feed.step(&source, |_, _| Delivery::Queued), Step::CaughtUp);
    assert_eq!(behind.step(&source, |_, _| Delivery::Queued), Step::Broken, "it has no wire form");
    source.form = Form::Copies;
    assert_eq!(behind.step(&source, |_, _| Delivery::Queued), Step::GoesOn);
    assert_eq!(behind.step(&source, |_, _| Delivery::Queued), Step::CaughtUp);
}

#[tokio::test(flavor = "multi_thread")]
async fn states_are_made_aside_and_few_at_a_time() {
    let building = Building::new(Handle::current());
    let source = source(Form::Presence);
    let taken = building.places.clone().acquire_many_owned(BUILDS as u32).await.unwrap();
    let mut feed = Feed::from(&source, 0, &building);
    assert_eq!(feed.step(&source, |_, _| Delivery::Queued), Step::Waits, "there is no place for it");
    drop(taken);
    let mut clears = 0;
    let ends = async {
        loop {
            match feed.step(&source, |_, _| {
                clears += 1;
                Delivery::Queued
            }) {
                Step::CaughtUp | Step::Broken => break,
                Step::Waits | Step::GoesOn => tokio::task::yield_now().await,
            }
        }
    };
    tokio::time::timeout(DEADLINE, ends).await.unwrap();
    assert_eq!(clears, 1, "an empty state is a clear");
}
