//! The arguments of `kvplane picker`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

use super::ServeArgs;

#[derive(Debug, ClapArgs)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct PickerArgs {
    #[command(subcommand)]
    pub(crate) command: Option<PickerCommand>,
    /// Address to serve external processing at
    #[arg(long, default_value = "127.0.0.1:9002", value_name = "ADDRESS")]
    pub(crate) listen: SocketAddr,
    /// Address to serve health checks at, without TLS [default: --listen only]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) health: Option<SocketAddr>,
    /// Serve TLS with a certificate generated at start
    #[arg(long)]
    pub(crate) secure_serving: bool,
    /// An endpoint: ADDRESS:PORT, or ADDRESS:PORT=ENGINE
    #[arg(long, value_name = "ENDPOINT")]
    pub(crate) endpoint: Vec<String>,
    /// File with endpoints in llm-d's format; reloaded when it changes
    #[arg(long, value_name = "FILE")]
    pub(crate) endpoints_file: Option<PathBuf>,
    /// An `EndpointPickerConfig` of llm-d's router
    #[arg(long, value_name = "FILE")]
    pub(crate) config_file: Option<PathBuf>,
    /// The `InferencePool` to watch: its pods, objectives and rewrites
    #[arg(long, value_name = "NAME")]
    pub(crate) pool_name: Option<String>,
    /// Its namespace, or that of the pods
    #[arg(long, value_name = "NAMESPACE", default_value = "default")]
    pub(crate) pool_namespace: String,
    /// Its API group
    #[arg(long, value_name = "GROUP", default_value = "inference.networking.k8s.io",
        value_parser = ["inference.networking.k8s.io"])]
    pub(crate) pool_group: String,
    /// Without a pool: labels of the pods to watch
    #[arg(long, value_name = "LABELS", requires = "endpoint_target_ports", conflicts_with = "pool_name")]
    pub(crate) endpoint_selector: Option<String>,
    /// Where those pods listen: a port for each rank
    #[arg(long, value_name = "PORT,…", value_delimiter = ',', requires = "endpoint_selector")]
    pub(crate) endpoint_target_ports: Vec<u16>,
    /// Send the endpoints' scores to the gateway
    #[arg(long)]
    pub(crate) emit_endpoint_scores: bool,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PickerCommand {
    /// Print an Envoy bootstrap for a configuration
    #[command(after_help = "Example:\n  kvplane picker envoy-config --config kvplane.toml > envoy.yaml")]
    EnvoyConfig(EnvoyConfigArgs),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct EnvoyConfigArgs {
    /// Configuration file (TOML) with a [picker]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Where clients connect to Envoy
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
    pub(crate) listen: SocketAddr,
    /// Address of Envoy's admin pages
    #[arg(long, default_value = "127.0.0.1:9901", value_name = "ADDRESS")]
    pub(crate) admin: SocketAddr,
    /// Where Envoy finds the picker [default: picker.listen]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) picker: Option<SocketAddr>,
}

impl PickerArgs {
    /// The arguments of `serve` that say the same.
    pub(crate) fn into_serve(self) -> ServeArgs {
        let mut serve = self.serve;
        let mut set = vec![format!("picker.listen={}", self.listen)];
        set.extend(self.health.map(|address| format!("picker.health={address}")));
        if self.secure_serving {
            set.push("picker.self_signed=true".to_owned());
        }
        if self.emit_endpoint_scores {
            set.push("picker.scores=true".to_owned());
        }
        for (at, endpoint) in self.endpoint.iter().enumerate() {
            let (address, engine) =
                endpoint.split_once('=').map_or((endpoint.as_str(), None), |(a, e)| (a, Some(e)));
            set.push(format!("picker.endpoint.{at}.address={address}"));
            set.extend(engine.map(|engine| format!("picker.endpoint.{at}.engine={engine}")));
        }
        set.extend(self.endpoints_file.map(|path| format!("picker.endpoints_file={}", path.display())));
        set.extend(self.config_file.map(|path| format!("picker.llm_d_config={}", path.display())));
        if let Some(name) = self.pool_name {
            set.push(format!("picker.pool.name={name}"));
            set.push(format!("picker.pool.namespace={}", self.pool_namespace));
        }
        if let Some(selector) = self.endpoint_selector {
            set.push(format!("picker.pods.selector={selector}"));
            set.push(format!("picker.pods.namespace={}", self.pool_namespace));
            set.push(format!("picker.pods.ports={:?}", self.endpoint_target_ports));
        }
        set.extend(serve.drain_timeout.map(|span| format!("picker.drain={span}")));
        if serve.insecure {
            set.push("picker.open=true".to_owned());
        }
        // What is written out with --set comes last, and wins.
        set.append(&mut serve.set);
        ServeArgs { set, ..serve }
    }
}
