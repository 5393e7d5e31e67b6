//! vLLM's tiers behind the device.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{Scene, residency, residency_on};
use kvplane_sim::load::{LoadConfig, Workload};
use kvplane_sim::{
    CompletionOptions, Fault, HostEvents, HostOptions, Restart, SimConfig, SimEngine, VllmOptions,
};
use kvplane_wire::Profile;

fn config(profile: Profile, host: HostOptions) -> SimConfig {
    let vllm = VllmOptions { host, ..VllmOptions::default() };
    SimConfig { profile, vllm, blocks: 60, ..SimConfig::default() }
}

fn host(events: HostEvents) -> HostOptions {
    HostOptions { blocks: 200, events, ..HostOptions::default() }
}

/// Runs a load, and says how many tokens were found.
fn work(scene: &Scene, load: &mut Workload, turns: usize) -> usize {
    let mut found = 0;
    for _ in 0..turns {
        found += scene.next_request(load);
    }
    found
}

fn workload() -> Workload {
    Workload::new(LoadConfig { system_tokens: 100, ..LoadConfig::default() })
}

#[test]
fn every_release_tells_what_its_tiers_hold() {
    let described =
        [Profile::Vllm0_24, Profile::Vllm0_32].map(|profile| (profile, HostEvents::SelfDescribing));
    let named =
        [Profile::Vllm0_10, Profile::Vllm0_17, Profile::Vllm0_22, Profile::Vllm0_24, Profile::Vllm0_32];
    for (profile, events) in
        named.map(|profile| (profile, HostEvents::Placeholder)).into_iter().chain(described)
    {
        let scene = Scene::start(config(profile, host(events)));
        let with_host = work(&scene, &mut workload(), 80);
        let state = scene.engine.state().swap_remove(0);
        let heard = scene.heard(0);
        assert_eq!(residency(&heard.messages), state.blocks, "{profile}");
        assert_eq!(residency_on(&heard.messages, "CPU"), state.host_blocks, "{profile} {events:?}");
        let alone = Scene::start(config(profile, HostOptions::default()));
        let without = work(&alone, &mut workload(), 80);
        assert!(
            with_host > without,
            "{profile}: {with_host} tokens found with a host tier, {without} without"
        );
    }
}

#[test]
fn a_silent_host_and_a_lasting_storage_count_in_what_is_found() {
    let scene = Scene::start(config(Profile::Vllm0_32, host(HostEvents::None)));
    work(&scene, &mut workload(), 30);
    assert!(!scene.engine.state()[0].host_blocks.is_empty());
    assert!(residency_on(&scene.heard(0).messages, "CPU").is_empty());
    let storage =
        HostOptions { blocks: 16, storage_blocks: 100, chunk: Some(32), ..host(HostEvents::Placeholder) };
    let scene = Scene::start(config(Profile::Vllm0_32, storage));
    work(&scene, &mut workload(), 60);
    let stored = &scene.engine.state()[0].groups[0].storage;
    let heard = residency_on(&scene.heard(0).messages, "STORAGE");
    assert!(heard.len() > stored.len() / 2, "chunks of two blocks, of which many were dropped");
}

#[test]
fn a_new_life_begins_with_empty_tiers() {
    let scene = Scene::start(config(Profile::Vllm0_32, host(HostEvents::SelfDescribing)));
    work(&scene, &mut workload(), 20);
    let old = scene.engine.state().swap_remove(0);
    scene.engine.fault(None, Fault::Restart(Restart { first_sequence: 5, same_content: true }));
    let new = scene.engine.state().swap_remove(0);
    let replayed = scene.replay(0, 0);
    assert_eq!(residency(&replayed.messages), new.blocks);
    assert_eq!(residency_on(&replayed.messages, "CPU"), new.host_blocks);
    assert!(new.host_blocks.keys().any(|hash| old.host_blocks.contains_key(hash)), "the same prompts");
    assert!(new.host_blocks.len() < old.host_blocks.len());
}

#[test]
fn a_reset_leaves_the_host_unless_it_is_asked_to_empty_it() {
    let scene = Scene::start(config(Profile::Vllm0_32, host(HostEvents::Placeholder)));
    let prompt: Vec<u32> = (0..100).collect();
    let options = CompletionOptions::default();
    // More steps than any chunk is late.
    scene.engine.complete(&prompt, 4, &options).unwrap();
    assert!(scene.engine.reset_prefix_cache());
    assert_eq!(scene.engine.would_hit(&prompt, &options), 96);
    assert!(scene.engine.reset_external_cache());
    assert_eq!(scene.engine.would_hit(&prompt, &options), 0);
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let is_refused = |profile, host| SimEngine::start(config(profile, host)).is_err();
    assert!(is_refused(Profile::Vllm0_9, host(HostEvents::Placeholder)));
    assert!(is_refused(Profile::Vllm0_22, host(HostEvents::SelfDescribing)));
    assert!(is_refused(Profile::Vllm0_32, HostOptions { chunk: Some(24), ..host(HostEvents::Placeholder) }));
    assert!(is_refused(Profile::Vllm0_32, HostOptions { storage_blocks: 9, ..HostOptions::default() }));
    assert!(!is_refused(
        Profile::Vllm0_32,
        HostOptions { chunk: Some(64), ..host(HostEvents::SelfDescribing) }
    ));
}
