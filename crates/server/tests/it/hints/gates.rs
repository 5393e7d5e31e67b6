//! Every gate of a lookup, in order, and every reason code.

use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kvplane_hints::{Policy, RESERVED_TENANT, Strategy};
use kvplane_proto::inferencecache as proto;
use prost::Message as _;

use crate::hints::talk::{Hints, ask, bytes, chain, entries, event, exact, now_us, update};

type Request = proto::LookupRouteRequest;

/// Eight blocks: 128 tokens.
const HELD: [u64; 8] = [1, 2, 3, 4, 5, 6, 7, 8];
const UNHELD: [u64; 8] = [91, 92, 93, 94, 95, 96, 97, 98];

/// A row: what is asked, under which policy, and what is answered.
struct Gate {
    name: &'static str,
    policy: Policy,
    request: Request,
    reason: &'static str,
    replicas: &'static [&'static str],
}

fn gate(
    name: &'static str,
    request: Request,
    reason: &'static str,
    replicas: &'static [&'static str],
) -> Gate {
    Gate { name, policy: Policy::default(), request, reason, replicas }
}

impl Gate {
    fn under(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }
}

fn without_affinity() -> Policy {
    Policy { affinity_routing: false, ..Policy::default() }
}

fn strategy(change: impl FnOnce(&mut Strategy)) -> Policy {
    let mut strategy = Strategy::default();
    change(&mut strategy);
    Policy { strategy, ..without_affinity() }
}

/// What is asked of a plane where "a" holds eight blocks and "b" one other, both hot.
fn gates() -> Vec<Gate> {
    let requires_chain = || strategy(|strategy| strategy.require_chain = true);
    let no_chains = || strategy(|strategy| strategy.chain_matching = false);
    let not_hot = || strategy(|strategy| strategy.tenant_hot = false);
    let short = || Policy { minimum_prefix_tokens: 1000, ..Policy::default() };
    let named = |change: fn(&mut Request)| {
        let mut request = chain(&HELD);
        change(&mut request);
        request
    };
    vec![
        gate(
            "1 the reserved tenant",
            Request { tenant_id: RESERVED_TENANT.to_owned(), ..chain(&HELD) },
            "NO_HINT",
            &[],
        ),
        gate("3 a chain is wanted", exact(8, 128), "POLICY_REQUIRES_CHAIN", &[]).under(requires_chain()),
        gate(
            "3 tokens are no chain",
            Request { token_ids: vec![1; 64], ..ask() },
            "POLICY_REQUIRES_CHAIN",
            &[],
        )
        .under(requires_chain()),
        gate(
            "3 an unequal chain is none",
            named(|r| r.block_token_counts.truncate(1)),
            "POLICY_REQUIRES_CHAIN",
            &[],
        )
        .under(requires_chain()),
        gate("3 a chain is one", chain(&HELD), "PREFIX_MATCH", &["a"]).under(requires_chain()),
        gate("4 more hashes than counts", named(|r| r.block_token_counts.truncate(7)), "NO_HINT", &[]),
        gate("4 counts alone", named(|r| r.block_hashes.clear()), "NO_HINT", &[]),
        gate("4 fewer than no tokens", named(|r| r.block_token_counts[1] = -1), "NO_HINT", &[]),
        gate("4 no prompt", ask(), "NO_HINT", &[]),
        gate("4 less than a block", Request { token_ids: vec![1; 15], ..ask() }, "NO_HINT", &[]),
        gate("4 text", Request { prompt_text: "hello".to_owned(), ..ask() }, "NO_HINT", &[]),
        gate("4 a chain before tokens", named(|r| r.token_ids = vec![1; 64]), "PREFIX_MATCH", &["a"]),
        gate(
            "4 a hash before tokens",
            Request { token_ids: vec![1; 64], ..exact(8, 128) },
            "PREFIX_MATCH",
            &["a"],
        ),
        gate("4 a chain before a hash", named(|r| r.prefix_hash = bytes(99)), "PREFIX_MATCH", &["a"]),
        gate("4 no chains: the last hash", chain(&HELD), "PREFIX_MATCH", &["a"]).under(no_chains()),
        gate("4 no chains: one missed", chain(&[91, 8]), "PREFIX_MATCH", &["a"]).under(no_chains()),
        gate(
            "4 no chains: the hash is meant",
            Request { prefix_hash: bytes(8), ..chain(&UNHELD) },
            "PREFIX_MATCH",
            &["a"],
        )
        .under(no_chains()),
        gate("5 too short", chain(&HELD), "NO_HINT", &[])
            .under(Policy { minimum_prefix_tokens: 1000, ..without_affinity() }),
        gate(
            "5 too short, of an unknown tenant",
            Request { tenant_id: "x".to_owned(), ..chain(&HELD) },
            "NO_HINT",
            &[],
        )
        .under(Policy { minimum_prefix_tokens: 1000, ..without_affinity() }),
        gate("6 no tenant", named(|r| r.tenant_id.clear()), "NO_HINT", &[]),
        gate("6 no model", named(|r| r.model_id.clear()), "NO_HINT", &[]),
        gate("6 no scheme", named(|r| r.hash_scheme.clear()), "NO_HINT", &[]),
        gate("7 a whole chain", chain(&HELD), "PREFIX_MATCH", &["a"]),
        gate("7 the beginning of a chain", chain(&[1, 2, 3, 4, 95]), "PREFIX_MATCH", &["a"]),
        gate("7 one hash", exact(8, 128), "PREFIX_MATCH", &["a"]),
        gate("7 a missed hash: who is hot", exact(99, 128), "TENANT_HOT", &["b", "a"])
            .under(without_affinity()),
        gate("7 a missed chain is never hot", chain(&UNHELD), "NO_HINT", &[]).under(without_affinity()),
        gate("7 nobody is to be hot", exact(99, 128), "NO_HINT", &[]).under(not_hot()),
        gate("7 another adapter", Request { adapter_id: "lora".to_owned(), ..chain(&HELD) }, "NO_HINT", &[])
            .under(without_affinity()),
        gate(
            "8 an unknown tenant",
            Request { tenant_id: "x".to_owned(), ..chain(&HELD) },
            "UNKNOWN_TENANT",
            &[],
        ),
        gate(
            "8 an unknown model",
            Request { model_id: "x".to_owned(), ..chain(&HELD) },
            "UNKNOWN_MODEL",
            &[],
        ),
        gate(
            "8 an unknown scheme",
            Request { hash_scheme: "x".to_owned(), ..chain(&HELD) },
            "UNKNOWN_HASH_SCHEME",
            &[],
        ),
        gate("9 too short for a match", chain(&HELD), "AFFINITY_HINT", &["b"]).under(short()),
        gate("9 too short to be hot", exact(99, 10), "AFFINITY_HINT", &["a"]).under(short()),
        gate("9 too little matched", chain(&[1, 2, 3]), "NO_HINT", &[]).under(without_affinity()),
        gate("9 just enough matched", chain(&[1, 2, 3, 4]), "PREFIX_MATCH", &["a"]).under(without_affinity()),
        gate("9 below the floor", chain(&HELD), "NO_HINT", &[])
            .under(Policy { routing_floor_score: 1e6, ..without_affinity() }),
        gate("10 affinity", chain(&UNHELD), "AFFINITY_HINT", &["b"]),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_gate_and_every_reason_code() {
    for Gate { name, policy, request, reason, replicas } in gates() {
        let mut hints = Hints::with(|options| options.policies.default = policy).await;
        hints.hold("a", &HELD).await;
        hints.hold("b", &[50]).await;
        for (replica, hit_rate) in [("a", 0.5), ("b", 0.75)] {
            let stats = proto::ReplicaStats { hit_rate, ..Default::default() };
            hints
                .report(vec![proto::CacheStateUpdate { stats: Some(stats), ..update(replica, vec![]) }])
                .await;
        }
        assert_eq!(hints.route(request).await, (reason.to_owned(), own(replicas)), "{name}");
    }
}

fn own(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_known_is_no_hint() {
    let mut hints = Hints::serve().await;
    for request in [chain(&HELD), exact(1, 16), Request { token_ids: vec![1; 64], ..ask() }] {
        assert_eq!(hints.route(request).await, ("NO_HINT".to_owned(), vec![]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn time_that_is_over_is_said_before_anything_else() {
    let out_of_time = Policy { lookup_timeout: Some(Duration::ZERO), ..Policy::default() };
    let mut hints = Hints::with(|options| options.policies.default = out_of_time).await;
    hints.hold("a", &HELD).await;
    for request in [chain(&HELD), ask(), Request { token_ids: vec![1; 1 << 18], ..ask() }] {
        assert_eq!(hints.route(request).await, ("TIMEOUT".to_owned(), vec![]));
    }
    let reserved = Request { tenant_id: RESERVED_TENANT.to_owned(), ..chain(&HELD) };
    assert_eq!(hints.route(reserved).await.0, "NO_HINT");
}

#[tokio::test(flavor = "multi_thread")]
async fn scores_are_made_of_depth_pressure_urgency_and_rarity() {
    let mut hints = Hints::serve().await;
    hints.hold("deep", &HELD).await;
    hints.hold("half", &HELD[..4]).await;
    hints.hold("none", &[50]).await;
    hints.hold("late", &[51]).await;
    let answer = hints.look_up(chain(&HELD)).await;
    assert_eq!((answer.reason_code.as_str(), answer.replica_scores.len()), ("PREFIX_MATCH", 2));
    let [deep, half] = &answer.replica_scores[..] else { panic!("{answer:?}") };
    assert_eq!((deep.matched_tokens, half.matched_tokens), (128, 64));
    assert_eq!((deep.tier, half.tier), (1, 1));
    // One of four holds that much, and two of four hold half of it; a moment has passed since the report.
    for (score, whole) in [(deep, 128.0 * 0.75), (half, 64.0 * 0.5)] {
        assert!(score.score <= whole && score.score > whole * 0.99, "{score:?}");
        assert!(score.estimated_cache_hit_prob > 0.99 && score.estimated_cache_hit_prob <= 1.0, "{score:?}");
    }
    let urgent = Request { slo: Some(proto::Slo { ttft_ms: 199, tbt_ms: 0 }), ..chain(&HELD) };
    let urgent = hints.look_up(urgent).await;
    assert!(urgent.replica_scores[0].score > deep.score * 1.98, "{urgent:?}");
    let stats = proto::ReplicaStats { pressure: 0.9, ..Default::default() };
    hints.report(vec![proto::CacheStateUpdate { stats: Some(stats), ..update("deep", vec![]) }]).await;
    let pressed = hints.look_up(chain(&HELD)).await;
    assert_eq!(pressed.replica_scores[0].replica_id, "half", "{pressed:?}");
    let full = proto::ReplicaStats { pressure: f32::INFINITY, ..Default::default() };
    hints.report(vec![proto::CacheStateUpdate { stats: Some(full), ..update("deep", vec![]) }]).await;
    assert_eq!(hints.look_up(chain(&HELD)).await.replica_scores[0].replica_id, "deep", "no number is 0");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_everybody_holds_points_to_nobody() {
    let mut hints = Hints::with(|options| options.policies.default = without_affinity()).await;
    // At the same moment: what is a little older scores a little less.
    let timestamp_us = now_us();
    let reported = |replica| proto::CacheStateUpdate { timestamp_us, ..update(replica, entries(&HELD)) };
    hints.report(vec![reported("a")]).await;
    assert_eq!(hints.route(chain(&HELD)).await.0, "PREFIX_MATCH", "there is only one");
    hints.report(vec![reported("b")]).await;
    assert_eq!(hints.route(chain(&HELD)).await, ("NO_HINT".to_owned(), vec![]));
    hints.hold("c", &[50]).await;
    let (reason, replicas) = hints.route(chain(&HELD)).await;
    assert_eq!((reason.as_str(), replicas), ("PREFIX_MATCH", own(&["a", "b"])), "equals by name");
}

#[tokio::test(flavor = "multi_thread")]
async fn affinity_is_the_same_for_the_same_prompt_and_replicas() {
    let mut hints = Hints::serve().await;
    for (at, replica) in ["r0", "r1", "r2", "r3", "r4"].into_iter().enumerate() {
        hints.hold(replica, &[1000 + at as u64]).await;
    }
    // By hand: SHA-256 of each hash behind its length, of which the first eight bytes modulo five.
    let (reason, first) = hints.route(chain(&[91, 92])).await;
    assert_eq!((reason.as_str(), &first), ("AFFINITY_HINT", &own(&["r3"])));
    assert_eq!(hints.route(chain(&[91, 92])).await.1, first);
    let (reason, single) = hints.route(exact(91, 16)).await;
    assert_eq!((reason.as_str(), single), ("AFFINITY_HINT", own(&["r3"])));
    let answer = hints.look_up(chain(&[91, 92])).await;
    let expected = proto::ReplicaScore { replica_id: "r3".to_owned(), ..Default::default() };
    assert_eq!(answer.replica_scores, [expected], "nothing is claimed");
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_models_schemes_and_adapters_do_not_see_each_other() {
    let mut hints = Hints::with(|options| options.policies.default = without_affinity()).await;
    let everywhere = update("a", entries(&HELD));
    let partitions: [fn(&mut proto::CacheStateUpdate); 4] = [
        |update| update.tenant_id = "other".to_owned(),
        |update| update.model_id = "other".to_owned(),
        |update| update.hash_scheme = "other".to_owned(),
        |update| update.adapter_id = "other".to_owned(),
    ];
    for change in partitions {
        let mut elsewhere = everywhere.clone();
        elsewhere.replica_id = "elsewhere".to_owned();
        change(&mut elsewhere);
        hints.report(vec![elsewhere]).await;
    }
    hints.report(vec![everywhere]).await;
    // Of the adapter's replica only that it is in scope is known.
    assert_eq!(hints.route(chain(&HELD)).await, ("PREFIX_MATCH".to_owned(), own(&["a"])));
    let other = Request { adapter_id: "other".to_owned(), ..chain(&HELD) };
    let answer = hints.look_up(other).await;
    assert_eq!(
        (answer.replica_scores[0].replica_id.as_str(), answer.adapter_id.as_str()),
        ("elsewhere", "other")
    );
    // A clear is the tenant's own.
    hints.publish(event(proto::cache_event::Type::AllCleared, "elsewhere", None)).await;
    let other = Request { tenant_id: "other".to_owned(), ..chain(&HELD) };
    assert_eq!(hints.route(other).await, ("PREFIX_MATCH".to_owned(), own(&["elsewhere"])));
}

/// The reason code that a caller gets who sends this header, whatever its library would make of it; `None` if
/// the server ended the call before there was an answer.
async fn reason_within(hints: &Hints, timeout: &str, request: &Request) -> Option<String> {
    let socket = tokio::net::TcpStream::connect(hints.rig.grpc).await.unwrap();
    let (mut send, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    let message = request.encode_to_vec();
    let mut body = vec![0];
    body.extend((message.len() as u32).to_be_bytes());
    body.extend(message);
    let call = http::Request::post(format!(
        "http://{}/inferencecache.v1alpha1.InferenceCache/LookupRoute",
        hints.rig.grpc
    ))
    .header("content-type", "application/grpc")
    .header("te", "trailers")
    .header("grpc-timeout", timeout)
    .body(Full::<bytes::Bytes>::from(body));
    let response = send.send_request(call.unwrap()).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    Some(proto::LookupRouteResponse::decode(body.get(5..)?).unwrap().reason_code)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_callers_time_counts_too() {
    let mut hints = Hints::serve().await;
    hints.hold("a", &HELD).await;
    // Whichever is first: the handler looks at the clock, and so does the transport.
    let over = reason_within(&hints, "1n", &chain(&HELD)).await;
    assert!(over.as_deref().is_none_or(|reason| reason == "TIMEOUT"), "{over:?}");
    assert_eq!(reason_within(&hints, "20S", &chain(&HELD)).await.as_deref(), Some("PREFIX_MATCH"));
    assert_eq!(
        reason_within(&hints, "9223372036854775807S", &chain(&HELD)).await.as_deref(),
        Some("PREFIX_MATCH")
    );
}
