//! The gateway of a plane: its listener, and the endpoints of the plane's engines.

mod addresses;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderValue;
use kvplane_access::{Door, OtherListener, Peer, Port, Tls};
use kvplane_core::{EngineId, EngineKind};
use kvplane_gateway::{BOOTSTRAP_PORT, Gateway, Options, TimesRead, Upstream};
use kvplane_inference::{Endpoint, Role};
use kvplane_ingest::{Engine, Engines};
use kvplane_metrics::{GatewayRows, LatenciesRead};
use tokio::net::TcpListener;
use tracing::{error, info, warn};

use self::addresses::Addresses;
use crate::parts::Parts;
use crate::picker::Decider;

/// Names of engines are looked up again after so long.
const LOOK_UP_EVERY: Duration = Duration::from_secs(10);

/// What a gateway is started with.
#[derive(Debug)]
pub struct GatewaySetup {
    /// Where requests are taken.
    pub listener: TcpListener,
    /// TLS there.
    pub tls: Option<Arc<Tls>>,
    /// How it behaves.
    pub options: Options,
    /// Addresses that stand for an engine in the place of its `http`.
    pub endpoints: Vec<GatewayEndpoint>,
}

/// An address of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayEndpoint {
    /// The engine.
    pub engine: String,
    /// Where it is; absent: at the engine's `http`.
    pub address: Option<SocketAddr>,
    /// The rank behind it; absent: all ranks of the engine.
    pub rank: Option<u32>,
    /// What it does with prompts.
    pub role: Role,
    /// Where `SGLang`'s engines that decode meet it, if it prefills.
    pub bootstrap_port: u16,
}

impl GatewayEndpoint {
    /// An engine at its own address, which does everything.
    pub fn whole(engine: String) -> Self {
        Self { engine, address: None, rank: None, role: Role::Both, bootstrap_port: BOOTSTRAP_PORT }
    }
}

/// The gateway of a plane.
pub(crate) fn gateway(parts: &Parts, options: Options) -> Gateway {
    let Parts { asker, routing, readiness, access, stop, .. } = parts;
    let decider = Decider::new(asker.clone(), routing.clone(), readiness.clone(), options.policy.clone());
    Gateway::new(Arc::new(decider), access.gate(Port::Http), options, stop.clone())
}

/// Serves until the plane stops and the answers under way are complete.
pub(crate) async fn run(setup: GatewaySetup, gateway: Gateway, parts: &Parts) {
    let stop = parts.stop.clone();
    let GatewaySetup { listener, tls, options, endpoints } = setup;
    let mut engines = parts.plane.watch();
    let mut known = Known::default();
    let now = engines.borrow_and_update().clone();
    gateway.set_upstreams(known.upstreams(&now, &endpoints).await);
    let following = {
        let (gateway, stop) = (gateway.clone(), stop.clone());
        async move {
            loop {
                let changed = tokio::time::timeout(LOOK_UP_EVERY, engines.changed());
                match stop.run_until_cancelled(changed).await {
                    None | Some(Ok(Err(_))) => return,
                    Some(_) => {}
                }
                let now = engines.borrow_and_update().clone();
                gateway.set_upstreams(known.upstreams(&now, &endpoints).await);
            }
        }
    };
    let probing = {
        let gateway = gateway.clone();
        async move { gateway.probe().await }
    };
    kvplane_runtime::spawn("gateway endpoints", following);
    kvplane_runtime::spawn("gateway probes", probing);
    let exporting = gateway.clone();
    kvplane_runtime::spawn("gateway traces", async move { exporting.export().await });
    let connections = parts.edge.bounds.gateway(options.max_connections);
    parts.edge.note(OtherListener { name: "gateway", connections: connections.clone(), tls: tls.clone() });
    let door = Door::open(listener, Port::Http, tls, connections);
    let service = gateway.router().into_make_service_with_connect_info::<Peer>();
    if let Err(error) = axum::serve(door, service).with_graceful_shutdown(stop.cancelled_owned()).await {
        error!(%error, "gateway failed");
    }
}

/// What was said of engines already: each thing once.
#[derive(Debug, Default)]
struct Known {
    addresses: Addresses,
    said: HashMap<EngineId, &'static str>,
    engines: usize,
}

impl Known {
    async fn upstreams(&mut self, engines: &Engines, given: &[GatewayEndpoint]) -> Vec<Upstream> {
        self.addresses.look_up(engines.iter().filter_map(|engine| engine.spec.http.clone()).collect()).await;
        let mut upstreams = Vec::with_capacity(engines.len());
        for engine in engines.iter() {
            let id = engine.spec.id.as_str();
            let own: Vec<&GatewayEndpoint> = given.iter().filter(|one| one.engine == id).collect();
            let whole = GatewayEndpoint::whole(id.to_owned());
            let own = if own.is_empty() { vec![&whole] } else { own };
            for one in own {
                match self.upstream(engine, one) {
                    Ok(upstream) => upstreams.push(upstream),
                    Err(reason) => {
                        if self.said.insert(engine.spec.id.clone(), reason) != Some(reason) {
                            warn!(engine = id, reason, "the gateway cannot send requests to this engine");
                        }
                    }
                }
            }
        }
        // Engines come and go under new names all the time.
        let ids: HashSet<&EngineId> = engines.iter().map(|engine| &engine.spec.id).collect();
        self.said.retain(|id, _| ids.contains(id));
        if upstreams.len() != self.engines {
            self.engines = upstreams.len();
            info!(endpoints = upstreams.len(), "gateway endpoints changed");
        }
        upstreams
    }

    fn upstream(&self, engine: &Engine, given: &GatewayEndpoint) -> Result<Upstream, &'static str> {
        let (address, host) = match (given.address, engine.spec.http.as_deref()) {
            (Some(address), _) => (address, address.to_string()),
            (None, Some(url)) => self.addresses.find(url)?,
            (None, None) => return Err("it has no http address: set http in its [[engine]]"),
        };
        let key = engine.spec.control.api_key().map_err(|_| "its api_key_file cannot be read")?;
        let authorization = key.map(|key| {
            let mut value = HeaderValue::from_str(&format!("Bearer {key}"))?;
            value.set_sensitive(true);
            Ok::<_, axum::http::header::InvalidHeaderValue>(value)
        });
        let authorization = authorization
            .transpose()
            .map_err(|_| "its api_key_file has characters that no header may have")?;
        Ok(Upstream {
            endpoint: Endpoint {
                engine: Some(engine.spec.id.to_string()),
                rank: given.rank,
                role: Some(given.role),
                ..Endpoint::at(address)
            },
            model: engine.spec.model.clone(),
            host: HeaderValue::from_str(&host).map_err(|_| "its http address is no host")?,
            authorization,
            bootstrap_port: given.bootstrap_port,
            kind: match engine.spec.kind {
                EngineKind::Vllm => "vllm",
                EngineKind::Sglang => "sglang",
                _ => "other",
            },
        })
    }
}

/// For `/metrics`.
pub(crate) fn rows(gateway: &Gateway) -> GatewayRows {
    let stats = gateway.stats();
    let [decisions, without_tokens, ended, retries, limited, prefills, traces, refused] = stats.labelled();
    let [unretried, forwarded_ids, withdrawn_ids] = stats.counts();
    let read = |TimesRead { sum, count, buckets }| LatenciesRead { sum, count, buckets };
    let [first_token, per_token, queue] = stats.times().map(read);
    let endpoints = gateway.endpoints();
    let standing = |name: &'static str| endpoints.iter().filter(|one| one.standing == name).count() as u64;
    GatewayRows {
        requests: stats.requests().collect(),
        decisions,
        without_tokens,
        ended,
        retries,
        limited,
        prefills,
        traces,
        refused,
        unretried,
        forwarded_ids,
        withdrawn_ids,
        in_flight: stats.in_flight(),
        held_bytes: gateway.held_bytes(),
        endpoints: Gateway::standings().map(|name| (name, standing(name))).collect(),
        first_token,
        per_token,
        queue,
    }
}
