//! Ranks that an engine turns out to have, while it runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvplane_core::EngineId;
use tracing::{error, info, warn};

use super::{Engine, Engines, Members, Plane, find, is_sole};
use crate::check::{AddError, UnknownMember, check};
use crate::discovery::Placed;
use crate::feeder::Feeder;
use crate::spec::{DiscoverySpec, EngineSpec, Events, Feed, RankSpec};
use crate::stream::Stream;
use crate::trouble::{BAD_ANSWER, BLOCK_SIZE};

impl Engine {
    /// Streams of ranks of which nobody knows yet where they publish.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = &Arc<Stream>> {
        let awaited = self.spec.ranks.iter().filter(|rank| rank.events == Events::Awaited);
        awaited.filter_map(|rank| self.stream(rank.rank))
    }
}

impl Plane {
    /// Gives an engine that was asked by `asked` the ranks that it was found to have. True if anything changed.
    ///
    /// A rank that is where it was does not notice. One that is elsewhere stays the same stream, and its recorder finds out
    /// whether it is the same life.
    pub(crate) fn give_ranks(
        &self,
        id: &EngineId,
        asked: &DiscoverySpec,
        placed: Placed,
    ) -> Result<bool, AddError> {
        let mut members = self.members.lock();
        let engines = self.engines();
        // There may be another engine by now, under the same name.
        let engine = find(&engines, id.as_str())
            .filter(|engine| matches!(&engine.spec.feed, Feed::Discovered(spec) if spec == asked))
            .ok_or_else(|| UnknownMember::Engine(id.to_string()))?;
        let Placed { ranks, topic, block_size, untold_adapters, mut troubles, .. } = placed;
        let spec = EngineSpec { ranks, topic, ..engine.spec.clone() };
        let others: Vec<_> = engines.iter().filter(|other| !Arc::ptr_eq(other, engine)).cloned().collect();
        check(&others, std::slice::from_ref(&spec), self.options.max_engines)?;
        let changed = spec.ranks != engine.spec.ranks || spec.topic != engine.spec.topic;
        let engine = if changed {
            self.resettle(&mut members, &engines, engine, spec, &mut troubles)
        } else {
            engine.clone()
        };
        for stream in &engine.streams {
            let contradicts = self.describe(stream, engine.spec.block_size, block_size);
            let trouble =
                troubles.get(&stream.id().rank).copied().or_else(|| contradicts.then_some(BLOCK_SIZE));
            stream.set_discovery_trouble(trouble);
            self.describe_adapters(stream, untold_adapters);
        }
        Ok(changed)
    }

    /// Makes an engine's ranks what `spec` says.
    fn resettle(
        &self,
        members: &mut Members,
        engines: &Engines,
        engine: &Arc<Engine>,
        mut spec: EngineSpec,
        troubles: &mut BTreeMap<u32, &'static str>,
    ) -> Arc<Engine> {
        let same_topic = spec.topic == engine.spec.topic;
        let mut streams = Vec::new();
        let sole_rank = is_sole(spec.ranks.len(), engine.origin);
        for rank in std::mem::take(&mut spec.ranks) {
            let known = engine.stream(rank.rank).cloned();
            if let Some(stream) = &known
                && same_topic
                && engine.spec.ranks.contains(&rank)
            {
                streams.push(stream.clone());
                spec.ranks.push(rank);
                continue;
            }
            let stream = known.unwrap_or_else(|| self.plan(members, &spec, &rank, sole_rank));
            let settled = self.settle(members, &spec, &stream, &rank);
            spec.ranks.push(settled.unwrap_or_else(|error| {
                warn!(stream = %stream.id(), %error, "the rank cannot be heard");
                members.sources.await_address(Feeder::new(stream.clone(), self.runtime.clone()));
                troubles.insert(rank.rank, BAD_ANSWER);
                RankSpec::awaited(rank.rank)
            }));
            streams.push(stream);
        }
        let stays = |stream: &Stream| streams.iter().any(|other| other.id() == stream.id());
        let gone: Vec<_> = engine.streams.iter().filter(|stream| !stays(stream)).cloned().collect();
        let changed = Engine::new(spec, engine.origin, streams);
        self.replace(engines, engine, Some(changed.clone()));
        for stream in gone {
            info!(stream = %stream.id(), "the engine does not have this rank any more");
            members.close(&stream);
        }
        changed
    }

    /// Listens for a stream at a rank's addresses, and no longer where it was.
    fn settle(
        &self,
        members: &mut Members,
        spec: &EngineSpec,
        stream: &Arc<Stream>,
        rank: &RankSpec,
    ) -> Result<RankSpec, AddError> {
        members.sources.leave(stream.id());
        let feeder = Feeder::new(stream.clone(), self.runtime.clone());
        feeder.tell(|recorder, _| recorder.offer_replay(rank.replay.is_some()));
        self.open_one(members, stream, spec, rank)?;
        if rank.events != Events::Awaited {
            let (events, replay) = (&rank.events, rank.replay.as_deref());
            info!(stream = %stream.id(), %events, replay, "the engine publishes here");
        }
        Ok(rank.clone())
    }

    /// Takes the engine's word on adapters that its events do not name.
    fn describe_adapters(&self, stream: &Arc<Stream>, untold: bool) {
        let mut news = false;
        let feeder = Feeder::new(stream.clone(), self.runtime.clone());
        feeder.tell(|recorder, now| news = recorder.describe_adapters(untold, now));
        if news {
            warn!(stream = %stream.id(), "the engine serves adapters, and its events do not name them: use the dynamo format");
        }
    }

    /// Holds the engine's word on its block size against the configured one. True if it contradicts.
    fn describe(&self, stream: &Arc<Stream>, configured: Option<u32>, found: Option<u32>) -> bool {
        let (Some(configured), Some(found)) = (configured, found) else { return false };
        let mut news = false;
        let feeder = Feeder::new(stream.clone(), self.runtime.clone());
        feeder.tell(|recorder, now| news = recorder.describe_block_size(found, now));
        if news {
            error!(stream = %stream.id(), configured, found, "the engine has another block size than the configured one");
        }
        configured != found
    }
}
