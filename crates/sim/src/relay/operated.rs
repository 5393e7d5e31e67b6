//! The server as an operator sees it, and `/sim/*` for scenarios: on the same port, over HTTP/1.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use axum::Router;
use axum::extract::{Json, State};
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::{Value, json};

use super::life::Life;
use super::{RelayService, Shared};
use crate::engine::{CompletionResult, SimError};
use crate::operate::{ClearEvent, Conduct, Desk, Facts, Load, Manner, Operated, Reset};

impl RelayService {
    /// The release of the engine behind it.
    fn release(self) -> &'static str {
        match self {
            Self::Vllm => "0.32",
            Self::Sglang => "0.5.22",
            Self::Tokenspeed => "0.1.1",
            Self::Trtllm => "1.3.0",
            Self::Mlx => "0.31",
        }
    }
}

impl Operated for Shared {
    fn desk(&self) -> &Desk {
        &self.desk
    }

    fn facts(&self) -> Facts {
        Facts {
            model: "sim".to_owned(),
            release: self.config.service.release(),
            block_size: self.config.block_size,
            blocks: self.config.blocks,
            ranks: self.config.ranks.max(1),
            start_time: self.start_time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            has_profiler: true,
        }
    }

    fn loads(&self) -> Vec<Load> {
        let room = self.facts().room();
        let load = |(rank, life): (u32, &Life)| {
            let blocks: usize = life.held().values().sum();
            // Requests run to their end under the lock: nobody ever sees one.
            Load { rank, running: 0, used_tokens: blocks * self.config.block_size, room }
        };
        (0..).zip(&self.state.lock().ranks).map(load).collect()
    }

    fn generate(
        self: Arc<Self>,
        _: &[u32],
        _: usize,
        _: Option<u32>,
    ) -> Option<Result<CompletionResult, SimError>> {
        None
    }

    fn flush_rank(&self, rank: u32, _: Reset) -> bool {
        let manner = match self.desk.manner(rank) {
            Manner::Busy => return false,
            Manner::Pretends => return true,
            Manner::Does(manner) => manner,
        };
        let service = self.config.service;
        let state = &mut *self.state.lock();
        let Some(life) = state.ranks.get_mut(rank as usize) else { return false };
        let done = life.flush(service, manner);
        let at_once = match manner {
            ClearEvent::Usual => service != RelayService::Vllm,
            ClearEvent::Early => true,
            ClearEvent::NextStep | ClearEvent::Lost => false,
        };
        if at_once {
            state.publish(rank);
        }
        done
    }
}

/// How a scenario changes things while the server runs.
pub(super) fn control(shared: Arc<Shared>) -> Router {
    Router::new().route("/sim/fault", post(fault)).route("/sim/state", get(state)).with_state(shared)
}

/// Only operations: what goes wrong with events, tests say by a call.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultRequest {
    operations: Conduct,
}

async fn fault(State(shared): State<Arc<Shared>>, Json(request): Json<FaultRequest>) -> Json<Value> {
    shared.desk.set(request.operations);
    Json(json!({ "success": true }))
}

async fn state(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let rank = |(rank, life): (usize, &Life)| {
        let blocks: serde_json::Map<String, Value> =
            life.held().into_iter().map(|(hash, copies)| (hash.to_string(), copies.into())).collect();
        json!({ "rank": rank, "next_sequence": life.next_sequence(), "blocks": blocks })
    };
    let ranks: Vec<Value> = shared.state.lock().ranks.iter().enumerate().map(rank).collect();
    let (profiles, profiling) = shared.desk.profiles();
    Json(json!({
        "ranks": ranks, "asked": shared.desk.asked(), "profiles": profiles, "profiling": profiling,
    }))
}
