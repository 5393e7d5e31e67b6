//! A simulated server of relayed events, over gRPC.

use std::net::SocketAddr;

use kvplane_core::{EngineId, EngineKind};
use kvplane_ingest::{EngineSpec, Relayed, SharedRanks, Source};
use kvplane_sim::load::Workload;
use kvplane_sim::{RelayConfig, SimRelay};
use kvplane_transport::grpc::GrpcSpec;

use crate::engine::workload;

/// A simulated server of `SubscribeKvEvents` with a seeded load.
#[derive(Debug)]
pub struct RelayedEngine {
    /// The server.
    pub sim: SimRelay,
    load: Workload,
}

impl RelayedEngine {
    /// A small server, otherwise as `change` has it.
    pub fn start(change: impl FnOnce(&mut RelayConfig)) -> Self {
        let mut config = RelayConfig::default();
        change(&mut config);
        let load = workload(config.seed);
        Self { sim: SimRelay::start(config).unwrap(), load }
    }

    /// Runs this many requests on rank 0.
    pub fn work(&mut self, requests: usize) {
        self.work_on(0, requests);
    }

    /// Runs this many requests on a rank.
    pub fn work_on(&mut self, rank: u32, requests: usize) {
        for _ in 0..requests {
            let turn = self.load.next_turn();
            let result = self.sim.complete(rank, &turn.prompt, turn.max_tokens).unwrap();
            self.load.replied(turn.conversation, &result.output);
        }
    }

    /// How a plane follows a server at an address, under a name.
    pub fn spec_at(address: SocketAddr, id: &str) -> EngineSpec {
        let server = GrpcSpec {
            url: format!("http://{address}"),
            ca: None,
            services: EngineKind::ALL.into_iter().filter_map(EngineKind::grpc_service).collect(),
        };
        let source = Source::Relayed(Relayed { server, ranks: SharedRanks::first(1) });
        EngineSpec { worker_id: 7, ..EngineSpec::new(EngineId::new(id), EngineKind::Grpc, "sim", source) }
    }
}
