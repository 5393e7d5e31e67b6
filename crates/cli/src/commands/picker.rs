//! `kvplane picker`: `serve` with an endpoint picker, and Envoy's configuration for it.

use std::io::Write as _;

use anyhow::{Context as _, anyhow};
use kvplane_inference::Pool;
use kvplane_picker::{Bootstrap, bootstrap, read_endpoints};

use super::{Failure, serve, usage};
use crate::args::{EnvoyConfigArgs, PickerArgs, PickerCommand};
use crate::config;

pub(crate) async fn run(args: PickerArgs) -> Result<(), Failure> {
    match args.command {
        Some(PickerCommand::EnvoyConfig(args)) => envoy_config(&args),
        None => Box::pin(serve::run(args.into_serve())).await,
    }
}

fn envoy_config(args: &EnvoyConfigArgs) -> Result<(), Failure> {
    let config =
        config::environment().and_then(|found| config::load_file(&args.config, found)).map_err(usage)?;
    let picker = config.picker;
    let listen = args.picker.or(picker.listen);
    let listen = listen.ok_or_else(|| usage(anyhow!("{}: has no picker.listen", args.config.display())))?;
    let mut endpoints = picker.endpoints();
    if let Some(path) = &picker.endpoints_file {
        let named = || format!("picker.endpoints_file: {}", path.display());
        let text = std::fs::read_to_string(path).with_context(named)?;
        endpoints.extend_from_slice(read_endpoints(&text).with_context(named)?.endpoints());
    }
    let pool = Pool::new(endpoints);
    let text = bootstrap(&Bootstrap {
        listen: args.listen,
        admin: args.admin,
        picker: listen,
        picker_tls: picker.self_signed || picker.tls.is_some(),
        pool: &pool,
    });
    std::io::stdout().write_all(text.as_bytes()).context("cannot print the configuration")?;
    Ok(())
}
