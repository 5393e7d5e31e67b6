//! A front before an engine that says what it heard.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kvplane_access::{Access, Port, Role};
use kvplane_front::{Front, FrontOptions, OwnedCalls};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::{Code, Status};

use super::rig::{Key, call_over, keys};

/// An engine that answers every call with a code: whether it was sent a token or not.
async fn engine() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service_fn(|request: Request<Incoming>| async move {
                let reported = request.headers().contains_key("authorization");
                let status =
                    if reported { Status::aborted("a token") } else { Status::already_exists("no token") };
                Ok::<Response<Body>, Infallible>(status.into_http())
            });
            tokio::spawn(Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

/// Runs a front where there are keys, and returns where.
async fn front(open: bool) -> SocketAddr {
    let upstream = format!("http://{}", engine().await).parse().unwrap();
    let front = Front::new(FrontOptions::new(upstream, "test.Engine")).unwrap();
    let access = Arc::new(Access::new(keys(), false));
    let front = front.guarded(access.gate(Port::Front));
    let front = if open { front.opened() } else { front };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let own = OwnedCalls::new(|_| async { Status::cancelled("our own").into_http() });
    tokio::spawn(front.run(listener, CancellationToken::new(), own));
    address
}

async fn call(address: SocketAddr, key: Key, path: &str) -> Code {
    call_over(TcpStream::connect(address).await.unwrap(), key, path).await.unwrap()
}

/// What the engine answers to a call without a token, and what the front itself does.
const PASSED_ON: Code = Code::AlreadyExists;
const OWN: Code = Code::Cancelled;

#[tokio::test]
async fn callers_of_a_front_need_a_role_and_their_token_stays_here() {
    let front = front(false).await;
    let calls = [
        ("/test.Engine/Generate", PASSED_ON, Role::Read),
        ("/test.Engine/SubscribeKvEvents", OWN, Role::Read),
        ("/test.Engine/FlushCache", OWN, Role::Admin),
        ("/test.Engine/WhoKnows", PASSED_ON, Role::Admin),
    ];
    for (path, answer, needed) in calls {
        for key in [Key::None, Key::WrongToken, Key::NotBearer] {
            assert_eq!(call(front, key, path).await, Code::Unauthenticated, "{path} with {key:?}");
        }
        for role in Role::ALL {
            let may = role == Role::Admin || role == needed;
            let expected = if may { answer } else { Code::PermissionDenied };
            assert_eq!(call(front, Key::Token(role), path).await, expected, "{path} with {role}");
        }
    }
    assert_eq!(call(front, Key::None, "/grpc.health.v1.Health/Check").await, PASSED_ON);
}

#[tokio::test]
async fn an_open_front_asks_only_who_would_change_the_engine_and_passes_other_tokens_on() {
    let front = front(true).await;
    for path in ["/test.Engine/Generate", "/grpc.health.v1.Health/Check"] {
        assert_eq!(call(front, Key::None, path).await, PASSED_ON);
        for role in Role::ALL {
            assert_eq!(call(front, Key::Token(role), path).await, PASSED_ON, "our token stays here");
        }
        // It may be the engine's own.
        assert_eq!(call(front, Key::WrongToken, path).await, Code::Aborted);
    }
    assert_eq!(call(front, Key::None, "/test.Engine/SubscribeKvEvents").await, OWN);
    let changing =
        [("FlushCache", OWN), ("StartProfile", OWN), ("StopProfile", OWN), ("WhoKnows", PASSED_ON)];
    for (method, answer) in changing {
        let path = format!("/test.Engine/{method}");
        assert_eq!(call(front, Key::None, &path).await, Code::Unauthenticated, "{method}");
        assert_eq!(call(front, Key::WrongToken, &path).await, Code::Unauthenticated, "{method}");
        assert_eq!(call(front, Key::Token(Role::Read), &path).await, Code::PermissionDenied, "{method}");
        assert_eq!(call(front, Key::Token(Role::Admin), &path).await, answer, "{method}");
    }
}

#[tokio::test]
async fn a_front_forwards_plain_method_paths_only() {
    for open in [false, true] {
        let front = front(open).await;
        for path in [
            "/grpc.health.v1.Health/../test.Engine/FlushCache",
            "/grpc.health.v1.Health/%2e%2e/test.Engine/FlushCache",
            "/grpc.health.v1.Health/Check/..",
            "/grpc.health.v1.Health/",
            "/../Check",
            "/./Check",
            "/test.Engine//Generate",
            "/test.Engine/Generate?x=1",
            "/test.Engine/Gener%61te",
            "/test.Engine",
            "/",
        ] {
            assert_eq!(call(front, Key::None, path).await, Code::InvalidArgument, "{path}");
        }
        // Other methods of the service are not known here.
        assert_eq!(call(front, Key::None, "/grpc.health.v1.Health/List").await, Code::Unauthenticated);
        assert_eq!(call(front, Key::None, "/grpc.health.v1.Health/Watch").await, PASSED_ON);
    }
}
