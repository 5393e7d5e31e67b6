//! Frames that contradict what is configured, or that cannot be read.

use kvplane_doctor::{Code, Severity};
use kvplane_ingest::EngineSpec;
use kvplane_sim::{SimConfig, SimHandle};
use kvplane_wire::{OwnedEvent, OwnedHash, OwnedStored, Profile, encode_batch};

use crate::rig::{SHORT, codes, find, find_while, now, ranks, sim, spec_of, talk};

const ERROR: Severity = Severity::Error;
const WARNING: Severity = Severity::Warning;

/// A batch with one block under this hash.
fn batch(hash: OwnedHash, timestamp: f64, rank: u32) -> Vec<u8> {
    let stored = OwnedStored {
        block_hashes: vec![hash],
        token_ids: (0..16).collect(),
        block_size: 16,
        ..OwnedStored::default()
    };
    encode_batch(Profile::Vllm0_32, timestamp, Some(rank), &[OwnedEvent::Stored(stored)])
}

/// Says these payloads.
fn say(payloads: Vec<Vec<u8>>) -> impl FnOnce(&SimHandle) {
    move |engine| payloads.iter().for_each(|payload| engine.publish_raw(None, payload))
}

#[tokio::test(flavor = "multi_thread")]
async fn another_block_size() {
    let engine = sim(SimConfig::default());
    let spec = EngineSpec { block_size: Some(32), ..spec_of(&engine) };
    let found = find_while(&engine, spec, |engine| talk(engine, 0, 1)).await;
    assert_eq!(codes(&found), [(Code::BlockSizeContradiction, ERROR)], "{found:#?}");
    assert!(found[0].seen.contains("32") && found[0].seen.contains("16"), "{found:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn clocks_that_differ() {
    for (seconds, severity, word) in
        [(-10.0, WARNING, "behind"), (10.0, WARNING, "ahead"), (600.0, ERROR, "ahead")]
    {
        let engine = sim(SimConfig::default());
        let payload = batch(OwnedHash::Unsigned(1), now(seconds), 0);
        let found = find_while(&engine, spec_of(&engine), say(vec![payload])).await;
        assert_eq!(codes(&found), [(Code::ClockSkew, severity)], "{found:#?}");
        assert!(found[0].seen.contains(word), "{found:#?}");
    }
}

/// What lies in a ring may be of any age; what is from the future tells.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_ahead_is_seen_in_the_ring_of_an_idle_engine() {
    for (seconds, expected) in [
        (600.0, vec![(Code::ClockSkew, ERROR), (Code::Silent, Severity::Info)]),
        (-600.0, vec![(Code::Silent, Severity::Info)]),
    ] {
        let engine = sim(SimConfig::default());
        engine.publish_raw(None, &batch(OwnedHash::Unsigned(1), now(seconds), 0));
        // The publisher has a thread of its own: it must be over before anybody subscribes.
        engine.next_sequence(0);
        let found = find(vec![spec_of(&engine)], SHORT).await;
        assert_eq!(codes(&found), expected, "{found:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hashes_in_two_forms() {
    let engine = sim(SimConfig::default());
    engine.publish_raw(None, &batch(OwnedHash::Bytes(vec![7; 32]), now(0.0), 0));
    let found = find_while(&engine, spec_of(&engine), |engine| talk(engine, 0, 1)).await;
    assert_eq!(codes(&found), [(Code::HashWidthMix, WARNING)], "{found:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read() {
    let engine = sim(SimConfig::default());
    let found = find_while(&engine, spec_of(&engine), say(vec![b"\xc1 no batch".to_vec()])).await;
    assert_eq!(codes(&found), [(Code::UnsupportedLayout, ERROR)], "{found:#?}");
    assert!(found[0].seen.contains("not_msgpack"), "{found:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_at_the_address_of_another() {
    let engine = sim(SimConfig { ranks: 2, ..SimConfig::default() });
    talk(&engine, 1, 1);
    let mut spec = spec_of(&engine);
    // Rank 0 is looked for where rank 1 is.
    ranks(&mut spec).remove(0);
    let subscribed = ranks(&mut spec)[0].rank;
    ranks(&mut spec)[0].rank = 0;
    let speaker = engine.clone();
    let spoken = tokio::task::spawn_blocking(move || {
        assert!(speaker.wait_for_subscriptions(subscribed, 1, crate::rig::PATIENCE));
        talk(&speaker, 1, 1000);
    });
    let found = crate::rig::find(vec![spec], crate::rig::LONG).await;
    spoken.await.unwrap();
    // It may be an engine of its own: both sockets name the same rank.
    assert_eq!(codes(&found), [(Code::RankMissing, Severity::Info)], "{found:#?}");
}
