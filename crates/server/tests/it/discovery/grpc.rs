//! Engines that are asked over gRPC.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use kvplane_core::{Trouble, Trust};
use kvplane_wire::Profile;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::discovery::{add, all_live, asking, until};
use crate::rig::Engine;

/// A gRPC server that answers calls by their path, and has no others.
struct Answerer {
    url: String,
    _stop: DropGuard,
}

impl Answerer {
    async fn start(answers: &[(&str, Vec<u8>)]) -> Self {
        let answers: Arc<HashMap<String, Bytes>> =
            Arc::new(answers.iter().map(|(path, message)| ((*path).to_owned(), framed(message))).collect());
        let pages = axum::Router::new().fallback(move |request: axum::extract::Request| {
            let answers = answers.clone();
            async move {
                let Some(message) = answers.get(request.uri().path()) else {
                    return tonic::Status::unimplemented("").into_http();
                };
                let trailers = http::HeaderMap::from_iter([("grpc-status".parse().unwrap(), 0.into())]);
                let body = Full::new(message.clone()).with_trailers(async { Some(Ok(trailers)) });
                let response = http::Response::builder().header("content-type", "application/grpc");
                response.body(tonic::body::Body::new(body)).unwrap()
            }
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let server = Server::builder().add_routes(Routes::from(pages));
        let incoming = TcpIncoming::from(listener);
        tokio::spawn(server.serve_with_incoming_shutdown(incoming, stop.clone().cancelled_owned()));
        Self { url, _stop: stop.drop_guard() }
    }
}

/// A message as it is on the wire: not compressed, and its length before it.
fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap();
    [&[0][..], &length.to_be_bytes(), message].concat().into()
}

/// A text, or a message within a message.
fn field(number: u8, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    let (low, high) = ((content.len() & 0x7f) as u8 | 0x80, (content.len() >> 7) as u8);
    [&[number << 3 | 2, low, high][..], content].concat()
}

fn number(number: u8, value: u8) -> Vec<u8> {
    vec![number << 3, value]
}

/// A field of a `google.protobuf.Struct`.
fn argument(key: &str, value: Vec<u8>) -> Vec<u8> {
    field(1, [field(1, key), field(2, value)].concat())
}

fn addresses(engine: &Engine, rank: usize) -> (String, String) {
    (engine.sim.event_endpoints().remove(rank), engine.sim.replay_endpoints().remove(rank).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn vllm_s_control_service_tells_everything() {
    let mut engine = Engine::start(|config| config.ranks = 2);
    engine.work(20);
    let source = |rank: u8| {
        let (events, replay) = addresses(&engine, rank.into());
        let texts =
            [field(1, "zmq"), field(2, events), field(4, replay), number(5, rank), field(6, "msgpack")];
        field(1, texts.concat())
    };
    let server = Answerer::start(&[
        ("/vllm.Control/GetKvEventSources", [source(0), source(1)].concat()),
        ("/vllm.Control/GetServerInfo", number(6, 32)),
    ])
    .await;
    let rig = asking().await;
    add(&rig, json!({"id": "e", "kind": "vllm", "model": "sim", "grpc": server.url, "block_size": 16})).await;
    let ranks = until(&rig, "e", "heard", |ranks| ranks.len() == 2 && all_live(ranks)).await;
    assert!(ranks.iter().all(|rank| rank.trouble == Some(Trouble::BlockSize)), "it said 32");
    assert!(ranks.iter().all(|rank| rank.trust.level() == Trust::Unverified));
}

#[tokio::test(flavor = "multi_thread")]
async fn smg_s_service_of_vllm_tells_how_many_ranks_and_the_rest_is_configured() {
    let engine = Engine::plain();
    let (events, replay) = addresses(&engine, 0);
    let info = [number(9, 2), number(12, 16)].concat();
    let server = Answerer::start(&[("/vllm.grpc.engine.VllmEngine/GetServerInfo", info)]).await;
    let rig = asking().await;
    let mut described = json!({"id": "bare", "kind": "vllm", "model": "sim", "grpc": server.url});
    add(&rig, described.clone()).await;
    until(&rig, "bare", "named", |ranks| {
        ranks.len() == 2 && ranks.iter().all(|rank| rank.trouble == Some(Trouble::NoSources))
    })
    .await;
    described["id"] = json!("told");
    described["events"] = json!(events);
    described["replay"] = json!(replay);
    described["discover"] = json!(true);
    add(&rig, described).await;
    until(&rig, "told", "of two ranks", |ranks| ranks.len() == 2 && all_live(&ranks[..1])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_arguments_of_an_sglang_server_tell_where_it_publishes() {
    let mut engine = Engine::start(|config| config.profile = Profile::Sglang0_5_22);
    engine.work(5);
    let (events, replay) = addresses(&engine, 0);
    let config =
        json!({"publisher": "zmq", "endpoint": events, "replay_endpoint": replay, "topic": ""}).to_string();
    let one = [&[2 << 3 | 1][..], &1.0_f64.to_le_bytes()].concat();
    let args = [argument("kv_events_config", field(3, config)), argument("dp_size", one)].concat();
    let server =
        Answerer::start(&[("/sglang.grpc.scheduler.SglangScheduler/GetServerInfo", field(1, args))]).await;
    let rig = asking().await;
    add(&rig, json!({"id": "e", "kind": "sglang", "model": "sim", "grpc": server.url})).await;
    until(&rig, "e", "exact", |ranks| all_live(ranks) && ranks[0].trust.level() == Trust::Exact).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_named() {
    let rig = asking().await;
    let cases = [
        ("nothing", Answerer::start(&[]).await, "no_sources"),
        ("empty", Answerer::start(&[("/vllm.Control/GetKvEventSources", Vec::new())]).await, "no_sources"),
        (
            "html",
            Answerer::start(&[("/vllm.Control/GetKvEventSources", b"<html>".to_vec())]).await,
            "bad_answer",
        ),
        (
            "large",
            Answerer::start(&[("/vllm.Control/GetKvEventSources", vec![0; 10 << 20])]).await,
            "bad_answer",
        ),
    ];
    for (id, server, trouble) in cases {
        add(&rig, json!({"id": id, "kind": "vllm", "model": "sim", "grpc": server.url})).await;
        until(&rig, id, trouble, |ranks| ranks[0].trouble.map(Trouble::as_str) == Some(trouble)).await;
    }
}
