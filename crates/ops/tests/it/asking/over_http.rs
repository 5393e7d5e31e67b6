//! Backends over HTTP.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kvplane_core::{EngineKind, PlaneId};
use kvplane_ops::{Backend, Covers, Flush, Limits, Meaning, Profile, ProfileIds, Sent, Verb, ask};
use serde_json::json;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::asking::peer::{Act, Peer};
use crate::asking::{asked, asked_in_time, flush, limits};

const FIRST: Meaning = Meaning::Accepted { proves: true, covers: Covers::FirstRank };

#[tokio::test]
async fn a_flush_goes_where_the_engine_has_it() {
    let vllm = Peer::new(|line, _| match line {
        "POST /reset_prefix_cache?reset_external=true HTTP/1.1" => {
            Act::Say(200, r#"{"success":true}"#.into())
        }
        _ => Act::Say(500, line.to_owned()),
    })
    .await;
    let verb = Verb::Flush(Flush { reset_external: true, ..Flush::default() });
    let answer = asked(&vllm.over_http(EngineKind::Vllm), verb).await;
    assert_eq!((answer.meaning, answer.sent, answer.open), (FIRST, true, false));
    assert_eq!(answer.asked.as_deref(), Some("POST /reset_prefix_cache"));

    let sglang = Peer::new(|line, _| match line {
        "POST /flush_cache HTTP/1.1" => Act::Say(200, "Cache flushed.".to_owned()),
        _ => Act::Say(500, line.to_owned()),
    })
    .await;
    assert_eq!(asked(&sglang.over_http(EngineKind::Sglang), flush()).await.meaning, FIRST);
}

#[tokio::test]
async fn an_older_page_is_asked_for_where_the_newer_one_is_missing() {
    let peer = Peer::new(|line, _| match line {
        "GET /get_server_info HTTP/1.1" => Act::Say(200, r#"{"version":"0.4.6"}"#.to_owned()),
        _ => Act::Say(404, String::new()),
    })
    .await;
    let answer = asked(&peer.over_http(EngineKind::Sglang), Verb::Info).await;
    assert_eq!(answer.detail, Some(json!({"version": "0.4.6"})));
    assert_eq!(answer.asked.as_deref(), Some("GET /get_server_info"));
    assert_eq!(peer.seen.requests(), 2);

    let none = Peer::always(Act::Say(404, String::new())).await;
    let answer = asked(&none.over_http(EngineKind::Sglang), Verb::Loads).await;
    assert_eq!((answer.meaning, answer.open), (Meaning::Unsupported, false));
    assert!(answer.why.contains("/v1/loads") && answer.why.contains("/get_load"), "{}", answer.why);
}

#[tokio::test]
async fn what_no_engine_of_that_kind_has_is_not_asked() {
    let peer = Peer::always(Act::Say(200, String::new())).await;
    let answer = asked(&peer.over_http(EngineKind::Trtllm), flush()).await;
    assert_eq!((answer.meaning, answer.sent, answer.asked), (Meaning::Unsupported, false, None));
    assert_eq!(peer.seen.requests(), 0);
}

/// A recording of a few steps.
fn recording() -> Verb {
    let id = ProfileIds::new(PlaneId::from_bits(1)).mint();
    Verb::StartProfile(Profile { num_steps: Some(5), ..Profile::new(id) })
}

/// A server that tells its release, and says yes to everything else.
async fn of_release(page: &'static str, release: &'static str) -> Peer {
    Peer::new(move |line, _| match line {
        line if line.starts_with("POST") => Act::Say(200, r#"{"success":true}"#.to_owned()),
        line if line.split(' ').nth(1) == Some(page) => {
            Act::Say(200, json!({"version": release}).to_string())
        }
        _ => Act::Say(404, String::new()),
    })
    .await
}

#[tokio::test]
async fn an_engine_that_is_too_old_for_an_option_is_not_asked() {
    let external = Verb::Flush(Flush { reset_external: true, ..Flush::default() });
    for (release, verb, option) in
        [("0.31.1", recording(), "num_steps"), ("0.12.0", external, "reset_external")]
    {
        let old = of_release("/version", release).await;
        let answer = asked(&old.over_http(EngineKind::Vllm), verb).await;
        assert_eq!(
            (answer.meaning, answer.sent, answer.open),
            (Meaning::Unsupported, false, false),
            "{answer:?}"
        );
        assert!(answer.why.contains(option) && answer.why.contains(release), "{}", answer.why);
        assert_eq!((answer.asked, old.seen.requests()), (None, 1), "only for its release");
    }
    let new = of_release("/version", "0.32.0rc1+cu129").await;
    let answer = asked(&new.over_http(EngineKind::Vllm), recording()).await;
    assert!(matches!(answer.meaning, Meaning::Accepted { .. }), "{answer:?}");
    assert!(!answer.why.contains("0.32"), "nothing is left to be said: {}", answer.why);
    // What every release knows needs no question.
    let plain = of_release("/version", "0.9.0").await;
    asked(&plain.over_http(EngineKind::Vllm), flush()).await;
    assert_eq!(plain.seen.requests(), 1);
}

#[tokio::test]
async fn a_release_that_is_not_reported_counts_as_the_newest() {
    for release in
        [Act::Say(404, String::new()), Act::Say(200, r#"{"version":"0.1.dev7"}"#.to_owned()), Act::Close]
    {
        let peer = Peer::new(move |line, _| match line {
            "GET /version HTTP/1.1" => release.clone(),
            _ => Act::Say(200, String::new()),
        })
        .await;
        let answer = asked(&peer.over_http(EngineKind::Vllm), recording()).await;
        assert!(matches!(answer.meaning, Meaning::Accepted { .. }), "{answer:?}");
        assert!(answer.why.contains("a release before 0.32 takes no options"), "{}", answer.why);
    }
    // Neither question takes longer than both may.
    let hangs = Peer::always(Act::Hang).await;
    let answer = asked_in_time(&hangs.over_http(EngineKind::Vllm), recording()).await;
    assert_eq!((answer.meaning, answer.sent, answer.open), (Meaning::Timeout, true, true), "{answer:?}");
}

#[tokio::test]
async fn an_sglang_that_can_wait_is_asked_once() {
    let patient = || Verb::Flush(Flush { timeout: Duration::from_millis(1500), ..Flush::default() });
    let new = Peer::new(|line, _| match line {
        "GET /get_server_info HTTP/1.1" => Act::Say(200, r#"{"version":"0.5.10.post2"}"#.to_owned()),
        "POST /flush_cache?timeout=1.5 HTTP/1.1" => Act::Say(400, "not idle".to_owned()),
        _ => Act::Say(404, String::new()),
    })
    .await;
    let answer = asked(&new.over_http(EngineKind::Sglang), patient()).await;
    assert_eq!((answer.meaning, new.seen.requests()), (Meaning::Refused, 3), "{answer:?}");
    // An older one is sent no timeout, and asked again.
    let tries = AtomicUsize::new(0);
    let old = Peer::new(move |line, _| match line {
        "GET /server_info HTTP/1.1" => Act::Say(200, r#"{"version":"0.5.9"}"#.to_owned()),
        "POST /flush_cache HTTP/1.1" if tries.fetch_add(1, Ordering::SeqCst) > 0 => {
            Act::Say(200, String::new())
        }
        "POST /flush_cache HTTP/1.1" => Act::Say(400, "not idle".to_owned()),
        _ => Act::Say(404, String::new()),
    })
    .await;
    let patient = Verb::Flush(Flush { timeout: Duration::from_mins(1), ..Flush::default() });
    assert_eq!(asked(&old.over_http(EngineKind::Sglang), patient).await.meaning, FIRST);
}

#[tokio::test]
async fn a_busy_engine_that_cannot_wait_is_asked_again_until_it_is_idle() {
    let tries = AtomicUsize::new(0);
    let peer = Peer::new(move |_, _| {
        let idle = tries.fetch_add(1, Ordering::SeqCst) >= 2;
        Act::Say(200, json!({"success": idle}).to_string())
    })
    .await;
    let patient = Verb::Flush(Flush { timeout: Duration::from_secs(20), ..Flush::default() });
    assert_eq!(asked(&peer.over_http(EngineKind::Vllm), patient).await.meaning, FIRST);
    assert_eq!(peer.seen.requests(), 3);

    let busy = Peer::always(Act::Say(200, r#"{"success":false}"#.to_owned())).await;
    assert_eq!(asked(&busy.over_http(EngineKind::Vllm), flush()).await.meaning, Meaning::Refused);
    assert_eq!(busy.seen.requests(), 1);
    // As long as the verb says, and no longer.
    let patient = Verb::Flush(Flush { timeout: Duration::from_millis(250), ..Flush::default() });
    assert_eq!(asked(&busy.over_http(EngineKind::Vllm), patient).await.meaning, Meaning::Refused);
    // The deadline ends that too.
    let forever = Verb::Flush(Flush { timeout: Duration::from_hours(1), ..Flush::default() });
    let answer = asked_in_time(&busy.over_http(EngineKind::Vllm), forever).await;
    assert!(matches!(answer.meaning, Meaning::Refused | Meaning::Timeout), "{answer:?}");
}

#[tokio::test]
async fn a_peer_that_does_not_come_to_an_end_is_given_up_at_the_deadline() {
    for act in [Act::Hang, Act::TrickleHead, Act::TrickleBody] {
        let peer = Peer::always(act.clone()).await;
        let answer = asked_in_time(&peer.over_http(EngineKind::Sglang), flush()).await;
        assert_eq!((answer.meaning, answer.sent, answer.open), (Meaning::Timeout, true, true), "{act:?}");
        // Reading changes nothing, so nothing can be left open.
        let answer = asked_in_time(&peer.over_http(EngineKind::Sglang), Verb::Info).await;
        assert_eq!((answer.meaning, answer.open), (Meaning::Timeout, false), "{act:?}");
    }
    // Nobody accepts: the machine has the connection, and the request.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let backend = Backend {
        kind: EngineKind::Vllm,
        http: Some(format!("http://{address}")),
        grpc: None,
        version: None,
        authorization: None,
    };
    let answer = asked_in_time(&backend, flush()).await;
    assert_eq!((answer.meaning, answer.open), (Meaning::Timeout, true));
}

#[tokio::test]
async fn damaged_answers_prove_nothing_and_leave_it_open() {
    for (act, meaning) in [
        (Act::Close, Meaning::Failed),
        (Act::Garbage, Meaning::Failed),
        (Act::CutShort, Meaning::Unknown),
        (Act::Flood, Meaning::Unknown),
    ] {
        let peer = Peer::always(act.clone()).await;
        let answer = asked(&peer.over_http(EngineKind::Sglang), flush()).await;
        assert_eq!(
            (answer.meaning, answer.sent, answer.open),
            (meaning, true, true),
            "{act:?}: {}",
            answer.why
        );
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_was_not_asked() {
    // The port was free a moment ago.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for http in [format!("http://{gone}"), "http://".to_owned(), "ftp://x".to_owned()] {
        let backend = Backend {
            kind: EngineKind::Vllm,
            http: Some(http.clone()),
            grpc: None,
            version: None,
            authorization: None,
        };
        let answer = asked(&backend, flush()).await;
        assert_eq!((answer.meaning, answer.sent, answer.open), (Meaning::Failed, false, false), "{http}");
    }
}

#[tokio::test]
async fn a_connection_that_is_not_made_in_time_was_not_asked() {
    // A listener whose queue is full answers no further connection.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queue = Vec::new();
    while let Ok(connected) = tokio::time::timeout(Duration::from_secs(1), TcpStream::connect(address)).await
    {
        queue.push(connected.unwrap());
    }
    let backend = Backend {
        kind: EngineKind::Vllm,
        http: Some(format!("http://{address}")),
        grpc: None,
        version: None,
        authorization: None,
    };
    let verb = flush();
    let limits = Limits { connect: Duration::from_millis(100), ..limits(&verb) };
    let answer = ask(&backend, &verb, &limits, &Sent::default()).await;
    assert_eq!((answer.meaning, answer.sent, answer.open), (Meaning::Failed, false, false), "{}", answer.why);
}
