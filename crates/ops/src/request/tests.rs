use std::time::Duration;

use kvplane_core::{EngineKind, PlaneId};

use super::*;
use crate::backend::GrpcServer;
use crate::verb::{ProfileId, ProfileIds, VerbName};

fn over_http(kind: EngineKind, version: Option<Version>) -> Backend {
    Backend { kind, http: Some("http://127.0.0.1:1".to_owned()), grpc: None, version, authorization: None }
}

fn over_grpc(kind: EngineKind) -> Backend {
    let grpc = Some(GrpcServer { url: "http://127.0.0.1:1".to_owned(), ca: None });
    Backend { kind, http: None, grpc, version: None, authorization: None }
}

fn id() -> ProfileId {
    ProfileIds::new(PlaneId::from_bits(7)).mint()
}

/// A verb of every name, without options.
fn plain(verb: VerbName) -> Verb {
    match verb {
        VerbName::Flush => Verb::Flush(Flush::default()),
        VerbName::StartProfile => Verb::StartProfile(Profile::new(id())),
        VerbName::StopProfile => Verb::StopProfile,
        VerbName::Info => Verb::Info,
        VerbName::Loads => Verb::Loads,
        VerbName::Health => Verb::Health,
        VerbName::Nudge => Verb::Nudge { model: "llama".to_owned(), rank: None },
    }
}

fn everything() -> Profile {
    Profile {
        output_dir: Some("/traces/".to_owned()),
        prefix: Some("nightly".to_owned()),
        start_step: Some(5),
        num_steps: Some(10),
        activities: vec!["CPU".to_owned(), "GPU".to_owned()],
        with_stack: Some(false),
        record_shapes: Some(true),
        by_stage: true,
        stages: vec!["decode".to_owned()],
        merge: true,
        ..Profile::new(id())
    }
}

fn first(backend: &Backend, verb: &Verb) -> Ask {
    plan(backend, verb).unwrap().remove(0)
}

fn path(backend: &Backend, verb: &Verb) -> String {
    match first(backend, verb).request {
        Request::Http { path, .. } | Request::Grpc { path, .. } => path,
    }
}

fn body(backend: &Backend, verb: &Verb) -> Value {
    match first(backend, verb).request {
        Request::Http { json: Some(json), .. } => serde_json::from_slice(&json).unwrap(),
        other => panic!("no JSON: {other:?}"),
    }
}

#[test]
fn every_kind_has_a_way_or_a_sentence_for_every_verb() {
    for kind in EngineKind::ALL {
        for name in VerbName::ALL {
            let verb = plain(name);
            for backend in [over_http(kind, None), over_grpc(kind)] {
                match plan(&backend, &verb) {
                    Ok(asks) => assert!(!asks.is_empty()),
                    Err(why) => assert!(why.contains(' '), "{kind} {name}: {why:?}"),
                }
            }
            let nowhere = Backend { http: None, ..over_http(kind, None) };
            assert!(plan(&nowhere, &verb).unwrap_err().contains(' '));
        }
    }
}

#[test]
fn services_come_first_and_http_after_them() {
    let both = Backend { http: Some("http://h:1".to_owned()), ..over_grpc(EngineKind::Vllm) };
    let calls: Vec<_> = plan(&both, &plain(VerbName::Flush)).unwrap();
    let calls: Vec<_> = calls.iter().map(|ask| ask.way.call.to_string()).collect();
    assert_eq!(calls, ["gRPC FlushCache", "POST /reset_prefix_cache"]);

    // What the service does not accept goes over HTTP alone.
    let verb = Verb::Flush(Flush { reset_external: true, ..Flush::default() });
    assert_eq!(path(&both, &verb), "/reset_prefix_cache?reset_external=true");
    let why = plan(&over_grpc(EngineKind::Vllm), &verb).unwrap_err();
    assert_eq!(why, "gRPC FlushCache does not accept reset_external");
}

#[test]
fn a_relay_is_asked_under_every_service() {
    let asks = plan(&over_grpc(EngineKind::Grpc), &Verb::Health).unwrap();
    assert_eq!(asks.len(), Service::ALL.len());
    let asks = plan(&over_grpc(EngineKind::Grpc), &plain(VerbName::Flush)).unwrap();
    assert_eq!(asks.len(), 3);
}

#[test]
fn parameters_of_a_reset_depend_on_the_release() {
    let all = Verb::Flush(Flush { reset_running: true, reset_external: true, ..Flush::default() });
    let running = Verb::Flush(Flush { reset_running: true, ..Flush::default() });
    let at = |minor| over_http(EngineKind::Vllm, Some(Version(0, minor, 0)));
    let whole = "/reset_prefix_cache?reset_running_requests=true&reset_external=true";
    assert_eq!(path(&at(32), &all), whole);
    assert_eq!(path(&at(12), &running), "/reset_prefix_cache?reset_running_requests=true");
    assert_eq!(path(&at(9), &plain(VerbName::Flush)), "/reset_prefix_cache");
    assert!(plan(&at(12), &all).unwrap_err().contains("reset_external"));
    assert!(plan(&at(11), &running).unwrap_err().contains("reset_running"));
    // Of an unknown release it is said that it may have ignored them.
    let unknown = over_http(EngineKind::Vllm, None);
    assert_eq!(path(&unknown, &all), whole);
    assert!(first(&unknown, &all).note.is_some());
}

#[test]
fn an_engine_that_can_wait_learns_how_long() {
    let verb = Verb::Flush(Flush { timeout: Duration::from_millis(1500), ..Flush::default() });
    let new = over_http(EngineKind::Sglang, Some(Version(0, 5, 10)));
    assert_eq!(path(&new, &verb), "/flush_cache?timeout=1.5");
    assert!(first(&new, &verb).waits);
    let old = over_http(EngineKind::Sglang, Some(Version(0, 5, 9)));
    assert_eq!(path(&old, &verb), "/flush_cache");
    assert!(!first(&old, &verb).waits);
    let Request::Grpc { message, .. } = first(&over_grpc(EngineKind::Vllm), &verb).request else { panic!() };
    assert_eq!(FlushCacheRequest::decode(message).unwrap().timeout_s.to_bits(), 1.5_f32.to_bits());
}

#[test]
fn a_nudge_names_its_rank() {
    let reported = |rank| match first(
        &over_http(EngineKind::Vllm, None),
        &Verb::Nudge { model: "m".to_owned(), rank },
    ) {
        Ask { request: Request::Http { header, .. }, .. } => header,
        ask => panic!("{ask:?}"),
    };
    assert_eq!(reported(None), None);
    assert_eq!(reported(Some(3)), Some((DATA_PARALLEL_RANK, HeaderValue::from_static("3"))));
}

#[test]
fn a_recording_is_sent_to_vllm_in_three_fields() {
    let profile = Profile { prefix: Some("p".to_owned()), start_step: Some(2), ..Profile::new(id()) };
    let verb = Verb::StartProfile(profile.clone());
    let reported = json!({"profile_prefix": format!("p-{}", profile.id), "delay_iterations": 2});
    assert_eq!(body(&over_http(EngineKind::Vllm, Some(Version(0, 32, 0))), &verb), reported);
    let why = plan(&over_http(EngineKind::Vllm, Some(Version(0, 31, 0))), &verb).unwrap_err();
    assert_eq!(why, "POST /start_profile does not accept prefix, start_step");
    let old = over_http(EngineKind::Vllm, Some(Version(0, 31, 0)));
    assert_eq!(first(&old, &plain(VerbName::StartProfile)).note, Some(NO_ID));
    let more = Verb::StartProfile(Profile { merge: true, ..profile });
    assert!(plan(&over_http(EngineKind::Vllm, None), &more).unwrap_err().contains("merge"));
}

#[test]
fn a_recording_is_sent_to_sglang_whole() {
    let profile = everything();
    let reported = json!({
        "profile_prefix": format!("nightly-{}", profile.id),
        "output_dir": "/traces/",
        "start_step": 5,
        "num_steps": 10,
        "activities": ["CPU", "GPU"],
        "with_stack": false,
        "record_shapes": true,
        "profile_by_stage": true,
        "profile_stages": ["decode"],
        "merge_profiles": true,
    });
    let verb = Verb::StartProfile(profile);
    assert_eq!(body(&over_http(EngineKind::Sglang, None), &verb), reported);
    assert_eq!(body(&over_http(EngineKind::Tokenspeed, None), &verb), reported);
}

#[test]
fn a_recording_is_reported_over_grpc_with_a_folder_of_its_own() {
    let profile = Profile { prefix: None, stages: Vec::new(), merge: false, ..everything() };
    let ask = first(&over_grpc(EngineKind::Sglang), &Verb::StartProfile(profile.clone()));
    let Request::Grpc { path, message } = ask.request else { panic!() };
    assert_eq!(path, "/sglang.grpc.scheduler.SglangScheduler/StartProfile");
    assert_eq!(
        StartProfileRequest::decode(message).unwrap(),
        StartProfileRequest {
            output_dir: Some(format!("/traces/{}", profile.id)),
            start_step: Some(5),
            num_steps: Some(10),
            activities: vec!["CPU".to_owned(), "GPU".to_owned()],
            with_stack: Some(false),
            record_shapes: Some(true),
            profile_by_stage: true,
        }
    );
    let why = plan(&over_grpc(EngineKind::Sglang), &Verb::StartProfile(everything())).unwrap_err();
    assert_eq!(why, "gRPC StartProfile does not accept prefix, stages, merge");
    let far = Profile { start_step: Some(u32::MAX), ..Profile::new(id()) };
    assert!(plan(&over_grpc(EngineKind::Sglang), &Verb::StartProfile(far)).is_err());
    // vLLM's service takes a start without options only.
    let vllm = over_grpc(EngineKind::Vllm);
    assert!(plan(&vllm, &Verb::StartProfile(profile)).unwrap_err().contains("output_dir"));
    let ask = first(&vllm, &plain(VerbName::StartProfile));
    assert!(matches!(ask.request, Request::Grpc { message, .. } if message.is_empty()));
}

#[test]
fn engines_of_another_plane_are_not_asked_here() {
    for name in VerbName::ALL {
        let why = plan(&Backend { http: None, ..over_http(EngineKind::Kvplane, None) }, &plain(name));
        assert_eq!(why.unwrap_err(), "it is an engine of another kvplane: ask that one");
    }
}
