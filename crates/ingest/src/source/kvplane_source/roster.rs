//! The engines of another plane, as engines of this one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvplane_core::{Continuity, Cursor, EngineId, EngineKind, Epoch, PlaneId, StreamId};
use kvplane_proto::kvplane::v1 as proto;
use kvplane_stream::Semantics;
use tracing::{error, info, warn};

use super::member::Member;
use super::spec::{LinkSpec, Mirrored};
use super::status::LinkState;
use crate::feeder::Feeder;
use crate::plane::{Engine, Plane};
use crate::source::{SharedRanks, Source};
use crate::spec::{EngineSpec, Origin};

/// A stream that came through more planes than this goes round in circles.
const MAX_PLANES: usize = 32;

/// The streams that are followed, by their names there.
#[derive(Debug)]
pub(super) struct Roster {
    link: EngineId,
    spec: LinkSpec,
    state: Arc<LinkState>,
    runtime: tokio::runtime::Handle,
    pub(super) members: BTreeMap<StreamId, Member>,
    /// Engines that this plane would not take, so that each is complained of once.
    unwelcome: BTreeSet<String>,
}

impl Roster {
    pub(super) fn new(
        link: EngineId,
        spec: LinkSpec,
        state: Arc<LinkState>,
        runtime: tokio::runtime::Handle,
    ) -> Self {
        Self { link, spec, state, runtime, members: BTreeMap::new(), unwelcome: BTreeSet::new() }
    }

    /// The other plane was asked at `asked`, and said how old its own proof was of each stream then.
    pub(super) fn proven(&mut self, asked: Instant, engines: &[proto::EngineStatus]) {
        for engine in engines {
            for rank in &engine.ranks {
                let stream = StreamId::new(EngineId::new(&engine.id), rank.rank);
                let at = rank.cursor.unwrap_or_default();
                // An older release says no age: what it calls live is as old as the answer.
                let live = kvplane_proto::continuity(rank.continuity) == Some(Continuity::Live);
                let age = rank.age_ms.or_else(|| live.then_some(0)).map(Duration::from_millis);
                let proven_at = age.and_then(|age| asked.checked_sub(age));
                if let (Some(member), Some(proven_at)) = (self.members.get_mut(&stream), proven_at) {
                    let at = Cursor { epoch: Epoch::from_raw(at.epoch), sequence: at.sequence };
                    member.proven(at, proven_at);
                }
            }
        }
    }

    /// Makes the engines here those that are there.
    pub(super) fn reconcile(&mut self, plane: &Plane, engines: &[proto::EngineStatus]) {
        let wanted = engines.iter().filter(|engine| !engine.ranks.is_empty() && self.spec.wants(&engine.id));
        let (mut coming, mut refused) = (Vec::new(), BTreeSet::new());
        for engine in wanted {
            if goes_in_circles(&engine.via, plane.id()) {
                refused.insert(engine.id.clone());
            } else {
                coming.push(engine);
            }
        }
        self.refuse(refused);
        for gone in self.mirrored(plane) {
            let there = gone.spec.source.mirrored().map(|source| source.engine.as_str());
            if !coming.iter().any(|engine| Some(engine.id.as_str()) == there) {
                remove(plane, &gone.spec.id);
            }
        }
        for engine in coming {
            self.welcome(plane, engine);
        }
        self.adopt(plane);
    }

    /// The other plane is followed, and is at these positions: what it has now must be here before a stream
    /// is live.
    pub(super) fn reached(&mut self, engines: &[proto::EngineStatus]) {
        for engine in engines {
            for rank in &engine.ranks {
                let stream = StreamId::new(EngineId::new(&engine.id), rank.rank);
                let at = rank.cursor.unwrap_or_default();
                if let Some(member) = self.members.get_mut(&stream) {
                    member.reached(Cursor { epoch: Epoch::from_raw(at.epoch), sequence: at.sequence });
                }
            }
        }
    }

    /// A stream is gone there.
    pub(super) fn gone(&mut self, plane: &Plane, stream: &StreamId) {
        let Some(member) = self.members.remove(stream) else { return };
        let StreamId { engine, rank } = member.id();
        if plane.remove_rank(engine.as_str(), *rank).is_ok() {
            info!(%engine, rank, "rank removed: the upstream plane removed it");
        }
    }

    fn refuse(&self, refused: BTreeSet<String>) {
        let link = &self.link;
        self.state.change(|status| {
            for engine in refused.difference(&status.refused) {
                status.loops += 1;
                error!(%link, engine, "engine ignored: it already came through this plane, following it would be a loop");
            }
            status.refused = refused;
        });
    }

    fn mirrored(&self, plane: &Plane) -> Vec<Arc<Engine>> {
        let comes = |engine: &&Arc<Engine>| engine.spec.source.comes_over(&self.link);
        plane.engines().iter().filter(comes).cloned().collect()
    }

    /// Adds an engine, or makes it what it is there.
    fn welcome(&mut self, plane: &Plane, status: &proto::EngineStatus) {
        let spec = self.described(status);
        let id = spec.id.clone();
        if let Some(known) = plane.engine(id.as_str()) {
            if known.origin == Origin::Upstream
                && known.spec.kind == spec.kind
                && known.spec.model == spec.model
            {
                match_ranks(plane, &known, &status.ranks.iter().map(|rank| rank.rank).collect());
                plane.set_via(id.as_str(), &via(status));
                return;
            }
            if known.spec.source.comes_over(&self.link) {
                remove(plane, &id);
            }
        }
        match plane.add(vec![spec], Origin::Upstream) {
            Ok(()) => {
                info!(engine = %id, added_by = Origin::Upstream.as_str(), "engine added");
                self.unwelcome.remove(&status.id);
            }
            Err(error) if self.unwelcome.insert(status.id.clone()) => {
                warn!(engine = %id, %error, "cannot add an engine of the upstream plane");
            }
            Err(_) => {}
        }
    }

    fn described(&self, status: &proto::EngineStatus) -> EngineSpec {
        let id = EngineId::new(&format!("{}/{}", self.link, status.id));
        // A kind that this build does not know means no more than what its plane makes of it.
        let kind = status.kind.parse().unwrap_or(EngineKind::Kvplane);
        let source = Source::Mirrored(Mirrored {
            link: self.link.clone(),
            url: self.spec.url.clone(),
            engine: status.id.clone(),
            via: via(status),
            ranks: status.ranks.iter().map(|rank| rank.rank).collect::<SharedRanks>(),
        });
        EngineSpec { max_silence: self.spec.max_silence, ..EngineSpec::new(id, kind, &status.model, source) }
    }

    /// Has a member for every stream that comes over this link, and no other.
    fn adopt(&mut self, plane: &Plane) {
        let engines = self.mirrored(plane);
        let mut members = BTreeMap::new();
        for engine in &engines {
            let Some(spec) = engine.spec.source.mirrored() else { continue };
            for stream in &engine.streams {
                let there = StreamId::new(EngineId::new(&spec.engine), stream.id().rank);
                let known = self.members.remove(&there).filter(|member| member.is(stream));
                let new = || {
                    let feeder = Feeder::new(stream.clone(), self.runtime.clone());
                    Member::new(feeder, Semantics::of(engine.spec.kind), plane.limits())
                };
                members.insert(there, known.unwrap_or_else(new));
            }
        }
        self.members = members;
    }
}

fn remove(plane: &Plane, id: &EngineId) {
    if plane.remove(id.as_str()).is_ok() {
        info!(engine = %id, "engine removed: the upstream plane removed it");
    }
}

/// Has the ranks that the engine has there.
fn match_ranks(plane: &Plane, known: &Engine, wanted: &BTreeSet<u32>) {
    let id = known.spec.id.as_str();
    for &rank in wanted.iter().filter(|rank| known.stream(**rank).is_none()) {
        if let Err(error) = plane.add_shared_rank(id, rank) {
            warn!(engine = id, rank, %error, "cannot add a rank of the upstream plane");
        }
    }
    for stream in &known.streams {
        let rank = stream.id().rank;
        if !wanted.contains(&rank) && plane.remove_rank(id, rank).is_ok() {
            info!(engine = id, rank, "rank removed: the upstream plane removed it");
        }
    }
}

fn via(status: &proto::EngineStatus) -> Vec<PlaneId> {
    status.via.iter().map(|plane| PlaneId::reported(plane)).collect()
}

/// Whether a stream that came through these planes must not come to this one.
pub(super) fn goes_in_circles(via: &[String], own: &PlaneId) -> bool {
    via.len() >= MAX_PLANES || via.iter().any(|plane| plane == own.as_str())
}
