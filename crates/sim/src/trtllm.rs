//! A simulated `TensorRT-LLM` server whose events are drained over HTTP.
//!
//! - [`config`] is what it is: levels, windows, ranks, how it hashes;
//! - `cache` is its reuse tree: blocks on levels, partial tails, offloading, and the events of each step;
//! - `buffer` numbers events and forgets the oldest when it is full;
//! - [`engine`] runs requests on it ([`TrtSim`]);
//! - [`fault`] is what can be made to go wrong;
//! - `http` is `trtllm-serve`'s side: the drain, completions, health.
//!
//! Its truth is [`TrtHandle::state`].

pub mod config;
pub mod engine;
pub mod fault;

mod buffer;
mod cache;
mod hash;
mod http;
mod keys;

pub use config::TrtConfig;
pub use engine::{TrtBlockState, TrtHandle, TrtPoolState, TrtRankState, TrtSim};
pub use fault::{TrtAnswer, TrtFault, TrtFaultRequest, TrtRestart};
