//! What is particular to each engine that is not vLLM.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{PATIENCE, Scene, residency, residency_on};
use bytes::Bytes;
use kvplane_sim::load::{LoadConfig, Workload};
use kvplane_sim::{CompletionOptions, Fault, Restart, SglangOptions, SimConfig};
use kvplane_wire::{Decoder, Event, Profile, Tokens};

fn plain() -> CompletionOptions {
    CompletionOptions::default()
}

fn prompt(first: u32, length: u32) -> Vec<u32> {
    (first..first + length).collect()
}

fn sglang(profile: Profile) -> SimConfig {
    SimConfig { profile, block_size: 4, ..SimConfig::default() }
}

fn is_clear(message: &(u64, Bytes)) -> bool {
    let mut decoder = Decoder::default();
    matches!(decoder.decode(&message.1).unwrap().events[..], [Event::Cleared { .. }])
}

#[test]
fn sglang_clears_at_the_start_of_every_life_and_at_every_flush() {
    for profile in [Profile::Sglang0_4_6, Profile::Sglang0_5_18, Profile::Sglang0_5_22] {
        let scene = Scene::start(sglang(profile));
        assert!(is_clear(&scene.replay(0, 0).messages[0]));
        let running = scene.engine.begin(&prompt(0, 9), 2, &plain()).unwrap();
        assert!(!scene.engine.reset_prefix_cache(), "it is not idle");
        drop(running);
        assert!(scene.engine.reset_prefix_cache());
        let heard = scene.heard(0);
        assert_eq!(heard.sequences(), [1, 2]);
        assert!(is_clear(&heard.messages[1]), "told at once");

        scene.engine.complete(&prompt(0, 9), 1, &plain()).unwrap();
        scene.engine.fault(None, Fault::Restart(Restart::default()));
        assert!(scene.engine.wait_for_subscriptions(0, 1, PATIENCE));
        assert_eq!(scene.engine.state()[0].next_sequence, 1);
        assert!(is_clear(&scene.replay(0, 0).messages[0]));
        let overtaken = Restart { first_sequence: 5, same_content: true };
        scene.engine.fault(None, Fault::Restart(overtaken));
        let replayed = scene.replay(0, 0);
        assert_eq!(replayed.sequences(), [0, 1, 2, 3, 4]);
        assert!(is_clear(&replayed.messages[0]));
        assert_eq!(residency(&replayed.messages), scene.engine.state()[0].blocks);
    }
}

#[test]
fn tokenspeed_has_no_clears() {
    let config = SimConfig { profile: Profile::Tokenspeed0_1_1, block_size: 4, ..SimConfig::default() };
    let scene = Scene::start(config);
    assert_eq!(scene.engine.state()[0].next_sequence, 0);
    scene.engine.complete(&prompt(0, 30), 3, &plain()).unwrap();
    assert!(scene.engine.reset_prefix_cache());
    let heard = scene.heard(0);
    assert!(heard.messages.iter().all(|message| !is_clear(message)));
    assert!(residency(&heard.messages).is_empty());
}

#[test]
fn every_engine_serves_what_its_events_foretell() {
    let eagle = SglangOptions { eagle: true, ..SglangOptions::default() };
    let host = SglangOptions { host_pages: 300, ..SglangOptions::default() };
    let cases = [
        (Profile::Sglang0_4_7, SglangOptions::default()),
        (Profile::Sglang0_5_9, SglangOptions::default()),
        (Profile::Sglang0_5_22, eagle),
        (Profile::Sglang0_5_22, host),
        (Profile::Tokenspeed0_1_1, SglangOptions::default()),
        (Profile::TrtllmZmq, SglangOptions::default()),
    ];
    for (profile, options) in cases {
        let config = SimConfig { profile, sglang: options, blocks: 200, ranks: 2, ..SimConfig::default() };
        let scene = Scene::start(config);
        let mut load = Workload::new(LoadConfig { seed: 3, system_tokens: 100, ..LoadConfig::default() });
        let mut hits = 0;
        for turn in 0..120 {
            let request = load.next_turn();
            let options = CompletionOptions { rank: Some(turn % 2), ..plain() };
            let predicted = scene.engine.would_hit(&request.prompt, &options);
            let result = scene.engine.complete(&request.prompt, request.max_tokens, &options).unwrap();
            assert_eq!(result.cached_tokens, predicted, "{profile}");
            hits += usize::from(predicted > 0);
            load.replied(request.conversation, &result.output);
        }
        assert!(hits > 40, "{profile}: {hits} of 120 requests found something");
        for state in scene.engine.state() {
            let messages = scene.replay(state.rank as usize, 0).messages;
            assert_eq!(residency(&messages), state.blocks, "{profile}");
            assert_eq!(residency_on(&messages, "CPU_PINNED"), state.host_blocks, "{profile}");
            assert_eq!(state.host_blocks.is_empty(), options.host_pages == 0);
            assert!(state.blocks.values().sum::<usize>() <= 200);
        }
    }
}

#[test]
fn sglang_tells_salts_pairs_and_in_the_dynamo_format_adapters() {
    let options = SglangOptions { eagle: true, dynamo_format: true, host_pages: 0 };
    let scene = Scene::start(SimConfig { sglang: options, ..sglang(Profile::Sglang0_5_22) });
    let keyed =
        CompletionOptions { cache_salt: Some("tenant-a".into()), lora: Some("lora-a".into()), ..plain() };
    scene.engine.complete(&prompt(0, 9), 1, &keyed).unwrap();
    let heard = scene.heard(0);
    let mut decoder = Decoder::default();
    let batch = decoder.decode(&heard.messages[0].1).unwrap();
    let [Event::Stored(stored)] = &batch.events[..] else { panic!("{:?}", batch.events) };
    assert_eq!((stored.cache_salt, stored.lora_name), (Some("tenant-a"), Some("lora-a")));
    assert!(matches!(batch.tokens(stored), Tokens::Bigrams(ids) if ids[..4] == [0, 1, 1, 2]));
    assert_eq!(scene.engine.would_hit(&prompt(0, 10), &keyed), 8);
    assert_eq!(scene.engine.would_hit(&prompt(0, 10), &plain()), 0);
}
