//! What a simulated engine publishes is what it holds.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{Log, PATIENCE, Scene, residency, timestamps};
use kvplane_core::EngineKind;
use kvplane_sim::load::{LoadConfig, Workload};
use kvplane_sim::{CompletionOptions, Fault, HashForm, Restart, SimConfig, SimEngine};
use kvplane_socket::{Endpoint, Options, ReplayEnd, Sockets, Subscription};
use kvplane_wire::Profile;

fn plain() -> CompletionOptions {
    CompletionOptions { rank: Some(0), ..CompletionOptions::default() }
}

fn prompt(first: u32, length: u32) -> Vec<u32> {
    (first..first + length).collect()
}

#[test]
fn every_profile_publishes_and_replays_what_it_holds() {
    let forms = [HashForm::Unsigned, HashForm::Signed, HashForm::Bytes16, HashForm::Bytes32];
    for profile in Profile::ALL {
        let has_forms = profile.engine() == EngineKind::Vllm;
        for hash_form in forms.into_iter().take(if has_forms { forms.len() } else { 1 }) {
            let topic = "kv@sim".to_owned();
            let config =
                SimConfig { profile, hash_form, topic, blocks: 20, block_size: 4, ..SimConfig::default() };
            let scene = Scene::start(config);
            for round in 0..6 {
                scene.engine.complete(&prompt(round % 4 * 100, 22), 6, &plain()).unwrap();
            }
            let live = scene.heard(0);
            let state = &scene.engine.state()[0];
            // SGLang says that its tree is empty before anybody can listen.
            let unheard = usize::from(profile.engine() == EngineKind::Sglang);
            let sequences: Vec<_> = (0..state.next_sequence).collect();
            assert_eq!(live.sequences(), sequences[unheard..], "{profile}");
            assert_eq!(residency(&live.messages), state.blocks, "{profile} {hash_form:?}");
            assert!(timestamps(&live.messages).is_sorted_by(|a, b| a < b));
            let replayed = scene.replay(0, 0);
            assert_eq!(replayed.end, Some(ReplayEnd::Complete));
            assert_eq!(replayed.messages[unheard..], live.messages, "{profile}");
            assert_eq!(residency(&replayed.messages), state.blocks, "{profile} {hash_form:?}");
        }
    }
}

#[test]
fn cached_tokens_are_what_the_events_before_a_request_predict() {
    let scene = Scene::start(SimConfig { blocks: 200, ranks: 2, ..SimConfig::default() });
    let mut load = Workload::new(LoadConfig { seed: 3, system_tokens: 100, ..LoadConfig::default() });
    let mut hits = 0;
    for turn in 0..150 {
        let request = load.next_turn();
        let options = CompletionOptions { rank: Some(turn % 2), ..CompletionOptions::default() };
        let predicted = scene.engine.would_hit(&request.prompt, &options);
        let result = scene.engine.complete(&request.prompt, request.max_tokens, &options).unwrap();
        assert_eq!(result.cached_tokens, predicted);
        assert!(predicted < request.prompt.len());
        hits += usize::from(predicted > 0);
        load.replied(request.conversation, &result.output);
    }
    assert!(hits > 50, "{hits} of 150 requests found something");
    for state in scene.engine.state() {
        let heard = scene.heard(state.rank as usize);
        assert_eq!(residency(&heard.messages), state.blocks);
        assert!(state.blocks.values().sum::<usize>() <= 200);
    }
}

#[test]
fn a_reset_is_reported_with_the_next_batch_and_refused_while_blocks_are_held() {
    let scene = Scene::start(SimConfig::default());
    let held = scene.engine.begin(&prompt(0, 40), 4, &plain()).unwrap();
    assert!(!scene.engine.reset_prefix_cache());
    held.finish();
    assert!(scene.engine.reset_prefix_cache());
    let state = &scene.engine.state()[0];
    assert!(state.blocks.is_empty());
    assert_eq!(state.next_sequence, 1, "the clear waits");
    scene.engine.complete(&prompt(500, 40), 1, &plain()).unwrap();
    let heard = scene.heard(0);
    assert_eq!(heard.sequences(), [0, 1]);
    assert_eq!(residency(&heard.messages), scene.engine.state()[0].blocks);
}

#[test]
fn a_running_request_holds_its_blocks_and_others_make_copies() {
    let scene = Scene::start(SimConfig { blocks: 8, block_size: 4, ..SimConfig::default() });
    let first = scene.engine.begin(&prompt(0, 8), 1, &plain()).unwrap();
    let second = scene.engine.begin(&prompt(0, 8), 1, &plain()).unwrap();
    assert_eq!(second.cached_tokens(), 4);
    assert_eq!(scene.engine.state()[0].blocks.values().copied().max(), Some(2));
    assert!(scene.engine.begin(&prompt(900, 32), 1, &plain()).is_err(), "all but five blocks are free");
    drop((first, second));
    scene.engine.complete(&prompt(900, 32), 1, &plain()).unwrap();
    assert_eq!(residency(&scene.heard(0).messages), scene.engine.state()[0].blocks);
}

#[test]
fn the_buffer_forgets_its_oldest_batches() {
    let scene = Scene::start(SimConfig { buffer_steps: 3, ..SimConfig::default() });
    for round in 0..10 {
        scene.engine.complete(&prompt(round * 100, 20), 1, &plain()).unwrap();
    }
    // Requests are answered between two batches: wait for the last.
    assert_eq!(scene.engine.state()[0].next_sequence, 10);
    assert_eq!(scene.replay(0, 0).sequences(), [7, 8, 9]);
    assert_eq!(scene.replay(0, 9).sequences(), [9]);
    assert!(scene.replay(0, 10).sequences().is_empty());
}

#[test]
fn engines_that_connect_are_distinguished_by_their_topic() {
    let sockets = Sockets::start(&Options::default()).unwrap();
    let log = Log::default();
    let bound = Subscription::new(Endpoint::Bind("tcp://127.0.0.1:0".to_owned())).with_topics(["kv@"]);
    let subscription = sockets.subscribe(bound, Box::new(log.clone())).unwrap();
    let start = |name: &str| {
        let events = Endpoint::Connect(subscription.last_endpoint().to_owned());
        let topic = format!("kv@{name}");
        SimEngine::start(SimConfig { events, topic, replay: None, ..SimConfig::default() }).unwrap()
    };
    let engines = [start("a"), start("b")];
    for (before, engine) in engines.iter().enumerate() {
        assert!(engine.wait_for_subscriptions(0, 1, PATIENCE));
        engine.complete(&prompt(0, 20), 1, &plain()).unwrap();
        // Two connections have no order between them: one after the other.
        log.wait("a batch of each", |heard| heard.messages.len() == before + 1);
    }
    engines[0].fault(None, Fault::Restart(Restart::default()));
    assert!(engines[0].wait_for_subscriptions(0, 1, PATIENCE));
    engines[0].complete(&prompt(0, 20), 1, &plain()).unwrap();
    let heard = log.wait("a batch of the new life", |heard| {
        // Two connections: the end of the old one may be reported after the new one's batch.
        heard.messages.len() == 3 && heard.disconnected == 1
    });
    assert_eq!(heard.topics, ["kv@a", "kv@b", "kv@a"]);
    assert_eq!((heard.connected, heard.disconnected), (3, 1));
}
