//! A hybrid vLLM publishes what each of its groups holds.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use crate::support::{Scene, group_residency};
use kvplane_sim::load::{LoadConfig, Workload};
use kvplane_sim::{Fault, GroupSpec, Restart, SimConfig, SimEngine, VllmOptions};
use kvplane_wire::Profile;

fn config(profile: Profile, groups: &str) -> SimConfig {
    let groups = groups.split(',').map(|group| group.parse().unwrap()).collect();
    let vllm = VllmOptions { groups, ..VllmOptions::default() };
    SimConfig { profile, vllm, blocks: 300, ..SimConfig::default() }
}

/// What an engine says that a rank's groups hold on the device.
fn truth(scene: &Scene) -> BTreeMap<(u32, u64), usize> {
    let groups = scene.engine.state().swap_remove(0).groups;
    let group = |(number, group): (usize, kvplane_sim::GroupState)| {
        group.device.into_iter().map(move |(hash, copies)| ((number as u32, hash), copies))
    };
    groups.into_iter().enumerate().flat_map(group).collect()
}

/// Runs a load; how many requests found something.
fn work(scene: &Scene, load: &mut Workload, turns: usize) -> usize {
    let mut hits = 0;
    for _ in 0..turns {
        hits += usize::from(scene.next_request(load) > 0);
    }
    hits
}

#[test]
fn every_release_with_groups_tells_what_they_hold() {
    for profile in [Profile::Vllm0_20, Profile::Vllm0_22, Profile::Vllm0_24, Profile::Vllm0_32] {
        for groups in ["sliding:128,sliding:128,full", "full/32,mamba/64", "sliding:40/8,full", "mamba,full"]
        {
            let scene = Scene::start(config(profile, groups));
            let mut load = Workload::new(LoadConfig { system_tokens: 100, ..LoadConfig::default() });
            let hits = work(&scene, &mut load, 80);
            assert!(hits > 20, "{profile} {groups}: {hits} of 80 requests found something");
            assert_eq!(group_residency(&scene.heard(0).messages, "GPU"), truth(&scene), "{profile} {groups}");
        }
    }
}

#[test]
fn a_new_life_has_the_groups_of_the_old_one() {
    let scene = Scene::start(config(Profile::Vllm0_32, "sliding:64,full"));
    let mut load = Workload::new(LoadConfig::default());
    work(&scene, &mut load, 20);
    scene.engine.fault(None, Fault::Lose(1));
    work(&scene, &mut load, 1);
    let old = truth(&scene);
    scene.engine.fault(None, Fault::Restart(Restart { first_sequence: 12, same_content: true }));
    let replayed = scene.replay(0, 0);
    assert_eq!(replayed.messages.len(), 12);
    let new = group_residency(&replayed.messages, "GPU");
    assert_eq!(new, truth(&scene));
    assert!(new.keys().any(|(group, hash)| *group == 0 && old.contains_key(&(0, *hash))));
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let refused = |change: fn(&mut SimConfig)| {
        let mut config = config(Profile::Vllm0_32, "sliding:64,full");
        change(&mut config);
        SimEngine::start(config).is_err()
    };
    assert!(!refused(|_| {}));
    assert!(!refused(|config| config.vllm.eagle = true));
    assert!(refused(|config| config.profile = Profile::Vllm0_17));
    assert!(refused(|config| config.profile = Profile::Sglang0_5_22));
    assert!(refused(|config| {
        config.vllm.eagle = true;
        config.vllm.groups.push(GroupSpec { block_size: Some(32), ..GroupSpec::FULL });
    }));
}
