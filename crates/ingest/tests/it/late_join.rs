//! How long events are on their way, and when the last one was: by what happened, not by when we asked.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use kvplane_core::{Continuity, EngineId, StreamId};
use kvplane_ingest::Stream;
use kvplane_stream::{Ask, JournalOptions, Options, Recorder};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{OwnedEvent, OwnedHash, OwnedStored};

const HOURS: u64 = 9 * 3600;
/// Far beyond anything that a test takes.
const MINUTES: Duration = Duration::from_mins(10);

fn store(hash: u64, stamp: f64) -> Bytes {
    let stored = OwnedStored {
        block_hashes: vec![OwnedHash::Unsigned(hash)],
        token_ids: vec![1, 2],
        block_size: 2,
        ..OwnedStored::default()
    };
    encode_batch(Profile::Vllm0_32, stamp, Some(0), &[OwnedEvent::Stored(stored)]).into()
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// A stream that was joined late: two batches came from the engine's ring, with these stamps.
fn joined(stamps: [f64; 2]) -> Stream {
    let id = StreamId::new(EngineId::new("a"), 0);
    let stream = Stream::in_process(id, Options::default(), JournalOptions::default());
    let mut asks = stream.feed(Recorder::connected).asks;
    // The ring is asked until it has nothing new: an answer alone does not prove that it is whole.
    while let Some((ring, from)) = asks.iter().find_map(|ask| match ask {
        Ask::Replay { id, from } => Some((*id, *from)),
        _ => None,
    }) {
        for (sequence, stamp) in (0_u64..).zip(stamps).filter(|(sequence, _)| *sequence >= from) {
            stream.feed(|recorder, now| recorder.replayed(now, ring, sequence, store(sequence, stamp)));
        }
        asks = stream.feed(|recorder, now| recorder.replay_ended(now, ring, true)).asks;
    }
    assert_eq!(stream.status().continuity, Continuity::Live);
    stream
}

#[test]
fn what_a_replay_brings_has_no_lag_and_is_as_old_as_it_is() {
    let stream = joined([now() - HOURS as f64 - 1.0, now() - HOURS as f64]);
    let status = stream.status();
    assert_eq!(status.lag, None);
    let since = status.since_last_event.unwrap();
    // Clocks are read to the millisecond.
    assert!(since.abs_diff(Duration::from_secs(HOURS)) < MINUTES, "{since:?}");

    stream.feed(|recorder, at| recorder.live(at, 2, store(2, now() - 5.0)));
    let status = stream.status();
    let lag = status.lag.unwrap();
    assert!(lag >= Duration::from_secs(4) && lag < MINUTES, "{lag:?}");
    assert!(status.since_last_event.unwrap() < MINUTES);
}

#[test]
fn no_event_is_from_the_future_and_other_clocks_say_nothing() {
    let stream = joined([now(), now() + HOURS as f64]);
    assert!(stream.status().since_last_event.unwrap() < MINUTES);

    let stream = joined([17.0, 18.0]);
    assert_eq!((stream.status().lag, stream.status().since_last_event), (None, None));
    stream.feed(|recorder, now| recorder.live(now, 2, store(2, 19.0)));
    let status = stream.status();
    assert_eq!(status.lag, None);
    assert!(status.since_last_event.unwrap() < MINUTES, "it was heard as it happened");
}
