use kvplane_core::EngineKind;
use kvplane_proto::engines::{mlx, sglang, tokenspeed, trtllm, vllm};
use kvplane_proto::smg::{FlushCacheResponse, ProfileResponse};
use kvplane_transport::NoAnswer;
use kvplane_transport::grpc::NoConnection;
use prost::Message;
use serde_json::json;
use tonic::{Code, Status};

use super::*;
use crate::backend::Service;
use crate::support::{Speaker, Support, Way, support};
use crate::verb::VerbName;

fn way(speaker: Speaker, verb: VerbName) -> &'static Way {
    match support(speaker, verb) {
        Support::Ways(ways) => &ways[0],
        Support::No(why) => panic!("{speaker:?} {verb}: {why}"),
    }
}

fn http(kind: EngineKind, verb: VerbName, status: u16, body: &str) -> Read {
    read_http(way(Speaker::Http(kind), verb), status.try_into().unwrap(), body.as_bytes())
}

fn message(service: Service, verb: VerbName, message: &impl Message) -> Read {
    read_grpc(service, way(Speaker::Grpc(service), verb), Ok(&message.encode_to_vec()))
}

fn status(verb: VerbName, code: Code) -> Read {
    let status = Status::new(code, "words\nof it");
    read_grpc(Service::Sglang, way(Speaker::Grpc(Service::Sglang), verb), Err(&status))
}

const FIRST: Meaning = Meaning::Accepted { proves: true, covers: Covers::FirstRank };
const ALL: Meaning = Meaning::Accepted { proves: true, covers: Covers::Backend };

#[test]
fn a_reset_of_vllm() {
    use EngineKind::Vllm;
    use VerbName::Flush;
    let proves_nothing = Meaning::Accepted { proves: false, covers: Covers::FirstRank };
    for (code, body, meaning, open) in [
        (200, "", proves_nothing, true),
        (200, " \n", proves_nothing, true),
        (200, r#"{"success": true}"#, FIRST, false),
        (200, r#"{"success": false}"#, Meaning::Refused, false),
        (200, r#"{"success": "yes"}"#, Meaning::Unknown, true),
        (200, "[]", Meaning::Unknown, true),
        (200, "null", Meaning::Unknown, true),
        (200, "<html>", Meaning::Unknown, true),
        (404, r#"{"detail":"Not Found"}"#, Meaning::Unsupported, false),
        (405, "", Meaning::Unsupported, false),
        (401, "", Meaning::Failed, false),
        (400, "bad", Meaning::Failed, false),
        (500, "Internal Server Error", Meaning::Failed, true),
        (503, "", Meaning::Refused, false),
        (504, "", Meaning::Timeout, true),
        (302, "", Meaning::Failed, false),
        (202, "", Meaning::Unknown, true),
    ] {
        let read = http(Vllm, Flush, code, body);
        assert_eq!((read.meaning, read.open), (meaning, open), "{code} {body:?}");
    }
    assert!(http(Vllm, Flush, 404, "").why.contains("VLLM_SERVER_DEV_MODE=1"));
    assert!(http(Vllm, VerbName::StartProfile, 404, "").why.contains("--profiler-config"));
}

#[test]
fn a_flush_in_words() {
    for kind in [EngineKind::Sglang, EngineKind::Tokenspeed] {
        let flush = |code, body| http(kind, VerbName::Flush, code, body);
        assert_eq!(flush(200, "Cache flushed.").meaning, FIRST);
        let busy = flush(400, "Flush cache failed.\nNot idle: 3 running");
        assert_eq!(busy.meaning, Meaning::Refused);
        assert!(busy.why.ends_with("400: Flush cache failed. Not idle: 3 running"), "{}", busy.why);
        assert_eq!(flush(404, "").meaning, Meaning::Unsupported);
        assert_eq!(flush(422, "").meaning, Meaning::Failed);
    }
}

#[test]
fn questions_over_http() {
    let info = http(EngineKind::Sglang, VerbName::Info, 200, r#"{"version": "0.5.22"}"#);
    assert_eq!((info.meaning, info.detail), (ALL, Some(json!({"version": "0.5.22"}))));
    assert_eq!(http(EngineKind::Sglang, VerbName::Loads, 200, "load 1").meaning, Meaning::Unknown);
    assert_eq!(http(EngineKind::Vllm, VerbName::Health, 200, "").meaning, ALL);
    let ill = http(EngineKind::Vllm, VerbName::Health, 503, "");
    assert_eq!(ill.meaning, Meaning::Failed);
    assert!(ill.why.contains("unhealthy"));
    assert_eq!(http(EngineKind::Vllm, VerbName::StopProfile, 200, "").meaning, ALL);
    let nested = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(http(EngineKind::Vllm, VerbName::Loads, 200, &nested).meaning, Meaning::Unknown);
}

#[test]
fn no_answer_over_http() {
    for (error, meaning, open) in [
        (NoAnswer::Address, Meaning::Failed, false),
        (NoAnswer::Unreachable(std::io::ErrorKind::ConnectionRefused), Meaning::Failed, false),
        (NoAnswer::Timeout, Meaning::Timeout, true),
        (NoAnswer::Lost, Meaning::Failed, true),
        (NoAnswer::Body, Meaning::Unknown, true),
        (NoAnswer::TooLarge, Meaning::Unknown, true),
    ] {
        let read = read_no_http(error);
        assert_eq!((read.meaning, read.open), (meaning, open), "{error}");
    }
}

#[test]
fn success_and_words_over_grpc() {
    for service in [Service::Vllm, Service::Sglang, Service::Tokenspeed] {
        let done = FlushCacheResponse { success: true, message: "flushed".to_owned() };
        assert_eq!(message(service, VerbName::Flush, &done).meaning, ALL);
        let busy = FlushCacheResponse { success: false, message: "in flight".to_owned() };
        let read = message(service, VerbName::Flush, &busy);
        assert_eq!((read.meaning, read.open), (Meaning::Refused, false));
        assert!(read.why.ends_with("in flight"));
        let profiling = ProfileResponse { success: false, message: "already profiling".to_owned() };
        for verb in [VerbName::StartProfile, VerbName::StopProfile] {
            assert_eq!(message(service, verb, &profiling).meaning, Meaning::Refused);
        }
        // An empty message says `success: false`.
        assert_eq!(
            message(service, VerbName::Flush, &FlushCacheResponse::default()).meaning,
            Meaning::Refused
        );
        let garbage = read_grpc(service, way(Speaker::Grpc(service), VerbName::Flush), Ok(b"\x0a\xff"));
        assert_eq!((garbage.meaning, garbage.open), (Meaning::Unknown, true));
    }
}

#[test]
fn every_status_of_grpc() {
    for number in 0..=16 {
        let code = Code::from_i32(number);
        let (meaning, open) = match code {
            Code::Unimplemented => (Meaning::Unsupported, false),
            Code::DeadlineExceeded => (Meaning::Timeout, true),
            Code::ResourceExhausted | Code::FailedPrecondition | Code::Aborted => (Meaning::Refused, false),
            Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::Unauthenticated => (Meaning::Failed, false),
            Code::Ok | Code::Cancelled | Code::OutOfRange => (Meaning::Unknown, true),
            Code::Unknown | Code::Internal | Code::Unavailable | Code::DataLoss => (Meaning::Failed, true),
        };
        let read = status(VerbName::Flush, code);
        assert_eq!((read.meaning, read.open), (meaning, open), "{code:?}");
        assert!(!read.why.contains('\n'));
    }
    assert!(status(VerbName::Flush, Code::DeadlineExceeded).why.contains("may still complete"));
}

#[test]
fn health_over_grpc() {
    let well = vllm::HealthCheckResponse { healthy: true, message: String::new() };
    let ill = vllm::HealthCheckResponse { healthy: false, message: "dead".to_owned() };
    for service in [Service::Vllm, Service::Sglang, Service::Tokenspeed, Service::Mlx] {
        assert_eq!(message(service, VerbName::Health, &well).meaning, ALL);
        assert_eq!(message(service, VerbName::Health, &ill).meaning, Meaning::Failed);
    }
    let status = |status: &str| trtllm::HealthCheckResponse { status: status.to_owned() };
    assert_eq!(message(Service::Trtllm, VerbName::Health, &status("OK")).meaning, ALL);
    let ill = message(Service::Trtllm, VerbName::Health, &status("loading"));
    assert_eq!((ill.meaning, ill.why), (Meaning::Failed, "the engine is unhealthy: loading".to_owned()));
}

#[test]
fn messages_are_shown_with_the_names_of_their_fields() {
    let load = vllm::SchedulerLoad { dp_rank: 1, token_usage: 0.25, ..Default::default() };
    let loads = vllm::GetLoadsResponse { dp_rank_count: 2, loads: vec![load], ..Default::default() };
    let detail = message(Service::Vllm, VerbName::Loads, &loads).detail.unwrap();
    assert_eq!(detail["loads"][0]["dp_rank"], 1);
    assert_eq!(detail["loads"][0]["token_usage"], 0.25);
    // Nothing to do is a load too.
    assert_eq!(detail["loads"][0]["num_running_reqs"], 0);

    let memory = tokenspeed::MemoryMetrics { token_capacity: 9, ..Default::default() };
    let load = tokenspeed::SchedulerLoad { memory: Some(memory), ..Default::default() };
    let loads = tokenspeed::GetLoadsResponse { loads: vec![load], ..Default::default() };
    let detail = message(Service::Tokenspeed, VerbName::Loads, &loads).detail.unwrap();
    assert_eq!(detail["loads"][0]["memory"]["token_capacity"], 9);
    assert!(detail["loads"][0].get("queues").is_none() && detail.get("aggregate").is_none());

    let info = mlx::GetServerInfoResponse { uptime_seconds: 1.5, ..Default::default() };
    let detail = message(Service::Mlx, VerbName::Info, &info).detail.unwrap();
    assert_eq!(detail, json!({"server_type": "", "active_requests": 0, "uptime_seconds": 1.5}));
}

/// `server_args` of `SGLang`: `{"dp_size": 2, "model": "m", "off": null, "tp": [1, 2.5]}`, as a `Struct`.
fn arguments() -> Vec<u8> {
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
    }
    fn number(value: f64) -> Vec<u8> {
        [&[0x11][..], &value.to_le_bytes()].concat()
    }
    fn entry(name: &str, value: &[u8]) -> Vec<u8> {
        field(1, &[field(1, name.as_bytes()), field(2, value)].concat())
    }
    let list = [field(1, &number(1.0)), field(1, &number(2.5))].concat();
    let arguments = [
        entry("dp_size", &number(2.0)),
        entry("model", &field(3, b"m")),
        entry("off", &[0x08, 0]),
        entry("tp", &field(6, &list)),
    ];
    field(1, &arguments.concat())
}

#[test]
fn arguments_of_a_server_are_plain_json() {
    let read =
        read_grpc(Service::Sglang, way(Speaker::Grpc(Service::Sglang), VerbName::Info), Ok(&arguments()));
    let arguments = json!({"dp_size": 2, "model": "m", "off": null, "tp": [1, 2.5]});
    assert_eq!(read.detail.unwrap()["server_args"], arguments);
}

#[test]
fn a_megabyte_of_empty_messages_is_no_answer() {
    let many = [0x22, 0].repeat(500_000);
    let read = read_grpc(Service::Sglang, way(Speaker::Grpc(Service::Sglang), VerbName::Loads), Ok(&many));
    assert_eq!((read.meaning, read.detail), (Meaning::Unknown, None));
    let few =
        sglang::GetLoadsResponse { loads: vec![sglang::SchedulerLoad::default(); 512], ..Default::default() };
    assert_eq!(message(Service::Sglang, VerbName::Loads, &few).meaning, ALL);
}

#[test]
fn no_connection_is_a_failure_that_leaves_nothing_open() {
    for error in [
        NoConnection::Address,
        NoConnection::Timeout,
        NoConnection::Unreachable("invalid peer certificate".into()),
    ] {
        let read = read_no_connection(&error);
        assert_eq!((read.meaning, read.open), (Meaning::Failed, false));
    }
}
