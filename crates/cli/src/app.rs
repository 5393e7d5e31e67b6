//! A plane, what is served of it, and its orderly end: for `serve`, `picker`, `report` and the demo.

mod closing;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kvplane_ingest::{Origin, Plane, PlaneOptions};
use kvplane_report::Reports;
use kvplane_server::{EnginePlan, Fleet, Options, Service, Span};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::commands::Failure;
use crate::systemd::Manager;

pub(crate) use closing::MARGIN;

/// A plane and what runs beside its servers. They are stopped together.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) plane: Arc<Plane>,
    pub(crate) fleet: Fleet,
    pub(crate) reports: Arc<Reports>,
    /// How long connections and calls may go on after a stop.
    drain: Duration,
}

impl App {
    /// A plane without engines, and its servers, which do not listen yet.
    pub(crate) fn start(plane: &PlaneOptions, options: Options) -> anyhow::Result<(Self, Service)> {
        let drain = options.drain_timeout;
        let plane = Plane::start(Vec::new(), plane).context("cannot start the socket threads")?;
        let service = Service::new(plane.clone(), options);
        let (fleet, reports) = (service.fleet(), service.reports());
        Ok((Self { plane, fleet, reports, drain }, service))
    }

    /// Adds the configured engines, all or none.
    pub(crate) async fn add(&self, plans: Vec<EnginePlan>) -> Result<(), Failure> {
        self.fleet.add(plans, Origin::Config).await.map_err(|error| {
            let code = if error.is_mistake() { 2 } else { 1 };
            Failure { code, error: anyhow::Error::new(error) }
        })
    }

    /// Serves until `stop`, then drains and closes. Exits the process if that takes too long.
    pub(crate) async fn run(
        self,
        serving: impl Future<Output = ()>,
        stop: &CancellationToken,
        manager: Option<&Manager>,
    ) -> Result<(), Failure> {
        let plane = self.plane.clone();
        let life = async {
            match manager {
                Some(manager) => match manager.show_life(|| plane.longest_socket_round()).await {},
                None => std::future::pending().await,
            }
        };
        let (mut serving, mut life) = (pin!(serving), pin!(life));
        let served = tokio::select! {
            () = &mut serving => true,
            () = stop.cancelled() => false,
            () = &mut life => false,
        };
        let stopped_early = served && !stop.is_cancelled();
        if let Some(manager) = manager {
            manager.stopping(self.drain);
        }
        let code = i32::from(stopped_early);
        closing::exit_after(&self.plane, self.drain.saturating_add(MARGIN), move || std::process::exit(code));
        if stopped_early {
            self.reports.shutdown().await;
        } else {
            info!(drain_timeout = %Span(self.drain), "stopping: draining connections");
            let rest = async {
                if !served {
                    serving.await;
                }
            };
            tokio::select! {
                () = self.drain(rest) => {}
                () = &mut life => {}
            }
        }
        if self.close().await.is_err() {
            warn!("sockets did not close cleanly");
        }
        info!("stopped");
        if stopped_early {
            Err(anyhow::anyhow!("a server ended unexpectedly; see the log").into())
        } else {
            Ok(())
        }
    }

    /// Waits for servers that were stopped and for reports, as long as connections may go on.
    pub(crate) async fn drain(&self, serving: impl Future) {
        let (served, ()) = tokio::join!(tokio::time::timeout(self.drain, serving), self.reports.shutdown());
        if served.is_err() {
            let drain = Span(self.drain);
            warn!(drain_timeout = %drain, "drain timeout reached; closing remaining connections");
        }
    }

    /// Closes the sockets.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        let Self { plane, fleet, .. } = self;
        let close = move || {
            fleet.shutdown();
            plane.shutdown();
        };
        tokio::task::spawn_blocking(close).await.context("the plane")
    }
}
