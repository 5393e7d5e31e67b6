//! Looking at engines over the network, all at once, each within its own time.

mod ear;
mod engine;
mod greet;
mod ring;
mod word;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use kvplane_ingest::{EngineSpec, Events};
use kvplane_socket::{Endpoint, Options, Sockets};

pub use greet::greet;

use crate::Finding;
use crate::rules::{judge_engine, judge_fleet, no_sockets};
use crate::seen::{EngineSeen, Window};
use ear::Ear;

/// Engines that are looked at together, where descriptors allow it.
const AT_ONCE: u64 = 64;
/// Descriptors that looking at a rank takes: a subscription, a replay, and the engine's servers.
const PER_RANK: u64 = 12;
/// Descriptors that the process has beside these.
const BESIDES: u64 = 64;

/// What is to be looked at, and how.
#[derive(Debug, Clone)]
pub struct Examination {
    /// The engines, as configured.
    pub engines: Vec<EngineSpec>,
    /// How long to listen; it ends sooner where enough was heard.
    pub listen: Duration,
    /// The plane's replay window; absent where a running plane is asked about it.
    pub window: Option<Window>,
    /// Of engines that a running plane lists: the streams (`engine/rank`) that it hears. The addresses that
    /// engines connect to are then its own, and nobody else listens there.
    pub listed: Option<BTreeSet<String>>,
    /// Descriptors that this process may have open, where that is known.
    pub descriptors: Option<u64>,
}

impl Examination {
    /// How many engines can be looked at together.
    fn at_once(&self) -> usize {
        let ranks =
            self.engines.iter().map(|engine| engine.source.ranks().len()).max().unwrap_or(0).max(1) as u64;
        let spare = self.descriptors.unwrap_or(u64::MAX).saturating_sub(BESIDES);
        usize::try_from((spare / (ranks * PER_RANK)).clamp(1, AT_ONCE)).unwrap_or(1)
    }
}

/// Looks at the engines, and says what is wrong with them. The worst comes first.
pub async fn examine(examination: &Examination) -> Vec<Finding> {
    let sockets = match Sockets::start(&Options::default()) {
        Ok(sockets) => sockets,
        Err(error) => return vec![no_sockets(&error)],
    };
    let ears = match examination.listed {
        Some(_) => Ears::new(),
        None => bound_ears(&sockets, &examination.engines),
    };
    let looks = examination.engines.iter();
    let looks: Vec<_> = looks.map(|spec| engine::look(&sockets, &ears, spec, examination.listen)).collect();
    let mut seen: Vec<EngineSeen> =
        stream::iter(looks).buffer_unordered(examination.at_once()).collect().await;
    seen.sort_by(|one, other| one.id.cmp(&other.id));
    for engine in &mut seen {
        let heard = examination.listed.iter().flatten();
        engine.heard_by_plane = heard.filter_map(|stream| engine.rank_of(stream)).collect();
    }
    drop(ears);
    // Joins threads. If that fails there is nobody left to tell.
    let _ = tokio::task::spawn_blocking(move || sockets.shutdown()).await;
    let mut found: Vec<Finding> =
        seen.iter().flat_map(|engine| judge_engine(engine, examination.window.as_ref())).collect();
    found.extend(judge_fleet(&seen));
    found.sort_by_key(|finding| (std::cmp::Reverse(finding.severity), finding.subject.clone()));
    found.dedup();
    found
}

/// What listens at the addresses that engines connect to: one for each, however many engines share it.
pub(crate) type Ears = HashMap<String, Ear>;

fn bound_ears(sockets: &Sockets, engines: &[EngineSpec]) -> Ears {
    let mut wanted: HashMap<String, Vec<String>> = HashMap::new();
    for engine in engines {
        for rank in engine.source.ranks() {
            if let Events::Bind(address) = rank.events {
                wanted.entry(address).or_default().push(engine.topic.clone());
            }
        }
    }
    let open = |(address, topics): (String, Vec<String>)| {
        let ear = Ear::open(sockets, Endpoint::Bind(address.clone()), topics).ok()?;
        Some((address, ear))
    };
    wanted.into_iter().filter_map(open).collect()
}

/// Seconds since 1970, by our clock.
pub(crate) fn now() -> f64 {
    kvplane_runtime::unix_time().as_secs_f64()
}
