//! `[[discover]]`: sources of engines.

use std::path::PathBuf;

#[cfg(not(feature = "kubernetes"))]
use anyhow::ensure;
use kvplane_core::EngineKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where engines are found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DiscoverConfig {
    /// What is looked at: `kubernetes`.
    pub(crate) kind: DiscoverKind,
    /// The namespace of the pods; that of kvplane's own pod, or of the kubeconfig's context, when absent.
    /// Several namespaces are several entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    /// Labels of pods that are engines: `app=vllm,tier!=test`. Of slices, for example
    /// `kubernetes.io/service-name=vllm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) selector: Option<String>,
    /// Instead of `selector`: the `InferencePool` whose pods are engines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) inference_pool: Option<String>,
    /// `pods`, or `endpointslices` where kvplane may not read pods: then only names of ports, labels of the
    /// Service and the keys here say what an engine is.
    #[serde(default)]
    pub(crate) source: DiscoverSource,
    /// The engines' software where a pod does not say: `vllm` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "kind_or_none")]
    pub(crate) engine_kind: Option<EngineKind>,
    /// Their model where a pod does not say: its name, `label:KEY`, `annotation:KEY` or `namespace`. Engines
    /// are asked at `/v1/models` when absent.
    #[serde(default)]
    pub(crate) model: String,
    /// The port of their HTTP servers where a pod does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) http_port: Option<u16>,
    /// Their ranks where a pod does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ranks: Option<u32>,
    /// Topic prefix where a pod does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) topic: Option<String>,
    /// A kubeconfig. When absent: the pod's service account, and outside of a cluster `KUBECONFIG` or `~/.kube/config`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context; its current one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) context: Option<String>,
}

/// What is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DiscoverKind {
    /// An API server.
    Kubernetes,
}

/// Which objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DiscoverSource {
    /// Pods.
    #[default]
    Pods,
    /// Slices of a Service's endpoints.
    Endpointslices,
}

fn kind_or_none(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": ["string", "null"], "enum": ["vllm", "sglang", "tokenspeed", "trtllm", null]})
}

#[cfg(feature = "kubernetes")]
mod kubernetes {
    use std::path::PathBuf;

    use anyhow::{Context as _, bail, ensure};
    use kvplane_core::EngineKind;
    use kvplane_kubernetes::watch::{Pace, Select, Source, Way};
    use kvplane_kubernetes::{ModelRule, Settings};

    use super::{DiscoverConfig, DiscoverSource};

    /// How an API server is reached: by a file, by the pod's own account, or by the user's file.
    pub(crate) fn way(kubeconfig: Option<&PathBuf>, context: Option<&String>) -> anyhow::Result<Way> {
        let text = |name: &str| {
            std::env::var_os(name)
                .and_then(|value| value.into_string().ok())
                .filter(|value| !value.is_empty())
        };
        let by_file = |file: PathBuf| Way::Kubeconfig { file, context: context.cloned() };
        if let Some(file) = kubeconfig {
            return Ok(by_file(file.clone()));
        }
        if let Some(host) = text("KUBERNETES_SERVICE_HOST") {
            let port = text("KUBERNETES_SERVICE_PORT").unwrap_or_else(|| "443".to_owned());
            let host = if host.contains(':') { format!("[{host}]") } else { host };
            return Ok(Way::InCluster { server: format!("https://{host}:{port}") });
        }
        let home = || Some(PathBuf::from(text("HOME")?).join(".kube/config")).filter(|file| file.exists());
        match text("KUBECONFIG").map(PathBuf::from).or_else(home) {
            Some(file) => Ok(by_file(file)),
            None => bail!(
                "there is no API server: this is no pod, and there is no ~/.kube/config; set kubeconfig"
            ),
        }
    }

    impl DiscoverConfig {
        /// The source, all of it checked.
        pub(crate) fn plan(&self, at: usize) -> anyhow::Result<Source> {
            let select = match (&self.selector, &self.inference_pool) {
                (Some(selector), None) if !selector.trim().is_empty() => Select::Labels(selector.clone()),
                (None, Some(pool)) if !pool.is_empty() => Select::Pool(pool.clone()),
                _ => bail!("needs either selector or inference_pool: which pods are engines?"),
            };
            ensure!(
                self.ranks.is_none_or(|ranks| (1..=1024).contains(&ranks)),
                "ranks: must be 1 to 1024, not {}",
                self.ranks.unwrap_or_default()
            );
            ensure!(self.http_port != Some(0), "http_port: must be a port from 1 to 65535");
            let sockets = [EngineKind::Vllm, EngineKind::Sglang, EngineKind::Tokenspeed, EngineKind::Trtllm];
            ensure!(
                self.engine_kind.is_none_or(|kind| sockets.contains(&kind)),
                "engine_kind: must be vllm, sglang, tokenspeed or trtllm: list others under [[engine]]"
            );
            let slices = self.source == DiscoverSource::Endpointslices;
            ensure!(
                !slices || matches!(select, Select::Labels(_)),
                "source: slices are selected by selector = \"kubernetes.io/service-name=NAME\""
            );
            let what = match &select {
                Select::Labels(selector) => selector.clone(),
                Select::Pool(pool) => format!("InferencePool {pool}"),
            };
            let namespace = self.namespace.as_deref().unwrap_or("own namespace");
            Ok(Source {
                name: format!("discover[{at}] {namespace}: {what}"),
                way: way(self.kubeconfig.as_ref(), self.context.as_ref())?,
                namespace: self.namespace.clone(),
                select,
                slices,
                linger_ms: kvplane_kubernetes::LINGER_MS,
                pace: Pace::default(),
                settings: Settings {
                    kind: self.engine_kind,
                    model: ModelRule::parse(&self.model),
                    http: self.http_port,
                    target_ports: Vec::new(),
                    ranks: self.ranks,
                    topic: self.topic.clone(),
                },
            })
        }
    }

    impl super::super::Config {
        /// Sources of engines. Finds every mistake that can be found without touching the network.
        pub(crate) fn discovered(&self) -> anyhow::Result<Vec<Source>> {
            let all = self.discover.iter().enumerate();
            all.map(|(at, one)| one.plan(at).with_context(|| format!("discover[{at}]"))).collect()
        }
    }
}

#[cfg(feature = "kubernetes")]
pub(crate) use kubernetes::way;

#[cfg(not(feature = "kubernetes"))]
impl super::Config {
    /// Sources of engines: there are none in this build.
    pub(crate) fn check_discovered(&self) -> anyhow::Result<()> {
        ensure!(self.discover.is_empty(), "discover: this build watches no API server (feature kubernetes)");
        Ok(())
    }
}
