//! Who is asked, and how: the selected engines, their ranks and their servers.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use http::HeaderValue;
use kvplane_core::EngineKind;
use kvplane_ingest::{Engine, Source, Stream};
use kvplane_ops::{Backend, GrpcServer, Verb, dry_run, normal_address};

use super::report::{PlannedRank, RankName};

/// One engine, as it is asked.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) kind: EngineKind,
    /// Its server; or why it cannot be asked.
    pub(super) backend: Result<Backend, String>,
    /// How it would be asked, in words; or why it would not be.
    call: Result<String, String>,
    pub(super) ranks: Vec<TargetRank>,
    /// Ranks of engines that nobody selected, behind the same server: they are watched too, and not reported.
    bystanders: Vec<TargetRank>,
}

#[derive(Debug)]
pub(super) struct TargetRank {
    pub(super) name: Arc<RankName>,
    pub(super) stream: Arc<Stream>,
}

impl Target {
    pub(super) fn new(engine: &Engine, verb: &Verb, bystanders: &Bystanders) -> Self {
        let spec = &engine.spec;
        let beside = bystanders.beside(engine);
        let bystanders = beside.iter().flat_map(|engine| ranks_of(engine)).collect();
        let backend = backend(engine);
        let call = match &backend {
            Ok(backend) => dry_run(backend, verb),
            Err(why) => Err(why.clone()),
        };
        Self { kind: spec.kind, backend, call, ranks: ranks_of(engine).collect(), bystanders }
    }

    /// Every rank that a flush of the server may reach, those that are reported first.
    pub(super) fn watched(&self) -> impl Iterator<Item = &TargetRank> {
        self.ranks.iter().chain(&self.bystanders)
    }

    /// How many that are.
    pub(super) fn ranks_behind(&self) -> usize {
        self.ranks.len() + self.bystanders.len()
    }

    pub(super) fn planned(&self) -> impl Iterator<Item = PlannedRank> {
        let (call, unsupported) = match self.call.clone() {
            Ok(call) => (call, String::new()),
            Err(why) => (String::new(), why),
        };
        self.ranks.iter().map(move |rank| PlannedRank {
            name: rank.name.clone(),
            call: call.clone(),
            unsupported: unsupported.clone(),
        })
    }
}

fn ranks_of(engine: &Engine) -> impl Iterator<Item = TargetRank> {
    let spec = &engine.spec;
    engine.streams.iter().map(move |stream| TargetRank {
        name: Arc::new(RankName {
            engine: spec.id.to_string(),
            rank: stream.id().rank,
            model: spec.model.clone(),
            kind: spec.kind.as_str(),
        }),
        stream: stream.clone(),
    })
}

/// Engines that nobody selected, by the addresses of their servers.
pub(super) struct Bystanders(HashMap<String, Vec<Arc<Engine>>>);

impl Bystanders {
    pub(super) fn of(selected: &[Arc<Engine>], all: &[Arc<Engine>]) -> Self {
        let selected: HashSet<_> = selected.iter().map(|engine| &engine.spec.id).collect();
        let mut known: HashMap<_, Vec<_>> = HashMap::new();
        for engine in all.iter().filter(|engine| !selected.contains(&engine.spec.id)) {
            for address in addresses(engine) {
                known.entry(address).or_default().push(engine.clone());
            }
        }
        Self(known)
    }

    /// Those behind the same server as `engine`.
    fn beside(&self, engine: &Engine) -> Vec<Arc<Engine>> {
        let mut beside: Vec<Arc<Engine>> = Vec::new();
        for other in addresses(engine).filter_map(|address| self.0.get(&address)).flatten() {
            // One that shares both addresses is one.
            if !beside.iter().any(|known| Arc::ptr_eq(known, other)) {
                beside.push(other.clone());
            }
        }
        beside
    }
}

fn addresses(engine: &Engine) -> impl Iterator<Item = String> {
    let spec = &engine.spec;
    let here = !matches!(spec.source, Source::Mirrored(_));
    let grpc = spec.control.grpc.iter().map(|grpc| &grpc.url);
    spec.http.iter().chain(grpc).filter(move |_| here).map(|url| normal_address(url))
}

/// The server of an engine. Reads the key that it wants.
fn backend(engine: &Engine) -> Result<Backend, String> {
    let spec = &engine.spec;
    if matches!(spec.source, Source::Mirrored(_)) {
        // Whatever it is there: here it is an engine of another plane.
        let kind = EngineKind::Kvplane;
        return Ok(Backend { kind, http: None, grpc: None, version: None, authorization: None });
    }
    let key = spec.control.api_key().map_err(|error| format!("api_key_file: {error}"))?;
    let authorization = key.map(|key| authorization(&key)).transpose()?;
    let grpc = spec.control.grpc.as_ref();
    Ok(Backend {
        kind: spec.kind,
        http: spec.http.clone(),
        grpc: grpc.map(|grpc| GrpcServer { url: grpc.url.clone(), ca: grpc.ca.clone() }),
        // No source of events tells it, and `info` is a question of its own.
        version: None,
        authorization,
    })
}

fn authorization(key: &str) -> Result<HeaderValue, String> {
    let header = HeaderValue::from_str(&format!("Bearer {key}"));
    let mut header = header.map_err(|_| "api_key_file: the key cannot be sent".to_owned())?;
    header.set_sensitive(true);
    Ok(header)
}
