//! Models with several cache groups, over real sockets: what is predicted is what the engine reuses, or less
//! where trust says so.

use kvplane_core::{Reason, Trust};
use kvplane_ingest::PlaneOptions;
use kvplane_sim::{CompletionOptions, Fault, Image, ReplayMode, Restart};

use crate::rig::{Engine, Rig};

/// An engine with these groups, and too few blocks for all that it is asked.
fn engine(groups: &str, eagle: bool) -> Engine {
    Engine::start(|config| {
        config.blocks = 240;
        config.vllm.groups = groups.split(',').map(|group| group.parse().unwrap()).collect();
        config.vllm.eagle = eagle;
    })
}

async fn rig(engine: &Engine, eagle: bool) -> Rig {
    let mut spec = engine.spec("e0");
    spec.cache.eagle = eagle;
    Rig::of_specs(vec![spec], PlaneOptions::default()).await
}

/// Every third request has a salt, every fourth an image.
fn options(turn: usize) -> CompletionOptions {
    let image = Image { id: format!("picture-{}", turn % 2), offset: 20, length: 30 };
    CompletionOptions {
        cache_salt: turn.is_multiple_of(3).then(|| format!("tenant-{}", turn % 2)),
        images: if turn.is_multiple_of(4) { vec![image] } else { Vec::new() },
        ..CompletionOptions::default()
    }
}

/// Predicts this many requests, each exactly; returns how many found something.
async fn predicted(rig: &Rig, engine: &mut Engine, requests: usize) -> usize {
    let mut hits = 0;
    for turn in 0..requests {
        rig.exact(0, engine).await;
        let (predicted, served) = rig.predict_and_run(engine, &options(turn)).await;
        assert_eq!(predicted, served, "{:?}, turn {turn}", engine.sim.config().vllm);
        hits += usize::from(served > 0);
    }
    hits
}

#[tokio::test(flavor = "multi_thread")]
async fn what_every_group_can_go_on_from_is_what_the_engine_reuses() {
    let layouts = [
        "sliding:64,sliding:64,full",
        "sliding:40,full,sliding:200",
        "full,mamba",
        "full/16,mamba/64",
        "full/16,sliding:200/32",
        "full,full",
        "sliding:1,full",
    ];
    for layout in layouts {
        let mut engine = engine(layout, false);
        engine.work(3);
        let rig = rig(&engine, false).await;
        assert!(predicted(&rig, &mut engine, 40).await > 8, "{layout}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_gives_up_its_last_block_is_predicted_with_one_less() {
    for layout in ["full", "sliding:64,full"] {
        let mut engine = engine(layout, true);
        engine.work(3);
        let rig = rig(&engine, true).await;
        assert!(predicted(&rig, &mut engine, 40).await > 8, "{layout}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_survive_lost_frames_and_restarts() {
    let mut engine = engine("sliding:64,sliding:64,full", false);
    engine.work(6);
    let rig = rig(&engine, false).await;
    rig.exact(0, &engine).await;
    engine.sim.fault(None, Fault::Drop(2));
    engine.work(4);
    predicted(&rig, &mut engine, 10).await;
    let first_sequence = engine.next_sequence() + 7;
    engine.sim.fault(None, Fault::Restart(Restart { first_sequence, same_content: true }));
    rig.until(0, "restarted", |status| status.counters.restarts == 1).await;
    predicted(&rig, &mut engine, 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_for_good_is_never_claimed() {
    let mut engine = engine("sliding:64,sliding:64,full", false);
    engine.work(10);
    let rig = rig(&engine, false).await;
    rig.exact(0, &engine).await;
    engine.sim.fault(None, Fault::Replay(ReplayMode::Off));
    engine.sim.fault(None, Fault::Drop(2));
    engine.work(4);
    let mut claimed = 0;
    for turn in 0..40 {
        let status = rig.caught_up(0, &engine).await;
        assert_eq!(status.trust.level(), Trust::Lower, "{:?}", status.trust);
        let (predicted, served) = rig.predict_and_run(&mut engine, &options(turn)).await;
        assert!(predicted <= served, "turn {turn}: {predicted} of {served}");
        claimed += predicted;
    }
    assert!(claimed > 0, "the state heals by itself");
}

/// Layouts in which not everything that an engine could reuse can be known.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_known_is_not_claimed_and_said() {
    let layouts = [
        // Nothing says where a small block lies in a large one of another group.
        ("full/32,sliding:100/16", Reason::GroupLayout),
        ("full/32,sliding:100/48", Reason::GroupLayout),
        ("sliding:64,mamba", Reason::NoFullGroup),
    ];
    for (layout, reason) in layouts {
        let mut engine = engine(layout, false);
        engine.work(3);
        let rig = rig(&engine, false).await;
        for turn in 0..20 {
            let trust = rig.caught_up(0, &engine).await.trust.level();
            let (predicted, served) = rig.predict_and_run(&mut engine, &options(turn)).await;
            assert!(predicted <= served, "{layout}, turn {turn}: {predicted} of {served}");
            assert!(
                trust == Trust::Lower || predicted == served,
                "{layout}, turn {turn}: too little is exact"
            );
        }
        let status = rig.caught_up(0, &engine).await;
        assert!(status.trust.has(reason), "{layout}: {:?}", status.trust);
    }
}
