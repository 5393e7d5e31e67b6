//! What subscribers write: taken part by part, and what is wrong with a part is counted.

use std::time::Duration;

use kvplane_hints::{Policy, Quota, RESERVED_TENANT};
use kvplane_proto::inferencecache as proto;
use kvplane_proto::inferencecache::cache_event::Type;

use crate::hints::talk::{Hints, MODEL, TENANT, ask, bytes, chain, entries, event, exact, now_us, update};
use crate::rig::until_async;

const HELD: [u64; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

impl Hints {
    async fn dropped(&self, reason: &str) -> f64 {
        self.metric(&format!("kvplane_hints_dropped_total{{reason=\"{reason}\"}}")).await
    }

    async fn state(&mut self) -> proto::GetCacheStateResponse {
        let request =
            proto::GetCacheStateRequest { model_id: MODEL.to_owned(), tenant_id: TENANT.to_owned() };
        self.client.get_cache_state(request).await.unwrap().into_inner()
    }

    async fn prefixes(&mut self) -> i64 {
        self.state().await.summary.unwrap().total_prefixes
    }
}

fn any_match() -> Policy {
    Policy {
        minimum_matched_tokens: 0,
        routing_floor_score: 0.0,
        affinity_routing: false,
        ..Policy::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_add_and_each_message_counts_when_it_comes() {
    let mut hints = Hints::serve().await;
    let (updates, stream) = tokio::sync::mpsc::channel(4);
    let stream = tokio_stream::wrappers::ReceiverStream::new(stream);
    let mut client = hints.client.clone();
    let call = tokio::spawn(async move { client.report_cache_state(stream).await });
    updates.send(update("a", entries(&HELD[..4]))).await.unwrap();
    until_async("stored", async || hints.prefixes().await == 4).await;
    assert_eq!(hints.route(chain(&HELD)).await.0, "PREFIX_MATCH", "before the stream ends");
    updates.send(update("a", entries(&HELD))).await.unwrap();
    drop(updates);
    let ack = call.await.unwrap().unwrap().into_inner();
    assert_eq!(ack, proto::Ack { accepted: true, reason_code: String::new() });
    assert_eq!(hints.prefixes().await, 8);
    hints.report(vec![update("a", Vec::new())]).await;
    assert_eq!(hints.prefixes().await, 8, "what is not told again is still held");
}

#[tokio::test(flavor = "multi_thread")]
async fn chains_are_stored_block_by_block_and_whole() {
    let mut hints = Hints::with(|options| options.policies.default = any_match()).await;
    let whole = proto::PrefixEntry {
        prefix_hash: bytes(99),
        token_count: 40,
        block_hashes: [1, 2, 3].map(bytes).to_vec(),
        block_token_counts: vec![16, 16, 8],
        tier: 2,
        adapter_id: "lora".to_owned(),
    };
    hints.report(vec![update("a", vec![whole])]).await;
    hints.hold("b", &[50]).await;
    assert_eq!(hints.prefixes().await, 5);
    let adapter_id = "lora".to_owned();
    for (hash, tokens) in [(1, 16), (2, 32), (3, 40), (99, 40)] {
        let request = proto::LookupRouteRequest { adapter_id: adapter_id.clone(), ..exact(hash, 1) };
        let answer = hints.look_up(request).await;
        assert_eq!(answer.replica_scores[0].matched_tokens, tokens, "{hash}: the entry's own count");
        assert_eq!(answer.replica_scores[0].tier, 2);
    }
    assert_eq!(hints.route(exact(1, 16)).await.0, "NO_HINT", "without the adapter");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_word_about_a_tier_counts_and_the_coldest_of_a_run_is_reported() {
    let mut hints = Hints::with(|options| options.policies.default = any_match()).await;
    hints.hold("a", &HELD).await;
    hints.hold("b", &[50]).await;
    let mut tier = async |reported: i32, seen: i32| {
        let mut moved = entries(&HELD);
        moved[5].tier = reported;
        hints.report(vec![update("a", vec![moved.remove(5)])]).await;
        assert_eq!(hints.look_up(chain(&HELD)).await.replica_scores[0].tier, seen, "told {reported}");
        assert_eq!(hints.look_up(chain(&HELD[..4])).await.replica_scores[0].tier, 1);
    };
    tier(2, 2).await;
    tier(0, 1).await;
    tier(9, 9).await;
    tier(-3, 0).await;
    tier(1, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn evictions_take_every_scheme_and_clears_take_statistics_too() {
    let mut hints = Hints::with(|options| options.policies.default = any_match()).await;
    for scheme in ["vllm", "sglang"] {
        for adapter in ["", "lora"] {
            let mut reported = update("a", entries(&HELD[..2]));
            reported.hash_scheme = scheme.to_owned();
            reported.adapter_id = adapter.to_owned();
            hints.report(vec![reported]).await;
        }
    }
    assert_eq!(hints.prefixes().await, 8);
    let of_adapter =
        proto::CacheEvent { adapter_id: "lora".to_owned(), ..event(Type::PrefixEvicted, "a", Some(1)) };
    hints.publish(of_adapter).await;
    assert_eq!(hints.prefixes().await, 6, "of one adapter, in both schemes");
    hints.publish(event(Type::PrefixEvicted, "a", Some(2))).await;
    assert_eq!(hints.prefixes().await, 2, "of all adapters");
    hints.publish(event(Type::PrefixEvicted, "stranger", Some(1))).await;
    assert_eq!(hints.prefixes().await, 2);
    let stats = proto::ReplicaStats {
        replica_id: "ignored".to_owned(),
        cache_memory_bytes: 7,
        hit_rate: 0.5,
        pressure: 0.25,
        client_version: "1".to_owned(),
        t2_hit_tokens: 3,
        t2_query_tokens: 4,
    };
    hints.report(vec![proto::CacheStateUpdate { stats: Some(stats.clone()), ..update("a", vec![]) }]).await;
    let reported = proto::ReplicaStats { replica_id: "a".to_owned(), client_version: String::new(), ..stats };
    assert_eq!(hints.state().await.replicas, [reported]);
    hints.publish(event(Type::AllCleared, "a", None)).await;
    let state = hints.state().await;
    assert_eq!((state.replicas.len(), state.summary.unwrap().total_prefixes), (0, 0));
}

/// What makes an entry wrong.
type Damage = fn(&mut proto::PrefixEntry);

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_costs_its_part_alone_and_is_counted() {
    let mut hints = Hints::serve().await;
    let wrong: [(&str, Damage); 7] = [
        ("unequal_arrays", |entry| entry.block_hashes = vec![bytes(1)]),
        ("unequal_arrays", |entry| entry.block_token_counts = vec![16]),
        ("empty_hash", |entry| entry.prefix_hash.clear()),
        ("wide_hash", |entry| entry.prefix_hash = vec![1; 65].into()),
        ("negative_count", |entry| entry.token_count = -1),
        ("negative_count", |entry| {
            entry.block_hashes = vec![bytes(1), bytes(2)];
            entry.block_token_counts = vec![16, -16];
        }),
        ("empty_hash", |entry| {
            entry.block_hashes = vec![bytes(1), bytes::Bytes::new()];
            entry.block_token_counts = vec![16, 16];
        }),
    ];
    for (reason, change) in wrong {
        let before = hints.dropped(reason).await;
        let mut prefixes = entries(&[1, 2, 3]);
        change(&mut prefixes[1]);
        hints.report(vec![update("a", prefixes)]).await;
        assert_eq!(hints.prefixes().await, 2, "{reason}: the others are taken");
        assert!((hints.dropped(reason).await - before - 1.0).abs() < 0.5, "{reason}");
        hints.publish(event(Type::AllCleared, "a", None)).await;
    }
    // Without a scheme hashes mean nothing, statistics do.
    let stats = proto::ReplicaStats { hit_rate: f32::NAN, pressure: f32::NEG_INFINITY, ..Default::default() };
    let reported = proto::CacheStateUpdate {
        hash_scheme: String::new(),
        stats: Some(stats),
        ..update("a", entries(&[1, 2]))
    };
    hints.report(vec![reported]).await;
    let state = hints.state().await;
    assert_eq!(state.summary.unwrap().total_prefixes, 0);
    assert_eq!((state.replicas[0].hit_rate, state.replicas[0].pressure), (0.0, 0.0));
    for (reason, count) in [("empty_scheme", 2.0), ("not_a_number", 2.0)] {
        assert!((hints.dropped(reason).await - count).abs() < 0.5, "{reason}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_mean_nothing_here_are_acknowledged() {
    let mut hints = Hints::serve().await;
    hints.hold("a", &HELD).await;
    hints.publish(event(Type::PrefixAdded, "a", Some(50))).await;
    hints.publish(event(Type::Unspecified, "a", Some(1))).await;
    hints.publish(proto::CacheEvent { r#type: 77, ..event(Type::Unspecified, "a", Some(1)) }).await;
    hints.publish(event(Type::PrefixEvicted, "a", None)).await;
    hints.publish(event(Type::AllCleared, "", None)).await;
    hints.publish(event(Type::ReplicaUpdated, "a", None)).await;
    assert_eq!(hints.prefixes().await, 8);
    for (reason, count) in
        [("prefix_added", 1.0), ("unknown_event", 2.0), ("empty_hash", 1.0), ("no_replica", 1.0)]
    {
        assert!((hints.dropped(reason).await - count).abs() < 0.5, "{reason}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tenant_of_probes_is_nobody() {
    let mut hints = Hints::serve().await;
    let stats = Some(proto::ReplicaStats::default());
    let reported = proto::CacheStateUpdate {
        tenant_id: RESERVED_TENANT.to_owned(),
        stats,
        ..update("a", entries(&HELD))
    };
    hints.report(vec![reported]).await;
    let cleared =
        proto::CacheEvent { tenant_id: RESERVED_TENANT.to_owned(), ..event(Type::AllCleared, "a", None) };
    hints.publish(cleared).await;
    let request =
        proto::GetCacheStateRequest { model_id: MODEL.to_owned(), tenant_id: RESERVED_TENANT.to_owned() };
    let state = hints.client.get_cache_state(request).await.unwrap().into_inner();
    assert_eq!((state.replicas.len(), state.summary.unwrap().total_prefixes), (0, 0));
    assert_eq!(hints.route(chain(&HELD)).await.0, "NO_HINT", "nothing at all is known");
    assert!((hints.dropped("reserved_tenant").await - 2.0).abs() < 0.5);
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_grow_old_and_nothing_is_of_tomorrow() {
    let life = Duration::from_secs(1000);
    let mut hints =
        Hints::with(|options| options.policies.default = Policy { ttl: life, ..any_match() }).await;
    let age = |seconds: i64| now_us() - seconds * 1_000_000;
    let reported =
        |replica, timestamp_us| proto::CacheStateUpdate { timestamp_us, ..update(replica, entries(&HELD)) };
    hints.hold("other", &[50]).await;
    hints
        .report(vec![
            reported("old", age(750)),
            reported("dead", age(1001)),
            reported("tomorrow", age(-5000)),
        ])
        .await;
    let answer = hints.look_up(chain(&HELD)).await;
    let freshness: Vec<_> = answer
        .replica_scores
        .iter()
        .map(|score| (score.replica_id.as_str(), (score.estimated_cache_hit_prob * 100.0).round() as i32))
        .collect();
    assert_eq!(freshness, [("tomorrow", 100), ("old", 25)]);
    // Reported again, it is as good as new.
    hints.report(vec![reported("old", 0)]).await;
    let answer = hints.look_up(chain(&HELD)).await;
    assert!(answer.replica_scores.iter().all(|score| score.estimated_cache_hit_prob > 0.99), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn old_entries_are_swept_out() {
    let short = Policy { ttl: Duration::from_millis(50), ..any_match() };
    let mut hints = Hints::with(|options| options.policies.default = short).await;
    hints.hold("a", &HELD).await;
    until_async("dropped", async || hints.prefixes().await == 0).await;
    assert_eq!(hints.route(chain(&HELD)).await.0, "NO_HINT");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_keeps_its_newest_and_takes_nothing_from_others() {
    let mut hints = Hints::with(|options| {
        options.policies.default = any_match();
        options.policies.quotas.insert(TENANT.to_owned(), Quota { max_entries: Some(3) });
    })
    .await;
    let mut other = update("a", entries(&HELD));
    other.tenant_id = "other".to_owned();
    hints.report(vec![other]).await;
    for (at, hash) in HELD.iter().enumerate() {
        let timestamp_us = now_us() - 1_000_000_000 + at as i64 * 10_000_000;
        hints.report(vec![proto::CacheStateUpdate { timestamp_us, ..update("a", entries(&[*hash])) }]).await;
    }
    assert_eq!(hints.prefixes().await, 3);
    for (hash, held) in [(5, false), (6, true), (8, true)] {
        assert_eq!(hints.route(exact(hash, 16)).await.0 == "PREFIX_MATCH", held, "{hash}");
    }
    let other = proto::LookupRouteRequest { tenant_id: "other".to_owned(), ..chain(&HELD) };
    assert_eq!(hints.look_up(other).await.replica_scores[0].matched_tokens, 128);
    assert!(
        hints.metrics().await.contains(
            "inferencecache_tenant_evictions_total{tenant_id=\"tenant\",reason=\"over_entries\"} 5"
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn all_together_have_a_bound() {
    let mut hints = Hints::with(|options| {
        options.policies.default = any_match();
        options.limits.max_entries = 4;
    })
    .await;
    for (at, replica) in ["a", "b"].into_iter().enumerate() {
        let timestamp_us = now_us() - 1_000_000_000 + at as i64 * 10_000_000;
        let reported = proto::CacheStateUpdate { timestamp_us, ..update(replica, entries(&HELD[..3])) };
        hints.report(vec![reported]).await;
    }
    let (reason, replicas) = hints.route(exact(HELD[0], 16)).await;
    let entries = hints.metric("kvplane_hints_entries ").await;
    assert!((entries - 4.0).abs() < 0.5, "{entries}");
    assert_eq!(reason, "PREFIX_MATCH");
    assert!(replicas.contains(&"b".to_owned()), "the newest stay: {replicas:?}");
    assert!(
        hints
            .metrics()
            .await
            .contains("inferencecache_index_evictions_total{algorithm=\"lru\",reason=\"cap\"} 2")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn no_prompt_comes_back() {
    let mut hints = Hints::serve().await;
    let request = proto::LookupRouteRequest { token_ids: (9_000_000..9_000_064).collect(), ..ask() };
    let answer = hints.look_up(request).await;
    assert!(answer.token_ids.is_empty());
    assert!(!hints.metrics().await.contains("9000001"));
}
