//! Requests that are given up at any moment: over real connections, what was booked for them is over in the
//! end.

use futures::StreamExt as _;
use kvplane_proto::envoy as proto;
use proto::external_processor_client::ExternalProcessorClient;
use proto::processing_request::Request as Incoming;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Server};

use super::*;

/// As many as in a bad hour; each takes a fraction of a millisecond.
const REQUESTS: usize = 10_000;
const AT_ONCE: usize = 32;

fn messages() -> Vec<proto::ProcessingRequest> {
    let text = |key: &str, value: &str| proto::HeaderValue {
        key: key.into(),
        value: value.into(),
        raw_value: Bytes::new(),
    };
    let headers = |pairs: &[(&str, &str)]| proto::HttpHeaders {
        headers: Some(proto::HeaderMap {
            headers: pairs.iter().map(|(key, value)| text(key, value)).collect(),
        }),
        end_of_stream: false,
    };
    let body = |text: &str, end_of_stream| proto::HttpBody {
        body: Bytes::copy_from_slice(text.as_bytes()),
        end_of_stream,
    };
    let duplex = proto::BodySendMode::FullDuplexStreamed.into();
    let config = proto::ProtocolConfiguration {
        request_body_mode: duplex,
        response_body_mode: duplex,
        ..Default::default()
    };
    let requests = [
        Incoming::RequestHeaders(headers(&[(":path", "/v1/chat/completions")])),
        Incoming::RequestBody(body(&CHAT[..20], false)),
        Incoming::RequestBody(body(&CHAT[20..], true)),
        Incoming::ResponseHeaders(headers(&[(":status", "200"), ("content-type", "text/event-stream")])),
        Incoming::ResponseBody(body("data: {}\n\n", false)),
        Incoming::ResponseBody(body("", true)),
    ];
    let mut all: Vec<_> = requests
        .into_iter()
        .map(|request| proto::ProcessingRequest { request: Some(request), ..Default::default() })
        .collect();
    all[0].protocol_config = Some(config);
    all
}

/// Sends some messages of a request, waits for some answers or not, and goes: by its end, or by closing what
/// it sends.
async fn give_up(mut client: ExternalProcessorClient<Channel>, seed: usize) {
    let (sender, receiver) = mpsc::channel(8);
    for message in messages().into_iter().take(seed % 7) {
        sender.send(message).await.unwrap();
    }
    let Ok(answers) = client.process(ReceiverStream::new(receiver)).await else { return };
    let mut answers = answers.into_inner();
    let expected = [0, 0, 0, 2, 3, 4, 5][seed % 7];
    for _ in 0..expected.min(seed / 7 % 6) {
        answers.next().await;
    }
    if (seed / 42).is_multiple_of(2) {
        drop(sender);
        // Until the picker has closed its side, or without waiting for that.
        if (seed / 84).is_multiple_of(2) {
            while answers.next().await.is_some_and(|answer| answer.is_ok()) {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_that_are_given_up_leave_no_booking() {
    let plane = Arc::new(FakePlane::default());
    let picker = picker(&plane, Options::default(), POOL);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let (routes, ends) = (picker.routes(stop.clone()), stop.clone());
    let serving = kvplane_runtime::spawn("picker of a test", async move {
        let incoming = TcpListenerStream::new(listener);
        Server::builder()
            .add_routes(routes)
            .serve_with_incoming_shutdown(incoming, ends.cancelled_owned())
            .await
    });
    let client = ExternalProcessorClient::connect(format!("http://{address}")).await.unwrap();
    futures::stream::iter(0..REQUESTS)
        .for_each_concurrent(AT_ONCE, |seed| give_up(client.clone(), seed))
        .await;
    drop(client);
    stop.cancel();
    serving.await.unwrap().unwrap();
    let stats = picker.stats();
    // Streams that were cancelled end with their tasks, a moment after the server.
    while stats.open_streams() > 0 {
        tokio::task::yield_now().await;
    }
    let log = plane.log.lock();
    let count = |word: &str| log.iter().filter(|line| line.starts_with(word)).count();
    let (picks, ends) = (count("pick"), count("ended"));
    assert!(picks > REQUESTS / 4, "{picks} were picked");
    assert_eq!(picks, ends, "what was picked ends once");
    assert_eq!(stats.in_flight().load(std::sync::atomic::Ordering::Relaxed), 0);
    assert_eq!(picker.held_bytes(), 0);
}
