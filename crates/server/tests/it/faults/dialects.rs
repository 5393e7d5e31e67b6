//! Every shape that engines have had, over real sockets: what is recorded is what the engine holds, and what
//! is predicted is what it reuses.

use kvplane_core::{Reason, Trust};
use kvplane_sim::config::SglangOptions;
use kvplane_sim::{CompletionOptions, SimConfig};
use kvplane_wire::Profile;

use crate::rig::{Engine, Rig, speaking};

#[tokio::test(flavor = "multi_thread")]
async fn every_profile_is_recorded_as_it_is() {
    for profile in Profile::ALL {
        speaking(profile, async move {
            let mut engine = Engine::plain();
            engine.work(12);
            let rig = Rig::over(&[&engine]).await;
            if matches!(profile, Profile::Sglang0_4_6 | Profile::Sglang0_4_7) {
                // Hashes of a page's tokens alone: said, not hidden.
                let last = engine.next_sequence() - 1;
                let status = rig.until(0, "heard", |status| status.engine_sequence == Some(last)).await;
                assert!(status.trust.level() >= Trust::Unverified, "{profile}: {:?}", status.trust);
                assert!(status.trust.has(Reason::UnprovenHash), "{profile}: {:?}", status.trust);
                return;
            }
            rig.exact(0, &engine).await;
            engine.work(12);
            let status = rig.exact(0, &engine).await;
            assert_eq!(status.journal.rejected, [], "{profile}");
            assert_eq!(status.journal.unknown_fields, 0, "{profile}");
        })
        .await;
    }
}

/// Asks before every request what its engine holds of it, and compares with what the engine then found.
async fn predicts(profile: Profile, salted: bool, change: impl FnOnce(&mut SimConfig)) -> u64 {
    let mut engine = Engine::start(|config| {
        config.profile = profile;
        change(config);
    });
    engine.work(3);
    let rig = Rig::over(&[&engine]).await;
    let mut hits = 0;
    for turn in 0..60 {
        rig.exact(0, &engine).await;
        let salt = (salted && turn % 3 == 0).then(|| format!("tenant-{}", turn % 2));
        let options = CompletionOptions { cache_salt: salt, ..CompletionOptions::default() };
        let (predicted, served) = rig.predict_and_run(&mut engine, &options).await;
        assert_eq!(predicted, served, "{profile}, turn {turn}");
        hits += u64::from(predicted > 0);
    }
    hits
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_predicted_is_what_the_engine_reuses() {
    for profile in [Profile::Vllm0_32, Profile::Sglang0_5_18, Profile::Sglang0_5_22, Profile::Tokenspeed0_1_1]
    {
        let salted = profile != Profile::Tokenspeed0_1_1;
        assert!(predicts(profile, salted, |_| {}).await > 20, "{profile}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pairs_of_tokens_are_asked_in_pairs() {
    let eagle =
        |config: &mut SimConfig| config.sglang = SglangOptions { eagle: true, ..SglangOptions::default() };
    assert!(predicts(Profile::Sglang0_5_22, true, eagle).await > 20);
    let page_of_one = |config: &mut SimConfig| {
        config.sglang = SglangOptions { eagle: true, ..SglangOptions::default() };
        (config.block_size, config.blocks) = (1, 1_500);
    };
    assert!(predicts(Profile::Sglang0_5_22, true, page_of_one).await > 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_host_tier_keeps_is_predicted_too() {
    let hicache = |config: &mut SimConfig| {
        config.blocks = 48;
        config.sglang = SglangOptions { host_pages: 96, ..SglangOptions::default() };
    };
    assert!(predicts(Profile::Sglang0_5_22, true, hicache).await > 20);
}
