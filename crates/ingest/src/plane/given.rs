//! Ranks that an engine turns out to have, while it runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvplane_core::{EngineId, Trouble};
use kvplane_discovery::{DiscoverySpec, Found, FoundRank};
use tracing::{error, info, warn};

use super::{Engine, Engines, Members, Plane, find, is_sole};
use crate::check::{AddError, UnknownMember, check};
use crate::feeder::Feeder;
use crate::source::Source;
use crate::source::discovery::Discovered;
use crate::spec::EngineSpec;
use crate::stream::Stream;

impl Engine {
    /// Streams of ranks of which nobody knows yet where they publish.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = &Arc<Stream>> {
        let ranks = match &self.spec.source {
            Source::Discovered(source) => &source.ranks[..],
            _ => &[],
        };
        ranks.iter().filter(|rank| rank.events.is_none()).filter_map(|rank| self.stream(rank.rank))
    }
}

impl Plane {
    /// Gives an engine that was asked by `asked` the ranks that it was found to have. True if anything
    /// changed.
    ///
    /// A rank that is where it was does not notice. One that is elsewhere stays the same stream, and its
    /// recorder finds out whether it is the same life.
    pub(crate) fn give_ranks(
        &self,
        id: &EngineId,
        asked: &DiscoverySpec,
        found: Found,
    ) -> Result<bool, AddError> {
        let mut members = self.members.lock();
        let engines = self.engines();
        // There may be another engine by now, under the same name.
        let known = find(&engines, id.as_str()).and_then(|engine| match &engine.spec.source {
            Source::Discovered(source) if source.spec == *asked => Some((engine, source)),
            _ => None,
        });
        let (engine, before) = known.ok_or_else(|| UnknownMember::Engine(id.to_string()))?;
        let Found { ranks, topic, block_size, untold_adapters, mut troubles, .. } = found;
        let changed = ranks != before.ranks || topic != engine.spec.topic;
        let source = Source::Discovered(Discovered { spec: asked.clone(), ranks: ranks.clone() });
        let spec = EngineSpec { source, topic, ..engine.spec.clone() };
        let others: Vec<_> = engines.iter().filter(|other| !Arc::ptr_eq(other, engine)).cloned().collect();
        check(&others, std::slice::from_ref(&spec), self.options.max_engines)?;
        let engine = if changed {
            self.resettle(&mut members, &engines, engine, (spec, ranks), &mut troubles)
        } else {
            engine.clone()
        };
        for stream in &engine.streams {
            let contradicts = self.describe(stream, engine.spec.block_size, block_size);
            let trouble = troubles
                .get(&stream.id().rank)
                .copied()
                .or_else(|| contradicts.then_some(Trouble::BlockSize));
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
        (mut spec, ranks): (EngineSpec, Vec<FoundRank>),
        troubles: &mut BTreeMap<u32, Trouble>,
    ) -> Arc<Engine> {
        let same_topic = spec.topic == engine.spec.topic;
        let before = engine.spec.source.ranks();
        let (mut streams, mut settled) = (Vec::new(), Vec::new());
        let sole_rank = is_sole(ranks.len(), engine.origin);
        for rank in ranks {
            let known = engine.stream(rank.rank).cloned();
            if let Some(stream) = &known
                && same_topic
                && before.contains(&rank.clone().into())
            {
                streams.push(stream.clone());
                settled.push(rank);
                continue;
            }
            let stream = known.unwrap_or_else(|| self.plan(members, &spec, rank.rank, sole_rank));
            settled.push(match self.settle(members, &spec, &stream, &rank) {
                Ok(()) => rank,
                Err(error) => {
                    warn!(stream = %stream.id(), %error, "the rank cannot be followed");
                    members.sources.await_address(Feeder::new(stream.clone(), self.runtime.clone()));
                    troubles.insert(rank.rank, Trouble::BadAnswer);
                    FoundRank::unknown(rank.rank)
                }
            });
            streams.push(stream);
        }
        if let Source::Discovered(source) = &mut spec.source {
            source.ranks = settled;
        }
        let stays = |stream: &Stream| streams.iter().any(|other| other.id() == stream.id());
        let gone: Vec<_> = engine.streams.iter().filter(|stream| !stays(stream)).cloned().collect();
        let changed = Engine::new(spec, engine.origin, streams);
        self.replace(engines, engine, Some(changed.clone()));
        for stream in gone {
            info!(stream = %stream.id(), "the engine no longer has this rank");
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
        rank: &FoundRank,
    ) -> Result<(), AddError> {
        members.sources.leave(stream.id());
        let feeder = Feeder::new(stream.clone(), self.runtime.clone());
        feeder.tell(|recorder, _| recorder.offer_replay(rank.replay.is_some()));
        self.open_one(members, stream, spec)?;
        if let Some(events) = &rank.events {
            info!(stream = %stream.id(), events, replay = rank.replay, "the engine publishes here");
        }
        Ok(())
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
