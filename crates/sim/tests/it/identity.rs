//! Adapters, salts, images and embeddings: equal tokens that are different blocks.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{Scene, residency};
use kvplane_core::EngineKind;
use kvplane_sim::load::{LoadConfig, Workload};
use kvplane_sim::{CompletionOptions, GroupSpec, Image, Report, SimConfig, VllmOptions};
use kvplane_wire::{Decoder, Event, ExtraKey, Profile, Tokens};

const PROFILES: [Profile; 6] = [
    Profile::Vllm0_17,
    Profile::Vllm0_32,
    Profile::Sglang0_5_9,
    Profile::Sglang0_5_22,
    Profile::Tokenspeed0_1_1,
    Profile::TrtllmZmq,
];

fn mixed() -> LoadConfig {
    let names = |names: [&str; 2]| names.map(str::to_owned).to_vec();
    LoadConfig {
        system_tokens: 100,
        adapters: names(["adapter-a", "adapter-b"]),
        salts: names(["tenant-a", "tenant-b"]),
        images: 4,
        ..LoadConfig::default()
    }
}

fn work(scene: &Scene, config: LoadConfig) {
    let mut load = Workload::new(config);
    let mut hits = 0;
    for _ in 0..120 {
        let turn = load.next_turn();
        let predicted = scene.engine.would_hit(&turn.prompt, &turn.options);
        let result = scene.engine.complete(&turn.prompt, turn.max_tokens, &turn.options).unwrap();
        assert_eq!(result.cached_tokens, predicted);
        hits += usize::from(predicted > 0);
        load.replied(turn.conversation, &result.output);
    }
    assert!(hits > 40, "{hits} of 120 requests found something");
}

#[test]
fn every_engine_serves_a_mixed_load_and_tells_what_it_holds() {
    let hybrid =
        VllmOptions { groups: vec![GroupSpec::sliding(64), GroupSpec::FULL], ..VllmOptions::default() };
    let cases = PROFILES.map(|profile| (profile, VllmOptions::default())).into_iter();
    for (profile, vllm) in cases.chain([(Profile::Vllm0_32, hybrid)]) {
        let scene = Scene::start(SimConfig { profile, vllm, blocks: 400, ..SimConfig::default() });
        work(&scene, mixed());
        let held = scene.engine.state().swap_remove(0).blocks;
        assert_eq!(residency(&scene.replay(0, 0).messages), held, "{profile}");
    }
}

#[test]
fn full_reports_tell_more_than_is_held() {
    let scene = Scene::start(SimConfig { blocks: 400, ..SimConfig::default() });
    work(&scene, LoadConfig { report_every: 4, ..mixed() });
    let held = &scene.engine.state()[0].blocks;
    let reported = residency(&scene.heard(0).messages);
    assert!(held.iter().all(|(hash, copies)| reported[hash] >= *copies));
    assert!(held.iter().any(|(hash, copies)| reported[hash] > *copies));
}

#[test]
fn no_identity_finds_what_another_has() {
    let image = |id: &str| CompletionOptions {
        images: vec![Image { id: id.to_owned(), offset: 0, length: 40 }],
        ..CompletionOptions::default()
    };
    let identities = [
        CompletionOptions::default(),
        CompletionOptions { cache_salt: Some("s".into()), ..CompletionOptions::default() },
        CompletionOptions { cache_salt: Some("t".into()), ..CompletionOptions::default() },
        CompletionOptions { lora: Some("a".into()), ..CompletionOptions::default() },
        CompletionOptions { embeddings: Some(vec![1; 32]), ..CompletionOptions::default() },
        image("cat"),
        image("dog"),
    ];
    for profile in PROFILES {
        let scene = Scene::start(SimConfig { profile, ..SimConfig::default() });
        let prompt = vec![5; 50];
        for options in &identities {
            let found = scene.engine.complete(&prompt, 1, options).unwrap().cached_tokens;
            assert_eq!(found, 0, "{profile} {options:?}");
            assert_eq!(scene.engine.would_hit(&prompt, options), 48, "{profile} {options:?}");
        }
    }
}

#[test]
fn an_image_is_reported_in_the_engines_own_way() {
    for profile in [Profile::Vllm0_32, Profile::TrtllmZmq, Profile::Sglang0_5_22] {
        let scene = Scene::start(SimConfig { profile, block_size: 4, ..SimConfig::default() });
        let images = vec![Image { id: "cat".to_owned(), offset: 6, length: 4 }];
        let options = CompletionOptions { images, report: Report::New, ..CompletionOptions::default() };
        let prompt: Vec<u32> = (0..13).collect();
        scene.engine.complete(&prompt, 1, &options).unwrap();
        let heard = scene.heard(0);
        let mut decoder = Decoder::default();
        let batch = decoder.decode(&heard.messages[0].1).unwrap();
        let [Event::Stored(stored)] = &batch.events[..] else { panic!("{:?}", batch.events) };
        let Tokens::Flat(tokens) = batch.tokens(stored) else { panic!("no pairs here") };
        let offsets: Vec<Vec<i64>> = (0..3)
            .map(|block| {
                let keys = batch.extra_keys(stored, block).iter();
                keys.filter_map(|key| match key {
                    ExtraKey::Multimodal { offset, .. } => Some(*offset),
                    _ => None,
                })
                .collect()
            })
            .collect();
        match profile.engine() {
            EngineKind::Vllm => {
                assert_eq!((offsets, tokens), (vec![vec![], vec![2], vec![-2]], &prompt[..12]));
            }
            EngineKind::Trtllm => {
                assert_eq!((offsets, tokens), (vec![vec![], vec![0], vec![2]], &prompt[..12]));
            }
            _ => {
                assert_eq!(tokens, &options.keys().padded(&prompt)[..12]);
                assert_ne!(tokens, &prompt[..12]);
            }
        }
    }
}
