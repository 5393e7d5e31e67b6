//! Prefill on one engine, decode on another, as vLLM's connectors and `SGLang`'s servers are told of it.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::config::SimConfig;
use crate::engine::SimHandle;

/// Where NIXL's handshakes are made, unless vLLM is configured otherwise.
const SIDE_CHANNEL: u16 = 5600;

/// `kv_transfer_params`, as far as they matter here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Transfer {
    /// vLLM's way to be given the ids.
    pub(super) prompt_token_ids: Option<Vec<u32>>,
    /// Somebody else decodes: the answer says where the blocks are.
    do_remote_decode: bool,
    /// Somebody else prefilled: the blocks are there.
    do_remote_prefill: bool,
    remote_engine_id: Option<String>,
    remote_block_ids: Option<Vec<u64>>,
    remote_host: Option<String>,
    remote_port: Option<u16>,
}

/// The blocks of a prompt, as one engine numbers them.
#[derive(Debug)]
pub(super) struct Blocks(Vec<u64>);

impl Blocks {
    pub(super) fn of(config: &SimConfig, prompt: &[u32]) -> Self {
        let size = config.block_size.max(1);
        let number = |block: &[u32]| {
            block.iter().fold(u64::from(block.len() as u32), |sum, id| {
                sum.wrapping_mul(31).wrapping_add(u64::from(*id)) % (1 << 31)
            })
        };
        Self(prompt.chunks(size).map(number).collect())
    }
}

impl Transfer {
    /// Whether what another engine is said to hold can be this prompt.
    pub(super) fn check(&self, blocks: &Blocks) -> Result<(), &'static str> {
        if !self.do_remote_prefill {
            return Ok(());
        }
        if self.remote_engine_id.is_none() || self.remote_host.is_none() || self.remote_port.is_none() {
            return Err("kv_transfer_params do not say where the blocks are.");
        }
        if self.remote_block_ids.as_ref() != Some(&blocks.0) {
            return Err("kv_transfer_params are of another prompt.");
        }
        Ok(())
    }

    /// Whether another engine prefilled.
    pub(super) fn is_received(&self) -> bool {
        self.do_remote_prefill
    }

    /// What the answer says for the engine that decodes.
    pub(super) fn returned(&self, engine: &SimHandle, blocks: &Blocks) -> Option<Value> {
        let engine_id = engine.start_time().to_bits();
        self.do_remote_decode.then(|| {
            json!({
                "do_remote_prefill": true,
                "do_remote_decode": false,
                "remote_block_ids": blocks.0,
                "remote_engine_id": format!("sim-{engine_id:x}"),
                "remote_host": "127.0.0.1",
                "remote_port": SIDE_CHANNEL,
                "tp_size": 1,
            })
        })
    }
}
