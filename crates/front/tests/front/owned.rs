//! The one path that a front answers itself, and tonic on either side of it.

use std::net::SocketAddr;

use kvplane_front::{FrontOptions, OwnedCalls};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Code;
use tonic::transport::Channel;
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::engine::{Engine, message};
use crate::rig::{Client, Fronted, SERVICE, nobody, within};

#[tokio::test]
async fn only_the_engines_own_service_is_answered_here() {
    let engine = Engine::default().await;
    let front = Fronted::of(engine.addr).await;
    let mut client = Client::to(front.addr).await;

    let own = client.unary("/test.Engine/SubscribeKvEvents", message(b"m")).await;
    assert_eq!((own.status().code(), own.status().message()), (Code::Aborted, "answered by the front"));

    for other in ["/other.Engine/SubscribeKvEvents", "/test.Engine/Other"] {
        let answer = client.unary(other, message(b"m")).await;
        assert_eq!(
            (answer.status().code(), answer.status().message()),
            (Code::Unimplemented, "unknown here")
        );
    }
    assert_eq!((front.counters.own(), front.counters.forwarded()), (1, 2));
}

#[tokio::test]
async fn own_calls_need_no_engine() {
    let front = Fronted::of(nobody().await).await;
    let own = Client::to(front.addr).await.unary("/test.Engine/SubscribeKvEvents", message(b"m")).await;
    assert_eq!(own.status().code(), Code::Aborted);
    assert_eq!(front.counters.connect_failures(), 0);
}

async fn channel(addr: SocketAddr) -> Channel {
    Channel::from_shared(format!("http://{addr}")).unwrap().connect().await.unwrap()
}

/// A real tonic server behind the front, a real tonic client before it, and one on the upstream itself.
#[tokio::test]
async fn tonic_on_both_sides() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_service_status("engine", ServingStatus::Serving).await;
    let server = tonic::transport::Server::builder().add_service(health.clone());
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));

    let options = FrontOptions::new(format!("http://{addr}").parse().unwrap(), SERVICE);
    let front = Fronted::owning(options, OwnedCalls::service(health)).await;
    let mut client = HealthClient::new(channel(front.addr).await);
    let request = || HealthCheckRequest { service: "engine".to_owned() };
    assert_eq!(client.check(request()).await.unwrap().into_inner().status, ServingStatus::Serving as i32);
    let unknown = client.check(HealthCheckRequest { service: "nobody".to_owned() }).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);

    let mut watch = client.watch(request()).await.unwrap().into_inner();
    assert_eq!(within(watch.message()).await.unwrap().unwrap().status, ServingStatus::Serving as i32);
    reporter.set_service_status("engine", ServingStatus::NotServing).await;
    assert_eq!(within(watch.message()).await.unwrap().unwrap().status, ServingStatus::NotServing as i32);

    let mut direct = HealthClient::new(front.upstream.clone());
    assert_eq!(direct.check(request()).await.unwrap().into_inner().status, ServingStatus::NotServing as i32);
    let mut direct = direct.watch(request()).await.unwrap().into_inner();
    assert_eq!(within(direct.message()).await.unwrap().unwrap().status, ServingStatus::NotServing as i32);
    assert_eq!(front.counters.connects(), 1);
}

#[tokio::test]
async fn tonic_on_an_upstream_that_is_away() {
    let front = Fronted::of(nobody().await).await;
    let status =
        HealthClient::new(front.upstream.clone()).check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
}
