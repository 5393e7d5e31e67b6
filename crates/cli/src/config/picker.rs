//! `[picker]`: kvplane as the endpoint picker of an Envoy.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use kvplane_access::{Access, Tls, TlsFiles};
use kvplane_inference::{Endpoint, Role};
use kvplane_picker::{LlmdConfig, Options, Rewrite, Rewrites, Target, read_llmd_config};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::units::{ByteSize, Span};

/// The endpoint picker of a Gateway API gateway. Off without `listen`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a key of its own")]
pub(crate) struct PickerConfig {
    /// Address of external processing (`envoy.service.ext_proc.v3`), usually port 9002.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) listen: Option<SocketAddr>,
    /// Address of `grpc.health.v1` without TLS, usually port 9003. Health is served at `listen`, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) health: Option<SocketAddr>,
    /// Anyone who reaches these addresses may send requests' bodies and learn where they would go: for
    /// addresses beyond loopback, on a network that is trusted.
    pub(crate) open: bool,
    /// TLS at `listen` with a certificate that is made at the start and signed by nobody, as llm-d's router
    /// does by default.
    pub(crate) self_signed: bool,
    /// TLS at `listen` with a certificate from files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls: Option<TlsFiles>,
    /// The endpoints.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) endpoint: Vec<EndpointConfig>,
    /// A file with endpoints in the shape that llm-d's router reads (YAML: name, address, port, labels). It
    /// is followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) endpoints_file: Option<PathBuf>,
    /// An `EndpointPickerConfig` of llm-d's router. What it says is used where a key here is absent; the log
    /// says what was ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) llm_d_config: Option<PathBuf>,
    /// The `InferencePool` to watch: its pods, objectives and rewrites.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pool: Option<PoolConfig>,
    /// Pods to watch where there is no `InferencePool`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pods: Option<PodsConfig>,
    /// Endpoints behind the first that a gateway may try: only for a load balancing policy that takes a list
    /// (`override_host`) [default: 0].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fallbacks: Option<usize>,
    /// Tells the gateway what each endpoint of the list was worth.
    pub(crate) scores: bool,
    /// The policy to decide by, as in `/v1/pick` [default: work].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) policy: Option<String>,
    /// How long a prompt may take to become ids, and a millisecond more for every 4 KiB of it. Then the load
    /// decides, and the receipt says so.
    pub(crate) tokenize_timeout: Span,
    /// The longest body of a request; a longer one is answered with 413.
    pub(crate) max_body: ByteSize,
    /// Bodies that are held at the same time.
    pub(crate) max_bodies: ByteSize,
    /// Sends vLLM and `SGLang` the ids of chats that nothing but their text decides about: what is predicted
    /// is then what is computed.
    pub(crate) token_in: bool,
    /// Asks engines for the usage of streamed answers, and takes it out again where the client did not ask.
    pub(crate) include_usage: bool,
    /// Uncached tokens from which on a prompt is prefilled elsewhere, where endpoints have the role
    /// `prefill`; 0: never [default: 16].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prefill_from: Option<u64>,
    /// Tokens that another endpoint has to hold more than the one that computes a prompt, to be named in
    /// `x-kv-cache-source-host-port`: where llm-d's sidecar pulls blocks from other engines; 0: never
    /// [default: 0].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pull_from: Option<u64>,
    /// Which model is asked for in the place of another. The answer names the client's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) rewrite: Vec<RewriteConfig>,
    /// Priorities by the names of objectives. Requests with a priority below 0 are shed when endpoints are
    /// busy.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) objectives: BTreeMap<String, i32>,
    /// Requests in flight per endpoint from which on endpoints count as busy.
    pub(crate) shed_at: usize,
    /// How long requests are taken after a stop, at most: gateways notice it by their health checks.
    pub(crate) drain: Span,
}

impl Default for PickerConfig {
    fn default() -> Self {
        let options = Options::default();
        Self {
            listen: None,
            health: None,
            open: false,
            self_signed: false,
            tls: None,
            endpoint: Vec::new(),
            endpoints_file: None,
            llm_d_config: None,
            pool: None,
            pods: None,
            fallbacks: None,
            scores: false,
            policy: None,
            tokenize_timeout: Span(options.tokenize_timeout),
            max_body: ByteSize(options.max_body),
            max_bodies: ByteSize(options.max_bodies),
            token_in: false,
            include_usage: false,
            prefill_from: None,
            pull_from: None,
            rewrite: Vec::new(),
            objectives: BTreeMap::new(),
            shed_at: options.shed_at,
            drain: Span(std::time::Duration::from_secs(25)),
        }
    }
}

/// One endpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EndpointConfig {
    /// Where it listens: an IP address and a port.
    pub(crate) address: SocketAddr,
    /// The engine behind it; absent: the one whose `http` is this address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) engine: Option<String>,
    /// The rank behind it; absent: all ranks of the engine, selected by `X-data-parallel-rank`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rank: Option<u32>,
    /// What it does.
    #[serde(default)]
    pub(crate) role: RoleName,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RoleName {
    /// Prefill and decode.
    #[default]
    Both,
    /// Prefill for others.
    Prefill,
    /// Decode what others prefilled.
    Decode,
    /// Encode images for others.
    Encode,
}

/// Which models are asked for in the place of one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RewriteConfig {
    /// The model that clients ask for; absent: any that no other rule names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<String>,
    /// The models that share its requests, and their weights.
    pub(crate) targets: BTreeMap<String, u32>,
}

/// An `InferencePool`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PoolConfig {
    /// Its name.
    pub(crate) name: String,
    /// Its namespace.
    #[serde(default = "default_namespace")]
    pub(crate) namespace: String,
}

/// Pods, as an `InferencePool` would select them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PodsConfig {
    /// Their labels: `app=vllm,tier!=test`.
    pub(crate) selector: String,
    /// Where they listen: a port for each rank.
    pub(crate) ports: Vec<u16>,
    /// Their namespace.
    #[serde(default = "default_namespace")]
    pub(crate) namespace: String,
}

/// What is watched in a cluster.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Watched {
    Pool(PoolConfig),
    Pods(PodsConfig),
}

impl std::fmt::Display for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pool(one) => write!(f, "InferencePool {}/{}", one.namespace, one.name),
            Self::Pods(one) => write!(f, "pods {} in {}", one.selector, one.namespace),
        }
    }
}

fn default_namespace() -> String {
    "default".to_owned()
}

/// What a picker is started with, all of it checked.
#[derive(Debug)]
pub(crate) struct PickerPlan {
    pub(crate) listen: SocketAddr,
    pub(crate) health: Option<SocketAddr>,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) options: Options,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) endpoints_file: Option<PathBuf>,
    /// Watched where the build can.
    pub(crate) watched: Option<Watched>,
}

impl PickerConfig {
    /// Checks it, and reads the files that it names but for the endpoints. `None`: there is no picker.
    pub(crate) fn plan(&self, access: &Access) -> anyhow::Result<Option<PickerPlan>> {
        let Some(listen) = self.listen else { return Ok(None) };
        let watched = self.watched()?;
        for (key, address) in [("listen", Some(listen)), ("health", self.health)] {
            let closed = address.is_none_or(|address| address.ip().to_canonical().is_loopback());
            ensure!(
                closed || self.open || access.is_insecure(),
                "picker.{key}: is beyond loopback, and whoever reaches it can send requests to the picker: say picker.open = true \
                 where the network is trusted"
            );
        }
        ensure!(
            !self.endpoint.is_empty() || self.endpoints_file.is_some() || watched.is_some(),
            "picker: there is no endpoint: name some in [[picker.endpoint]], in a file with picker.endpoints_file, or an \
             InferencePool in picker.pool"
        );
        ensure!(
            !(self.self_signed && self.tls.is_some()),
            "picker.self_signed: and picker.tls exclude each other: leave one out"
        );
        ensure!(
            self.rewrite.iter().all(|one| !one.targets.is_empty()),
            "picker.rewrite: a rule has no targets: name a model with its weight, as in targets = {{ \"m\" = 1 }}"
        );
        let tls = match &self.tls {
            Some(files) => Some(Tls::load(files.clone()).context("picker.tls")?),
            None if self.self_signed => Some(Tls::self_signed().context("picker.self_signed")?),
            None => None,
        };
        let llmd = self.llmd()?;
        let options = self.options(&llmd);
        if let Some(policy) = &options.policy {
            policy
                .parse::<kvplane_route::Policy>()
                .map_err(|error| anyhow::anyhow!("picker.policy: {error}"))?;
        }
        Ok(Some(PickerPlan {
            listen,
            health: self.health,
            tls: tls.map(Arc::new),
            options,
            endpoints: self.endpoints(),
            endpoints_file: self.endpoints_file.clone(),
            watched,
        }))
    }

    fn watched(&self) -> anyhow::Result<Option<Watched>> {
        let watched = match (&self.pool, &self.pods) {
            (Some(_), Some(_)) => bail!("picker.pods: and picker.pool exclude each other: leave one out"),
            (None, None) => return Ok(None),
            (Some(pool), None) => Watched::Pool(pool.clone()),
            (None, Some(pods)) => {
                ensure!(
                    !pods.selector.trim().is_empty(),
                    "picker.pods.selector: is empty: name the pods' labels"
                );
                let ports = &pods.ports;
                // As many as an InferencePool may have.
                ensure!(
                    (1..=8).contains(&ports.len()) && !ports.contains(&0),
                    "picker.pods.ports: must be one to eight ports, one for each rank"
                );
                Watched::Pods(pods.clone())
            }
        };
        ensure!(
            cfg!(feature = "kubernetes"),
            "picker.pool: {watched} cannot be watched by this build (feature kubernetes): name the endpoints in \
             [[picker.endpoint]], or in a file with picker.endpoints_file"
        );
        ensure!(
            self.endpoints_file.is_none(),
            "picker.pool: and picker.endpoints_file exclude each other: leave one out"
        );
        Ok(Some(watched))
    }

    /// The endpoints that are configured one by one.
    pub(crate) fn endpoints(&self) -> Vec<Endpoint> {
        let endpoint = |config: &EndpointConfig| Endpoint {
            engine: config.engine.clone(),
            rank: config.rank,
            role: match config.role {
                RoleName::Both => Some(Role::Both),
                RoleName::Prefill => Some(Role::Prefill),
                RoleName::Decode => Some(Role::Decode),
                RoleName::Encode => None,
            },
            encodes: config.role == RoleName::Encode,
            ..Endpoint::at(config.address)
        };
        self.endpoint.iter().map(endpoint).collect()
    }

    fn llmd(&self) -> anyhow::Result<LlmdConfig> {
        let Some(path) = &self.llm_d_config else { return Ok(LlmdConfig::default()) };
        let named = || format!("picker.llm_d_config: {}", path.display());
        let text = std::fs::read_to_string(path).with_context(named)?;
        let config = read_llmd_config(&text).with_context(named)?;
        for mapped in &config.mapped {
            info!(mapped, "setting taken from llm-d's configuration");
        }
        for ignored in &config.ignored {
            warn!(ignored, "setting of llm-d's configuration ignored");
        }
        if let Some(block_size) = config.block_size {
            info!(
                block_size,
                "llm-d's configuration expects blocks of this size; kvplane takes what engines publish"
            );
        }
        Ok(config)
    }

    fn options(&self, llmd: &LlmdConfig) -> Options {
        let usual = Options::default();
        Options {
            fallbacks: self.fallbacks.or(llmd.fallbacks).unwrap_or(usual.fallbacks),
            scores: self.scores,
            policy: self.policy.clone().or_else(|| llmd.policy.map(str::to_owned)),
            tokenize_timeout: self.tokenize_timeout.0,
            max_body: self.max_body.0,
            max_bodies: self.max_bodies.0,
            token_in: self.token_in,
            include_usage: self.include_usage,
            prefill_from: self.prefill_from.or(llmd.prefill_from).unwrap_or(usual.prefill_from),
            pull_from: self.pull_from.or(llmd.pull_from).unwrap_or(usual.pull_from),
            rewrites: Rewrites::new(self.rewrite.iter().map(|one| {
                Rewrite {
                    model: one.model.clone(),
                    targets: one
                        .targets
                        .iter()
                        .map(|(model, weight)| Target { model: model.clone(), weight: *weight })
                        .collect(),
                }
            })),
            objectives: self.objectives.clone().into_iter().collect(),
            shed_at: self.shed_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Result<Option<PickerPlan>, String> {
        let config: PickerConfig = toml::from_str(text).unwrap();
        config.plan(&Access::default()).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn without_an_address_there_is_none() {
        assert!(plan("").unwrap().is_none());
        let picker = plan(
            "listen = \"127.0.0.1:0\"\nself_signed = true\n[[endpoint]]\naddress = \"10.0.0.1:8000\"\nrole = \"decode\"",
        );
        let picker = picker.unwrap().unwrap();
        assert_eq!(
            (picker.endpoints.len(), picker.endpoints[0].role, picker.tls.is_some()),
            (1, Some(Role::Decode), true)
        );
    }

    #[test]
    fn mistakes_name_their_key() {
        let endpoint = "[[endpoint]]\naddress = \"10.0.0.1:8000\"";
        for (text, part) in [
            ("listen = \"127.0.0.1:0\"".to_owned(), "there is no endpoint"),
            (format!("listen = \"0.0.0.0:0\"\n{endpoint}"), "picker.listen"),
            (format!("listen = \"127.0.0.1:0\"\nhealth = \"0.0.0.0:0\"\n{endpoint}"), "picker.health"),
            (
                "listen = \"127.0.0.1:0\"\nendpoints_file = \"x\"\npool = {name = \"p\"}".to_owned(),
                if cfg!(feature = "kubernetes") { "picker.pool: and" } else { "default/p" },
            ),
            (
                format!("listen = \"127.0.0.1:0\"\n[[rewrite]]\nmodel = \"m\"\ntargets = {{}}\n{endpoint}"),
                "picker.rewrite",
            ),
            (format!("listen = \"127.0.0.1:0\"\npolicy = \"best\"\n{endpoint}"), "picker.policy"),
            ("listen = \"127.0.0.1:0\"\npods = {selector = \"a=b\", ports = []}".to_owned(), "one to eight"),
            (
                "listen = \"127.0.0.1:0\"\npods = {selector = \" \", ports = [1]}".to_owned(),
                "picker.pods.selector",
            ),
            (
                "listen = \"127.0.0.1:0\"\npool = {name = \"p\"}\npods = {selector = \"a=b\", ports = [1]}"
                    .to_owned(),
                "exclude each other",
            ),
            (format!("listen = \"127.0.0.1:0\"\nllm_d_config = \"/nowhere\"\n{endpoint}"), "/nowhere"),
        ] {
            let error = plan(&text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        assert!(plan(&format!("listen = \"0.0.0.0:0\"\nopen = true\n{endpoint}")).is_ok());
    }
}
