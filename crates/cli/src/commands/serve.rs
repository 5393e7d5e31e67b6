//! `kvplane serve`.

use std::io::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use kvplane_ingest::Plane;
use kvplane_server::{BoundRepublisher, FrontPlan, RepublishError, Service};
use tokio::net::TcpListener;
use tracing::{info, warn};

use super::{Failure, stop_signal, usage};
use crate::args::ServeArgs;
use crate::config;
use crate::logging;

/// How long connections may take to end after a stop.
const GRACE: Duration = Duration::from_secs(5);

pub(crate) async fn run(args: ServeArgs) -> Result<(), Failure> {
    let config = config::load(&args, std::env::vars()).map_err(usage)?;
    if args.dump_config {
        let text = toml::to_string(&config).context("cannot print the configuration")?;
        std::io::stdout().write_all(text.as_bytes()).context("cannot print the configuration")?;
        return Ok(());
    }
    let engines = config.engines().map_err(usage)?;
    let fronts = config.fronts().map_err(usage)?;
    logging::start(&args.log).map_err(usage)?;
    let stop = stop_signal(None)?;

    // Everything that can fail without an engine fails before an engine is contacted.
    let http = bind("listen.http", config.listen.http).await?;
    let grpc = bind("listen.grpc", config.listen.grpc).await?;
    let mut listening = Vec::new();
    for (engine, address, front) in fronts {
        listening.push(FrontPlan { engine, front, listener: bind("front", address).await? });
    }
    let bound = BoundRepublisher::bind(&config.republished()).map_err(|error| {
        let code = if matches!(error, RepublishError::Address { .. }) { 2 } else { 1 };
        Failure { code, error: anyhow::Error::new(error) }
    })?;
    for address in [config.listen.http, config.listen.grpc] {
        if !address.ip().is_loopback() {
            warn!(%address, "listening beyond loopback: anyone who reaches this address can read cached prompts");
        }
    }
    let count = engines.len();
    let plane = Plane::start(engines, &config.plane_options()).map_err(|error| {
        let code = if error.is_mistake() { 2 } else { 1 };
        Failure { code, error: anyhow::Error::new(error) }
    })?;
    info!(
        http = %http.local_addr().context("listen.http")?,
        grpc = %grpc.local_addr().context("listen.grpc")?,
        engines = count,
        streams = plane.streams().count(),
        "serving"
    );
    let mut service = Service::new(plane.clone(), config.server_options());
    for plan in listening {
        info!(engine = plan.engine, address = %plan.listener.local_addr().context("front")?, "front");
        service = service.with_front(plan);
    }
    let mut republisher = bound.start(&plane).context("republish")?;
    let serving = service.run(http, grpc, stop.clone());
    tokio::pin!(serving);
    let stopped_early = tokio::select! {
        () = &mut serving => true,
        () = stop.cancelled() => false,
    };
    if !stopped_early {
        info!("stopping: ending subscriptions");
        if tokio::time::timeout(GRACE, &mut serving).await.is_err() {
            warn!("connections did not end within {} s", GRACE.as_secs());
        }
    }
    let closing = tokio::task::spawn_blocking(move || {
        republisher.stop();
        plane.shutdown();
    });
    if closing.await.is_err() {
        warn!("sockets did not close cleanly");
    }
    info!("stopped");
    if stopped_early {
        Err(anyhow::anyhow!("a server ended unexpectedly; see the log").into())
    } else {
        Ok(())
    }
}

async fn bind(key: &str, address: std::net::SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("{key}: cannot listen on {address}"))
}
