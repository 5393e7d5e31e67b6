//! Events that do not arrive.

use kvplane_doctor::{Code, Examination, Peer, Severity, examine, greet};
use kvplane_ingest::{Endpoint, EngineSpec, PublishedRank};
use kvplane_sim::{SimConfig, SimHandle};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::rig::{
    LONG, PATIENCE, SHORT, codes, examination, find, find_while, free_address, http_of, published, ranks,
    sim, spec_of, talk,
};

const ERROR: Severity = Severity::Error;

#[tokio::test(flavor = "multi_thread")]
async fn nobody_listens() {
    let (events, replay) = (free_address(), free_address());
    let found = find(vec![published(&events, Some(&replay))], SHORT).await;
    // Of its replay nothing has to be said beside that.
    assert_eq!(codes(&found), [(Code::EndpointUnreachable, ERROR)], "{found:#?}");
    assert!(found[0].seen.contains("refused"), "{found:#?}");
    let found = find(vec![published(&format!("bind:{events}"), Some(&replay))], SHORT).await;
    assert_eq!(codes(&found), [(Code::EndpointUnreachable, ERROR)], "{found:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_without_a_socket() {
    let found = find(vec![published("ipc:///nowhere/at/all", None)], SHORT).await;
    assert_eq!(codes(&found)[0], (Code::EndpointUnreachable, ERROR), "{found:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_hangs_costs_its_own_findings_alone() {
    // Connections are taken by the system, and nobody ever reads from them.
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hanging = EngineSpec {
        id: kvplane_core::EngineId::new("hanging"),
        http: Some(format!("http://{}", mute.local_addr().unwrap())),
        ..published(&format!("tcp://{}", mute.local_addr().unwrap()), None)
    };
    let engine = sim(SimConfig::default());
    talk(&engine, 0, 1);
    let found = find(vec![hanging, spec_of(&engine)], SHORT).await;
    let of = |subject: &str| {
        found.iter().filter(|finding| finding.subject.starts_with(subject)).cloned().collect::<Vec<_>>()
    };
    assert_eq!(codes(&of("e/")), [(Code::Silent, Severity::Info)], "{found:#?}");
    let hanging = codes(&of("hanging"));
    assert!(hanging.contains(&(Code::EndpointUnreachable, ERROR)), "{found:#?}");
    assert_eq!(found.len(), 1 + hanging.len(), "{found:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn connected_and_silent() {
    // Nobody knows whether its events are off.
    let engine = sim(SimConfig { replay: None, ..SimConfig::default() });
    let spec = spec_of(&engine);
    let found = find(vec![spec.clone()], SHORT).await;
    let absent = (Code::ReplayAbsent, Severity::Warning);
    assert_eq!(codes(&found), [(Code::Silent, Severity::Warning), absent], "{found:#?}");
    // It says itself that they are on.
    let found = find(vec![EngineSpec { http: Some(http_of(&engine)), ..spec }], SHORT).await;
    assert_eq!(codes(&found), [absent, (Code::Silent, Severity::Info)], "{found:#?}");
    // Its replay answers, and has nothing.
    let engine = sim(SimConfig::default());
    let found = find(vec![spec_of(&engine)], SHORT).await;
    assert_eq!(codes(&found), [(Code::Silent, Severity::Info)], "{found:#?}");
    // Its ring shows that they were.
    let engine = sim(SimConfig::default());
    talk(&engine, 0, 1);
    let found = find(vec![spec_of(&engine)], SHORT).await;
    assert_eq!(codes(&found), [(Code::Silent, Severity::Info)], "{found:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_topic() {
    let engine = sim(SimConfig { topic: "kv@a@llama".to_owned(), ..SimConfig::default() });
    talk(&engine, 0, 1);
    let spec = EngineSpec { topic: "kv@b".to_owned(), ..spec_of(&engine) };
    let speaker = engine.clone();
    let spoken = tokio::task::spawn_blocking(move || {
        assert!(speaker.wait_for_subscriptions(0, 1, PATIENCE));
        (1..65).for_each(|turn| talk(&speaker, 0, turn * 100));
    });
    let found = find(vec![spec], LONG).await;
    spoken.await.unwrap();
    assert_eq!(codes(&found), [(Code::TopicMismatch, ERROR)], "{found:#?}");
    assert!(found[0].seen.contains("\"kv@a@llama\"") && found[0].todo.contains("kv@a@llama"), "{found:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_that_connects() {
    let address = free_address();
    let engine = sim(SimConfig { events: Endpoint::Connect(address.clone()), ..SimConfig::default() });
    talk(&engine, 0, 1);
    let replay = engine.replay_endpoints()[0].clone();
    // A name may be one of IPv6, too, where no publisher connects to.
    for configured in [&address, &address.replace("127.0.0.1", "localhost")] {
        let found = find(vec![published(configured, replay.as_deref())], LONG).await;
        assert_eq!(codes(&found), [(Code::PublisherConnects, ERROR)], "{found:#?}");
        assert!(found[0].todo.contains(&format!("bind:{configured}")), "{found:#?}");
    }
    drop(engine);
    // As it should be: kvplane listens. Another engine, of which nobody has heard before.
    let engine = sim(SimConfig { events: Endpoint::Connect(address.clone()), ..SimConfig::default() });
    talk(&engine, 0, 1);
    let replay = engine.replay_endpoints()[0].clone();
    let spec = published(&format!("bind:{address}"), replay.as_deref());
    let found = find_while(&engine, spec, |engine| talk(engine, 0, 1000)).await;
    assert_eq!(codes(&found), [], "{found:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_share_an_address_are_distinguished_by_topic() {
    let address = free_address();
    let engines = ["kv@a", "kv@b"].map(|topic| {
        let events = Endpoint::Connect(address.clone());
        let engine = sim(SimConfig { events, topic: topic.to_owned(), ..SimConfig::default() });
        talk(&engine, 0, 1);
        engine
    });
    let spec = |engine: &SimHandle| EngineSpec {
        id: kvplane_core::EngineId::new(&engine.config().topic),
        topic: engine.config().topic.clone(),
        ..published(&format!("bind:{address}"), engine.replay_endpoints()[0].as_deref())
    };
    let specs = engines.iter().map(spec).collect();
    let speakers = engines.clone();
    let spoken = tokio::task::spawn_blocking(move || {
        for speaker in speakers {
            assert!(speaker.wait_for_subscriptions(0, 1, PATIENCE));
            talk(&speaker, 0, 1000);
        }
    });
    let found = find(specs, LONG).await;
    spoken.await.unwrap();
    assert_eq!(codes(&found), [], "{found:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_connects_to_where_kvplane_would_listen() {
    let found = find(vec![published(&format!("bind:{}", free_address()), None)], SHORT).await;
    let expected = [(Code::EndpointUnreachable, ERROR), (Code::ReplayAbsent, Severity::Warning)];
    assert_eq!(codes(&found), expected, "{found:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_listens_where_kvplane_would() {
    let engine = sim(SimConfig::default());
    talk(&engine, 0, 1);
    let replay = engine.replay_endpoints()[0].clone();
    let spec = published(&format!("bind:{}", engine.event_endpoints()[0]), replay.as_deref());
    let found = find(vec![spec], SHORT).await;
    assert_eq!(codes(&found), [(Code::WrongSocket, ERROR)], "{found:#?}");
}

/// Where a plane listens is the plane's, also if it is a plane in another place where nobody has that port
/// here.
#[tokio::test(flavor = "multi_thread")]
async fn engines_that_a_plane_lists() {
    let address = free_address();
    let engine = sim(SimConfig { events: Endpoint::Connect(address.clone()), ..SimConfig::default() });
    let listed = |spec, hears: &[&str]| Examination {
        listed: Some(hears.iter().map(ToString::to_string).collect()),
        ..examination(vec![spec], SHORT)
    };
    let bound = published(&format!("bind:{address}"), engine.replay_endpoints()[0].as_deref());
    let found = examine(&listed(bound.clone(), &[])).await;
    assert_eq!(codes(&found), [(Code::AddressInUse, Severity::Info)], "{found:#?}");
    for spec in [bound, published(&free_address(), Some(&free_address()))] {
        let found = examine(&listed(spec, &["e/0"])).await;
        assert_eq!(codes(&found), [(Code::EndpointUnreachable, Severity::Info)], "{found:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_of_the_wrong_kind() {
    let engine = sim(SimConfig::default());
    talk(&engine, 0, 1);
    let (events, replay) =
        (engine.event_endpoints()[0].clone(), engine.replay_endpoints()[0].clone().unwrap());
    // The two exchanged.
    let found = find(vec![published(&replay, Some(&events))], SHORT).await;
    assert_eq!(codes(&found), [(Code::WrongSocket, ERROR), (Code::WrongSocket, ERROR)], "{found:#?}");
    assert!(found[0].todo.contains("replay socket") && found[1].todo.contains("event socket"), "{found:#?}");
    // The HTTP server in the place of the events.
    let http = format!("tcp://{}", engine.http_address().unwrap());
    let found = find(vec![published(&http, Some(&replay))], SHORT).await;
    assert_eq!(codes(&found), [(Code::WrongSocket, ERROR)], "{found:#?}");
    assert!(found[0].seen.contains("HTTP"), "{found:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_too_many() {
    let engine = sim(SimConfig::default());
    talk(&engine, 0, 1);
    let mut spec = spec_of(&engine);
    let replay = ranks(&mut spec)[0].replay.clone();
    ranks(&mut spec).push(PublishedRank { rank: 1, events: Endpoint::Connect(free_address()), replay });
    let found = find(vec![spec], SHORT).await;
    let expected = [
        (Code::RankMissing, ERROR),
        // Both ask the ring of rank 0.
        (Code::ReplayOnNextRanksPort, ERROR),
        (Code::Silent, Severity::Info),
    ];
    assert_eq!(codes(&found), expected, "{found:#?}");
}

/// As libzmq does, it names its mechanism once it has heard the version, and would leave when it hears of
/// another.
#[tokio::test]
async fn a_socket_that_wants_a_password() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = server.accept().await.unwrap();
        let mut version = [0; 12];
        stream.read_exact(&mut version).await.unwrap();
        let mut greeting = [0; 64];
        greeting[..12].copy_from_slice(&version);
        greeting[12..17].copy_from_slice(b"PLAIN");
        stream.write_all(&greeting).await.unwrap();
    });
    assert_eq!(greet(&address, PATIENCE).await, Peer::Secured("PLAIN".to_owned()));
}

#[tokio::test]
async fn who_is_there_is_known_by_the_first_bytes() {
    let engine = sim(SimConfig::default());
    let socket = |socket: &str| Peer::Zmtp { socket: socket.to_owned() };
    // The simulator watches who subscribes, as an XPUB can; to a subscriber it is the same.
    let peer = greet(&engine.event_endpoints()[0], PATIENCE).await;
    assert!(peer.is(&["PUB", "XPUB"]), "{peer:?}");
    assert_eq!(greet(engine.replay_endpoints()[0].as_ref().unwrap(), PATIENCE).await, socket("ROUTER"));
    assert_eq!(greet(&format!("tcp://{}", engine.http_address().unwrap()), PATIENCE).await, Peer::Http);
    assert_eq!(greet(&free_address(), PATIENCE).await, Peer::Refused);
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    assert_eq!(greet(&format!("tcp://{}", mute.local_addr().unwrap()), SHORT).await, Peer::Mute);
}
