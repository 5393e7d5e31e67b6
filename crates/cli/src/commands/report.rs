//! `kvplane report`: one engine, reported to a server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use kvplane_access::{Access, Keys};
use kvplane_core::EngineKind;
use kvplane_ingest::PlaneOptions;
use kvplane_report::{
    AdapterNames, OutboxOptions, ReportSpec, ReporterOptions, Rules, ServerAddress, StatsOptions,
};
use kvplane_server::{EngineConfig, EnginePlan, HintsOptions, Options};
use tracing::{info, warn};

use super::{Failure, bind, stop_signal, usage};
use crate::app::{App, MARGIN};
use crate::args::ReportArgs;
use crate::config::check_times;
use crate::logging;
use crate::version::COMMIT;

/// What servers of the original forget after.
const SERVER_TTL: Duration = Duration::from_mins(30);
/// Blocks of a rank that are reported as behind the device after they left it, where the engine does not say.
const KEEP_LEFT: usize = 1_000_000;

/// After a stop: reports end within 5 s, then sockets close. The process ends 6 s after it at the latest.
const DRAIN: Duration = Duration::from_secs(6).saturating_sub(MARGIN);

pub(crate) async fn run(args: ReportArgs) -> Result<(), Failure> {
    let spec = spec(&args).map_err(usage)?;
    let plan = plan(&args).map_err(usage)?;
    if let Some(address) = args.metrics_listen.filter(|at| !at.ip().is_loopback() && !args.insecure) {
        let danger = "anyone who reaches it could see the engines' metrics";
        return Err(usage(anyhow!(
            "--metrics-listen: {address} is beyond loopback, and {danger}: start with --insecure"
        )));
    }
    logging::start(&args.log).map_err(usage)?;
    let stop = stop_signal(None)?;
    let listener = match args.metrics_listen {
        Some(address) => Some(bind("--metrics-listen", address).await?),
        None => None,
    };
    if args.tenant_id.is_empty() {
        warn!("--tenant-id is empty: lookups with an empty tenant always get NO_HINT");
    }
    let access = Arc::new(Access::new(Keys::default(), args.insecure));
    // It reports, and answers nobody.
    let hints = HintsOptions { enabled: false, ..HintsOptions::default() };
    let options = Options { hints, access, commit: COMMIT, drain_timeout: DRAIN, ..Options::default() };
    let (app, service) = App::start(&PlaneOptions::default(), options)?;
    app.add(vec![plan]).await?;
    info!(engine = args.engine_endpoint, server = spec.server.url(), replica = args.replica_id, "reporting");
    app.reports.set(&app.plane, vec![spec]);
    if let Some(listener) = listener {
        info!(address = %listener.local_addr().context("--metrics-listen")?, "metrics");
        kvplane_runtime::spawn("report pages", service.run_pages(listener, stop.clone()));
    }
    // Reports go on without their pages.
    app.run(stop.clone().cancelled_owned(), &stop, None).await
}

/// The engine, as `serve` would have it.
fn plan(args: &ReportArgs) -> anyhow::Result<EnginePlan> {
    // What the scheme says is also what the engine is, unless somebody made the scheme up.
    let kind = args.hash_scheme.parse().unwrap_or(EngineKind::Vllm);
    let engine = serde_json::json!({
        "id": args.replica_id,
        "kind": kind.as_str(),
        "model": args.model_id,
        "events": args.engine_endpoint,
        "replay": args.replay,
        "topic": args.topic,
    });
    let engine: EngineConfig = serde_json::from_value(engine).context("cannot describe the engine")?;
    engine.plan().map_err(|error| anyhow!("{}", flag_of(&error.to_string())))
}

/// The flag that a key of an engine stands for.
fn flag_of(error: &str) -> String {
    let flags = [("id:", "--replica-id:"), ("events:", "--engine-endpoint:"), ("replay:", "--replay:")];
    let found =
        flags.iter().find_map(|(key, flag)| error.strip_prefix(key).map(|rest| format!("{flag}{rest}")));
    found.unwrap_or_else(|| error.to_owned())
}

fn spec(args: &ReportArgs) -> anyhow::Result<ReportSpec> {
    for (flag, value) in [
        ("--replica-id", &args.replica_id),
        ("--model-id", &args.model_id),
        ("--hash-scheme", &args.hash_scheme),
    ] {
        if value.is_empty() {
            bail!("{flag}: must not be empty: name what the server knows it by");
        }
    }
    let server = ServerAddress::new(&args.server, args.key.credentials()?).context("--server")?;
    let adapter_names = adapter_names(&args.lora_adapter_names).context("--lora-adapter-names")?;
    let outbox = OutboxOptions { window: args.window.0, refresh: args.refresh.0, ..OutboxOptions::default() };
    let reporter = ReporterOptions { outbox, ..ReporterOptions::default() };
    check_times(&outbox, reporter.deadline, SERVER_TTL, args.stats_interval.0)?;
    let metrics = &args.engine_metrics_url;
    if !metrics.is_empty() && !metrics.starts_with("http://") {
        bail!("--engine-metrics-url: {metrics:?} is not a URL like http://127.0.0.1:8000/metrics");
    }
    Ok(ReportSpec {
        tenant: Some(args.tenant_id.clone()),
        model: Some(args.model_id.clone()),
        scheme: Some(args.hash_scheme.clone()),
        replica: Some(args.replica_id.clone()),
        reporter,
        stats: StatsOptions {
            interval: args.stats_interval.0,
            cache_bytes: args.engine_cache_size_bytes,
            ceiling: args.max_concurrency_ceiling,
            usage: args.cache_tier.into(),
            model_name: args.engine_model_name.clone(),
        },
        metrics_url: Some(metrics.clone()).filter(|url| !url.is_empty()),
        rules: Rules { adapter_names, keep_left: if args.ignore_block_removed { KEEP_LEFT } else { 0 } },
        ..ReportSpec::new(server)
    })
}

/// `1=sql-lora,2=chat-lora`.
fn adapter_names(text: &str) -> anyhow::Result<AdapterNames> {
    let mut names = BTreeMap::new();
    for pair in text.split(',').filter(|_| !text.is_empty()) {
        let (number, name) = pair
            .split_once('=')
            .ok_or_else(|| anyhow!("{pair:?} is not ID=NAME, as in 1=sql-lora,2=chat-lora"))?;
        let (number, name) = (number.trim(), name.trim());
        let id: i64 = number.parse().map_err(|_| anyhow!("{number:?} is not a number: write ID=NAME"))?;
        if name.is_empty() {
            bail!("{id} has no name: write {id}=NAME");
        }
        if names.values().any(|known: &Arc<str>| **known == *name) {
            bail!("{name:?} is there twice: leave one out");
        }
        if names.insert(id, Arc::from(name)).is_some() {
            bail!("{id} is there twice: leave one out");
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_are_numbers_and_names() {
        assert_eq!(adapter_names("").unwrap(), BTreeMap::new());
        let names = adapter_names("1=sql-lora, 2=chat-lora").unwrap();
        assert_eq!(names, BTreeMap::from([(1, Arc::from("sql-lora")), (2, Arc::from("chat-lora"))]));
        for wrong in ["1=a,1=b", "1=a,2=a", "1=", "x=a", "1", "1=a,", ","] {
            assert!(adapter_names(wrong).is_err(), "{wrong}");
        }
    }
}
