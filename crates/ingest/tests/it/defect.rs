//! A stream whose recording failed says nothing, rather than what it knew.

#![allow(clippy::unwrap_used, reason = "tests")]

use bytes::Bytes;
use kvplane_core::{EngineId, StreamId, Tier, Trouble, Trust};
use kvplane_ingest::Stream;
use kvplane_stream::{JournalOptions, Options};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{OwnedEvent, OwnedHash, OwnedStored};

fn store(hash: u64) -> Bytes {
    let stored = OwnedStored {
        block_hashes: vec![OwnedHash::Unsigned(hash)],
        token_ids: vec![1, 2],
        block_size: 2,
        ..OwnedStored::default()
    };
    encode_batch(Profile::Vllm0_32, 1.0, Some(0), &[OwnedEvent::Stored(stored)]).into()
}

#[test]
fn after_a_defect_nothing_is_said_or_recorded() {
    let id = StreamId::new(EngineId::new("a"), 0);
    let follow = Options { replay: false, ..Options::default() };
    let stream = Stream::in_process(id, follow, JournalOptions::default());
    stream.feed(|recorder, now| {
        recorder.connected(now);
        recorder.live(now, 0, store(1));
    });
    let held = |stream: &Stream| stream.status().blocks[Tier::Device.index()];
    assert_eq!(held(&stream), 1);
    let epoch = stream.status().epoch;
    stream.feed(|_, _| panic!("a defect, on purpose"));
    let status = stream.status();
    assert!(status.epoch > epoch, "whoever follows is told");
    assert_eq!((held(&stream), status.trust.level()), (0, Trust::Lower));
    assert_eq!(status.trouble, Some(Trouble::Defect));
    stream.feed(|recorder, now| recorder.live(now, 1, store(2)));
    assert_eq!(held(&stream), 0);
}
