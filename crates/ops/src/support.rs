//! The one table of who supports what, over what, and how it is asked.
//!
//! Every [`Speaker`] has, for every verb, ways to be asked or a sentence why there is none. The
//! ways of a verb are tried in turn, while a server says that it does not have one.
//! `docs/reference/operations.md` shows the table.

use kvplane_core::EngineKind;

use crate::answer::Covers;
use crate::backend::{Service, Transport};
use crate::verb::VerbName;

/// Who answers: an engine's own HTTP server, or one of SMG's services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaker {
    /// The HTTP server of an engine of this kind.
    Http(EngineKind),
    /// A service.
    Grpc(Service),
}

impl Speaker {
    /// Everybody.
    pub fn all() -> impl Iterator<Item = Self> {
        let http = EngineKind::ALL.into_iter().map(Self::Http);
        http.chain(Service::ALL.into_iter().map(Self::Grpc))
    }

    /// Over what it speaks.
    pub fn transport(self) -> Transport {
        match self {
            Self::Http(_) => Transport::Http,
            Self::Grpc(_) => Transport::Grpc,
        }
    }

    /// The name of the software.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http(kind) => kind.as_str(),
            Self::Grpc(Service::Vllm) => "vllm",
            Self::Grpc(Service::Sglang) => "sglang",
            Self::Grpc(Service::Tokenspeed) => "tokenspeed",
            Self::Grpc(Service::Trtllm) => "trtllm",
            Self::Grpc(Service::Mlx) => "mlx",
        }
    }
}

/// Whether and how a verb can be asked.
#[derive(Debug, Clone, Copy)]
pub enum Support {
    /// In these ways, tried in turn.
    Ways(&'static [Way]),
    /// Not at all, and why.
    No(&'static str),
}

/// One way to ask.
#[derive(Debug, Clone, Copy)]
pub struct Way {
    /// What is called.
    pub call: Call,
    /// What the request can say.
    pub takes: Takes,
    /// How the answer is read.
    pub reads: Reads,
    /// For which ranks a yes holds.
    pub covers: Covers,
    /// What it means that a server does not have it.
    pub missing: &'static str,
}

/// What is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// A page is read.
    Get(&'static str),
    /// Something is posted.
    Post(&'static str),
    /// A method of the speaker's service.
    Rpc(&'static str),
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Get(path) => write!(f, "GET {path}"),
            Self::Post(path) => write!(f, "POST {path}"),
            Self::Rpc(method) => write!(f, "gRPC {method}"),
        }
    }
}

/// What a request can say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// Nothing.
    Nothing,
    /// vLLM's reset: `reset_running_requests` since 0.12, `reset_external` since 0.13.
    VllmReset,
    /// `SGLang`'s flush: `timeout` since 0.5.10. Tiers behind the device go with the tree.
    SglangFlush,
    /// vLLM's JSON of a recording, since 0.32: prefix, steps to wait, steps to record.
    VllmProfile,
    /// `SGLang`'s JSON of a recording.
    SglangProfile,
    /// A completion of one token.
    OneToken,
    /// SMG's `FlushCacheRequest`.
    FlushMessage,
    /// The same, of a service whose engine flushes all tiers of its tree.
    FlushTreeMessage,
    /// SMG's `StartProfileRequest`.
    ProfileMessage,
    /// A `GetLoadsRequest` for everything.
    AllSections,
}

/// How an answer is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// vLLM's reset: nothing up to 0.25, then `{"success": bool}`.
    Reset,
    /// 200 is yes, 400 is busy, in words.
    Flushed,
    /// 200 is yes.
    Done,
    /// The JSON is the answer.
    Json,
    /// 200 is well, 503 is not.
    Health,
    /// A message with `success` and `message`.
    Success,
    /// The message is the answer.
    Message,
    /// A message with `healthy` and `message`.
    Healthy,
    /// A message with `status`: `OK`, or what is wrong.
    HealthStatus,
}

const DEV_MODE: &str = "the server's development endpoints are off: start it with VLLM_SERVER_DEV_MODE=1";
const NO_PROFILER: &str = "no profiler is configured: start the server with --profiler-config (before that option: VLLM_TORCH_PROFILER_DIR)";
const NO_PAGE: &str = "the server has no such endpoint: an older release, or another kind of engine";
const NO_METHOD: &str = "the server does not have the method: an older release, or another kind of engine";

const ELSEWHERE: &str = "it is an engine of another kvplane: ask that one";
const WHICH_ENGINE: &str = "the engine behind a relay's HTTP server is unknown: use gRPC";
const TRTLLM_FLUSH: &str = "TensorRT-LLM has no call that clears its cache";
const TRTLLM_PROFILE: &str = "TensorRT-LLM has no call that starts a profile";
const TRTLLM_LOADS: &str =
    "TensorRT-LLM has no call for loads; its /metrics are emptied by reading and belong to its collector";
const MLX_FLUSH: &str = "MLX has no operations on its cache";
const MLX_PROFILE: &str = "MLX has no call that starts a profile";
const NO_LOADS: &str = "the service has no loads";
const NUDGE_IDLE: &str = "it publishes its clear by itself when it is idle";
const NUDGE_NEVER: &str = "it never publishes a clear";
const NUDGE_GRPC: &str = "a nudge goes over HTTP: prompts are not sent over SMG's services";

/// How `speaker` is asked for `verb`.
pub const fn support(speaker: Speaker, verb: VerbName) -> Support {
    match speaker {
        Speaker::Http(EngineKind::Vllm) => vllm_http(verb),
        Speaker::Http(EngineKind::Sglang) => sglang_http(verb),
        Speaker::Http(EngineKind::Tokenspeed) => tokenspeed_http(verb),
        Speaker::Http(EngineKind::Trtllm) => trtllm_http(verb),
        Speaker::Http(EngineKind::Grpc) => Support::No(WHICH_ENGINE),
        Speaker::Http(EngineKind::Kvplane) => Support::No(ELSEWHERE),
        Speaker::Grpc(Service::Vllm) => whole_grpc(verb, FLUSH_CACHE, VLLM_START),
        Speaker::Grpc(Service::Sglang) => whole_grpc(verb, SGLANG_FLUSH, SCHEDULER_START),
        Speaker::Grpc(Service::Tokenspeed) => whole_grpc(verb, FLUSH_CACHE, SCHEDULER_START),
        Speaker::Grpc(Service::Trtllm) => trtllm_grpc(verb),
        Speaker::Grpc(Service::Mlx) => mlx_grpc(verb),
    }
}

/// The pages of an engine's HTTP server that tell its release, as `version` in JSON; the next where one is
/// missing. None for engines whose calls are the same in every release.
pub(crate) const fn release_pages(kind: EngineKind) -> &'static [&'static str] {
    match kind {
        EngineKind::Vllm => &["/version"],
        EngineKind::Sglang => &["/server_info", "/get_server_info"],
        EngineKind::Tokenspeed | EngineKind::Trtllm | EngineKind::Grpc | EngineKind::Kvplane => &[],
    }
}

const fn way(call: Call, takes: Takes, reads: Reads, missing: &'static str) -> Way {
    Way { call, takes, reads, covers: Covers::Backend, missing }
}

const fn page(path: &'static str, reads: Reads) -> Way {
    way(Call::Get(path), Takes::Nothing, reads, NO_PAGE)
}

const fn method(name: &'static str, takes: Takes, reads: Reads) -> Way {
    way(Call::Rpc(name), takes, reads, NO_METHOD)
}

const fn vllm_http(verb: VerbName) -> Support {
    // With data parallelism the server tells what the first rank answered.
    const FLUSH: &[Way] = &[Way {
        covers: Covers::FirstRank,
        ..way(Call::Post("/reset_prefix_cache"), Takes::VllmReset, Reads::Reset, DEV_MODE)
    }];
    const START: &[Way] = &[way(Call::Post("/start_profile"), Takes::VllmProfile, Reads::Done, NO_PROFILER)];
    const STOP: &[Way] = &[way(Call::Post("/stop_profile"), Takes::Nothing, Reads::Done, NO_PROFILER)];
    const INFO: &[Way] = &[
        way(Call::Get("/server_info?config_format=json"), Takes::Nothing, Reads::Json, DEV_MODE),
        page("/version", Reads::Json),
    ];
    const LOADS: &[Way] = &[page("/load", Reads::Json)];
    const HEALTH: &[Way] = &[page("/health", Reads::Health)];
    const NUDGE: &[Way] = &[way(
        Call::Post("/v1/completions"),
        Takes::OneToken,
        Reads::Done,
        "the server does not serve that model, or no completions",
    )];
    Support::Ways(match verb {
        VerbName::Flush => FLUSH,
        VerbName::StartProfile => START,
        VerbName::StopProfile => STOP,
        VerbName::Info => INFO,
        VerbName::Loads => LOADS,
        VerbName::Health => HEALTH,
        VerbName::Nudge => NUDGE,
    })
}

const fn sglang_http(verb: VerbName) -> Support {
    const FLUSH: &[Way] = &[Way {
        covers: Covers::FirstRank,
        ..way(Call::Post("/flush_cache"), Takes::SglangFlush, Reads::Flushed, NO_PAGE)
    }];
    const START: &[Way] = &[way(Call::Post("/start_profile"), Takes::SglangProfile, Reads::Done, NO_PAGE)];
    const STOP: &[Way] = &[way(Call::Post("/stop_profile"), Takes::Nothing, Reads::Done, NO_PAGE)];
    const INFO: &[Way] = &[page("/server_info", Reads::Json), page("/get_server_info", Reads::Json)];
    const LOADS: &[Way] = &[page("/v1/loads", Reads::Json), page("/get_load", Reads::Json)];
    const HEALTH: &[Way] = &[page("/health", Reads::Health)];
    Support::Ways(match verb {
        VerbName::Flush => FLUSH,
        VerbName::StartProfile => START,
        VerbName::StopProfile => STOP,
        VerbName::Info => INFO,
        VerbName::Loads => LOADS,
        VerbName::Health => HEALTH,
        VerbName::Nudge => return Support::No(NUDGE_IDLE),
    })
}

const fn tokenspeed_http(verb: VerbName) -> Support {
    const FLUSH: &[Way] = &[Way {
        covers: Covers::FirstRank,
        ..way(Call::Post("/flush_cache"), Takes::Nothing, Reads::Flushed, NO_PAGE)
    }];
    const START: &[Way] = &[way(Call::Post("/start_profile"), Takes::SglangProfile, Reads::Done, NO_PAGE)];
    const STOP: &[Way] = &[way(Call::Post("/stop_profile"), Takes::Nothing, Reads::Done, NO_PAGE)];
    const INFO: &[Way] = &[page("/get_server_info", Reads::Json)];
    const LOADS: &[Way] = &[page("/v1/loads", Reads::Json)];
    const HEALTH: &[Way] = &[page("/health", Reads::Health)];
    Support::Ways(match verb {
        VerbName::Flush => FLUSH,
        VerbName::StartProfile => START,
        VerbName::StopProfile => STOP,
        VerbName::Info => INFO,
        VerbName::Loads => LOADS,
        VerbName::Health => HEALTH,
        VerbName::Nudge => return Support::No(NUDGE_NEVER),
    })
}

const fn trtllm_http(verb: VerbName) -> Support {
    const INFO: &[Way] = &[page("/server_info", Reads::Json), page("/version", Reads::Json)];
    const HEALTH: &[Way] = &[page("/health", Reads::Health)];
    match verb {
        VerbName::Flush => Support::No(TRTLLM_FLUSH),
        VerbName::StartProfile | VerbName::StopProfile => Support::No(TRTLLM_PROFILE),
        VerbName::Info => Support::Ways(INFO),
        VerbName::Loads => Support::No(TRTLLM_LOADS),
        VerbName::Health => Support::Ways(HEALTH),
        VerbName::Nudge => Support::No(NUDGE_NEVER),
    }
}

const SERVER_INFO: &[Way] = &[method("GetServerInfo", Takes::Nothing, Reads::Message)];
const GET_LOADS: &[Way] = &[method("GetLoads", Takes::AllSections, Reads::Message)];
const FLUSH_CACHE: &[Way] = &[method("FlushCache", Takes::FlushMessage, Reads::Success)];
const SGLANG_FLUSH: &[Way] = &[method("FlushCache", Takes::FlushTreeMessage, Reads::Success)];
const HEALTH_CHECK: &[Way] = &[method("HealthCheck", Takes::Nothing, Reads::Healthy)];
const STOP_PROFILE: &[Way] = &[method("StopProfile", Takes::Nothing, Reads::Success)];

/// vLLM's profiler has its options from the engine's launch; a request that names any is refused.
const VLLM_START: &[Way] = &[method("StartProfile", Takes::Nothing, Reads::Success)];
const SCHEDULER_START: &[Way] = &[method("StartProfile", Takes::ProfileMessage, Reads::Success)];

/// The services that have every operation. They differ in what a flush reaches and in which options a profile
/// accepts.
const fn whole_grpc(verb: VerbName, flush: &'static [Way], start: &'static [Way]) -> Support {
    Support::Ways(match verb {
        VerbName::Flush => flush,
        VerbName::StartProfile => start,
        VerbName::StopProfile => STOP_PROFILE,
        VerbName::Info => SERVER_INFO,
        VerbName::Loads => GET_LOADS,
        VerbName::Health => HEALTH_CHECK,
        VerbName::Nudge => return Support::No(NUDGE_GRPC),
    })
}

const fn trtllm_grpc(verb: VerbName) -> Support {
    const HEALTH: &[Way] = &[method("HealthCheck", Takes::Nothing, Reads::HealthStatus)];
    match verb {
        VerbName::Flush => Support::No(TRTLLM_FLUSH),
        VerbName::StartProfile | VerbName::StopProfile => Support::No(TRTLLM_PROFILE),
        VerbName::Info => Support::Ways(SERVER_INFO),
        VerbName::Loads => Support::No(NO_LOADS),
        VerbName::Health => Support::Ways(HEALTH),
        VerbName::Nudge => Support::No(NUDGE_GRPC),
    }
}

const fn mlx_grpc(verb: VerbName) -> Support {
    match verb {
        VerbName::Flush => Support::No(MLX_FLUSH),
        VerbName::StartProfile | VerbName::StopProfile => Support::No(MLX_PROFILE),
        VerbName::Info => Support::Ways(SERVER_INFO),
        VerbName::Loads => Support::No(NO_LOADS),
        VerbName::Health => Support::Ways(HEALTH_CHECK),
        VerbName::Nudge => Support::No(NUDGE_GRPC),
    }
}
