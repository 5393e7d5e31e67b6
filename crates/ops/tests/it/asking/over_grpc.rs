//! Backends over gRPC.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kvplane_core::EngineKind;
use kvplane_ops::{Backend, Covers, Flush, Meaning, Verb};
use kvplane_proto::engines::sglang::server::sglang_scheduler_server::{
    SglangScheduler, SglangSchedulerServer,
};
use kvplane_proto::engines::sglang::{GetLoadsRequest, GetLoadsResponse, SchedulerLoad};
use kvplane_proto::smg::{FlushCacheRequest, FlushCacheResponse};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Code, Request, Response, Status};

use crate::asking::peer::{Act, Peer, over_grpc};
use crate::asking::{asked, asked_in_time, flush};

const ALL: Meaning = Meaning::Accepted { proves: true, covers: Covers::Backend };

type Script = Arc<dyn Fn(f32) -> Option<Result<FlushCacheResponse, Status>> + Send + Sync>;

/// An engine that answers a flush as scripted; `None`: never.
#[derive(Clone)]
struct Scripted(Script);

#[tonic::async_trait]
impl SglangScheduler for Scripted {
    async fn flush_cache(
        &self,
        request: Request<FlushCacheRequest>,
    ) -> Result<Response<FlushCacheResponse>, Status> {
        match (self.0)(request.get_ref().timeout_s) {
            Some(answer) => answer.map(Response::new),
            None => std::future::pending().await,
        }
    }

    async fn get_loads(
        &self,
        request: Request<GetLoadsRequest>,
    ) -> Result<Response<GetLoadsResponse>, Status> {
        assert_eq!(request.get_ref().include, ["all"]);
        let loads = vec![SchedulerLoad { num_running_reqs: 3, ..Default::default() }];
        Ok(Response::new(GetLoadsResponse { loads, ..Default::default() }))
    }
}

async fn serve(
    tls: Option<ServerTlsConfig>,
    script: impl Fn(f32) -> Option<Result<FlushCacheResponse, Status>> + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut server = Server::builder();
    if let Some(tls) = tls {
        server = server.tls_config(tls).unwrap();
    }
    let routes = server.add_service(SglangSchedulerServer::new(Scripted(Arc::new(script))));
    tokio::spawn(routes.serve_with_incoming(TcpListenerStream::new(listener)));
    address
}

fn said(success: bool, message: &str) -> FlushCacheResponse {
    FlushCacheResponse { success, message: message.to_owned() }
}

async fn answering(answer: Result<FlushCacheResponse, Status>) -> Backend {
    let address = serve(None, move |_| Some(answer.clone())).await;
    over_grpc(EngineKind::Sglang, &format!("http://{address}"), None)
}

#[tokio::test]
async fn a_flush_is_accepted_or_refused() {
    let answer = asked(&answering(Ok(said(true, "done"))).await, flush()).await;
    assert_eq!((answer.meaning, answer.sent, answer.open), (ALL, true, false));
    assert_eq!(answer.asked.as_deref(), Some("gRPC FlushCache"));
    let answer = asked(&answering(Ok(said(false, "requests in flight"))).await, flush()).await;
    assert_eq!((answer.meaning, answer.open), (Meaning::Refused, false));
}

#[tokio::test]
async fn the_engine_learns_how_long_to_wait_and_asked_once() {
    let address = serve(None, |timeout| Some(Ok(said(timeout.to_bits() == 2.5_f32.to_bits(), "")))).await;
    let backend = over_grpc(EngineKind::Sglang, &format!("http://{address}"), None);
    let verb = Verb::Flush(Flush { timeout: Duration::from_millis(2500), ..Flush::default() });
    assert_eq!(asked(&backend, verb).await.meaning, ALL);
}

#[tokio::test]
async fn statuses_over_the_wire() {
    for (code, meaning, open) in [
        (Code::DeadlineExceeded, Meaning::Timeout, true),
        (Code::InvalidArgument, Meaning::Failed, false),
        (Code::Internal, Meaning::Failed, true),
        (Code::ResourceExhausted, Meaning::Refused, false),
    ] {
        let answer = asked(&answering(Err(Status::new(code, "words"))).await, flush()).await;
        assert_eq!((answer.meaning, answer.open), (meaning, open), "{code:?}");
        assert!(answer.why.contains("words"), "{}", answer.why);
    }
}

#[tokio::test]
async fn a_service_without_the_method_or_another_service_is_unsupported() {
    let backend = answering(Ok(said(true, ""))).await;
    let answer = asked(&backend, Verb::Info).await;
    assert_eq!((answer.meaning, answer.open), (Meaning::Unsupported, false), "{}", answer.why);
    let other = Backend { kind: EngineKind::Vllm, ..backend.clone() };
    assert_eq!(asked(&other, flush()).await.meaning, Meaning::Unsupported);
    // A relay is asked under the names that it may have, until it knows one.
    let relay = Backend { kind: EngineKind::Grpc, ..backend };
    assert_eq!(asked(&relay, flush()).await.meaning, ALL);
}

#[tokio::test]
async fn where_the_service_lacks_a_method_the_engine_is_asked_over_http() {
    let http = Peer::always(Act::Say(200, "Cache flushed.".to_owned())).await;
    let grpc = answering(Ok(said(true, ""))).await;
    // It is registered as TokenSpeed, and its gRPC server is another's.
    let backend = Backend { grpc: grpc.grpc, ..http.over_http(EngineKind::Tokenspeed) };
    let answer = asked(&backend, flush()).await;
    assert_eq!(answer.meaning, Meaning::Accepted { proves: true, covers: Covers::FirstRank });
    assert_eq!(answer.asked.as_deref(), Some("POST /flush_cache"));
}

#[tokio::test]
async fn loads_are_reported_as_json() {
    let answer = asked(&answering(Ok(said(true, ""))).await, Verb::Loads).await;
    assert_eq!(answer.detail.unwrap()["loads"][0]["num_running_reqs"], 3);
}

#[tokio::test]
async fn peers_that_do_not_come_to_an_end_are_given_up_at_the_deadline() {
    let address = serve(None, |_| None).await;
    let silent = over_grpc(EngineKind::Sglang, &format!("http://{address}"), None);
    let answer = asked_in_time(&silent, flush()).await;
    assert_eq!((answer.meaning, answer.sent, answer.open), (Meaning::Timeout, true, true));
    // These never were gRPC servers.
    let hang = Peer::always(Act::Hang).await;
    let answer = asked_in_time(&hang.over_grpc(EngineKind::Sglang), flush()).await;
    assert_eq!((answer.meaning, answer.open), (Meaning::Timeout, true));
    let trickle = Peer::always(Act::TrickleBody).await;
    let answer = asked_in_time(&trickle.over_grpc(EngineKind::Sglang), flush()).await;
    assert!(matches!(answer.meaning, Meaning::Failed | Meaning::Timeout), "{answer:?}");
}

#[tokio::test]
async fn peers_that_break_off_or_speak_nonsense_failed() {
    for act in [Act::Close, Act::Garbage, Act::Say(200, "hello".to_owned())] {
        let peer = Peer::always(act.clone()).await;
        let answer = asked_in_time(&peer.over_grpc(EngineKind::Sglang), flush()).await;
        assert_eq!(answer.meaning, Meaning::Failed, "{act:?}: {}", answer.why);
    }
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for url in [format!("http://{gone}"), "http://".to_owned()] {
        let answer = asked(&over_grpc(EngineKind::Sglang, &url, None), flush()).await;
        assert_eq!((answer.meaning, answer.sent, answer.open), (Meaning::Failed, false, false), "{url}");
    }
}

#[tokio::test]
async fn an_answer_of_more_than_a_megabyte_is_none() {
    let answer = asked(&answering(Ok(said(true, &"x".repeat(2 << 20)))).await, flush()).await;
    assert_eq!((answer.meaning, answer.open), (Meaning::Unknown, true), "{}", answer.why);
}

#[tokio::test]
async fn over_tls_the_certificate_decides() {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (pem, key) = (certified.cert.pem(), certified.signing_key.serialize_pem());
    let tls = ServerTlsConfig::new().identity(Identity::from_pem(&pem, key));
    let address = serve(Some(tls), |_| Some(Ok(said(true, "")))).await;
    let url = format!("https://localhost:{}", address.port());

    let trusted = over_grpc(EngineKind::Sglang, &url, Some(pem.into_bytes()));
    assert_eq!(asked(&trusted, flush()).await.meaning, ALL);
    let other = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap().cert.pem();
    for ca in [None, Some(other.into_bytes())] {
        let answer = asked(&over_grpc(EngineKind::Sglang, &url, ca), flush()).await;
        assert_eq!((answer.meaning, answer.sent), (Meaning::Failed, false));
        assert!(answer.why.contains("certificate"), "{}", answer.why);
    }
    let no_pem = over_grpc(EngineKind::Sglang, &url, Some(b"none".to_vec()));
    let answer = asked(&no_pem, flush()).await;
    assert_eq!((answer.meaning, answer.sent), (Meaning::Failed, false), "{}", answer.why);
}
