//! Simulated engines: a real prefix cache, real bytes over real sockets, and faults on request.
//!
//! - [`pool`] is vLLM's cache, and TensorRT-LLM's: a pool of blocks;
//! - [`radix`] is `SGLang`'s, and `TokenSpeed`'s: a tree of pages, with a host tier;
//! - [`engine`] runs requests on either, one cache and one publisher thread per rank ([`SimEngine`]);
//! - [`fault`] is what can be made to go wrong, over HTTP or by a call;
//! - [`operate`] is what operators can ask, and what can be made to go wrong with that;
//! - [`load`] makes seeded conversations to run;
//! - [`trtllm`] is an engine of its own: a `TensorRT-LLM` server whose events are drained over HTTP;
//! - [`relay`] is another: a server whose events are subscribed to over gRPC.
//!
//! What the simulator says about itself ([`SimHandle::state`]) is the ground truth that tests compare
//! with. It computes nothing: tokens are seeded noise and take no time unless asked to.

pub mod cache;
pub mod config;
pub mod digest;
pub mod engine;
pub mod fault;
pub mod keys;
pub mod load;
pub mod operate;
pub mod pool;
pub mod radix;
pub mod relay;
pub mod trtllm;

mod grpc;
mod history;
mod http;
mod publisher;
mod serve;
mod service;

pub use cache::GroupState;
pub use config::{
    HostEvents, HostOptions, SglangOptions, SimConfig, VllmOptions, Without, free_address, free_ports,
};
pub use digest::HashForm;
pub use engine::{CompletionOptions, CompletionResult, RankState, Running, SimEngine, SimError, SimHandle};
pub use fault::{Fault, ReplayMode, Restart};
pub use keys::{Image, Keys};
pub use operate::{ClearEvent, Conduct, Question, Reply};
pub use pool::{GroupKind, GroupSpec, Report};
pub use relay::{RelayConfig, RelayFault, RelayService, RelayStyle, SimRelay};
pub use service::{Pace, ServiceFault};
