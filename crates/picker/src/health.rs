//! What gateways and probes ask for under `grpc.health.v1`.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::service::Shared;

/// Answers while the process does.
const ALIVE: [&str; 1] = ["liveness"];
/// Answer while requests can be decided: the probes of llm-d's and of the reference picker, Envoy's own
/// check, and no name at all.
const READY: [&str; 4] =
    ["readiness", "envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension", ""];
/// How often it is looked whether requests can be decided.
const EVERY: Duration = Duration::from_millis(100);

/// Keeps the answers up to date, until the picker is to stop: then nothing is ready any more, at once.
pub(crate) async fn report(shared: Arc<Shared>, reporter: HealthReporter, stop: CancellationToken) {
    for name in ALIVE {
        reporter.set_service_status(name, ServingStatus::Serving).await;
    }
    let mut last = None;
    loop {
        let ready = shared.is_ready() && !stop.is_cancelled();
        if last != Some(ready) {
            last = Some(ready);
            tracing::info!(ready, endpoints = shared.rules().pool.endpoints().len(), "picker");
            let status = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
            for name in READY {
                reporter.set_service_status(name, status).await;
            }
        }
        if stop.is_cancelled() {
            return;
        }
        let _ = tokio::time::timeout(EVERY, stop.cancelled()).await;
    }
}
