//! The picker's listener: streams count, and what is not whole does.

use kvplane_access::Bounds;
use kvplane_picker::{Options, Rules};
use kvplane_server::PickerSetup;
use tokio::sync::watch;
use tonic::Code;

use super::peers::HELLO;
use super::*;

const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

/// A plane with a picker without endpoints, and where it listens.
async fn served(bounds: Bounds, options: Options) -> (Served, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let setup = PickerSetup {
        listener,
        health: None,
        tls: None,
        options,
        rules: watch::channel(Rules::of(Vec::new())).1,
        drain: Duration::ZERO,
    };
    (Served::beside(bounds, |service| service.with_picker(setup)).await, address)
}

/// The status of a call that is refused before or after its headers.
async fn ended(response: h2::client::ResponseFuture) -> Code {
    let response = timeout(DEADLINE, response).await.expect("an answer").unwrap();
    let at_once = response.headers().get("grpc-status").cloned();
    let code = if let Some(code) = at_once {
        code
    } else {
        let trailers = timeout(DEADLINE, response.into_body().trailers()).await.expect("an end");
        trailers.unwrap().unwrap()["grpc-status"].clone()
    };
    Code::from_i32(code.to_str().unwrap().parse().unwrap())
}

/// A stream keeps its connection; one without a stream is idle.
pub(super) async fn idle() {
    let bounds = Bounds { idle_grpc: SHORT, ..Bounds::default() };
    let (served, address) = served(bounds, Options::default()).await;
    let stream = TcpStream::connect(address).await.unwrap();
    let (send, mut connection) = h2::client::handshake(stream).await.unwrap();
    let request = http::Request::post(format!("http://picker{PROCESS}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap();
    let opening = async { send.ready().await.unwrap().send_request(request, false).unwrap() };
    let call = tokio::select! {
        call = opening => call,
        ended = &mut connection => panic!("{ended:?}"),
    };
    assert!(timeout(SHORT * 5, &mut connection).await.is_err(), "a connection in use was closed");
    drop(call);
    Served::until_closed(address, HELLO).await;
    served.closed("picker", "idle_timeout", 1.0).await;
}

pub(super) async fn streams() {
    let (served, address) =
        served(Bounds { picker_streams: 1, ..Bounds::default() }, Options::default()).await;
    let (first, body) = Served::raw_call_at(address, PROCESS).await;
    let first = timeout(DEADLINE, first).await.expect("an answer").unwrap();
    assert_eq!(first.headers().get("grpc-status"), None);
    let (second, _body) = Served::raw_call_at(address, PROCESS).await;
    assert_eq!(ended(second).await, Code::ResourceExhausted);
    served.refused("too_many_calls_of_peer").await;
    drop((first, body));
}

/// Messages that are not whole share a budget, and have a time.
pub(super) async fn messages() {
    let options = Options { max_bodies: 160_000, max_body: 100_000, ..Options::default() };
    let (served, address) = served(Bounds::default(), options.clone()).await;
    let unfinished = |length: u32, sent: usize| {
        let prefix = [0].into_iter().chain(length.to_be_bytes());
        prefix.chain(std::iter::repeat_n(7, sent)).collect::<bytes::Bytes>()
    };
    let mut open = Vec::new();
    // Windows are smaller than what is sent: whoever drives the connection sends on.
    for _ in 0..2 {
        let (response, mut body) = Served::raw_call_at(address, PROCESS).await;
        body.send_data(unfinished(90_000, 60_000), false).unwrap();
        open.push((response, body));
    }
    let (third, mut body) = Served::raw_call_at(address, PROCESS).await;
    body.send_data(unfinished(90_000, 60_000), false).unwrap();
    // Which of them is over the bound depends on whose bytes come last.
    let [first, second] = <[_; 2]>::try_from(open).unwrap_or_else(|_| panic!("two"));
    let (first, _first_body) = first;
    let (second, _second_body) = second;
    let code = tokio::select! {
        code = ended(first) => code,
        code = ended(second) => code,
        code = ended(third) => code,
    };
    assert_eq!(code, Code::ResourceExhausted);
    served.refused("request_bytes_of_peer").await;

    let bounds = Bounds { request_time: SHORT, ..Bounds::default() };
    let (served, address) = self::served(bounds, options).await;
    let (response, mut body) = Served::raw_call_at(address, PROCESS).await;
    body.send_data(unfinished(90_000, 60), false).unwrap();
    assert_eq!(ended(response).await, Code::DeadlineExceeded);
    served.refused("request_timeout").await;
}
