//! TLS of the listeners, and callers who are not asked who they are.

use std::net::SocketAddr;

use http::Method;
use kvplane_access::Role;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::rig::{Authority, DEADLINE, Key, LATER, Served, token};

/// Everything that a server says to these bytes until it closes.
async fn answer_to(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    // A reset is an end, too.
    let _ = timeout(DEADLINE, stream.read_to_end(&mut answer)).await.expect("the connection ends");
    answer
}

#[tokio::test]
async fn who_speaks_no_tls_gets_an_error() {
    let served = Served::start().await;
    let answer = answer_to(served.http, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("use https"), "{answer}");
    let answer = answer_to(served.grpc, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    assert!(String::from_utf8_lossy(&answer).contains("use https"), "{answer:?}");
    for port in ["http", "grpc"] {
        served.until_failed(port, "plain", 1).await;
    }
}

#[tokio::test]
async fn who_says_nothing_is_let_go_and_holds_up_nobody() {
    let served = Served::start().await;
    let mut silent = TcpStream::connect(served.http).await.unwrap();
    // Others are served meanwhile.
    assert_eq!(served.page(Key::None, &Method::GET, "/healthz").await.status, 200);
    let end = timeout(DEADLINE, silent.read(&mut [0])).await.expect("the connection ends");
    assert_eq!(end.unwrap_or(0), 0);
    served.until_failed("http", "timeout", 1).await;
}

#[tokio::test]
async fn a_certificate_of_another_issuer_is_no_certificate() {
    let served = Served::start().await;
    let strangers = Authority::new().shown("admin", LATER);
    let expired = served.authority.shown("admin", 2020);
    for (count, shown) in [(1, strangers), (2, expired)] {
        for (port, protocol, address) in [("http", "http/1.1", served.http), ("grpc", "h2", served.grpc)] {
            let connector =
                served.authority.connector(protocol, Some((shown.0.clone(), shown.1.clone_key())));
            let stream = TcpStream::connect(address).await.unwrap();
            // With TLS 1.3 the client learns it with the first byte that it reads.
            if let Ok(mut stream) = connector.connect("localhost".try_into().unwrap(), stream).await {
                let read = timeout(DEADLINE, stream.read(&mut [0])).await.expect("the connection ends");
                assert!(read.is_err(), "{read:?}");
            }
            served.until_failed(port, "handshake", count).await;
        }
    }
}

/// The beginning of a first message that says it has 512 bytes.
const BEGUN: [u8; 9] = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc];

#[tokio::test]
async fn half_a_handshake_ends() {
    let served = Served::start().await;
    for address in [served.http, served.grpc] {
        // Its client goes.
        let mut gone = TcpStream::connect(address).await.unwrap();
        gone.write_all(&BEGUN).await.unwrap();
        drop(gone);
        // Its client waits.
        let answer = answer_to(address, &BEGUN).await;
        assert!(!String::from_utf8_lossy(&answer).contains("HTTP"), "{answer:?}");
        // What is no handshake at all.
        answer_to(address, &[&[0x16][..], &[0xff; 600]].concat()).await;
    }
    for port in ["http", "grpc"] {
        served.until_failed(port, "timeout", 1).await;
        served.until_failed(port, "handshake", 2).await;
    }
    assert_eq!(served.page(Key::None, &Method::GET, "/healthz").await.status, 200);
}

#[tokio::test]
async fn who_speaks_tls_where_there_is_none_hears_soon() {
    let served = Served::plain().await;
    for (protocol, address) in [("http/1.1", served.http), ("h2", served.grpc)] {
        let connector = served.authority.connector(protocol, None);
        let stream = TcpStream::connect(address).await.unwrap();
        let connecting = connector.connect("localhost".try_into().unwrap(), stream);
        assert!(timeout(DEADLINE, connecting).await.expect("the connection ends").is_err());
    }
}

#[tokio::test]
async fn certificates_are_read_again_or_stay() {
    let served = Served::start().await;
    // A file that is half written changes nothing.
    std::fs::write(served.directory.file("cert.pem"), "-----BEGIN").unwrap();
    assert!(served.tls.read_again().is_err());
    assert_eq!(served.page(Key::None, &Method::GET, "/healthz").await.status, 200);

    served.authority.write_server(&served.directory, "elsewhere");
    served.tls.replace(served.tls.read_again().unwrap());
    let connect = async |name: &'static str| {
        let connector = served.authority.connector("http/1.1", None);
        let stream = TcpStream::connect(served.http).await.unwrap();
        connector.connect(name.try_into().unwrap(), stream).await
    };
    assert!(connect("localhost").await.is_err());
    assert!(connect("elsewhere").await.is_ok());
}

#[tokio::test]
async fn readiness_names_engines_to_those_who_may_read() {
    let served = Served::start().await;
    for key in [Key::None, Key::WrongToken, Key::Token(Role::Report)] {
        let answer = served.page(key, &Method::GET, "/readyz").await;
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(body, json!({"ready": true}), "{key:?}");
    }
    let answer = served.page(Key::Token(Role::Read), &Method::GET, "/readyz").await;
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    assert!(body.get("reasons").is_some(), "{body}");
}

#[tokio::test]
async fn refusals_are_counted_and_hold_no_secret() {
    let served = Served::start().await;
    let answer = served.page(Key::WrongToken, &Method::GET, "/v1/status").await;
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(body["error"]["code"], "unauthenticated");
    assert_eq!(served.page(Key::Token(Role::Read), &Method::POST, "/register").await.status, 403);
    let answer = served.page(Key::Token(Role::Admin), &Method::GET, "/metrics").await;
    let page = String::from_utf8(answer.body.to_vec()).unwrap();
    for line in [
        "kvplane_auth_refused_total{listener=\"http\",why=\"unknown_token\"} 1",
        "kvplane_auth_refused_total{listener=\"http\",why=\"wrong_role\"} 1",
        "kvplane_tls_handshakes_failed_total{listener=\"http\",why=\"plain\"} 0",
        "inferencecache_server_grpc_tls_enabled 1",
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
    for role in Role::ALL {
        assert!(!page.contains(&token(role)));
    }
}

/// The answer to a caller on this machine who sends this, and what the plane has counted then.
async fn reported_without_keys(request: &str) -> (String, Vec<(&'static str, &'static str, u64)>) {
    let served = Served::without_keys().await;
    let answer = String::from_utf8(answer_to(served.http, request.as_bytes()).await).unwrap();
    let mut refused = served.parts.access.refused();
    refused.retain(|(.., count)| *count > 0);
    (answer, refused)
}

#[tokio::test]
async fn a_name_that_was_made_to_mean_this_machine_gives_no_page_its_readers_rights() {
    let request = |target: &str, host: &str| {
        format!("GET {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n")
    };
    for ours in ["localhost:8090", "LOCALHOST", "a.localhost:1", "127.0.0.1:8090", "[::1]:8090", "10.0.0.1"] {
        let (answer, refused) = reported_without_keys(&request("/v1/status", ours)).await;
        assert!(answer.starts_with("HTTP/1.1 200") && refused.is_empty(), "{ours}: {answer}");
    }
    let foreign =
        ["evil.example:8090", "localhost.evil.example", "notlocalhost", "127.0.0.1.evil.example", ""];
    for foreign in foreign {
        let (answer, refused) = reported_without_keys(&request("/v1/status", foreign)).await;
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("localhost or an address"), "{answer}");
        assert_eq!(refused, [("http", "foreign_host", 1)], "{foreign:?}");
    }
    // The target decides where it names a host.
    let (answer, _) = reported_without_keys(&request("http://evil.example/v1/status", "localhost")).await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    // Whether the process lives is no secret.
    let (answer, _) = reported_without_keys(&request("/healthz", "evil.example")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
