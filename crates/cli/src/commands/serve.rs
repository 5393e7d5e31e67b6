//! `kvplane serve`.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use kvplane_ingest::{Mood, Origin, Plane, Said, TokenFileError};
use kvplane_report::Reports;
use kvplane_server::{Access, EngineConfigError, Fleet, KeysError, Reloaded, Service, Tls, TlsError};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info, warn};

use super::{Failure, bind, stop_signal, usage};
use crate::args::ServeArgs;
use crate::config::{self, Config, Listen};
use crate::logging;
use crate::systemd::Manager;

/// How long connections may take to end after a stop.
const GRACE: Duration = Duration::from_secs(5);

pub(crate) async fn run(args: ServeArgs) -> Result<(), Failure> {
    let config = config::load(&args, std::env::vars()).map_err(unusable)?;
    if args.dump_config {
        let text = toml::to_string(&config).context("cannot print the configuration")?;
        std::io::stdout().write_all(text.as_bytes()).context("cannot print the configuration")?;
        return Ok(());
    }
    let plans = config.plans().map_err(unusable)?;
    let reported = config.reports().map_err(unusable)?;
    logging::start(&args.log).map_err(usage)?;
    let manager = Arc::new(Manager::from_env());
    let access = Arc::new(config.access(args.insecure).map_err(unusable)?);
    let tls = config.tls().map_err(unusable)?;
    let stop = stop_signal(None)?;
    let hangup = signal(SignalKind::hangup()).context("cannot listen for signals")?;

    // Everything that can fail without an engine fails before an engine is contacted.
    let http = bind("listen.http", config.listen.http).await?;
    let grpc = bind("listen.grpc", config.listen.grpc).await?;
    warn_of_strangers(&config, &access);
    let plane =
        Plane::start(Vec::new(), &config.plane_options()).context("cannot start the socket threads")?;
    let service = Service::new(plane.clone(), config.server_options(access.clone(), tls.clone()));
    let (fleet, reports) = (service.fleet(), service.reports());
    if plans.is_empty() {
        warn!("no engine is configured: add one with `kvplane engines add`, or let engines register");
    }
    let count = plans.len();
    fleet.add(plans, Origin::Config).await.map_err(|error| {
        let code = if error.is_mistake() { 2 } else { 1 };
        Failure { code, error: anyhow::Error::new(error) }
    })?;
    reports.set(&plane, reported);
    let addresses = Addresses {
        http: http.local_addr().context("listen.http")?,
        grpc: grpc.local_addr().context("listen.grpc")?,
    };
    info!(
        http = %addresses.http,
        grpc = %addresses.grpc,
        engines = count,
        streams = plane.streams().count(),
        "serving"
    );
    manager.ready(&addresses.status(&plane)).await;
    let running = Running {
        args,
        started: config,
        fleet: fleet.clone(),
        reports: reports.clone(),
        plane: plane.clone(),
        access,
        tls,
        addresses,
        manager: manager.clone(),
    };
    tokio::spawn(stop.clone().run_until_cancelled_owned(running.reload_on(hangup)));
    let serving = service.run(http, grpc, stop.clone());
    tokio::pin!(serving);
    let stopped_early = tokio::select! {
        () = &mut serving => true,
        () = stop.cancelled() => false,
        never = manager.show_life(|| plane.longest_socket_round()) => match never {},
    };
    manager.stopping();
    if stopped_early {
        reports.shutdown().await;
    } else {
        info!("stopping: ending subscriptions");
        let (served, ()) = tokio::join!(tokio::time::timeout(GRACE, &mut serving), reports.shutdown());
        if served.is_err() {
            warn!("connections did not end within {} s", GRACE.as_secs());
        }
    }
    let closing = tokio::task::spawn_blocking(move || {
        fleet.shutdown();
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

/// The configuration cannot be used. A mistake in it stays one: 2, and a service manager does not try again. A file that it names, a
/// certificate or a token, may be there a moment later: 1.
fn unusable(error: anyhow::Error) -> Failure {
    let of_a_file = |cause: &(dyn std::error::Error + 'static)| {
        let engine = cause.downcast_ref::<EngineConfigError>();
        cause.is::<std::io::Error>()
            || cause.is::<TokenFileError>()
            || cause.is::<TlsError>()
            || engine.is_some_and(EngineConfigError::is_of_a_file)
    };
    let code = if error.chain().any(of_a_file) { 1 } else { 2 };
    Failure { code, error }
}

/// Says what anybody can do who reaches a listener beyond loopback.
fn warn_of_strangers(config: &Config, access: &Access) {
    let Listen { http, grpc, tls } = &config.listen;
    for address in [http, grpc].into_iter().filter(|address| !address.ip().is_loopback()) {
        if !access.has_keys() {
            warn!(%address, "insecure: anyone who reaches this address can read cached prompts");
        } else if tls.is_none() {
            warn!(%address, "no TLS beyond loopback: tokens and prompts can be read on the way");
        }
    }
}

/// What can be changed while running.
struct Running {
    args: ServeArgs,
    started: Config,
    fleet: Fleet,
    reports: Arc<Reports>,
    plane: Arc<Plane>,
    access: Arc<Access>,
    tls: Option<Arc<Tls>>,
    addresses: Addresses,
    manager: Arc<Manager>,
}

/// Where the servers listen.
struct Addresses {
    http: SocketAddr,
    grpc: SocketAddr,
}

impl Addresses {
    /// A line for whoever looks at the service.
    fn status(&self, plane: &Plane) -> String {
        let (engines, streams) = (plane.engines().len(), plane.streams().count());
        format!("engines: {engines}, streams: {streams}, http: {}, grpc: {}", self.http, self.grpc)
    }
}

impl Running {
    /// Reads the configuration again at every SIGHUP, and applies what it says about engines, reports and who may ask.
    async fn reload_on(self, mut hangup: Signal) {
        while hangup.recv().await.is_some() {
            self.manager.reloading();
            let outcome = self.reload().await;
            let mut status = self.addresses.status(&self.plane);
            if let Err(error) = outcome {
                error!(error = format!("{error:#}"), "configuration not reloaded: nothing has changed");
                status += "; configuration not reloaded, see the log";
                // Why may quote the file: that is for the log alone.
                let words = "configuration not reloaded, see the log: nothing has changed";
                self.plane.remark(Said::new("reload", Mood::Bad, words));
            }
            self.manager.ready(&status).await;
        }
    }

    async fn reload(&self) -> anyhow::Result<()> {
        let config = config::load(&self.args, std::env::vars())?;
        // A file that is just being written looks like this, too.
        if config.engine.is_empty() && !self.started.engine.is_empty() {
            bail!("no engine is configured any more; `kvplane engines remove` removes the last one");
        }
        let restart = config.differs_in(&self.started)?;
        // Everything is read before anything is applied.
        let (plans, reported) = (config.plans()?, config.reports()?);
        let keys = config.keys()?;
        let certificates = self.tls.as_ref().map(|tls| tls.read_again()).transpose().context("listen.tls")?;
        if keys.is_empty() && self.access.has_keys() {
            bail!(KeysError::Gone);
        }
        let Reloaded { added, removed, changed, unchanged, failed } = self.fleet.reload(plans).await?;
        let reports = self.reports.set(&self.plane, reported);
        self.access.replace(keys)?;
        if let Some((tls, certificates)) = self.tls.as_ref().zip(certificates) {
            tls.replace(certificates);
        }
        if !restart.is_empty() {
            warn!(keys = restart.join(", "), "changed in the configuration, and needs a restart");
        }
        info!(
            added,
            removed,
            changed,
            unchanged,
            failed,
            reports_begun = reports.begun,
            reports_ended = reports.ended,
            "configuration reloaded"
        );
        Ok(())
    }
}
