//! Set-ups, broken and whole, over real sockets: each has the codes that it should have, and no other.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod fleet;
mod reach;
mod replay;
mod rig;
mod shape;
mod word;

use kvplane_discovery::FoundRank;
use kvplane_ingest::Source;
use kvplane_sim::SimConfig;
use kvplane_wire::Profile;

use rig::{asked, codes, find_while, http_of, ranks, sim, spec_of, talk};

#[tokio::test(flavor = "multi_thread")]
async fn engines_of_every_kind_that_are_well_have_no_findings() {
    let kinds = [Profile::Vllm0_32, Profile::Sglang0_5_22, Profile::Tokenspeed0_1_1, Profile::TrtllmZmq];
    let looks = kinds.map(|profile| async move {
        let engine = sim(SimConfig { profile, ..SimConfig::default() });
        let spec = kvplane_ingest::EngineSpec { http: Some(http_of(&engine)), ..spec_of(&engine) };
        // It has just started: its ring is empty, and it begins while it is listened to.
        let say = |engine: &kvplane_sim::SimHandle| (0..5).for_each(|turn| talk(engine, 0, turn * 100));
        let found = find_while(&engine, spec, say).await;
        assert_eq!(codes(&found), [], "{profile:?}: {found:#?}");
    });
    futures::future::join_all(looks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_are_asked_where_they_publish_and_are_well_have_no_findings() {
    for profile in [Profile::Vllm0_32, Profile::Sglang0_5_22] {
        let engine = sim(SimConfig { profile, ranks: 2, ..SimConfig::default() });
        let mut spec = asked(profile.engine(), http_of(&engine));
        let Source::Discovered(discovered) = &mut spec.source else { panic!("{:?}", spec.source) };
        discovered.ranks = ranks(&mut spec_of(&engine)).drain(..).map(FoundRank::from).collect();
        let say = |engine: &kvplane_sim::SimHandle| (0..2).for_each(|rank| talk(engine, rank, 1));
        let found = find_while(&engine, spec, say).await;
        assert_eq!(codes(&found), [], "{profile:?}: {found:#?}");
    }
}
