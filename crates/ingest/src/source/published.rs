//! Engines whose ranks publish on sockets, at configured addresses.

use std::hash::{BuildHasher as _, RandomState};

use kvplane_discovery::{AddressError, check_overlap, for_rank};
use kvplane_socket::Endpoint;
use kvplane_stream::{JournalOptions, Now, Options, Recorder};

use crate::check::AddError;
use crate::feeder::Feeder;
use crate::hint::HintSource;
use crate::source::{Events, Opening, RankSpec, SourceKind};
use crate::spec::PlaneOptions;
use crate::zmq_source::Driver;

/// Ranks that publish on sockets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Published {
    /// Where each rank is, in the order of their numbers.
    pub ranks: Vec<PublishedRank>,
}

/// Where one rank publishes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedRank {
    /// Its number, as in the engine's batches.
    pub rank: u32,
    /// Its events: we connect to the engine, or it connects to us.
    pub events: Endpoint,
    /// Its replay socket.
    pub replay: Option<String>,
}

impl Published {
    /// Ranks 0 to `ranks` - 1, as engines lay them out: rank r is at port + r.
    pub fn at_ports(events: &Endpoint, replay: Option<&str>, ranks: u32) -> Result<Self, AddressError> {
        if let Some(replay) = replay {
            check_overlap(events.address(), replay, ranks)?;
        }
        let ranks = (0..ranks).map(|rank| PublishedRank::counted(rank, rank, events, replay));
        Ok(Self { ranks: ranks.collect::<Result<_, _>>()? })
    }
}

impl PublishedRank {
    /// A rank at addresses of its own.
    pub fn at(rank: u32, events: &Endpoint, replay: Option<&str>) -> Result<Self, AddressError> {
        if let Some(replay) = replay {
            check_overlap(events.address(), replay, 1)?;
        }
        Self::counted(rank, 0, events, replay)
    }

    fn counted(rank: u32, step: u32, events: &Endpoint, replay: Option<&str>) -> Result<Self, AddressError> {
        let replay = replay.map(|address| for_rank(address, step, true)).transpose();
        let events = match events {
            Endpoint::Connect(address) => for_rank(address, step, true).map(Endpoint::Connect),
            Endpoint::Bind(address) => for_rank(address, step, false).map(Endpoint::Bind),
        };
        let events = events.map_err(AddressError::of("events"))?;
        Ok(Self { rank, events, replay: replay.map_err(AddressError::of("replay"))? })
    }

    fn described(&self) -> RankSpec {
        let events = match &self.events {
            Endpoint::Connect(address) => Events::Connect(address.clone()),
            Endpoint::Bind(address) => Events::Bind(address.clone()),
        };
        RankSpec { rank: self.rank, events, replay: self.replay.clone() }
    }

    /// Subscribes to the rank.
    pub(crate) fn open(&self, opening: Opening<'_>) -> Result<(), AddError> {
        let Opening { plane, sources, spec, stream } = opening;
        let feeder = Feeder::new(stream.clone(), plane.runtime().clone());
        let (sockets, client) = (plane.sockets()?, plane.http().clone());
        let hints = HintSource { http: spec.http.clone(), provenance: spec.provenance.clone() };
        let replay = self.replay.clone();
        let driver = Driver::new(feeder, sockets.clone(), plane.options(), replay, hints, client);
        let opened = sources.open(&sockets, self.events.clone(), spec.topic.clone(), driver);
        opened.map_err(|error| AddError::Socket { address: self.events.address().to_owned(), error })
    }
}

impl SourceKind for Published {
    fn ranks(&self) -> Vec<RankSpec> {
        self.ranks.iter().map(PublishedRank::described).collect()
    }

    fn check(&self) -> Result<(), AddressError> {
        self.ranks.iter().try_for_each(|PublishedRank { rank, events, replay }| {
            PublishedRank::at(*rank, events, replay.as_deref()).map(|_| ())
        })
    }

    fn remove_rank(&mut self, rank: u32) {
        self.ranks.retain(|known| known.rank != rank);
    }

    fn follow(&self, options: &PlaneOptions, rank: u32) -> Option<Options> {
        let known = self.ranks.iter().find(|known| known.rank == rank);
        Some(subscribed(known.is_some_and(|known| known.replay.is_some()), options, rank))
    }

    fn recorder(&self, options: &PlaneOptions, keep: JournalOptions, rank: u32, now: Now) -> Recorder {
        Recorder::new(self.follow(options, rank).unwrap_or_default(), keep, rank, now)
    }

    fn open(&self, opening: Opening<'_>) -> Result<(), AddError> {
        let rank = opening.stream.id().rank;
        match self.ranks.iter().find(|known| known.rank == rank) {
            Some(known) => known.open(opening),
            None => Ok(()),
        }
    }
}

/// How a stream that comes over a socket is followed.
pub(crate) fn subscribed(replay: bool, options: &PlaneOptions, rank: u32) -> Options {
    Options {
        replay,
        on_gap: options.on_gap,
        down_after: options.down_after,
        // Random, and never zero.
        spread: RandomState::new().hash_one(rank) | 1,
        ..Options::default()
    }
}
