//! Simulated engines, over real sockets.

mod engine;
mod engines;
mod faults;
mod http;
mod hybrid;
mod identity;
mod operations;
mod services;
mod support;
mod tiers;
mod trtllm;
