//! Replay that is not there, too short, or somebody else's; and windows that are too short.

use kvplane_doctor::{Code, Examination, Severity, Window, examine};
use kvplane_sim::{Fault, ReplayMode, SimConfig, SimHandle};
use kvplane_wire::{Profile, encode_batch};

use crate::rig::{
    LONG, SHORT, codes, examination, find, find_while, now, published, ranks, sim, spec_of, talk,
};

const ERROR: Severity = Severity::Error;
const WARNING: Severity = Severity::Warning;
const INFO: Severity = Severity::Info;

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_that_is_not_configured_is_named_where_the_engine_has_one() {
    let engine = sim(SimConfig::default());
    let address = engine.replay_endpoints()[0].clone().unwrap();
    let mut spec = spec_of(&engine);
    ranks(&mut spec)[0].replay = None;
    spec.http = Some(crate::rig::http_of(&engine));
    let found = find_while(&engine, spec, |engine| talk(engine, 0, 1)).await;
    assert_eq!(codes(&found), [(Code::ReplayAbsent, WARNING)], "{found:#?}");
    assert!(found[0].seen.contains(&address), "{found:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_does_not_answer_or_answers_nonsense() {
    for mode in [ReplayMode::Off, ReplayMode::Nonsense] {
        let engine = sim(SimConfig { faults: vec![Fault::Replay(mode)], ..SimConfig::default() });
        engine.fault(None, Fault::Replay(mode));
        let found = find_while(&engine, spec_of(&engine), |engine| talk(engine, 0, 1)).await;
        assert_eq!(codes(&found), [(Code::ReplayAbsent, ERROR)], "{mode:?}: {found:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ring_that_lasts_for_moments() {
    let engine = sim(SimConfig { buffer_steps: 4, ..SimConfig::default() });
    (0..8).for_each(|turn| talk(&engine, 0, turn * 100));
    let found = find_while(&engine, spec_of(&engine), |engine| talk(engine, 0, 5000)).await;
    assert_eq!(codes(&found), [(Code::ReplayTooShort, WARNING)], "{found:#?}");
    // An engine that has just started has a short ring, too, and all of it.
    let engine = sim(SimConfig::default());
    (0..8).for_each(|turn| talk(&engine, 0, turn * 100));
    let found = find_while(&engine, spec_of(&engine), |engine| talk(engine, 0, 5000)).await;
    assert_eq!(codes(&found), [], "{found:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_ranks_publisher_in_the_place_of_replay() {
    // Of this kind, ranks are at ports in a row.
    let engine = sim(SimConfig { profile: Profile::Sglang0_5_22, ranks: 2, ..SimConfig::default() });
    talk(&engine, 0, 1);
    let events = engine.event_endpoints();
    let mut spec = published(&events[0], Some(&events[1]));
    spec.kind = kvplane_core::EngineKind::Sglang;
    let found = find(vec![spec], SHORT).await;
    assert_eq!(codes(&found), [(Code::ReplayOnNextRanksPort, ERROR), (Code::Silent, WARNING)], "{found:#?}");
    assert!(found[0].seen.contains("rank 1"), "{found:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_ranks_ring() {
    let engine = sim(SimConfig { ranks: 2, ..SimConfig::default() });
    talk(&engine, 1, 1);
    let mut spec = spec_of(&engine);
    ranks(&mut spec).truncate(1);
    ranks(&mut spec)[0].replay = engine.replay_endpoints()[1].clone();
    let found = find_while(&engine, spec, |engine| talk(engine, 0, 1000)).await;
    assert_eq!(codes(&found), [(Code::ReplayOnNextRanksPort, ERROR)], "{found:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_ranks_ring_beside_an_idle_publisher() {
    let engine = sim(SimConfig { ranks: 2, ..SimConfig::default() });
    talk(&engine, 1, 1);
    let mut spec = spec_of(&engine);
    ranks(&mut spec).truncate(1);
    ranks(&mut spec)[0].replay = engine.replay_endpoints()[1].clone();
    let found = find(vec![spec], SHORT).await;
    // It may also be a rank that is a process of its own.
    assert_eq!(codes(&found), [(Code::Silent, INFO), (Code::ReplayOnNextRanksPort, INFO)], "{found:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_that_is_short_at_this_rate() {
    let window = Window { max_batches: 10, max_bytes: usize::MAX };
    let short = vec![(Code::WindowBelowRate, WARNING)];
    // Over ten seconds, or all at once: that is a burst, and says nothing of a rate. The ring tells it, or
    // what comes live.
    for (seconds, is_live, expected) in
        [(10.0, false, short.clone()), (10.0, true, short), (0.1, false, vec![])]
    {
        let engine = sim(SimConfig::default());
        let began = now(-seconds);
        let say = move |engine: &SimHandle| {
            for at in 0..100 {
                engine.publish_raw(None, &empty_batch(began + f64::from(at) * seconds / 100.0));
            }
        };
        if !is_live {
            say(&engine);
        }
        let (speaker, spec) = (engine.clone(), spec_of(&engine));
        let spoken = tokio::task::spawn_blocking(move || {
            assert!(speaker.wait_for_subscriptions(0, 1, crate::rig::PATIENCE));
            if is_live {
                say(&speaker);
            }
            speaker.publish_raw(None, &empty_batch(began + seconds));
        });
        let found = examine(&Examination { window: Some(window), ..examination(vec![spec], LONG) }).await;
        spoken.await.unwrap();
        let mut seen = codes(&found);
        if is_live {
            // Its timestamps are of the last ten seconds: where the look ends among them, they seem late.
            seen.retain(|(code, _)| *code != Code::ClockSkew);
        }
        assert_eq!(seen, expected, "{seconds} s, live {is_live}: {found:#?}");
    }
}

fn empty_batch(timestamp: f64) -> Vec<u8> {
    encode_batch(Profile::Vllm0_32, timestamp, Some(0), &[])
}
