//! `[[report]]`: what is reported to an inference-cache server.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use kvplane_ingest::read_token;
use kvplane_report::{
    Credentials, OutboxOptions, ReportSpec, ReporterOptions, Rules, ServerAddress, StatsOptions, Token,
    UsageOf,
};
use kvplane_server::EngineConfig;
use kvplane_transport::read_small_file;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::units::{ByteSize, Span};

/// Names that are longer than this are no names; messages have room for so much.
const NAME_MAX: usize = 1_024;
/// More than any list of certificates.
const PEM_BYTES_MAX: u64 = 4 << 20;
/// The peer's servers take writes of this tenant for probes, and drop them.
const RESERVED_TENANT: &str = "inferencecache.io/probe";

/// What is reported to one server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReportConfig {
    /// `host:port`, `http://host:port` or `https://host:port`.
    pub(crate) server: String,
    /// Certificates (PEM) to trust for https, instead of the public ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ca: Option<PathBuf>,
    /// A certificate (PEM) to show for https.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cert: Option<PathBuf>,
    /// Its private key (PEM).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<PathBuf>,
    /// The file with the bearer token that the server wants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token_file: Option<PathBuf>,
    /// Which engines; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) engines: Option<Vec<String>>,
    /// Whose they are; what the engine says when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<String>,
    /// The model's name there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<String>,
    /// How hashes are called there; the engine's kind when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) scheme: Option<String>,
    /// The engine's name there, where one engine is reported; its id when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) replica: Option<String>,
    /// How long to batch changes.
    #[serde(default = "window")]
    pub(crate) window: Span,
    /// Number of adds that are reported before the window is over.
    #[serde(default = "max_batch")]
    pub(crate) max_batch: usize,
    /// How long a call may take.
    #[serde(default = "deadline")]
    pub(crate) deadline: Span,
    /// How often every block is reported again.
    #[serde(default = "refresh")]
    pub(crate) refresh: Span,
    /// After this the server forgets what is not reported again.
    #[serde(default = "ttl")]
    pub(crate) ttl: Span,
    /// Evictions under way at a time.
    #[serde(default = "concurrency")]
    pub(crate) concurrency: usize,
    /// How often an engine's statistics are read.
    #[serde(default = "stats_interval")]
    pub(crate) stats_interval: Span,
    /// Bytes of an engine's cache; without it nothing is said of memory.
    #[serde(default = "cache_size")]
    pub(crate) cache_size: ByteSize,
    /// Requests at which an engine counts as fully busy.
    #[serde(default = "max_requests")]
    pub(crate) max_requests: u32,
    /// Which number says how full a cache is.
    #[serde(default)]
    pub(crate) cache_tier: CacheTierName,
}

fn window() -> Span {
    Span(OutboxOptions::default().window)
}

fn max_batch() -> usize {
    OutboxOptions::default().max_batch
}

fn deadline() -> Span {
    Span(ReporterOptions::default().deadline)
}

fn refresh() -> Span {
    Span(OutboxOptions::default().refresh)
}

fn ttl() -> Span {
    Span(Duration::from_mins(30))
}

fn concurrency() -> usize {
    OutboxOptions::default().concurrency
}

fn stats_interval() -> Span {
    Span(StatsOptions::default().interval)
}

fn cache_size() -> ByteSize {
    ByteSize(0)
}

fn max_requests() -> u32 {
    StatsOptions::default().ceiling
}

/// Which number says how full a cache is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CacheTierName {
    /// The whole cache, or the fuller of the two where that is not said
    #[default]
    Auto,
    /// The whole cache
    Kv,
    /// The device
    Gpu,
    /// The host
    Cpu,
}

impl From<CacheTierName> for UsageOf {
    fn from(name: CacheTierName) -> Self {
        match name {
            CacheTierName::Auto => Self::Auto,
            CacheTierName::Kv => Self::Kv,
            CacheTierName::Gpu => Self::Gpu,
            CacheTierName::Cpu => Self::Cpu,
        }
    }
}

impl ReportConfig {
    /// Everything as it is by default.
    #[cfg(test)]
    fn to(server: &str) -> Self {
        toml::from_str(&format!("server = {server:?}")).unwrap()
    }

    /// Finds every mistake that can be found without touching the network. Reads certificates and the token.
    pub(crate) fn spec(&self) -> anyhow::Result<ReportSpec> {
        let server = ServerAddress::new(&self.server, self.credentials()?).context("server")?;
        let names = [
            ("tenant", &self.tenant),
            ("model", &self.model),
            ("scheme", &self.scheme),
            ("replica", &self.replica),
        ];
        for (key, name) in names {
            check_name(key, name.as_deref())?;
        }
        if self.replica.is_some() && self.engines.as_ref().is_none_or(|engines| engines.len() != 1) {
            bail!("replica: names one engine: name that one in engines");
        }
        let (outbox, deadline) = (self.outbox(), self.deadline.0);
        check_times(&outbox, deadline, self.ttl.0, self.stats_interval.0)?;
        check_range("max_batch", self.max_batch, 1, 65_536)?;
        check_range("concurrency", self.concurrency, 1, 1_024)?;
        check_range("max_requests", self.max_requests as usize, 1, usize::MAX)?;
        Ok(ReportSpec {
            engines: self.engines.clone(),
            tenant: self.tenant.clone(),
            model: self.model.clone(),
            scheme: self.scheme.clone(),
            replica: self.replica.clone(),
            reporter: ReporterOptions { outbox, deadline },
            stats: StatsOptions {
                interval: self.stats_interval.0,
                cache_bytes: self.cache_size.0 as u64,
                ceiling: self.max_requests,
                usage: self.cache_tier.into(),
                model_name: String::new(),
            },
            metrics_url: None,
            rules: Rules::default(),
            ..ReportSpec::new(server)
        })
    }

    fn credentials(&self) -> anyhow::Result<Credentials> {
        let certificate = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((read("cert", cert)?, read("key", key)?)),
            (None, None) => None,
            (Some(_), None) => bail!("cert: needs its key: set key to the file that has it"),
            (None, Some(_)) => bail!("key: needs its cert: set cert to the file that has it"),
        };
        let token = match &self.token_file {
            Some(path) => {
                read_token(path).context("token_file")?;
                Token::File(path.clone())
            }
            None => Token::default(),
        };
        let ca = self.ca.as_deref().map(|path| read("ca", path)).transpose()?;
        Ok(Credentials { ca, certificate, token })
    }

    fn outbox(&self) -> OutboxOptions {
        OutboxOptions {
            window: self.window.0,
            max_batch: self.max_batch,
            concurrency: self.concurrency,
            refresh: self.refresh.0,
            ..OutboxOptions::default()
        }
    }
}

fn read(key: &str, path: &Path) -> anyhow::Result<Vec<u8>> {
    read_small_file(path, PEM_BYTES_MAX).with_context(|| format!("{key}: cannot read {}", path.display()))
}

/// Rejects two reports on one replica, as far as that can be known of engines that may come.
pub(super) fn check_distinct(reports: &[ReportSpec], engines: &[EngineConfig]) -> anyhow::Result<()> {
    let configured = engines.iter().map(|engine| (&*engine.id, &*engine.model, engine.tenant.as_deref()));
    // Nothing is empty in a report: an engine whose model and tenant are empty differs from what a report
    // names. The one without a name stands for all that nobody names.
    let named = reports.iter().flat_map(|report| report.engines.iter().flatten()).map(String::as_str);
    let unknown = named.filter(|name| engines.iter().all(|engine| engine.id != **name)).chain([""]);
    let mut known = HashMap::new();
    for (engine, model, tenant) in configured.chain(unknown.map(|id| (id, "", Some("")))) {
        for (at, report) in reports.iter().enumerate() {
            let Some(replica) = report.replica_name(engine, model, tenant) else { continue };
            match known.entry(replica) {
                Entry::Vacant(free) => drop(free.insert(at)),
                // `engines` may have a name twice.
                Entry::Occupied(first) if *first.get() == at => {}
                Entry::Occupied(first) => bail!(
                    "report[{at}]: names a replica as report[{}] does (by server, engines, tenant, model and replica): \
                     each would withdraw what the other tells; let them differ in one of these",
                    first.get()
                ),
            }
        }
    }
    Ok(())
}

/// Times that can be, also for the sidecar.
pub(crate) fn check_times(
    outbox: &OutboxOptions,
    deadline: Duration,
    ttl: Duration,
    stats_interval: Duration,
) -> anyhow::Result<()> {
    let (ms, minute) = (Duration::from_millis(1), Duration::from_mins(1));
    for (key, given, least, most) in [
        ("window", outbox.window, ms, minute),
        ("deadline", deadline, 10 * ms, 10 * minute),
        ("refresh", outbox.refresh, 1_000 * ms, Duration::MAX),
        ("stats_interval", stats_interval, 100 * ms, Duration::MAX),
    ] {
        if given < least || given > most {
            bail!("{key}: {given:?} is not between {least:?} and {most:?}: choose one that is");
        }
    }
    if outbox.refresh >= ttl / 2 {
        bail!(
            "refresh: {:?} is not less than half of the server's ttl ({ttl:?}): make it shorter",
            outbox.refresh
        );
    }
    Ok(())
}

fn check_range(key: &str, given: usize, least: usize, most: usize) -> anyhow::Result<()> {
    if given < least || given > most {
        bail!("{key}: must be {least} to {most}, not {given}");
    }
    Ok(())
}

fn check_name(key: &str, name: Option<&str>) -> anyhow::Result<()> {
    match name {
        Some("") => bail!("{key}: must not be empty: leave it out"),
        Some(name) if name.len() > NAME_MAX => bail!("{key}: is longer than {NAME_MAX} bytes: shorten it"),
        Some(RESERVED_TENANT) if key == "tenant" => {
            bail!("{key}: is reserved for probes: choose another name")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_enough() {
        let spec = ReportConfig::to("127.0.0.1:9090").spec().unwrap();
        assert_eq!(
            spec,
            ReportSpec::new(ServerAddress::new("127.0.0.1:9090", Credentials::default()).unwrap())
        );
    }

    #[test]
    fn mistakes_name_their_key() {
        let cases: [(&str, &str); 15] = [
            ("server = \"nowhere\"", "server"),
            ("server = \"h:1\"\nca = \"/nowhere.pem\"", "ca"),
            ("server = \"https://h:1\"\ncert = \"/nowhere.pem\"", "cert"),
            ("server = \"https://h:1\"\nkey = \"/nowhere.pem\"", "key"),
            ("server = \"h:1\"\ntoken_file = \"/nowhere\"", "token_file"),
            ("server = \"h:1\"\ntenant = \"\"", "tenant"),
            ("server = \"h:1\"\ntenant = \"inferencecache.io/probe\"", "tenant"),
            ("server = \"h:1\"\nreplica = \"r\"", "replica"),
            ("server = \"h:1\"\nwindow = \"0s\"", "window"),
            ("server = \"h:1\"\nrefresh = \"15m\"", "refresh"),
            ("server = \"h:1\"\nttl = \"20m\"", "refresh"),
            ("server = \"h:1\"\nmax_batch = 0", "max_batch"),
            ("server = \"h:1\"\nconcurrency = 0", "concurrency"),
            ("server = \"h:1\"\ndeadline = \"1ms\"", "deadline"),
            ("server = \"h:1\"\nstats_interval = \"1ms\"", "stats_interval"),
        ];
        for (text, key) in cases {
            let error = toml::from_str::<ReportConfig>(text).unwrap().spec().unwrap_err();
            assert!(format!("{error:#}").starts_with(key), "{error:#}");
        }
        assert!(toml::from_str::<ReportConfig>("server = \"h:1\"\ncolour = 1").is_err());
    }

    #[test]
    fn a_replica_is_reported_by_one_report() {
        let engine = r#"{"id": "a", "kind": "vllm", "model": "m", "events": "tcp://h:1", "tenant": "t"}"#;
        let engines: [EngineConfig; 1] = [serde_json::from_str(engine).unwrap()];
        let distinct = |one: &str, other: &str| {
            let specs =
                [one, other].map(|text| toml::from_str::<ReportConfig>(text).unwrap().spec().unwrap());
            check_distinct(&specs, &engines)
        };
        for (one, other) in [
            ("server = 'h:1'", "server = 'HTTP://H:1/'\nscheme = 's'"),
            ("server = 'h:1'", "server = 'h:1'\nengines = ['x', 'x']"),
            ("server = 'h:1'\nengines = ['x']\ntenant = 'u'", "server = 'h:1'\ntenant = 'u'"),
            ("server = 'h:1'\nengines = ['a']\nmodel = 'm'", "server = 'h:1'\nengines = ['a']\ntenant = 't'"),
            ("server = 'h:1'\nengines = ['x']", "server = 'h:1'\nengines = ['y']\nreplica = 'x'"),
        ] {
            let error = distinct(one, other).unwrap_err().to_string();
            assert!(error.contains("report[1]") && error.contains("report[0]"), "{error}");
        }
        for (one, other) in [
            ("server = 'h:1'", "server = 'h:2'"),
            ("server = 'h:1'\nengines = ['a']", "server = 'h:1'\nengines = ['b', 'b']"),
            ("server = 'h:1'\ntenant = 'one'", "server = 'h:1'\ntenant = 'two'"),
            ("server = 'h:1'\nengines = ['x']", "server = 'h:1'\nengines = ['x']\nmodel = 'n'"),
        ] {
            distinct(one, other).unwrap();
        }
    }
}
