//! `kvplane serve`.

use std::io::IsTerminal as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use kvplane_access::{Access, Tls, TlsError, TlsRead, descriptor_limit};
use kvplane_ingest::{Durable, DurableSpec, Mood, Plane, PlaneOptions, Said, TokenFileError};
use kvplane_picker::{Rules, follow_file};
use kvplane_server::{EngineConfigError, FleetError, GatewaySetup, PickerSetup, Reloaded};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

#[cfg(feature = "kubernetes")]
use super::serve_kubernetes;
use super::{Failure, bind, stop_signal, usage};
use crate::app::App;
use crate::args::ServeArgs;
use crate::config::{self, Config, GatewayPlan, Listen, PickerPlan};
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
    #[cfg(feature = "kubernetes")]
    let sources = config.discovered().map_err(unusable)?;
    #[cfg(not(feature = "kubernetes"))]
    config.check_discovered().map_err(unusable)?;
    logging::start(&args.log).map_err(usage)?;
    use_small_pages();
    reserve_descriptors();
    let manager = Arc::new(Manager::from_env());
    let access = Arc::new(config.access(args.insecure).map_err(unusable)?);
    let tls = config.tls().map_err(unusable)?;
    let picker = config.picker.plan(&access).map_err(unusable)?;
    let gateway = config.gateway.plan(&access, &config.auth.names()).map_err(unusable)?;
    let read = config.clone();
    let prompts = aside(move || read.prompts()).await.map_err(unusable)?;
    let certificates = [
        ("listen.tls", tls.clone()),
        ("picker.tls", picker.as_ref().and_then(|plan| plan.tls.clone())),
        ("gateway.tls", gateway.as_ref().and_then(|plan| plan.tls.clone())),
    ];
    let stop = stop_signal(None)?;
    let hangup = signal(SignalKind::hangup()).context("cannot listen for signals")?;

    // Everything that can fail without an engine fails before an engine is contacted.
    let http = bind("listen.http", config.listen.http).await?;
    let grpc = bind("listen.grpc", config.listen.grpc).await?;
    warn_of_strangers(&config, &access);
    let durable = match config.journal.durable() {
        Some(spec) => Some(open_journal(spec).await?),
        None => None,
    };
    let options = PlaneOptions { peers, durable, ..config.plane_options() };
    let served = config.server_options(access.clone(), tls.clone(), prompts);
    #[cfg(feature = "kubernetes")]
    let board = served.discovery.clone();
    let (app, service) = App::start(&options, served)?;
    let service = match picker {
        Some(plan) => service.with_picker(bind_picker(plan, config.picker.drain.0, stop.clone()).await?),
        None => service,
    };
    let service = match gateway {
        Some(plan) => service.with_gateway(bind_gateway(plan).await?),
        None => service,
    };
    if plans.is_empty() && config.discover.is_empty() {
        warn!("no engine is configured: add one with `kvplane engines add`, or let engines register");
    }
    let count = plans.len();
    app.add(plans).await?;
    #[cfg(feature = "kubernetes")]
    serve_kubernetes::discover(sources, &board, &app.fleet, &stop);
    app.reports.set(&app.plane, reported);
    let addresses = Addresses {
        http: http.local_addr().context("listen.http")?,
        grpc: grpc.local_addr().context("listen.grpc")?,
    };
    info!(
        http = %addresses.http,
        grpc = %addresses.grpc,
        engines = count,
        streams = app.plane.streams().count(),
        "serving"
    );
    addresses.show(config.listen.tls.is_some());
    manager.ready(&addresses.status(&app.plane)).await;
    let running = Running {
        args: Arc::new(args),
        started: config,
        app: app.clone(),
        access,
        tls: certificates.into_iter().filter_map(|(key, tls)| Some((key, tls?))).collect(),
        addresses,
        manager: manager.clone(),
    };
    kvplane_runtime::spawn(
        "reload on SIGHUP",
        stop.clone().run_until_cancelled_owned(running.reload_on(hangup)),
    );
    app.run(Box::pin(service.run(http, grpc, stop.clone())), &stop, Some(&manager)).await
}

/// Opens the durable journal and reads what streams remember.
async fn open_journal(spec: DurableSpec) -> anyhow::Result<Arc<Durable>> {
    let named = format!("journal.dir: {}", spec.dir.display());
    let opened = tokio::task::spawn_blocking(move || Durable::open(&spec)).await.context("journal.dir")?;
    let opened = opened.map_err(|error| match error.kind() {
        std::io::ErrorKind::ResourceBusy => anyhow!("another kvplane has it"),
        _ => anyhow::Error::new(error),
    });
    opened.map(Arc::new).context(named)
}

/// Opens the picker's listeners.
async fn bind_picker(
    plan: PickerPlan,
    drain: Duration,
    stop: CancellationToken,
) -> anyhow::Result<PickerSetup> {
    #[cfg(feature = "kubernetes")]
    let watched = plan.watched.clone();
    let PickerPlan { listen, health, tls, options, endpoints, endpoints_file, watched: _ } = plan;
    let rules = match endpoints_file {
        #[cfg(feature = "kubernetes")]
        None if watched.is_some() => serve_kubernetes::follow_pool_of(watched, endpoints, &stop)?,
        Some(path) => {
            let named = || format!("picker.endpoints_file: {}", path.display());
            follow_file(endpoints, path.clone(), stop).await.with_context(named)?
        }
        None => watch::channel(Rules::of(endpoints)).1,
    };
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
    Ok(PickerSetup { listener, health, tls, options, rules, drain })
}

/// Opens the gateway's listener.
async fn bind_gateway(plan: GatewayPlan) -> anyhow::Result<GatewaySetup> {
    let GatewayPlan { listen, tls, options, endpoints } = plan;
    let listener = bind("gateway.listen", listen).await?;
    let address = listener.local_addr().context("gateway.listen")?;
    info!(%address, tls = tls.is_some(), "gateway listening");
    Ok(GatewaySetup { listener, tls, options, endpoints })
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

/// Makes the kernel's table of descriptors large enough at once. It grows by doubling, and in a process with
/// threads each time waits for all processors to pass by (10 ms and more): a burst of connections would hold
/// up the task that accepts them.
fn reserve_descriptors() {
    let allowed = descriptor_limit().unwrap_or(DESCRIPTORS).min(DESCRIPTORS);
    let highest = i32::try_from(allowed.saturating_sub(1)).unwrap_or(i32::MAX);
    // Closed at once: the table keeps its size.
    if let Err(error) = rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), highest) {
        warn!(%error, highest, "no room reserved for descriptors");
    }
}

/// The configuration cannot be used. A mistake in it stays one: 2, and a service manager does not try again.
/// A file that it names, a certificate or a token, may be there a moment later: 1.
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
    app: App,
    access: Arc<Access>,
    /// Of every listener that has some, with its key.
    tls: Vec<(&'static str, Arc<Tls>)>,
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

    /// The status line that a service manager shows.
    fn status(&self, plane: &Plane) -> String {
        let (engines, streams) = (plane.engines().len(), plane.streams().count());
        format!("engines: {engines}, streams: {streams}, http: {}, grpc: {}", self.http, self.grpc)
    }
}

impl Running {
    /// Reads the configuration again at every SIGHUP, and applies what it says about engines, reports and who
    /// may ask.
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
                self.app.plane.remark(Said::new("reload", Mood::Bad, words));
            }
            self.manager.ready(&format!("{}{status}", self.addresses.status(&self.app.plane))).await;
        }
    }

    /// Applies one part after the other. Who may ask comes first: no mistake elsewhere holds up the
    /// revocation of a token.
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
        if !self.tls.is_empty() {
            let files = self.tls.clone();
            let again = move || files.iter().map(|(key, tls)| tls.read_again().context(*key)).collect();
            // All of them are read before one is replaced.
            let read: Vec<TlsRead> = aside(again).await?;
            for ((_, tls), read) in self.tls.iter().zip(read) {
                tls.replace(read);
            }
            applied.push("certificates");
        }
        // A file that is just being written looks like this, too.
        if config.engine.is_empty() && !self.started.engine.is_empty() {
            bail!(
                "the new configuration has no engines: keeping the old one; `kvplane engines remove` removes the last engine"
            );
        }
        let restart = config.differs_in(&self.started)?;
        // Engines and reports are both read before either is applied.
        let (plans, reported) = aside(move || Ok((config.plans()?, config.reports()?))).await?;
        let reloaded = self.app.fleet.reload(plans).await;
        if matches!(reloaded, Err(FleetError::BrokeOff)) {
            applied.push("some engines");
        }
        let Reloaded { added, removed, changed, unchanged, failed } = reloaded?;
        let reports = self.app.reports.set(&self.app.plane, reported);
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
