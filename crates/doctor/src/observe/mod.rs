//! Looking at engines over the network, all at once, each within its own time.

mod ear;
mod engine;
mod greet;
mod ring;
mod word;

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use kvplane_ingest::{EngineSpec, Events};
use kvplane_socket::{Endpoint, Options, SocketError, Sockets};

pub use greet::greet;

use crate::Finding;
use crate::rules::{judge_engine, judge_fleet};
use crate::seen::{EngineSeen, Window};
use ear::Ear;

/// Engines that are looked at together. Each has a handful of connections.
const AT_ONCE: usize = 64;

/// What is to be looked at, and how.
#[derive(Debug, Clone)]
pub struct Examination {
    /// The engines, as configured.
    pub engines: Vec<EngineSpec>,
    /// How long to listen; it ends sooner where enough was heard.
    pub listen: Duration,
    /// The plane's replay window; absent where a running plane is asked about it.
    pub window: Option<Window>,
}

/// Looks at the engines, and says what is wrong with them. The worst comes first.
pub async fn examine(examination: &Examination) -> Result<Vec<Finding>, SocketError> {
    let sockets = Sockets::start(&Options::default())?;
    let ears = bound_ears(&sockets, &examination.engines);
    let looks = examination.engines.iter();
    let looks: Vec<_> = looks.map(|spec| engine::look(&sockets, &ears, spec, examination.listen)).collect();
    let mut seen: Vec<EngineSeen> = stream::iter(looks).buffer_unordered(AT_ONCE).collect().await;
    seen.sort_by(|one, other| one.id.cmp(&other.id));
    drop(ears);
    // Joins threads. If that fails there is nobody left to tell.
    let _ = tokio::task::spawn_blocking(move || sockets.shutdown()).await;
    let mut found: Vec<Finding> =
        seen.iter().flat_map(|engine| judge_engine(engine, examination.window.as_ref())).collect();
    found.extend(judge_fleet(&seen));
    found.sort_by_key(|finding| (std::cmp::Reverse(finding.severity), finding.subject.clone()));
    found.dedup();
    Ok(found)
}

/// What listens at the addresses that engines connect to: one for each, whoever shares it.
pub(crate) type Ears = HashMap<String, Ear>;

fn bound_ears(sockets: &Sockets, engines: &[EngineSpec]) -> Ears {
    let mut wanted: HashMap<String, Vec<String>> = HashMap::new();
    for engine in engines {
        for rank in &engine.ranks {
            if let Events::Bind(address) = &rank.events {
                wanted.entry(address.clone()).or_default().push(engine.topic.clone());
            }
        }
    }
    let open = |(address, topics): (String, Vec<String>)| {
        let ear = Ear::open(sockets, Endpoint::Bind(address.clone()), topics).ok()?;
        Some((address, ear))
    };
    wanted.into_iter().filter_map(open).collect()
}
