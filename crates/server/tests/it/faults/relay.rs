//! Rows of the fault matrix for servers of relayed events, over real gRPC.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kvplane_core::{Continuity, EngineKind, Reason, Trouble, Trust};
use kvplane_ingest::{Origin, PlaneOptions, Relayed, SharedRanks, Source, StreamStatus};
use kvplane_server::Fleet;
use kvplane_sim::{Fault, RelayFault, RelayService, RelayStyle, Restart};
use kvplane_transport::grpc::GrpcSpec;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tonic::Code;

use crate::rig::{Engine, RelayedEngine, Rig, held};

/// A plane over a server of events, whichever name it has.
async fn follow(address: SocketAddr) -> Rig {
    let options = PlaneOptions { down_after: Duration::from_secs(3), ..PlaneOptions::default() };
    Rig::of_specs(vec![RelayedEngine::spec_at(address, "e0")], options).await
}

/// Waits until a rank has heard the server's last batch, and compares what both hold, copies included.
async fn same(rig: &Rig, server: &RelayedEngine, rank: u32) -> StreamStatus {
    let last = server.sim.next_sequence(rank).checked_sub(1);
    let status = rig
        .until_rank(0, rank as usize, "caught up", |status| {
            status.continuity == Continuity::Live && status.engine_sequence == last
        })
        .await;
    let stream = rig.plane.engines()[0].streams[rank as usize].clone();
    assert_eq!(held(&stream).await, server.sim.held(rank));
    assert!(status.trust.has(Reason::Relay) && status.trust.level() == Trust::Unverified);
    status
}

/// The same, where nothing is said to be missing.
async fn whole(rig: &Rig, server: &RelayedEngine, rank: u32) -> StreamStatus {
    let status = same(rig, server, rank).await;
    assert_eq!(status.trust.active().len(), 1, "{:?}", status.trust);
    status
}

#[tokio::test(flavor = "multi_thread")]
async fn every_service_name_is_found_and_its_history_heard_from_the_start() {
    for service in [RelayService::Vllm, RelayService::Sglang, RelayService::Tokenspeed, RelayService::Trtllm]
    {
        let mut server = RelayedEngine::start(|config| config.service = service);
        server.work(5);
        let rig = follow(server.sim.address()).await;
        let status = whole(&rig, &server, 0).await;
        assert_eq!((status.known_from, status.trouble), (Some(0), None));
        server.work(5);
        server.sim.fault(RelayFault::Heartbeat);
        server.sim.clear(0).unwrap();
        server.work(1);
        whole(&rig, &server, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_join_takes_a_snapshot_in_parts() {
    let mut server = RelayedEngine::start(|config| (config.history, config.part_blocks) = (4, 5));
    server.work(10);
    let rig = follow(server.sim.address()).await;
    whole(&rig, &server, 0).await;
    server.work(3);
    whole(&rig, &server, 0).await;
    let mut partial = RelayedEngine::start(|config| (config.history, config.unknown_before) = (4, 9));
    partial.work(10);
    let rig = follow(partial.sim.address()).await;
    let status = same(&rig, &partial, 0).await;
    assert!(status.trust.has(Reason::History), "the server does not know everything: {:?}", status.trust);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reconnect_to_the_same_life_resets_nothing() {
    let mut server = RelayedEngine::start(|_| {});
    server.work(5);
    let rig = follow(server.sim.address()).await;
    let before = whole(&rig, &server, 0).await;
    let mut subscriber = rig.subscribe(None).await;
    subscriber.catch_up(&rig).await;
    for (ended, code) in (1..).zip([Code::Unavailable, Code::Ok, Code::Internal]) {
        let asked = server.sim.next_sequence(0) - 2;
        server.sim.fault(RelayFault::End(code));
        rig.until(0, "noticed", |status| status.counters.disconnects == ended).await;
        server.work(2);
        let after = whole(&rig, &server, 0).await;
        assert_eq!(after.epoch, before.epoch, "{code:?}");
        assert_eq!(server.sim.calls().last(), Some(&asked), "our last batch comes first");
    }
    subscriber.catch_up(&rig).await;
    assert_eq!(subscriber.resets.len(), 1, "only the one at its start");
    assert_eq!(subscriber.blocks, held(&rig.stream(0)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_goes_and_comes_back_without_its_life() {
    let mut server = RelayedEngine::start(|_| {});
    server.work(5);
    let rig = follow(server.sim.address()).await;
    let before = whole(&rig, &server, 0).await;
    let address = server.sim.address();
    server.sim.stop();
    let down = rig.until(0, "down", |status| status.continuity == Continuity::Down).await;
    assert_eq!((down.trouble, down.epoch), (Some(Trouble::Unreachable), before.epoch));
    // The same port, the same prompts, another process; and it has not come as far.
    let mut server = RelayedEngine::start(|config| config.address = address);
    server.work(2);
    rig.until(0, "begun anew", |status| status.epoch > before.epoch).await;
    whole(&rig, &server, 0).await;
    rig.until(0, "out of it", |status| status.trouble.is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_that_overtook_the_number_is_seen() {
    let mut server = RelayedEngine::start(|_| {});
    server.work(5);
    let rig = follow(server.sim.address()).await;
    let before = whole(&rig, &server, 0).await;
    let first_sequence = server.sim.next_sequence(0) + 7;
    server.sim.fault(RelayFault::Restart(Restart { first_sequence, same_content: true }));
    let after = rig.until(0, "restarted", |status| status.counters.restarts == 1).await;
    assert!(after.epoch > before.epoch);
    whole(&rig, &server, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_history_proves_nothing_over_a_reconnect() {
    let mut server = RelayedEngine::start(|config| config.style = RelayStyle::LiveOnly);
    let rig = follow(server.sim.address()).await;
    rig.live(0).await;
    server.work(5);
    let before = whole(&rig, &server, 0).await;
    server.sim.fault(RelayFault::End(Code::Unavailable));
    let after = rig.until(0, "begun anew", |status| status.counters.unproven == 1).await;
    assert!(after.epoch > before.epoch && after.trust.has(Reason::Unproven), "{:?}", after.trust);
    rig.live(0).await;
    server.work(2);
    let last = server.sim.next_sequence(0).checked_sub(1);
    rig.until(0, "caught up", |status| status.engine_sequence == last).await;
    let truth = server.sim.held(0);
    assert!(held(&rig.stream(0)).await.keys().all(|hash| truth.contains_key(hash)), "no phantoms");
}

#[tokio::test(flavor = "multi_thread")]
async fn data_loss_and_out_of_range_begin_anew_at_once() {
    let mut server = RelayedEngine::start(|_| {});
    server.work(5);
    let rig = follow(server.sim.address()).await;
    let mut epoch = whole(&rig, &server, 0).await.epoch;
    for code in [Code::DataLoss, Code::OutOfRange] {
        server.sim.fault(RelayFault::End(code));
        epoch = rig.until(0, "begun anew", |status| status.epoch > epoch).await.epoch;
        server.work(1);
        whole(&rig, &server, 0).await;
        assert_eq!(server.sim.calls().last(), Some(&0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_the_method_is_a_named_state() {
    let mut server = RelayedEngine::start(|_| {});
    server.sim.fault(RelayFault::Refuse(Code::Unimplemented));
    let rig = follow(server.sim.address()).await;
    let status = rig.until(0, "named", |status| status.trouble == Some(Trouble::Unimplemented)).await;
    assert!(status.trust.has(Reason::EventsDisabled));
    server.work(1);
    rig.until(0, "down", |status| status.continuity == Continuity::Down).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_tell_is_a_named_state_and_what_was_known_goes() {
    let mut server = RelayedEngine::start(|_| {});
    server.work(5);
    let rig = follow(server.sim.address()).await;
    whole(&rig, &server, 0).await;
    server.sim.fault(RelayFault::End(Code::FailedPrecondition));
    let status = rig.until(0, "named", |status| status.trouble == Some(Trouble::FailedPrecondition)).await;
    assert_eq!(status.blocks.iter().sum::<u64>(), 0);
    assert!(status.trust.has(Reason::Unproven));
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_that_never_come_are_waited_for_two_seconds() {
    let mut server = RelayedEngine::start(|_| {});
    server.work(3);
    server.sim.fault(RelayFault::Mute);
    let rig = follow(server.sim.address()).await;
    rig.until(0, "named", |status| status.trouble == Some(Trouble::Timeout)).await;
    server.sim.fault(RelayFault::Serve);
    whole(&rig, &server, 0).await;
    rig.until(0, "out of it", |status| status.trouble.is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_after_a_reconnect_is_not_believed_to_be_the_same() {
    let mut server = RelayedEngine::start(|_| {});
    server.work(3);
    let rig = follow(server.sim.address()).await;
    whole(&rig, &server, 0).await;
    server.sim.fault(RelayFault::Hang);
    server.sim.fault(RelayFault::End(Code::Unavailable));
    rig.until(0, "given up", |status| status.counters.unproven == 1).await;
    server.sim.fault(RelayFault::Serve);
    server.sim.fault(RelayFault::End(Code::Unavailable));
    whole(&rig, &server, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gaps_are_asked_for_and_doubles_dropped() {
    let mut server = RelayedEngine::start(|_| {});
    server.work(3);
    let rig = follow(server.sim.address()).await;
    let before = whole(&rig, &server, 0).await;
    server.sim.fault(RelayFault::Skip(2));
    server.work(3);
    let after = whole(&rig, &server, 0).await;
    assert_eq!((after.counters.gaps, after.counters.gaps_unfilled, after.epoch), (1, 0, before.epoch));
    server.sim.fault(RelayFault::Double(3));
    server.work(3);
    assert_eq!(whole(&rig, &server, 0).await.counters.duplicates, 3);
    // Lost for good: fails closed.
    server.sim.fault(RelayFault::Lose(1));
    server.work(3);
    let lost = rig.until(0, "lost", |status| status.counters.gaps_unfilled == 1).await;
    assert!(lost.trust.has(Reason::Gap) && lost.epoch == before.epoch);
    let last = server.sim.next_sequence(0).checked_sub(1);
    rig.until(0, "caught up", |status| status.engine_sequence == last).await;
    let truth = server.sim.held(0);
    assert!(held(&rig.stream(0)).await.keys().all(|hash| truth.contains_key(hash)), "no phantoms");
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_ends_the_call_and_not_the_source() {
    let mut server = RelayedEngine::start(|_| {});
    server.work(3);
    let rig = follow(server.sim.address()).await;
    let before = whole(&rig, &server, 0).await;
    server.sim.fault(RelayFault::Nonsense);
    rig.until(0, "counted", |status| status.malformed_frames == 1).await;
    server.work(1);
    assert_eq!(whole(&rig, &server, 0).await.epoch, before.epoch);
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_that_are_heard_of_become_streams_and_go_their_own_ways() {
    let mut server = RelayedEngine::start(|config| config.ranks = 3);
    server.work_on(0, 2);
    server.work_on(2, 2);
    let rig = follow(server.sim.address()).await;
    while rig.plane.engines()[0].streams.len() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let streams = rig.plane.engines()[0].streams.iter().map(|stream| stream.id().rank).collect::<Vec<_>>();
    assert_eq!(streams, [0, 2], "the one that says nothing is not known");
    server.work_on(1, 2);
    while rig.plane.engines()[0].streams.len() < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut epochs = Vec::new();
    for rank in 0..3 {
        epochs.push(whole(&rig, &server, rank).await.epoch);
    }
    // One number cannot be asked for three ranks: all of them begin anew.
    server.sim.fault(RelayFault::End(Code::Unavailable));
    for rank in 0..3 {
        let was = epochs[rank as usize];
        rig.until_rank(0, rank as usize, "begun anew", |status| status.epoch > was).await;
        whole(&rig, &server, rank).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plane_over_a_plane() {
    let mut engine = Engine::plain();
    engine.work(6);
    let near = Rig::over(&[&engine]).await;
    near.exact(0, &engine).await;
    let far = follow(near.grpc).await;
    let agree = async |far: &Rig, near: &Rig| {
        let number = near.stream(0).cursor().sequence;
        far.until(0, "caught up", |status| {
            status.continuity == Continuity::Live && status.engine_sequence.is_some_and(|at| at >= number)
        })
        .await;
        let ours: Vec<u64> = held(&far.stream(0)).await.into_keys().collect();
        let theirs: Vec<u64> = held(&near.stream(0)).await.into_keys().collect();
        assert_eq!(ours, theirs);
    };
    agree(&far, &near).await;
    engine.work(4);
    near.exact(0, &engine).await;
    agree(&far, &near).await;
    let before = far.status(0);
    assert_eq!(before.trust.active().len(), 1, "{:?}", before.trust);
    // The engine's connection drops and comes back: nobody notices.
    engine.sim.fault(None, Fault::Disconnect);
    engine.work(3);
    near.exact(0, &engine).await;
    agree(&far, &near).await;
    assert_eq!(far.status(0).epoch, before.epoch);
    // It restarts: both begin anew.
    engine.sim.fault(None, Fault::Restart(Restart::default()));
    engine.work(2);
    near.until(0, "restarted", |status| status.counters.restarts == 1).await;
    near.exact(0, &engine).await;
    far.until(0, "begun anew", |status| status.epoch > before.epoch).await;
    agree(&far, &near).await;
}

/// Stands before a server with a certificate for `localhost`, of an authority in the file that is returned.
async fn behind_tls(server: SocketAddr) -> (u16, PathBuf) {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let path = std::env::temp_dir().join(format!("kvplane-relay-{}.pem", std::process::id()));
    std::fs::write(&path, issuer.pem()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut client) = acceptor.accept(socket).await else { return };
                let mut server = TcpStream::connect(server).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    (port, path)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_behind_tls_is_followed_if_its_authority_is_known() {
    let mut server = RelayedEngine::start(|_| {});
    server.work(2);
    let (port, ca) = behind_tls(server.sim.address()).await;
    let rig = Rig::of_specs(Vec::new(), PlaneOptions::default()).await;
    let events = format!("grpcs://localhost:{port}");
    let stranger = serde_json::json!({"id": "stranger", "kind": "grpc", "events": events});
    let known = serde_json::json!({"id": "e0", "kind": "grpc", "events": events, "grpc_ca": ca});
    add(&rig.fleet, known).await.unwrap();
    add(&rig.fleet, stranger).await.unwrap();
    std::fs::remove_file(ca).unwrap();
    whole(&rig, &server, 0).await;
    rig.until(1, "refused", |status| status.trouble == Some(Trouble::Unreachable)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_front_of_a_server_answers_under_the_service_that_it_has() {
    let mut server = RelayedEngine::start(|config| config.service = RelayService::Tokenspeed);
    server.work(3);
    let rig = Rig::of_specs(Vec::new(), PlaneOptions::default()).await;
    let front = kvplane_sim::free_address().unwrap();
    let description = serde_json::json!({
        "id": "e0", "kind": "grpc", "service": "tokenspeed", "grpc": format!("http://{}", server.sim.address()), "front": front,
    });
    add(&rig.fleet, description).await.unwrap();
    whole(&rig, &server, 0).await;
    // A second plane takes it for what it stands before.
    let mut far = RelayedEngine::spec_at(front, "e0");
    let service = EngineKind::Tokenspeed.grpc_service().unwrap();
    let at_front = GrpcSpec { url: format!("http://{front}"), ca: None, services: vec![service] };
    far.source = Source::Relayed(Relayed { server: at_front, ranks: SharedRanks::first(1) });
    let far = Rig::of_specs(vec![far], PlaneOptions::default()).await;
    let blocks = server.sim.held(0).len() as u64;
    far.until(0, "told", |status| status.blocks.iter().sum::<u64>() == blocks).await;
}

/// Adds an engine by its description.
async fn add(fleet: &Fleet, description: serde_json::Value) -> Result<(), String> {
    let config: kvplane_server::EngineConfig = serde_json::from_value(description).unwrap();
    let plan = config.plan().map_err(|error| error.to_string())?;
    fleet.add(vec![plan], Origin::Api).await.map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_come_and_go_by_their_description() {
    let mut server = RelayedEngine::start(|_| {});
    server.work(2);
    let rig = Rig::of_specs(Vec::new(), PlaneOptions::default()).await;
    let address = server.sim.address();
    let by = |keys: serde_json::Value| {
        let mut description = serde_json::json!({"id": "e0", "kind": "grpc"});
        description.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        description
    };
    for (keys, wrong) in [
        (serde_json::json!({}), "events"),
        (serde_json::json!({"events": "tcp://127.0.0.1:1"}), "events"),
        (serde_json::json!({"grpc": "ftp://127.0.0.1:1"}), "grpc"),
        (serde_json::json!({"events": "grpc://127.0.0.1:1", "replay": "tcp://127.0.0.1:2"}), "replay"),
        (serde_json::json!({"events": "grpc://127.0.0.1:1", "service": "kvplane"}), "service"),
        (serde_json::json!({"events": "grpc://127.0.0.1:1", "grpc_ca": "none.pem"}), "grpc_ca"),
        (serde_json::json!({"events": "grpcs://127.0.0.1:1", "grpc_ca": "none.pem"}), "certificates"),
        (serde_json::json!({"kind": "vllm", "events": "grpc://127.0.0.1:1", "service": "vllm"}), "service"),
        (serde_json::json!({"grpc": "http://127.0.0.1:1", "front": "127.0.0.1:0"}), "front"),
    ] {
        let error = add(&rig.fleet, by(keys.clone())).await.err().unwrap_or_else(|| panic!("{keys}"));
        assert!(error.contains(wrong), "{keys}: {error}");
    }
    for keys in [
        serde_json::json!({"grpc": format!("http://{address}")}),
        serde_json::json!({"events": format!("grpc://{address}")}),
        serde_json::json!({"events": format!("grpc://{address}"), "service": "vllm"}),
        serde_json::json!({"kind": "vllm", "events": format!("grpc://{address}")}),
    ] {
        add(&rig.fleet, by(keys)).await.unwrap();
        whole(&rig, &server, 0).await;
        rig.fleet.remove("e0").await.unwrap();
    }
    // Every call ends with its engine.
    let deadline = std::time::Instant::now() + crate::rig::DEADLINE;
    while server.sim.subscribers() > 0 {
        assert!(std::time::Instant::now() < deadline, "a call outlives its engine");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A call that breaks says nothing of the engine: the proof that there was grows old.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_call_proves_nothing() {
    let mut server = RelayedEngine::start(|_| {});
    let rig = follow(server.sim.address()).await;
    server.work(1);
    whole(&rig, &server, 0).await;
    let old = Duration::from_secs(1);
    let is_old = |status: &StreamStatus| status.age.is_some_and(|age| age >= old);
    rig.until(0, "silent for a while", is_old).await;
    server.sim.stop();
    let status = rig.until(0, "cut off", |status| status.continuity != Continuity::Live).await;
    assert!(is_old(&status), "{:?}", status.age);
    rig.stop().await;
}
