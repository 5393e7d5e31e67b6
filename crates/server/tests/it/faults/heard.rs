//! Engines that are heard, in the book of hints: whatever happens to them, a lookup says what the engine
//! itself would find.

use std::sync::Arc;

use kvplane_core::{Continuity, Namespace, Trust, chain_hash, hash_blocks};
use kvplane_hints::{Asked, Book, CacheTier, Limits, Policies, Policy, PrefixHash, Question, ReasonCode};
use kvplane_ingest::{Origin, PlaneOptions, StreamStatus};
use kvplane_report::{Feeds, Withheld};
use kvplane_sim::{CompletionOptions, Fault, HostEvents, HostOptions, Image, ReplayMode, Restart, SimConfig};
use kvplane_wire::Profile;

use crate::every_engine;
use crate::rig::{Engine, Rig, soon_down, until};

const BLOCK: usize = 16;

/// A book that lists every holder.
struct Hearing {
    book: Arc<Book>,
    feeds: Feeds,
}

impl Hearing {
    fn over(rig: &Rig) -> Self {
        let policy = Policy {
            minimum_matched_tokens: 0,
            routing_floor_score: 0.0,
            affinity_routing: false,
            ..Policy::default()
        };
        let policies = Policies { default: policy, ..Policies::default() };
        let book = Arc::new(Book::new(Limits::default(), policies, None));
        let feeds = kvplane_report::hear(&rig.plane, &book, "default");
        Self { book, feeds }
    }

    /// How many tokens of a prompt an engine is said to hold, and how cold they are.
    fn look_up(
        &self,
        replica: &str,
        scheme: &str,
        prompt: &[u32],
        adapter: &str,
    ) -> (usize, Option<CacheTier>) {
        let mut contents = Vec::new();
        hash_blocks(prompt, BLOCK, Namespace::PLAIN, &mut contents);
        let chain = contents.iter().scan(None, |before, &content| {
            *before = Some(chain_hash(*before, content));
            before.map(PrefixHash::Fingerprint)
        });
        let hashes: Vec<PrefixHash> = chain.collect();
        let counts = vec![BLOCK as u32; hashes.len()];
        let question = Question {
            tenant: "default",
            model: "sim",
            scheme,
            adapter,
            asked: Asked::Chain { hashes: &hashes, counts: &counts },
            chain_on_wire: true,
            ttft_ms: 0,
            expired: false,
        };
        let verdict = self.book.lookup(&question, 0);
        let found = verdict.scores.iter().find(|score| &*score.replica == replica);
        assert!(found.is_none() || verdict.reason == ReasonCode::PrefixMatch, "{verdict:?}");
        // One hash must not say more than the chain does.
        for (at, hash) in hashes.iter().enumerate() {
            let tokens = (at + 1) as u32 * BLOCK as u32;
            let question = Question { asked: Asked::Exact { hash, tokens }, ..question };
            let alone = self.book.lookup(&question, 0);
            let alone = alone.scores.iter().any(|score| &*score.replica == replica);
            assert_eq!(alone, found.is_some_and(|score| score.matched_tokens >= tokens), "block {at}");
        }
        found.map_or((0, None), |score| (score.matched_tokens as usize, score.tier))
    }

    fn withheld(&self, reason: Withheld) -> u64 {
        self.feeds.withheld().get(reason)
    }

    /// How many (engine, prefix) pairs there are.
    fn entries(&self) -> usize {
        self.book.census().models.iter().map(|model| model.entries).sum()
    }
}

/// Waits until everything that the engine published was read and forwarded.
async fn heard(rig: &Rig, hearing: &Hearing, engine: &Engine) -> StreamStatus {
    let last = engine.next_sequence().checked_sub(1);
    let live = |status: &StreamStatus| status.continuity == Continuity::Live;
    let caught_up = |status: &StreamStatus| live(status) && status.engine_sequence == last;
    let status = rig.until(0, "heard the last batch", caught_up).await;
    hearing.feeds.ready().await;
    status
}

/// Looks up every request before it runs: what is said is what the engine finds, or less where trust is
/// lower. Says how many tokens were promised.
async fn look_up_and_run(rig: &Rig, hearing: &Hearing, engine: &mut Engine, requests: usize) -> usize {
    let scheme = engine.sim.config().profile.engine().as_str();
    let mut promised = 0;
    for turn in 0..requests {
        let status = heard(rig, hearing, engine).await;
        let request = engine.next_turn();
        // The last token is always computed.
        let (said, _) = hearing.look_up("e0", scheme, &request.prompt[..request.prompt.len() - 1], "");
        let found = engine.run(&request, &CompletionOptions::default()).cached_tokens;
        if status.trust.level() == Trust::Exact {
            assert_eq!(said, found, "turn {turn}");
        }
        assert!(said <= found, "turn {turn}: {said} of {found}");
        promised += said;
    }
    promised
}

every_engine! {
    async fn a_late_join_and_what_follows() {
        let mut engine = Engine::plain();
        engine.work(10);
        let rig = Rig::over(&[&engine]).await;
        rig.exact(0, &engine).await;
        let hearing = Hearing::over(&rig);
        hearing.feeds.ready().await;
        assert!(hearing.entries() > 0, "the first look is complete");
        assert!(look_up_and_run(&rig, &hearing, &mut engine, 30).await > 0);
        assert_eq!(hearing.feeds.block_sizes("sim").into_iter().collect::<Vec<_>>(), [16]);
    }
}

every_engine! {
    async fn a_restart_leaves_no_phantom() {
        let mut engine = Engine::plain();
        engine.work(10);
        let rig = Rig::over(&[&engine]).await;
        rig.exact(0, &engine).await;
        let hearing = Hearing::over(&rig);
        assert!(look_up_and_run(&rig, &hearing, &mut engine, 5).await > 0);
        let first_sequence = engine.next_sequence() + 7;
        engine.sim.fault(None, Fault::Restart(Restart { first_sequence, same_content: true }));
        rig.until(0, "restarted", |status| status.counters.restarts == 1).await;
        assert!(look_up_and_run(&rig, &hearing, &mut engine, 20).await > 0);
    }
}

every_engine! {
    async fn lost_frames_are_replayed_or_what_they_said_is_not_claimed() {
        let mut engine = Engine::plain();
        engine.work(10);
        let rig = Rig::over(&[&engine]).await;
        rig.exact(0, &engine).await;
        let hearing = Hearing::over(&rig);
        engine.sim.fault(None, Fault::Drop(2));
        engine.work(4);
        assert!(look_up_and_run(&rig, &hearing, &mut engine, 5).await > 0);
        engine.sim.fault(None, Fault::Lose(1));
        engine.work(4);
        assert!(look_up_and_run(&rig, &hearing, &mut engine, 20).await > 0, "the state heals by itself");
        // Now not even the epoch can be determined.
        engine.sim.fault(None, Fault::Replay(ReplayMode::Off));
        engine.sim.fault(None, Fault::Drop(2));
        engine.work(4);
        look_up_and_run(&rig, &hearing, &mut engine, 5).await;
        assert!(engine.sim.reset_prefix_cache());
        engine.work(3);
        assert!(look_up_and_run(&rig, &hearing, &mut engine, 10).await > 0, "all is known again");
    }
}

every_engine! {
    async fn a_clear_is_reported_at_once() {
        let mut engine = Engine::plain();
        engine.work(10);
        let rig = Rig::over(&[&engine]).await;
        rig.exact(0, &engine).await;
        let hearing = Hearing::over(&rig);
        assert!(look_up_and_run(&rig, &hearing, &mut engine, 5).await > 0);
        assert!(engine.sim.reset_prefix_cache());
        // Some engines say so with their next step.
        engine.work(1);
        look_up_and_run(&rig, &hearing, &mut engine, 12).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_that_is_too_small_is_made_up_for_without_telling_all_again() {
    let mut engine = Engine::plain();
    engine.work(10);
    let options = PlaneOptions { max_batches: 1, ..PlaneOptions::default() };
    let rig = Rig::with_options(&[&engine], options).await;
    rig.exact(0, &engine).await;
    let hearing = Hearing::over(&rig);
    for _ in 0..10 {
        engine.work(5);
        look_up_and_run(&rig, &hearing, &mut engine, 2).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_out_of_reach_is_not_named_until_it_is_back() {
    let mut engine = Engine::plain();
    engine.work(6);
    let rig = Rig::with_options(&[&engine], soon_down()).await;
    rig.exact(0, &engine).await;
    let hearing = Hearing::over(&rig);
    hearing.feeds.ready().await;
    assert!(hearing.entries() > 0);
    engine.sim.fault(None, Fault::Replay(ReplayMode::Off));
    engine.sim.fault(None, Fault::Disconnect);
    rig.until(0, "down", |status| status.continuity == Continuity::Down).await;
    until("forgotten", || hearing.entries() == 0).await;
    engine.sim.fault(None, Fault::Replay(ReplayMode::On));
    engine.sim.fault(None, Fault::Disconnect);
    rig.exact(0, &engine).await;
    assert!(look_up_and_run(&rig, &hearing, &mut engine, 5).await > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_are_one_replica_that_holds_what_one_of_them_could_reuse() {
    let engine = Engine::start(|config| {
        // Ranks are at consecutive ports, so these are chosen: on a loopback address that is this process's
        // own.
        let pid = std::process::id();
        let host = format!("127.78.{}.{}", pid / 250 % 250, pid % 250 + 1);
        config.ranks = 2;
        config.events = kvplane_socket::Endpoint::Bind(format!("tcp://{host}:15557"));
        config.replay = Some(format!("tcp://{host}:16557"));
    });
    let on = |rank| CompletionOptions { rank: Some(rank), ..CompletionOptions::default() };
    let prompt = |seeds: &[u32]| -> Vec<u32> {
        seeds.iter().flat_map(|seed| (0..32).map(move |at| seed * 1_000 + at)).collect()
    };
    let all = [prompt(&[1, 2]), prompt(&[1, 3]), prompt(&[4, 5, 6])];
    engine.sim.complete(&all[0], 1, &on(0)).unwrap();
    engine.sim.complete(&all[1], 1, &on(1)).unwrap();
    engine.sim.complete(&all[2], 1, &on(1)).unwrap();
    let rig = Rig::over(&[&engine]).await;
    let hearing = Hearing::over(&rig);
    let lengths = || all.each_ref().map(|prompt| hearing.look_up("e0", "vllm", prompt, "").0);
    let caught_up = async || {
        for (rank, state) in engine.sim.state().into_iter().enumerate() {
            let last = state.next_sequence.checked_sub(1);
            rig.until_rank(0, rank, "caught up", |s| {
                s.continuity == Continuity::Live && s.engine_sequence == last
            })
            .await;
        }
        hearing.feeds.ready().await;
    };
    caught_up().await;
    assert_eq!(lengths(), [64, 64, 96]);
    // Both lives end; what comes back is what the new ones compute.
    engine.sim.fault(None, Fault::Restart(Restart::default()));
    engine.sim.complete(&all[0], 1, &on(1)).unwrap();
    engine.sim.complete(&all[2][..32], 1, &on(0)).unwrap();
    for rank in 0..2 {
        rig.until_rank(0, rank, "restarted", |status| status.counters.restarts == 1).await;
    }
    caught_up().await;
    assert_eq!(lengths(), [64, 32, 32]);
}

#[tokio::test(flavor = "multi_thread")]
async fn adapters_answer_under_their_names_and_other_identities_never() {
    let prompt: Vec<u32> = (1_000..1_064).collect();
    let adapted =
        |name: &str| CompletionOptions { lora: Some(name.to_owned()), ..CompletionOptions::default() };
    let salted =
        CompletionOptions { cache_salt: Some("tenant-a".to_owned()), ..CompletionOptions::default() };
    let image = Image { id: "x".to_owned(), offset: 0, length: 20 };
    let pictured = CompletionOptions { images: vec![image], ..CompletionOptions::default() };
    let embedded = CompletionOptions { embeddings: Some(vec![7; 32]), ..CompletionOptions::default() };
    for (profile, named) in [(Profile::Vllm0_32, true), (Profile::Vllm0_10, false)] {
        let engine = Engine::start(|config| {
            config.profile = profile;
            config.blocks = 600;
            config.loras = vec!["french".to_owned(), "german".to_owned()];
        });
        let rig = Rig::over(&[&engine]).await;
        let hearing = Hearing::over(&rig);
        engine.sim.complete(&prompt[..48], 1, &adapted("french")).unwrap();
        if named {
            // Older releases do not tell these from plain ones.
            for options in [&salted, &pictured, &embedded] {
                engine.sim.complete(&prompt, 1, options).unwrap();
            }
        }
        heard(&rig, &hearing, &engine).await;
        let found = |adapter: &str| hearing.look_up("e0", "vllm", &prompt, adapter).0;
        assert_eq!([found(""), found("french"), found("german")], [0, if named { 48 } else { 0 }, 0]);
        assert_eq!(hearing.withheld(Withheld::UnnamedAdapter) > 0, !named);
        assert_eq!(hearing.withheld(Withheld::Salted) >= 4, named);
        assert_eq!(hearing.withheld(Withheld::Keyed) >= 8, named);
        engine.sim.complete(&prompt[..32], 1, &CompletionOptions::default()).unwrap();
        heard(&rig, &hearing, &engine).await;
        assert_eq!(found(""), 32);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn caches_that_main_blocks_say_too_little_of_are_not_reported() {
    for (groups, eagle, reason) in
        [("sliding:64,sliding:64,full", false, Withheld::Hybrid), ("full", true, Withheld::GivesUpLast)]
    {
        let mut engine = Engine::start(|config| {
            config.blocks = 240;
            config.vllm.groups = groups.split(',').map(|group| group.parse().unwrap()).collect();
            config.vllm.eagle = eagle;
        });
        engine.work(5);
        let mut spec = engine.spec("e0");
        spec.cache.eagle = eagle;
        let rig = Rig::of_specs(vec![spec], PlaneOptions::default()).await;
        let hearing = Hearing::over(&rig);
        for _ in 0..10 {
            engine.work(1);
            heard(&rig, &hearing, &engine).await;
            assert_eq!(hearing.entries(), 0, "{groups}");
        }
        assert!(hearing.withheld(reason) > 0, "{groups}");
    }
}

fn offloading(host: HostOptions) -> impl FnOnce(&mut SimConfig) {
    move |config| {
        config.blocks = 48;
        config.vllm.host = host;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tiers_behind_the_device_count_where_they_say_exactly_what_they_hold() {
    let host =
        HostOptions { blocks: 160, chunk: Some(16), events: HostEvents::SelfDescribing, storage_blocks: 0 };
    let mut engine = Engine::start(offloading(host));
    let rig = Rig::over(&[&engine]).await;
    let hearing = Hearing::over(&rig);
    assert!(look_up_and_run(&rig, &hearing, &mut engine, 60).await > 0);
    heard(&rig, &hearing, &engine).await;
    let colder = (0..6).filter(|_| {
        let request = engine.next_turn();
        let (_, tier) = hearing.look_up("e0", "vllm", &request.prompt, "");
        tier == Some(CacheTier::T2)
    });
    assert!(colder.count() > 0, "some of it lies on the host");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_tiers_in_doubt_the_device_alone_is_reported() {
    let chunks =
        HostOptions { blocks: 160, chunk: Some(64), events: HostEvents::SelfDescribing, storage_blocks: 0 };
    let storage = HostOptions { storage_blocks: 320, ..chunks };
    for host in [chunks, storage] {
        let mut engine = Engine::start(offloading(host));
        let rig = Rig::over(&[&engine]).await;
        let hearing = Hearing::over(&rig);
        let mut promised = 0;
        for _ in 0..40 {
            heard(&rig, &hearing, &engine).await;
            let request = engine.next_turn();
            let (said, tier) = hearing.look_up("e0", "vllm", &request.prompt[..request.prompt.len() - 1], "");
            assert!(tier.is_none_or(|tier| tier == CacheTier::T1));
            let found = engine.run(&request, &CompletionOptions::default()).cached_tokens;
            assert!(said <= found, "{said} of {found}");
            promised += said;
        }
        assert!(promised > 0);
        assert!(hearing.withheld(Withheld::NotExact) > 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_leaves_is_forgotten_and_may_come_back() {
    let mut engine = Engine::plain();
    engine.work(6);
    let rig = Rig::over(&[&engine]).await;
    rig.exact(0, &engine).await;
    let hearing = Hearing::over(&rig);
    hearing.feeds.ready().await;
    let before = hearing.entries();
    assert!(before > 0);
    for _ in 0..5 {
        rig.plane.remove("e0").unwrap();
        // At once under the same name, for another model, and back.
        for model in ["other", "sim"] {
            let mut spec = engine.spec("e0");
            spec.model = model.to_owned();
            rig.plane.add(vec![spec], Origin::Api).unwrap();
            rig.exact(0, &engine).await;
            hearing.feeds.ready().await;
            let models: Vec<_> = hearing
                .book
                .census()
                .models
                .iter()
                .map(|known| (known.model.to_string(), known.entries))
                .collect();
            assert_eq!(models, [(model.to_owned(), before)]);
            if model == "other" {
                rig.plane.remove("e0").unwrap();
            }
        }
    }
    assert!(look_up_and_run(&rig, &hearing, &mut engine, 3).await > 0);
    rig.plane.remove("e0").unwrap();
    until("forgotten", || hearing.book.census().replicas.is_empty()).await;
}
