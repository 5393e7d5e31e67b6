//! Tiers behind a vLLM's device, over real sockets: what is answered is what the engine then takes from its
//! cache, or trust says otherwise.

use kvplane_core::{Continuity, Reason, Tier, Trust};
use kvplane_ingest::{CacheSpec, PlaneOptions, StreamStatus};
use kvplane_sim::{CompletionOptions, HostEvents, HostOptions, Report, SimConfig};
use kvplane_wire::Profile;

use crate::faults::query::ask;
use crate::rig::{Engine, Rig};

/// A small device before a host of 160 blocks, in chunks of this many tokens.
fn offloading(chunk: usize, events: HostEvents) -> impl FnOnce(&mut SimConfig) {
    move |config| {
        config.blocks = 48;
        config.vllm.host = HostOptions { blocks: 160, chunk: Some(chunk), events, storage_blocks: 0 };
    }
}

/// How the answers about this many requests compare with what they then got.
#[derive(Debug, Default)]
struct Tally {
    /// Requests that got what was answered.
    right: usize,
    /// Requests that got more.
    more: usize,
    /// Requests that got something from behind the device, as answered.
    from_host: usize,
    /// Requests whose whole prompt was answered and reported as cached.
    whole: usize,
}

/// Asks about every request before it runs. No answer may say too much.
async fn ask_and_run(rig: &Rig, engine: &mut Engine, requests: usize, report: Report) -> Tally {
    let mut tally = Tally::default();
    for request in 0..requests {
        heard(rig, engine).await;
        let mut turn = engine.next_turn();
        if request % 2 == 0 {
            // Where a prompt ends with a block, it may be reported as cached whole.
            turn.prompt.truncate((turn.prompt.len() / 16).max(1) * 16);
        }
        let answer = rig.query(&ask(&turn.prompt)).await;
        let reported = &answer["matches"][0];
        let options = CompletionOptions { report, ..CompletionOptions::default() };
        let cached = engine.run(&turn, &options).cached_tokens as u64;
        let tokens = reported["cached_tokens"].as_u64().unwrap();
        assert!(tokens <= cached, "{tokens} of {cached}: {reported}");
        if reported["trust"] == "exact" {
            assert_eq!(tokens, cached, "{reported}");
        }
        tally.right += usize::from(tokens == cached);
        tally.more += usize::from(tokens < cached);
        tally.from_host += usize::from(tokens > reported["tiers"]["device"].as_u64().unwrap());
        tally.whole += usize::from(tokens == turn.prompt.len() as u64);
    }
    tally
}

/// Waits until everything that the engine has said was heard.
async fn heard(rig: &Rig, engine: &Engine) -> StreamStatus {
    let last = engine.next_sequence().checked_sub(1);
    let live = |status: &StreamStatus| status.continuity == Continuity::Live;
    rig.until(0, "heard the last batch", |status| live(status) && status.engine_sequence == last).await
}

fn worst(status: &StreamStatus) -> Option<Reason> {
    status.trust.worst().map(|worst| worst.reason)
}

async fn rig_over(engine: &Engine, offload_chunk: Option<u32>) -> Rig {
    let mut spec = engine.spec("e0");
    spec.cache = CacheSpec { offload_chunk, ..CacheSpec::default() };
    Rig::of_specs(vec![spec], PlaneOptions::default()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_serves_what_is_answered_however_it_is_reported() {
    for (chunk, events, configured) in [
        (16, HostEvents::Placeholder, None),
        (16, HostEvents::SelfDescribing, None),
        (64, HostEvents::Placeholder, Some(64)),
        (64, HostEvents::SelfDescribing, None),
    ] {
        let mut engine = Engine::start(offloading(chunk, events));
        let rig = rig_over(&engine, configured).await;
        let tally = ask_and_run(&rig, &mut engine, 60, Report::New).await;
        assert_eq!((tally.right, tally.more), (60, 0), "chunks of {chunk} by {events:?}");
        assert!(tally.from_host > 5, "chunks of {chunk} by {events:?}: {tally:?}");
        assert!(chunk > 16 || tally.whole > 2, "chunks of {chunk} by {events:?}: {tally:?}");
        rig.exact(0, &engine).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn old_placeholders_with_digests_say_the_size_of_chunks() {
    let mut engine = Engine::start(|config| {
        offloading(64, HostEvents::Placeholder)(config);
        config.profile = Profile::Vllm0_17;
    });
    let rig = rig_over(&engine, None).await;
    let tally = ask_and_run(&rig, &mut engine, 40, Report::New).await;
    assert_eq!((tally.right, tally.more), (40, 0));
    assert!(tally.from_host > 5, "{tally:?}");
    rig.exact(0, &engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_of_an_unknown_size_are_not_counted_and_that_is_reported() {
    let mut engine = Engine::start(offloading(64, HostEvents::Placeholder));
    let rig = rig_over(&engine, None).await;
    let tally = ask_and_run(&rig, &mut engine, 40, Report::New).await;
    assert!(tally.more > 0 && tally.from_host == 0, "{tally:?}");
    assert_eq!(worst(&heard(&rig, &engine).await), Some(Reason::ChunkSize));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clear_leaves_no_more_of_the_host_than_is_known() {
    for external in [false, true] {
        let mut engine = Engine::start(offloading(64, HostEvents::SelfDescribing));
        let rig = rig_over(&engine, None).await;
        ask_and_run(&rig, &mut engine, 30, Report::New).await;
        assert!(if external { engine.sim.reset_external_cache() } else { engine.sim.reset_prefix_cache() });
        // It is announced with the next step.
        engine.work(1);
        let status = heard(&rig, &engine).await;
        assert_eq!((status.trust.level(), worst(&status)), (Trust::Lower, Some(Reason::TierHistory)));
        let tally = ask_and_run(&rig, &mut engine, 40, Report::New).await;
        assert!(tally.right > 0, "what is stored again counts: {tally:?}");
        rig.caught_up(0, &engine).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn storage_that_tells_no_removals_is_unverified() {
    let mut engine = Engine::start(|config| {
        offloading(64, HostEvents::SelfDescribing)(config);
        config.vllm.host.storage_blocks = 320;
    });
    let rig = rig_over(&engine, None).await;
    engine.work(10);
    let status = heard(&rig, &engine).await;
    assert_eq!((status.trust.level(), worst(&status)), (Trust::Unverified, Some(Reason::UnremovedTier)));
    assert!(status.blocks[Tier::Disk.index()] > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn full_reports_are_no_copies() {
    let mut engine = Engine::start(|config| config.blocks = 64);
    let rig = rig_over(&engine, None).await;
    let tally = ask_and_run(&rig, &mut engine, 60, Report::Full).await;
    assert_eq!(tally.right + tally.more, 60);
    let status = rig.caught_up(0, &engine).await;
    assert!(status.journal.reannounced_blocks > 0);
    assert_eq!(status.journal.over_counts, 0);
}
