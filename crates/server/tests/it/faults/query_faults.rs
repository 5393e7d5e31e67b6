//! Who holds a prompt, under faults: nothing of an old life, nothing of a stream without a verdict, and never
//! too much.

use kvplane_core::{Continuity, Trust};
use kvplane_ingest::PlaneOptions;
use kvplane_sim::{CompletionOptions, Fault, ReplayMode, Restart};
use serde_json::json;

use crate::faults::query::{ask, complete, prompt};
use crate::rig::{Engine, Rig};

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_engine_is_never_answered_for_with_its_old_life() {
    let engine = Engine::plain();
    let ids = prompt(1, 96);
    complete(&engine, &ids, &CompletionOptions::default());
    let rig = Rig::over(&[&engine]).await;
    let before = rig.exact(0, &engine).await.epoch.as_u64();
    assert_eq!(rig.query(&ask(&ids)).await["matches"][0]["epoch"], before);
    engine.sim.fault(None, Fault::Restart(Restart { first_sequence: 0, same_content: false }));
    // From the moment it is noticed, nothing of the old life is credited.
    loop {
        let answer = rig.query(&ask(&ids)).await;
        let Some(found) = answer["matches"].get(0) else {
            assert_eq!(answer["not_credited"][0]["reason"], "recovering");
            assert_eq!(answer["trust"], "lower");
            continue;
        };
        if found["epoch"] == before {
            assert_eq!(found["tokens"], 96, "not noticed yet: the old life, whole");
            continue;
        }
        assert_eq!(found["tokens"], 0, "a new life begins empty");
        break;
    }
    complete(&engine, &ids[..32], &CompletionOptions::default());
    let after = rig.exact(0, &engine).await.epoch.as_u64();
    let answer = rig.query(&ask(&ids)).await;
    assert_eq!(
        (&answer["matches"][0]["epoch"], &answer["matches"][0]["tokens"]),
        (&json!(after), &json!(32))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn recovering_and_down_are_listed_with_their_reason_and_come_back() {
    let engines = [Engine::plain(), Engine::plain()];
    let ids = prompt(1, 96);
    for engine in &engines {
        complete(engine, &ids, &CompletionOptions::default());
    }
    // Long enough to be seen on the way.
    let options = PlaneOptions { down_after: std::time::Duration::from_secs(2), ..PlaneOptions::default() };
    let rig = Rig::with_options(&[&engines[0], &engines[1]], options).await;
    for (at, engine) in engines.iter().enumerate() {
        rig.exact(at, engine).await;
    }
    // A replay socket that does not answer leaves the verdict open.
    engines[0].sim.fault(None, Fault::Replay(ReplayMode::Off));
    engines[0].sim.fault(None, Fault::Disconnect);
    for (continuity, reason) in [(Continuity::Recovering, "recovering"), (Continuity::Down, "down")] {
        let status = rig.until(0, reason, |status| status.continuity == continuity).await;
        let answer = rig.query(&ask(&ids)).await;
        // It may have gone on to be down meanwhile.
        let reported = answer["not_credited"][0]["reason"].as_str().unwrap();
        assert!(reported == reason || reported == "down", "{answer}");
        assert_eq!(answer["not_credited"][0]["engine"], "e0");
        assert_eq!(answer["not_credited"][0]["continuity"], reported);
        assert_eq!(answer["not_credited"][0]["epoch"], status.epoch.as_u64());
        assert_eq!(answer["best"], json!([{ "engine": "e1", "rank": 0 }]), "the other goes on");
        assert_eq!(answer["trust"], "lower", "one who could have answered did not");
    }
    engines[0].sim.fault(None, Fault::Replay(ReplayMode::On));
    engines[0].sim.fault(None, Fault::Disconnect);
    rig.exact(0, &engines[0]).await;
    let answer = rig.query(&ask(&ids)).await;
    assert_eq!((answer["best"].as_array().unwrap().len(), &answer["trust"]), (2, &json!("exact")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_makes_answers_lower_and_never_longer_than_the_truth() {
    let mut engine = Engine::plain();
    engine.work(8);
    let ids = prompt(1, 96);
    complete(&engine, &ids, &CompletionOptions::default());
    let rig = Rig::over(&[&engine]).await;
    rig.exact(0, &engine).await;
    engine.sim.fault(None, Fault::Lose(1));
    engine.work(6);
    let status = rig.caught_up(0, &engine).await;
    assert_eq!(status.trust.level(), Trust::Lower);
    let answer = rig.query(&ask(&ids)).await;
    let found = &answer["matches"][0];
    assert_eq!(
        (&found["trust"], &found["reason"], &answer["trust"]),
        (&json!("lower"), &json!("gap"), &json!("lower"))
    );
    let truth = engine.sim.would_hit(&ids, &CompletionOptions::default()) as u64;
    assert!(found["tokens"].as_u64().unwrap() <= truth.next_multiple_of(16), "no phantoms");
    // What was kept against better knowledge is not credited.
    let options = PlaneOptions { on_gap: kvplane_stream::OnGap::Keep, ..PlaneOptions::default() };
    let keeping = Rig::with_options(&[&engine], options).await;
    keeping.live(0).await;
    engine.sim.fault(None, Fault::Lose(1));
    engine.work(3);
    let last = engine.next_sequence().checked_sub(1);
    keeping
        .until(0, "unsound and caught up", |status| {
            let caught_up = status.continuity == Continuity::Live && status.engine_sequence == last;
            status.trust.level() == Trust::Unsound && caught_up
        })
        .await;
    let answer = keeping.query(&ask(&ids)).await;
    assert_eq!((&answer["matches"], &answer["trust"]), (&json!([]), &json!("unsound")));
    let passed = &answer["not_credited"][0];
    assert_eq!(
        (&passed["trust"], &passed["reason"], &passed["continuity"]),
        (&json!("unsound"), &json!("gap_kept"), &json!("live"))
    );
}
