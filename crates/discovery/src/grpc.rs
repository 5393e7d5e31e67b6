//! Asking over gRPC: vLLM's control service, and SMG's `GetServerInfo`.
//!
//! SMG's service of vLLM tells how many ranks there are and how large blocks are, and not where they are
//! published: that has to be configured.

use std::time::Duration;

use bytes::Bytes;
use kvplane_core::EngineKind;
use kvplane_transport::grpc::{GrpcSpec, connect, unary};
use kvplane_wire::engine_info::{self, Arg, OtherMessage, Sizes};
use serde_json::{Map, Value};
use tonic::transport::Channel;
use tonic::{Code, Request};

use super::server_args::{self, Unsaid};
use super::{Description, MAX_RANKS, Publisher, Refusal, bad, vllm};

/// An answer has the arguments of a server; what is larger is none.
const MAX_ANSWER: usize = 4 << 20;
/// For the connection and all questions together.
const DEADLINE: Duration = Duration::from_secs(5);

const EVENT_SOURCES: &str = "/vllm.Control/GetKvEventSources";
const CONTROL_INFO: &str = "/vllm.Control/GetServerInfo";

/// What the engine says.
pub(super) async fn ask(kind: EngineKind, spec: &GrpcSpec) -> Result<Description, Refusal> {
    let answer = tokio::time::timeout(DEADLINE, talk(kind, spec)).await;
    answer.unwrap_or_else(|_| Err(Refusal::Silent("gRPC: no answer in time".to_owned())))
}

async fn talk(kind: EngineKind, spec: &GrpcSpec) -> Result<Description, Refusal> {
    let silent = |_| Refusal::Silent("gRPC: cannot connect".to_owned());
    let channel = connect(&spec.url, spec.ca.as_deref(), DEADLINE).await.map_err(silent)?;
    if kind == EngineKind::Vllm
        && let Some(answer) = call(&channel, EVENT_SOURCES).await?
    {
        let mut description = event_sources(&answer)?;
        if let Some(answer) = call(&channel, CONTROL_INFO).await? {
            let Ok(sizes) = engine_info::control_server_info(&answer) else {
                return nonsense(CONTROL_INFO);
            };
            description.block_size = sizes.block_size;
        }
        return Ok(description);
    }
    for service in &spec.services {
        let path = format!("/{service}/GetServerInfo");
        let Some(answer) = call(&channel, &path).await? else { continue };
        let read = match kind {
            EngineKind::Vllm => engine_info::vllm_server_info(&answer).map(of_sizes),
            EngineKind::Sglang => arguments(&answer).map(|args| server_args::parse(&args, Unsaid::IsOff)),
            _ => arguments(&answer).map(|args| server_args::parse(&args, Unsaid::IsZmq)),
        };
        return read.unwrap_or_else(|_| nonsense(&path));
    }
    Err(Refusal::NoSources("the engine has no gRPC call that tells: an older one, or of another kind"))
}

fn nonsense<T>(path: &str) -> Result<T, Refusal> {
    bad(format!("{path}: the answer is not the expected message"))
}

/// Calls a method whose request has no fields; `None` if the server does not have it.
async fn call(channel: &Channel, path: &str) -> Result<Option<Bytes>, Refusal> {
    match unary(channel.clone(), path, Request::new(Bytes::new()), MAX_ANSWER).await {
        Ok(answer) => Ok(Some(answer)),
        Err(status) => match status.code() {
            Code::Unimplemented => Ok(None),
            Code::Unavailable => Err(Refusal::Silent(format!("{path}: cannot connect"))),
            code => bad(format!("{path} answers {code:?}")),
        },
    }
}

/// What vLLM's control service lists.
fn event_sources(answer: &[u8]) -> Result<Description, Refusal> {
    let Ok(sources) = engine_info::kv_event_sources(answer) else { return nonsense(EVENT_SOURCES) };
    if sources.is_empty() {
        return Err(Refusal::NoSources("the engine lists no publisher"));
    }
    let mut description = Description::default();
    for source in sources {
        if source.transport != "zmq" || !matches!(source.encoding, "" | "msgpack") {
            return bad("a publisher is of no kind that is known");
        }
        let publisher = Publisher {
            events: Some(source.endpoint.to_owned()),
            replay: (!source.replay_endpoint.is_empty()).then(|| source.replay_endpoint.to_owned()),
            topic: source.topic.to_owned(),
        };
        let rank = source.rank.unwrap_or(0);
        if description.publishers.insert(rank, publisher).is_some() {
            return bad(format!("rank {rank} is listed twice"));
        }
    }
    if description.publishers.len() > MAX_RANKS as usize {
        return bad(format!("{} ranks are more than {MAX_RANKS}", description.publishers.len()));
    }
    vllm::spread(&mut description.publishers)?;
    Ok(description)
}

/// Ranks of which only the number is known.
fn of_sizes(Sizes { ranks, block_size }: Sizes) -> Result<Description, Refusal> {
    let ranks = ranks.unwrap_or(1);
    if ranks > MAX_RANKS {
        return bad(format!("{ranks} ranks are more than {MAX_RANKS}"));
    }
    let publishers = (0..ranks).map(|rank| (rank, Publisher::default())).collect();
    Ok(Description { publishers, block_size, ..Description::default() })
}

/// The arguments that a server was started with.
fn arguments(answer: &[u8]) -> Result<Map<String, Value>, OtherMessage> {
    let args = engine_info::server_args(answer)?.into_iter().map(|(key, arg)| {
        let value = match arg {
            Arg::Text(text) => Value::from(text),
            Arg::Number(number) => Value::from(number),
            Arg::Flag(flag) => Value::from(flag),
            Arg::Null => Value::Null,
        };
        (key.to_owned(), value)
    });
    Ok(args.collect())
}
