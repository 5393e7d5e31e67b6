//! A configuration, and the engines in it.

use kvplane_access::{Listener, descriptor_limit};
use kvplane_discovery::AddressError;
use kvplane_doctor::{
    Code, Examination, Finding, OpenSocket, SetUp, Severity, Window, examine, hide_userinfo, judge_set_up,
};
use kvplane_ingest::{EngineSpec, check_engines};
use kvplane_server::{EngineConfig, EngineConfigError};

use super::Looked;
use crate::args::{DoctorArgs, LogArgs, LogFormat, ServeArgs};
use crate::commands::{Failure, usage};
use crate::config::{self, Config};

/// Looks at what is configured.
pub(super) async fn look(args: &DoctorArgs, looked: &mut Looked) -> Result<(), Failure> {
    let subject =
        args.config.as_ref().map_or_else(|| "--engine".to_owned(), |path| path.display().to_string());
    let config = config::environment().and_then(|environment| config::load(&as_served(args), environment));
    let config = match config {
        Ok(config) => config,
        // Without a file, what is wrong is what was typed.
        Err(error) if args.config.is_none() => return Err(usage(error)),
        Err(error) => {
            looked.findings.push(invalid(&subject, &error));
            return Ok(());
        }
    };
    let engines = engines(&config, &mut looked.findings);
    if looked.findings.is_empty() {
        looked.findings.extend(whole(&config).err().map(|error| invalid(&subject, &error)));
    }
    looked.engines = engines.iter().map(|engine| engine.id.to_string()).collect();
    looked.findings.extend(judge_set_up(&SetUp {
        open: open_sockets(&config),
        streams: engines.iter().map(|engine| engine.source.ranks().len()).sum(),
        descriptors: descriptor_limit(),
    }));
    let options = config.plane_options();
    let window = Some(Window { max_batches: options.max_batches, max_bytes: options.max_bytes });
    let descriptors = descriptor_limit();
    let examination = Examination { engines, listen: args.listen.0, window, listed: None, descriptors };
    looked.findings.extend(examine(&examination).await);
    Ok(())
}

/// The same layers as `kvplane serve` reads.
fn as_served(args: &DoctorArgs) -> ServeArgs {
    ServeArgs {
        config: args.config.clone(),
        engine: args.engine.clone(),
        set: Vec::new(),
        peers: Vec::new(),
        http: None,
        grpc: None,
        drain_timeout: None,
        insecure: false,
        dump_config: false,
        log: LogArgs { log: "off".to_owned(), log_format: LogFormat::Text },
    }
}

/// The engines whose descriptions are right; every other one is a finding.
fn engines(config: &Config, findings: &mut Vec<Finding>) -> Vec<EngineSpec> {
    let mut engines = Vec::new();
    for (at, engine) in config.engine.iter().enumerate() {
        match engine.clone().plan() {
            Ok(plan) => engines.push(plan.spec().clone()),
            Err(error) => findings.push(wrong_engine(at, engine, error)),
        }
    }
    engines
}

fn wrong_engine(at: usize, engine: &EngineConfig, error: EngineConfigError) -> Finding {
    let subject = format!("engine[{at}] ({:?})", engine.id);
    if matches!(error, EngineConfigError::Address(AddressError::Overlap { .. })) {
        return Finding::new(
            Code::ReplayOnNextRanksPort,
            Severity::Error,
            subject,
            hide_userinfo(&error.to_string()),
            "leave as many ports between events and replay as there are ranks, in the engine and here",
        );
    }
    invalid(&subject, &error.into())
}

/// Everything that is wrong with the configuration as a whole. Reads certificates and tokens, and shows none.
fn whole(config: &Config) -> anyhow::Result<()> {
    let engines: Vec<EngineSpec> = config.plans()?.iter().map(|plan| plan.spec().clone()).collect();
    check_engines(&engines, config.plane_options().max_engines)?;
    config.reports()?;
    config.keys()?;
    config.networks(true)?;
    config.tls()?;
    Ok(())
}

fn invalid(subject: &str, error: &anyhow::Error) -> Finding {
    let todo = "correct it; `kvplane serve --dump-config` shows what was read, docs/reference/config.md has every key";
    Finding::new(Code::ConfigInvalid, Severity::Error, subject, hide_userinfo(&format!("{error:#}")), todo)
}

/// What is open beyond loopback without authentication.
fn open_sockets(config: &Config) -> Vec<OpenSocket> {
    let has_keys = config.keys().is_ok_and(|keys| !keys.is_empty());
    let listen = [("listen.http", config.listen.http), ("listen.grpc", config.listen.grpc)];
    let has_networks = config.networks(true).is_ok_and(|networks| !networks.is_empty());
    let own = listen.map(|(key, address)| {
        let opened = has_networks && key == "listen.http";
        Listener::new(key, address.to_string(), has_keys && !opened, opened)
    });
    let engines = config.engine.iter().flat_map(|engine| engine.listeners(has_keys));
    let open = own.into_iter().chain(engines).filter(|listener| !listener.loopback && !listener.keys);
    open.map(|Listener { name, address, opened, .. }| OpenSocket { key: name, address, on_purpose: opened })
        .collect()
}
