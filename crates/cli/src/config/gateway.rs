//! `[gateway]`: kvplane in front of its engines.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use kvplane_access::{Access, Port, Tls, TlsFiles};
use kvplane_gateway::{BOOTSTRAP_PORT, Forward, Limits, Options, TraceOptions};
use kvplane_inference::Role;
use kvplane_server::GatewayEndpoint;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::units::{ByteSize, Span};

/// A gateway with the APIs of `OpenAI` and Anthropic in front of the engines. Off without `listen`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct GatewayConfig {
    /// Address where clients send their requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) listen: Option<SocketAddr>,
    /// TLS there; without it the gateway speaks plain HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls: Option<TlsFiles>,
    /// Addresses of engines that have several: one for each rank. An engine that is not named here is reached
    /// at its `http`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) endpoint: Vec<GatewayEndpointConfig>,
    /// What callers may do, by the names of their keys in `[auth]`. A key that is not named here has no limit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) caller: Vec<CallerConfig>,
    /// The policy to decide by, as in `/v1/pick` [default: work].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) policy: Option<String>,
    /// Sends engines token ids in the place of text: never (`text`), wherever a prompt has ids (`ids`), or
    /// where engines were seen to compute the same ids and to take them (`auto`).
    pub(crate) forward: ForwardName,
    /// How long a prompt may take to become ids, and a millisecond more for every 4 KiB of it. Then the load
    /// decides, and the receipt says so.
    pub(crate) tokenize_timeout: Span,
    /// The longest body of a request; a longer one is answered with 413.
    pub(crate) max_body: ByteSize,
    /// Bodies that are held at the same time; beyond that 429.
    pub(crate) max_bodies: ByteSize,
    /// How long a body may take to arrive.
    pub(crate) body_timeout: Span,
    /// Connections of clients.
    pub(crate) max_connections: usize,
    /// Requests at the same time; beyond that 429.
    pub(crate) max_requests: usize,
    /// How long a connection to an engine may take.
    pub(crate) connect_timeout: Span,
    /// How long an engine may take up to the first byte of its answer [default: as long as the client waits].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first_byte_timeout: Option<Span>,
    /// The longest silence within an answer.
    pub(crate) idle_timeout: Span,
    /// Engines that a request is sent to, one after the other, before the client gets the error.
    pub(crate) attempts: u32,
    /// Retries, as a share of the requests.
    pub(crate) retry_budget: f64,
    /// Uncached tokens from which on a prompt is prefilled elsewhere, where its engine has the role `decode`; 0: never.
    pub(crate) prefill_from: u64,
    /// Failed requests in a row after which an engine is left alone for a while.
    pub(crate) breaker_failures: u32,
    /// For how long, the first time. Each further time doubles it.
    pub(crate) breaker_open: Span,
    /// For how long at most.
    pub(crate) breaker_open_max: Span,
    /// How often engines are asked for `/health`; three failures in a row and an engine is down until it answers.
    pub(crate) probe_every: Span,
    /// Writes a log line for each request, without any text of it.
    pub(crate) access_log: bool,
    /// Where traces go: a collector of `OpenTelemetry`, `http://host:port`, that takes OTLP over HTTP
    /// [default: nowhere].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) traces: Option<String>,
    /// The share of requests that are traced, of those without a `traceparent` that says so.
    pub(crate) trace_sample: f64,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        let options = Options::default();
        Self {
            listen: None,
            tls: None,
            endpoint: Vec::new(),
            caller: Vec::new(),
            policy: None,
            forward: ForwardName::Text,
            tokenize_timeout: Span(options.tokenize_timeout),
            max_body: ByteSize(options.max_body),
            max_bodies: ByteSize(options.max_bodies),
            body_timeout: Span(options.body_timeout),
            max_connections: options.max_connections,
            max_requests: options.max_requests,
            connect_timeout: Span(options.connect_timeout),
            first_byte_timeout: None,
            idle_timeout: Span(options.idle_timeout),
            attempts: options.attempts,
            retry_budget: options.retry_budget,
            prefill_from: options.prefill_from,
            breaker_failures: options.health.failures,
            breaker_open: Span(options.health.open),
            breaker_open_max: Span(options.health.open_max),
            probe_every: Span(options.probe_every),
            access_log: options.access_log,
            traces: None,
            trace_sample: 1.0,
        }
    }
}

/// One address of an engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GatewayEndpointConfig {
    /// The engine's id.
    pub(crate) engine: String,
    /// Where it listens: an IP address and a port [default: the engine's `http`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) address: Option<SocketAddr>,
    /// The rank behind it; absent: all ranks of the engine, selected by `X-data-parallel-rank`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rank: Option<u32>,
    /// What it does with prompts. Those that decode are sent requests, and those that prefill the prompts of these.
    #[serde(default)]
    pub(crate) role: GatewayRole,
    /// `SGLang` that prefills: its `--disaggregation-bootstrap-port` [default: 8998].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bootstrap_port: Option<u16>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum GatewayRole {
    /// Prefill and decode.
    #[default]
    Both,
    /// Prefill for others.
    Prefill,
    /// Decode what others prefilled.
    Decode,
}

/// What one caller may do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CallerConfig {
    /// The name of its key in `[auth]`.
    pub(crate) name: String,
    /// Models and adapters that it may ask for [default: all].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) models: Option<Vec<String>>,
    /// Requests in a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) requests_per_minute: Option<u32>,
    /// Tokens in a minute, of prompts and answers together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tokens_per_minute: Option<u64>,
    /// Requests at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) in_flight: Option<u32>,
    /// Its prompts share a cache with those of this tenant alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ForwardName {
    #[default]
    Text,
    Ids,
    Auto,
}

/// What a gateway is started with, all of it checked.
#[derive(Debug)]
pub(crate) struct GatewayPlan {
    pub(crate) listen: SocketAddr,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) options: Options,
    pub(crate) endpoints: Vec<GatewayEndpoint>,
}

impl GatewayConfig {
    /// Checks it, and reads the files that it names. `None`: there is no gateway. `names` are those of the keys.
    pub(crate) fn plan(&self, access: &Access, names: &[&str]) -> anyhow::Result<Option<GatewayPlan>> {
        let Some(listen) = self.listen else { return Ok(None) };
        access.check_listener("gateway.listen", Port::Http, listen)?;
        ensure!(
            (0.0..=1.0).contains(&self.retry_budget),
            "gateway.retry_budget: must be a share of the requests, 0.0 to 1.0"
        );
        ensure!(self.attempts > 0, "gateway.attempts: must be 1 at least");
        ensure!(self.breaker_failures > 0, "gateway.breaker_failures: must be 1 at least");
        ensure!(!self.probe_every.0.is_zero(), "gateway.probe_every: must be longer than 0s");
        if let Some(policy) = &self.policy {
            policy
                .parse::<kvplane_route::Policy>()
                .map_err(|error| anyhow::anyhow!("gateway.policy: {error}"))?;
        }
        ensure!(
            (0.0..=1.0).contains(&self.trace_sample),
            "gateway.trace_sample: must be a share of the requests, 0.0 to 1.0"
        );
        if let Some(traces) = &self.traces {
            let host = traces.strip_prefix("http://").or_else(|| traces.strip_prefix("https://"));
            ensure!(
                host.is_some_and(|host| !host.is_empty() && !host.contains('/')),
                "gateway.traces: {traces:?} is not http://host:port"
            );
        }
        let mut addresses = HashSet::new();
        for (at, endpoint) in self.endpoint.iter().enumerate() {
            if let Some(address) = endpoint.address {
                ensure!(addresses.insert(address), "gateway.endpoint[{at}].address: {address} is used twice");
            }
        }
        let tls = self.tls.clone().map(Tls::load).transpose().context("gateway.tls")?;
        Ok(Some(GatewayPlan {
            listen,
            tls: tls.map(Arc::new),
            options: self.options(names)?,
            endpoints: self.endpoint.iter().map(GatewayEndpointConfig::endpoint).collect(),
        }))
    }

    fn traces(&self) -> Option<TraceOptions> {
        Some(TraceOptions { endpoint: self.traces.clone()?, sample: self.trace_sample })
    }

    fn options(&self, names: &[&str]) -> anyhow::Result<Options> {
        let mut callers = HashMap::new();
        for (at, caller) in self.caller.iter().enumerate() {
            let name = &caller.name;
            if !names.contains(&name.as_str()) {
                bail!(
                    "gateway.caller[{at}].name: no key is called {name:?}: add one to [[auth.token]] or [[auth.certificate]]"
                );
            }
            ensure!(
                caller.tenant.as_deref() != Some(""),
                "gateway.caller[{at}].tenant: is empty: leave it out, or give it a name"
            );
            if callers.insert(name.clone(), caller.limits()).is_some() {
                bail!("gateway.caller[{at}].name: {name:?} is used twice");
            }
        }
        let mut options = Options {
            policy: self.policy.clone(),
            forward: match self.forward {
                ForwardName::Text => Forward::Text,
                ForwardName::Ids => Forward::Ids,
                ForwardName::Auto => Forward::Auto,
            },
            tokenize_timeout: self.tokenize_timeout.0,
            max_body: self.max_body.0,
            max_bodies: self.max_bodies.0,
            body_timeout: self.body_timeout.0,
            max_connections: self.max_connections,
            max_requests: self.max_requests,
            connect_timeout: self.connect_timeout.0,
            first_byte_timeout: self.first_byte_timeout.map(|span| span.0),
            idle_timeout: self.idle_timeout.0,
            attempts: self.attempts,
            retry_budget: self.retry_budget,
            prefill_from: self.prefill_from,
            probe_every: self.probe_every.0,
            callers,
            access_log: self.access_log,
            traces: self.traces(),
            ..Options::default()
        };
        options.health.failures = self.breaker_failures;
        options.health.open = self.breaker_open.0;
        options.health.open_max = self.breaker_open_max.0;
        Ok(options)
    }
}

impl GatewayEndpointConfig {
    fn endpoint(&self) -> GatewayEndpoint {
        GatewayEndpoint {
            address: self.address,
            rank: self.rank,
            role: match self.role {
                GatewayRole::Both => Role::Both,
                GatewayRole::Prefill => Role::Prefill,
                GatewayRole::Decode => Role::Decode,
            },
            bootstrap_port: self.bootstrap_port.unwrap_or(BOOTSTRAP_PORT),
            ..GatewayEndpoint::whole(self.engine.clone())
        }
    }
}

impl CallerConfig {
    fn limits(&self) -> Limits {
        Limits {
            models: self.models.as_ref().map(|models| models.iter().cloned().collect()),
            requests_per_minute: self.requests_per_minute,
            tokens_per_minute: self.tokens_per_minute,
            in_flight: self.in_flight,
            tenant: self.tenant.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Result<Option<GatewayPlan>, String> {
        let config: GatewayConfig = toml::from_str(text).unwrap();
        config.plan(&Access::default(), &["team-a"]).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn without_an_address_there_is_none() {
        assert!(plan("").unwrap().is_none());
        let text = "listen = \"127.0.0.1:0\"\nforward = \"auto\"\n[[caller]]\nname = \"team-a\"\nmodels = [\"m\"]\ntenant = \"a\"\n\
                    [[endpoint]]\nengine = \"e\"\nrank = 1";
        let gateway = plan(text).unwrap().unwrap();
        assert_eq!((gateway.options.forward, gateway.endpoints[0].rank), (Forward::Auto, Some(1)));
        assert!(!gateway.options.callers["team-a"].allow("n"));
    }

    #[test]
    fn mistakes_name_their_key() {
        for (text, part) in [
            ("", "beyond loopback"),
            ("retry_budget = 1.5", "gateway.retry_budget"),
            ("attempts = 0", "gateway.attempts"),
            ("policy = \"best\"", "gateway.policy"),
            ("trace_sample = 2.0", "gateway.trace_sample"),
            ("traces = \"localhost:4318\"", "gateway.traces"),
            ("[[caller]]\nname = \"nobody\"", "gateway.caller[0].name"),
            ("[[caller]]\nname = \"team-a\"\n[[caller]]\nname = \"team-a\"", "used twice"),
            ("[[caller]]\nname = \"team-a\"\ntenant = \"\"", "gateway.caller[0].tenant"),
            (
                "[[endpoint]]\nengine = \"a\"\naddress = \"10.0.0.1:1\"\n[[endpoint]]\nengine = \"b\"\naddress = \"10.0.0.1:1\"",
                "gateway.endpoint[1].address",
            ),
        ] {
            let listen = if text.is_empty() { "0.0.0.0:0" } else { "127.0.0.1:0" };
            let error = plan(&format!("listen = \"{listen}\"\n{text}")).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
