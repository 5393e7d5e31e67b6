//! `kvplane serve`.

use std::io::IsTerminal as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use kvplane_access::{Access, Tls, TlsError, descriptor_limit};
use kvplane_ingest::{Mood, Origin, Plane, PlaneOptions, Said, TokenFileError};
use kvplane_report::Reports;
use kvplane_server::{EngineConfigError, Fleet, FleetError, PickerSetup, Reloaded, Service};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info, warn};

use super::{Failure, bind, closing, stop_signal, usage};
use crate::args::ServeArgs;
use crate::config::{self, Config, Listen, PickerPlan};
use crate::logging;
use crate::systemd::Manager;

pub(crate) async fn run(args: ServeArgs) -> Result<(), Failure> {
    let config = config::environment().and_then(|found| config::load(&args, found)).map_err(unusable)?;
    if args.dump_config {
        let text = toml::to_string(&config).context("cannot print the configuration")?;
        std::io::stdout().write_all(text.as_bytes()).context("cannot print the configuration")?;
        return Ok(());
    }
    let plans = config.plans().map_err(unusable)?;
    let reported = config.reports().map_err(unusable)?;
    let peers = config.peers().map_err(unusable)?;
    logging::start(&args.log).map_err(usage)?;
    use_small_pages();
    reserve_descriptors();
    let manager = Arc::new(Manager::from_env());
    let access = Arc::new(config.access(args.insecure).map_err(unusable)?);
    let tls = config.tls().map_err(unusable)?;
    let picker = config.picker.plan(&access).map_err(unusable)?;
    let read = config.clone();
    let prompts = aside(move || read.prompts()).await.map_err(unusable)?;
    let stop = stop_signal(None)?;
    let hangup = signal(SignalKind::hangup()).context("cannot listen for signals")?;

    // Everything that can fail without an engine fails before an engine is contacted.
    let http = bind("listen.http", config.listen.http).await?;
    let grpc = bind("listen.grpc", config.listen.grpc).await?;
    warn_of_strangers(&config, &access);
    let options = PlaneOptions { peers, ..config.plane_options() };
    let plane = Plane::start(Vec::new(), &options).context("cannot start the socket threads")?;
    let service = Service::new(plane.clone(), config.server_options(access.clone(), tls.clone(), prompts));
    let (fleet, reports) = (service.fleet(), service.reports());
    let service = match picker {
        Some(plan) => service.with_picker(bind_picker(plan, config.picker.drain.0).await?),
        None => service,
    };
    if plans.is_empty() {
        warn!("no engine is configured: add one with `kvplane engines add`, or let engines register");
    }
    let (count, drain) = (plans.len(), config.listen.drain_timeout);
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
    addresses.show(config.listen.tls.is_some());
    manager.ready(&addresses.status(&plane)).await;
    let running = Running {
        args: Arc::new(args),
        started: config,
        fleet: fleet.clone(),
        reports: reports.clone(),
        plane: plane.clone(),
        access,
        tls,
        addresses,
        manager: manager.clone(),
    };
    kvplane_runtime::spawn(
        "reload on SIGHUP",
        stop.clone().run_until_cancelled_owned(running.reload_on(hangup)),
    );
    let serving = service.run(http, grpc, stop.clone());
    tokio::pin!(serving);
    let stopped_early = tokio::select! {
        () = &mut serving => true,
        () = stop.cancelled() => false,
        never = manager.show_life(|| plane.longest_socket_round()) => match never {},
    };
    manager.stopping(drain.0);
    let code = i32::from(stopped_early);
    closing::exit_after(&plane, drain.0.saturating_add(closing::MARGIN), move || std::process::exit(code));
    if stopped_early {
        reports.shutdown().await;
    } else {
        info!(drain_timeout = %drain, "stopping: draining connections");
        let draining =
            async { tokio::join!(tokio::time::timeout(drain.0, &mut serving), reports.shutdown()) };
        let (served, ()) = tokio::select! {
            drained = draining => drained,
            never = manager.show_life(|| plane.longest_socket_round()) => match never {},
        };
        if served.is_err() {
            warn!(drain_timeout = %drain, "drain timeout reached; closing the connections that are left");
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

/// Opens the picker's listeners.
async fn bind_picker(plan: PickerPlan, drain: Duration) -> anyhow::Result<PickerSetup> {
    let PickerPlan { listen, health, tls, options, endpoints, endpoints_file } = plan;
    if let Some(path) = &endpoints_file {
        // Followed later; a mistake in it is told now.
        let text = std::fs::read_to_string(path);
        let named = || format!("picker.endpoints_file: {}", path.display());
        kvplane_picker::read_endpoints(&text.with_context(named)?).with_context(named)?;
    }
    let listener = bind("picker.listen", listen).await?;
    let health = match health {
        Some(address) => Some(bind("picker.health", address).await?),
        None => None,
    };
    let shown = |listener: &TcpListener| listener.local_addr().map(|at| at.to_string()).unwrap_or_default();
    info!(
        address = shown(&listener),
        health = health.as_ref().map(shown).unwrap_or_default(),
        tls = tls.is_some(),
        "picker listening"
    );
    Ok(PickerSetup { listener, health, tls, options, endpoints, endpoints_file, drain })
}

/// Keeps the kernel from backing memory with huge pages. The first touch of one clears 2 MiB, for up to
/// milliseconds, on a thread that others wait for: bodies that came in faster than they could be refused held
/// up every question for 0.2 s.
fn use_small_pages() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        warn!(%error, "transparent huge pages not disabled");
    }
}

/// Descriptors for which there is room from the start.
const DESCRIPTORS: u64 = 16_384;

/// Makes the kernel's table of descriptors large enough at once. It grows by doubling, and in a process with threads
/// each time waits for all processors to pass by (10 ms and more): a burst of connections would hold up whoever
/// accepts them.
fn reserve_descriptors() {
    let allowed = descriptor_limit().unwrap_or(DESCRIPTORS).min(DESCRIPTORS);
    let highest = i32::try_from(allowed.saturating_sub(1)).unwrap_or(i32::MAX);
    // Closed at once: the table keeps its size.
    if let Err(error) = rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), highest) {
        warn!(%error, highest, "no room reserved for descriptors");
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
    let Listen { http, grpc, tls, .. } = &config.listen;
    for address in [http, grpc].into_iter().filter(|address| !address.ip().is_loopback()) {
        if access.has_open_networks() && address == http {
            let (open, read) = (config.indexer.open.join(", "), config.indexer.open_read.join(", "));
            warn!(%address, open, read, "the routes of an indexer are open to these networks without a key");
        }
        if !access.has_keys() && !access.is_insecure() {
            continue;
        }
        if !access.has_keys() {
            warn!(%address, "insecure: anyone who reaches this address can read cached prompts");
        } else if tls.is_none() {
            warn!(%address, "no TLS beyond loopback: tokens and prompts can be read on the way");
        }
    }
}

/// What can be changed while running.
struct Running {
    args: Arc<ServeArgs>,
    started: Config,
    fleet: Fleet,
    reports: Arc<Reports>,
    plane: Arc<Plane>,
    access: Arc<Access>,
    tls: Option<Arc<Tls>>,
    addresses: Addresses,
    manager: Arc<Manager>,
}

/// A reload that did not come to its end.
struct Interrupted {
    /// What is in effect already.
    applied: Vec<&'static str>,
    /// What could not be applied; neither is what comes after it.
    error: anyhow::Error,
}

/// Where the servers listen.
struct Addresses {
    http: SocketAddr,
    grpc: SocketAddr,
}

impl Addresses {
    /// On a terminal, where to look: addresses that can be opened by a click.
    fn show(&self, tls: bool) {
        if !std::io::stderr().is_terminal() {
            return;
        }
        let scheme = if tls { "https" } else { "http" };
        // Nobody can open "any address".
        let reachable = |address: SocketAddr| {
            let mut shown = address;
            if address.ip().is_unspecified() {
                shown.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
            }
            format!("{scheme}://{shown}")
        };
        let (http, grpc) = (reachable(self.http), reachable(self.grpc));
        eprintln!(
            "dashboard  {http}/\nmetrics    {http}/metrics\ngRPC       {grpc}\nstatus     kvplane status --server {http}"
        );
    }

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
            let mut status = String::new();
            if let Err(Interrupted { applied, error }) = self.reload().await {
                let error = format!("{error:#}");
                // The reason may quote the file: that is for the log alone.
                let words = if applied.is_empty() {
                    error!(error, "configuration not reloaded: nothing has changed");
                    status.push_str("; configuration not reloaded, see the log");
                    "configuration not reloaded, see the log: nothing has changed".to_owned()
                } else {
                    let applied = applied.join(", ");
                    error!(error, applied, "configuration applied in part");
                    status.push_str("; configuration applied in part, see the log");
                    format!("configuration applied in part, see the log: {applied}")
                };
                self.plane.remark(Said::new("reload", Mood::Bad, words));
            }
            self.manager.ready(&format!("{}{status}", self.addresses.status(&self.plane))).await;
        }
    }

    /// Applies one part after the other. Who may ask comes first: no mistake elsewhere holds up the revocation of a token.
    async fn reload(&self) -> Result<(), Interrupted> {
        let mut applied = Vec::new();
        self.apply(&mut applied).await.map_err(|error| Interrupted { applied, error })
    }

    async fn apply(&self, applied: &mut Vec<&'static str>) -> anyhow::Result<()> {
        let args = self.args.clone();
        let config = aside(move || config::load(&args, config::environment()?)).await?;
        let read = config.clone();
        let keys = aside(move || read.keys()).await?;
        let networks = config.networks(self.args.insecure)?;
        let auth_changed = self.access.replace(keys)? | self.access.open_to(networks);
        if auth_changed {
            applied.push("auth");
        }
        if let Some(tls) = self.tls.clone() {
            let read = tls.clone();
            tls.replace(aside(move || read.read_again().context("listen.tls")).await?);
            applied.push("certificates");
        }
        // A file that is just being written looks like this, too.
        if config.engine.is_empty() && !self.started.engine.is_empty() {
            bail!("no engine is configured any more; `kvplane engines remove` removes the last one");
        }
        let restart = config.differs_in(&self.started)?;
        // Engines and reports are both read before either is applied.
        let (plans, reported) = aside(move || Ok((config.plans()?, config.reports()?))).await?;
        let reloaded = self.fleet.reload(plans).await;
        if matches!(reloaded, Err(FleetError::BrokeOff)) {
            applied.push("some engines");
        }
        let Reloaded { added, removed, changed, unchanged, failed } = reloaded?;
        let reports = self.reports.set(&self.plane, reported);
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
            auth_changed,
            "configuration reloaded"
        );
        Ok(())
    }
}

/// Reads files off the runtime's workers.
async fn aside<T: Send + 'static>(
    read: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(read).await.context("the configuration could not be read")?
}
