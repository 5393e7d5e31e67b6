//! Planes that follow each other count each other's requests.

use std::time::{Duration, Instant};

use kvplane_proto::kvplane::v1::routing_client::RoutingClient;
use kvplane_proto::kvplane::v1::{BookingBatch, BookingChange, BookingUpdate};
use serde_json::json;
use tokio_stream::wrappers::ReceiverStream;

use super::*;
use crate::rig::DEADLINE;

fn prompt(seed: u32) -> Vec<u32> {
    (0..2_000).map(|at| seed * 10_000 + at).collect()
}

/// So short that its own work matters less than a request that is there already.
fn short(seed: u32) -> Vec<u32> {
    (0..64).map(|at| seed * 10_000 + at).collect()
}

async fn pick(rig: &Rig, prompt: &[u32]) -> Value {
    let (code, picked) =
        call(rig.http, "POST", "/v1/pick", &json!({"model": "sim", "token_ids": prompt})).await;
    assert_eq!(code, 200, "{picked}");
    picked
}

async fn report(rig: &Rig, picked: &Value, state: &str) {
    let path = format!("/v1/receipts/{}", picked["id"].as_str().unwrap());
    assert_eq!(call(rig.http, "POST", &path, &json!({"state": state})).await.0, 200);
}

async fn metric(rig: &Rig, name: &str) -> u64 {
    let (_, page) = crate::rig::text(rig.http, "GET", "/metrics", String::new()).await;
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name}: {page}")).parse().unwrap()
}

/// Waits for a number in `/metrics`.
async fn wait(rig: &Rig, name: &str, wanted: u64) {
    let begun = Instant::now();
    while metric(rig, name).await != wanted {
        assert!(begun.elapsed() < DEADLINE, "{name} is {}, not {wanted}", metric(rig, name).await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

const ALL: &str = "kvplane_route_bookings";
const OTHERS: &str = "kvplane_route_bookings_of_others";
const FOLLOWED: &str = "kvplane_route_sharing_planes{how=\"followed\"}";
const FOLLOWING: &str = "kvplane_route_sharing_planes{how=\"following\"}";

/// Whether requests count at an engine, and whether a prompt counts as on its way somewhere.
async fn counted(rig: &Rig, engine: &str, prompt: &[u32]) -> (bool, bool) {
    let ask = json!({"model": "sim", "token_ids": prompt, "dry_run": true});
    let (_, picked) = call(rig.http, "POST", "/v1/pick", &ask).await;
    let endpoints = picked["endpoints"].as_array().unwrap();
    let found = endpoints.iter().find(|one| one["engine"] == engine).unwrap();
    (found["terms"]["decode_s"].as_f64().unwrap() > 0.0, picked["why"] == "in_flight")
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_on_several_planes_count_each_others_requests() {
    let engines = [Engine::plain(), Engine::plain()];
    let a = Rig::hasty(&[&engines[0], &engines[1]]).await;
    for at in 0..2 {
        a.live(at).await;
    }
    let early = pick(&a, &prompt(1)).await;
    // Two planes follow the first.
    let (b, c) = (Rig::hasty(&[]).await, Rig::hasty(&[]).await);
    for site in [&b, &c] {
        site.follow("a", &a).await;
        for engine in ["a/e0", "a/e1"] {
            site.until(engine, "live", |status| status.continuity == Continuity::Live).await;
        }
        wait(site, FOLLOWED, 1).await;
    }
    wait(&a, FOLLOWING, 2).await;
    // Earlier bookings are sent.
    for site in [&b, &c] {
        wait(site, OTHERS, 1).await;
    }
    // The next one goes to the other engine, wherever it is asked: each plane knows all work.
    let there = |picked: &Value| picked["endpoints"][0]["engine"].as_str().unwrap().replace("a/", "");
    let second = pick(&b, &short(2)).await;
    assert_ne!(there(&second), there(&early));
    wait(&a, OTHERS, 1).await;
    wait(&c, OTHERS, 2).await;
    for engine in ["a/e0", "a/e1"] {
        assert_eq!(counted(&c, engine, &prompt(99)).await, (true, false));
    }
    // The same prompt goes where it is on its way, although another plane sent it there.
    let same = pick(&c, &short(2)).await;
    assert_eq!((there(&same), same["why"].as_str()), (there(&second), Some("in_flight")), "{same}");
    wait(&b, ALL, 3).await;
    // A first token and an end are sent.
    report(&b, &second, "first_token").await;
    report(&c, &same, "finish").await;
    wait(&a, ALL, 2).await;
    // After the first token the prompt is where the engine's events say; the request still counts.
    let begun = Instant::now();
    while counted(&c, &format!("a/{}", there(&second)), &short(2)).await != (true, false) {
        assert!(begun.elapsed() < DEADLINE);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    report(&b, &second, "abort").await;
    report(&a, &early, "finish").await;
    for site in [&a, &b, &c] {
        wait(site, ALL, 0).await;
    }
    // A plane that goes takes its bookings along.
    pick(&b, &prompt(3)).await;
    wait(&c, OTHERS, 1).await;
    b.stop().await;
    wait(&a, FOLLOWING, 1).await;
    for site in [&a, &c] {
        wait(site, ALL, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_plane_tells_is_bounded_and_what_is_not_known_is_counted() {
    let engine = Engine::plain();
    let a = Rig::hasty(&[&engine]).await;
    a.live(0).await;
    let (out, sent) = tokio::sync::mpsc::channel(4);
    let mut client = RoutingClient::connect(a.url()).await.unwrap();
    let mut heard = client.share_bookings(ReceiverStream::new(sent)).await.unwrap().into_inner();
    let booked = |id: u64, engine: &str| BookingUpdate {
        id,
        change: BookingChange::Booked.into(),
        engine: engine.to_owned(),
        prompt_tokens: u64::MAX,
        uncached_tokens: u64::MAX,
        prefixes: vec![id; 600],
        ..Default::default()
    };
    let strange = [
        booked(1, "e9"),
        BookingUpdate { rank: 7, ..booked(2, "e0") },
        BookingUpdate { age_ms: u64::MAX, ..booked(3, "e0") },
        BookingUpdate { id: 4, change: BookingChange::Over.into(), ..Default::default() },
        BookingUpdate { id: 5, change: 77, ..Default::default() },
        booked(6, "e0"),
        booked(6, "e0"),
    ];
    out.send(BookingBatch { updates: strange.to_vec() }).await.unwrap();
    wait(&a, OTHERS, 1).await;
    wait(&a, "kvplane_route_shared_updates_dropped_total{reason=\"unknown_engine\"}", 2).await;
    // It hears of nothing that it said itself.
    let ours = pick(&a, &prompt(1)).await;
    let batch = heard.message().await.unwrap().unwrap();
    let names: Vec<_> =
        batch.updates.iter().map(|update| (update.engine.as_str(), update.change())).collect();
    assert_eq!(names, [("e0", BookingChange::Booked)]);
    let update = &batch.updates[0];
    assert_eq!(
        (update.prompt_tokens, update.prefixes.is_empty(), ours["booked"].as_bool()),
        (2_000, false, Some(true))
    );
    // More than a share of the books is not taken, and what is told in vain costs no more than what is taken.
    let mut reported = 0;
    let mut tell = async |thousands: u64| {
        let begun = Instant::now();
        for from in reported..reported + thousands {
            let updates = (0..1_000)
                .map(|at| BookingUpdate { prefixes: Vec::new(), ..booked(1_000 * (from + 1) + at, "e0") });
            out.send(BookingBatch { updates: updates.collect() }).await.unwrap();
        }
        reported += thousands;
        wait(&a, "kvplane_route_shared_updates_total{direction=\"received\"}", reported * 1_000 + 7).await;
        begun.elapsed()
    };
    let taken = tell(16).await;
    let in_vain = tell(16).await;
    assert!(in_vain < taken * 8 + Duration::from_secs(1), "{taken:?} and {in_vain:?}");
    assert_eq!(metric(&a, OTHERS).await, 16_384);
    assert_eq!(
        metric(&a, "kvplane_route_shared_updates_dropped_total{reason=\"full\"}").await,
        32_001 - 16_384
    );
    drop(out);
    wait(&a, ALL, 1).await;
}

/// What waits for a plane that does not read is bounded in bytes too, and one host does not take all places.
#[tokio::test(flavor = "multi_thread")]
async fn planes_that_do_not_read_are_bounded_in_bytes_and_number() {
    let engine = Engine::plain();
    let a = Rig::hasty(&[&engine]).await;
    a.live(0).await;
    let mut client = RoutingClient::connect(a.url()).await.unwrap();
    let mut open = Vec::new();
    let mut share = async || {
        let (out, sent) = tokio::sync::mpsc::channel(4);
        client.share_bookings(ReceiverStream::new(sent)).await.map(|heard| (out, heard))
    };
    let (speaks, _heard) = share().await.unwrap();
    for _ in 1..32 {
        open.push(share().await.unwrap());
    }
    let refused = share().await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    // 6 MiB for each that follows: far fewer updates than may wait.
    for from in 0..15u64 {
        let booked = |id: u64| BookingUpdate {
            id,
            change: BookingChange::Booked.into(),
            engine: "e0".to_owned(),
            prompt_tokens: 100_000,
            uncached_tokens: 100_000,
            prefixes: vec![id; 512],
            ..Default::default()
        };
        let updates = (from * 100..from * 100 + 100).map(booked).collect();
        speaks.send(BookingBatch { updates }).await.unwrap();
    }
    wait(&a, "kvplane_route_shared_updates_dropped_total{reason=\"lagging\"}", 31).await;
    wait(&a, FOLLOWING, 1).await;
    drop(open);
}
