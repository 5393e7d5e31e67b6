//! Every engine's streams, and the sources that feed them. Engines come and go while the others run.

mod given;
mod mirrors;
pub(crate) use mirrors::random_bits;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use kvplane_core::{Cursor, PlaneId, StreamId};
use kvplane_socket::{Options as SocketOptions, Sockets};
use kvplane_stream::{JournalOptions, Recorder, Semantics};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::check::{AddError, UnknownMember, check};
use crate::chronicle::{Chronicle, Mood, Said};
use crate::clock::Clock;
use crate::durable::{self, Durable, GoesOn};
use crate::peers::{self, Peers};
use crate::source::kvplane_source::LinkState;
use crate::source::published::PublishedRank;
use crate::source::{Events, Opening, Source};
use crate::sources::Sources;
use crate::spec::{EngineSpec, Origin, PlaneOptions};
use crate::stream::Stream;
use kvplane_catalog::{Catalog, Identity};
use kvplane_transport::HttpClient;

/// One engine and its streams, as they were when the plane was asked. It does not change: when a rank comes
/// or goes, the plane has another one under the same name.
#[derive(Debug)]
pub struct Engine {
    /// Its specification, as it was added.
    pub spec: EngineSpec,
    /// Who added it.
    pub origin: Origin,
    /// One per rank, in the order of their numbers.
    pub streams: Vec<Arc<Stream>>,
    /// How the way to it is, where it is another plane.
    pub link: Option<Arc<LinkState>>,
    replaced: CancellationToken,
}

impl Engine {
    fn new(spec: EngineSpec, origin: Origin, streams: Vec<Arc<Stream>>) -> Arc<Self> {
        let link = matches!(spec.source, Source::Linked(_)).then(Arc::default);
        Arc::new(Self { spec, origin, streams, link, replaced: CancellationToken::new() })
    }

    /// The stream of a rank.
    pub fn stream(&self, rank: u32) -> Option<&Arc<Stream>> {
        self.streams.iter().find(|stream| stream.id().rank == rank)
    }

    /// Cancelled when the plane has another engine under this name, or none.
    pub fn replaced(&self) -> &CancellationToken {
        &self.replaced
    }
}

/// All engines at one moment, in the order in which they came. Cheap to clone.
pub type Engines = Arc<[Arc<Engine>]>;

/// Every engine's streams.
#[derive(Debug)]
pub struct Plane {
    id: PlaneId,
    /// Read by everybody; changed under the lock of `members`.
    engines: watch::Sender<Engines>,
    members: Mutex<Members>,
    options: PlaneOptions,
    clock: Clock,
    chronicle: Arc<Chronicle>,
    catalog: Arc<Catalog>,
    /// Started for the first engine that has one; set under the lock of `members`.
    sockets: OnceLock<Sockets>,
    http: HttpClient,
    peers: Arc<Peers>,
    runtime: Handle,
    me: Weak<Self>,
}

/// What changes with the engines.
#[derive(Debug, Default)]
struct Members {
    sources: Sources,
    /// Above every epoch and number of a stream that was removed: one that comes back under its name must not
    /// repeat them, whatever the clock says.
    epochs_from: u64,
}

impl Plane {
    /// Checks the specifications, then opens every socket. Must be called within a tokio runtime.
    pub fn start(specs: Vec<EngineSpec>, options: &PlaneOptions) -> Result<Arc<Self>, AddError> {
        check(&[], &specs, options.max_engines)?;
        let epochs_from = options.durable.as_ref().map_or(0, |durable| durable.epochs_from());
        let plane = Arc::new_cyclic(|me| Self {
            id: mirrors::random_id(),
            engines: watch::Sender::new(Engines::from([])),
            members: Mutex::new(Members { epochs_from, ..Members::default() }),
            options: options.clone(),
            clock: Clock::start(),
            chronicle: Arc::default(),
            catalog: Catalog::new(options.index.clone()),
            sockets: OnceLock::new(),
            http: HttpClient::new(),
            peers: Arc::new(Peers::new(options.peers.clone())),
            runtime: Handle::current(),
            me: me.clone(),
        });
        kvplane_runtime::spawn_on(&plane.runtime, "reclaim index memory", plane.catalog.reclaim());
        let recovery = peers::recover(plane.peers.clone(), Arc::downgrade(&plane));
        kvplane_runtime::spawn_on(&plane.runtime, "recover from peers", recovery);
        if let Some(durable) = &plane.options.durable {
            let looking = durable::look_after(Arc::downgrade(durable));
            kvplane_runtime::spawn_on(&plane.runtime, "look after the journal", looking);
        }
        plane.remark(Said::new("plane", Mood::Plain, "kvplane started"));
        plane.add(specs, Origin::Config)?;
        Ok(plane)
    }

    /// Bounds and rules that all streams share.
    pub(crate) fn options(&self) -> &PlaneOptions {
        &self.options
    }

    /// Where what outlives its caller runs.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Other indexers, whose dumps are taken where a stream's past is not known.
    pub fn peers(&self) -> &Arc<Peers> {
        &self.peers
    }

    /// What happened lately, in words.
    pub fn chronicle(&self) -> &Arc<Chronicle> {
        &self.chronicle
    }

    /// Writes down for people what happened to the plane as a whole.
    pub fn remark(&self, said: Said) {
        self.chronicle.write(self.clock.now().unix_ms, None, said);
    }

    /// Unix milliseconds that never go back while the plane runs: for epochs.
    pub fn steady_unix_ms(&self) -> u64 {
        self.clock.steady_unix_ms()
    }

    /// All engines now.
    pub fn engines(&self) -> Engines {
        self.engines.borrow().clone()
    }

    /// All engines, and a wake-up whenever one comes, goes or gets other ranks.
    pub fn watch(&self) -> watch::Receiver<Engines> {
        self.engines.subscribe()
    }

    /// An engine by its name.
    pub fn engine(&self, id: &str) -> Option<Arc<Engine>> {
        find(&self.engines.borrow(), id).cloned()
    }

    /// Every stream of every engine now.
    pub fn streams(&self) -> impl Iterator<Item = Arc<Stream>> + use<> {
        let streams: Vec<_> = self.engines().iter().flat_map(|engine| engine.streams.clone()).collect();
        streams.into_iter()
    }

    /// Whether engines could be added if those that `leave` were not there, as far as that can be known
    /// without opening a socket.
    pub fn check(&self, leave: impl Fn(&Engine) -> bool, specs: &[EngineSpec]) -> Result<(), AddError> {
        let engines = self.engines();
        let staying: Vec<_> = engines.iter().filter(|engine| !leave(engine)).cloned().collect();
        check(&staying, specs, self.options.max_engines)
    }

    /// Adds engines, all or none. Everything that can be wrong in a specification is found before a socket is
    /// opened, and a port that is taken before an engine is contacted. May wait a moment for a port that was
    /// just let go of.
    pub fn add(&self, specs: Vec<EngineSpec>, origin: Origin) -> Result<(), AddError> {
        let mut members = self.members.lock();
        let mut engines = self.engines().to_vec();
        check(&engines, &specs, self.options.max_engines)?;
        let before = engines.len();
        let mut planned = Vec::new();
        for spec in specs {
            let ranks = spec.source.ranks();
            let sole_rank = is_sole(ranks.len(), origin);
            let streams = ranks.into_iter().map(|rank| {
                let stream = self.plan(&members, &spec, rank.rank, sole_rank);
                planned.push((stream.clone(), spec.clone(), rank.events));
                stream
            });
            let streams = streams.collect();
            engines.push(Engine::new(spec, origin, streams));
        }
        mirrors::check_links(&engines)?;
        self.open(&mut members, planned)?;
        let added: Vec<_> = engines[before..].iter().map(|engine| &engine.spec.id).collect();
        if !added.is_empty() {
            self.remark(Said::added(&added, origin));
        }
        self.engines.send_replace(engines.into());
        self.start_links(&mut members);
        Ok(())
    }

    /// Adds a rank to an engine whose ranks publish at configured addresses. Its other ranks do not notice.
    pub fn add_rank(&self, id: &str, rank: PublishedRank) -> Result<(), AddError> {
        let number = rank.rank;
        self.add_to(id, number, |source| {
            let Source::Published(published) = source else { return false };
            published.ranks.push(rank);
            published.ranks.sort_by_key(|rank| rank.rank);
            true
        })
    }

    /// Adds a rank to an engine whose one source brings the events of all ranks.
    pub(crate) fn add_shared_rank(&self, id: &str, rank: u32) -> Result<(), AddError> {
        self.add_to(id, rank, |source| source.add_rank(rank))
    }

    /// Adds a rank, if `add` can add it to the engine's source.
    fn add_to(&self, id: &str, rank: u32, add: impl FnOnce(&mut Source) -> bool) -> Result<(), AddError> {
        let mut members = self.members.lock();
        let engines = self.engines();
        let engine = find(&engines, id).ok_or_else(|| UnknownMember::Engine(id.to_owned()))?;
        if engine.stream(rank).is_some() {
            return Err(AddError::DuplicateRank { engine: engine.spec.id.clone(), rank });
        }
        let mut spec = engine.spec.clone();
        if !add(&mut spec.source) {
            return Err(AddError::NoSource { engine: spec.id, rank });
        }
        let others: Vec<_> = engines.iter().filter(|other| !Arc::ptr_eq(other, engine)).cloned().collect();
        check(&others, std::slice::from_ref(&spec), self.options.max_engines)?;
        let ranks = spec.source.ranks();
        let stream = self.plan(&members, &spec, rank, is_sole(ranks.len(), engine.origin));
        let events = ranks.into_iter().find(|known| known.rank == rank).map(|known| known.events);
        let planned = (stream.clone(), spec.clone(), events.unwrap_or(Events::Awaited));
        self.open(&mut members, vec![planned])?;
        let mut streams = engine.streams.clone();
        streams.push(stream.clone());
        streams.sort_by_key(|stream| stream.id().rank);
        self.replace(&engines, engine, Some(Engine::new(spec, engine.origin, streams)));
        stream.remark(Said::new("members", Mood::Plain, "the rank was added"));
        Ok(())
    }

    /// Removes an engine: its streams end, and what they held is let go of. The others do not notice.
    pub fn remove(&self, id: &str) -> Result<Arc<Engine>, UnknownMember> {
        let mut members = self.members.lock();
        let engines = self.engines();
        let engine = find(&engines, id).ok_or_else(|| UnknownMember::Engine(id.to_owned()))?;
        // A link first, so that nothing more comes over it; then what came.
        members.sources.unlink(&engine.spec.id);
        members.sources.end_discovery(&engine.spec.id);
        let comes_over = |other: &&Arc<Engine>| other.spec.source.comes_over(&engine.spec.id);
        let leaving: Vec<_> = engines.iter().filter(comes_over).chain([engine]).collect();
        for going in &leaving {
            self.replace(&self.engines(), going, None);
            for stream in &going.streams {
                members.close(stream);
            }
        }
        let gone: Vec<_> = leaving.iter().map(|engine| &engine.spec.id).collect();
        self.remark(Said::removed(&gone));
        Ok(engine.clone())
    }

    /// Removes a rank of an engine, and the engine with its last one.
    pub fn remove_rank(&self, id: &str, rank: u32) -> Result<(), UnknownMember> {
        let mut members = self.members.lock();
        let engines = self.engines();
        let engine = find(&engines, id).ok_or_else(|| UnknownMember::Engine(id.to_owned()))?;
        let stream =
            engine.stream(rank).ok_or_else(|| UnknownMember::Rank { engine: id.to_owned(), rank })?;
        let mut spec = engine.spec.clone();
        spec.source.remove_rank(rank);
        let streams: Vec<_> =
            engine.streams.iter().filter(|known| known.id().rank != rank).cloned().collect();
        let rest = (!streams.is_empty()).then(|| Engine::new(spec, engine.origin, streams));
        if rest.is_none() {
            members.sources.end_discovery(&engine.spec.id);
        }
        self.replace(&engines, engine, rest);
        members.close(stream);
        stream.remark(Said::new(
            "members",
            Mood::Plain,
            "the rank was removed: its blocks are no longer counted",
        ));
        Ok(())
    }

    /// What streams remember over a restart, where it is kept.
    pub fn durable(&self) -> Option<&Arc<Durable>> {
        self.options.durable.as_ref()
    }

    /// What every stream holds, by content.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// How long the longest round of a socket thread has lasted so far; nothing without sockets. Above a few
    /// seconds one is stuck.
    pub fn longest_socket_round(&self) -> Duration {
        self.sockets.get().map_or(Duration::ZERO, Sockets::longest_round)
    }

    /// Publishers whose connections were refused, or closed for a fault of theirs: how often, by a stable word.
    pub fn refused_publishers(&self) -> BTreeMap<&'static str, u64> {
        self.sockets.get().map(|sockets| sockets.refusals().counts()).unwrap_or_default()
    }

    /// Stops listening. Streams stay readable. Blocks until the socket threads have ended.
    pub fn shutdown(&self) {
        self.members.lock().sources.clear();
        if let Some(sockets) = self.sockets.get() {
            sockets.shutdown();
        }
        if let Some(durable) = self.durable() {
            durable.close();
        }
    }

    /// Tells everybody of a change, before anything of it is felt.
    fn replace(&self, engines: &Engines, old: &Arc<Engine>, new: Option<Arc<Engine>>) {
        let mut changed = engines.to_vec();
        if let Some(at) = changed.iter().position(|engine| Arc::ptr_eq(engine, old)) {
            changed.splice(at..=at, new);
        }
        self.engines.send_replace(changed.into());
        old.replaced.cancel();
    }

    /// Whether tokens of blocks are kept.
    pub fn keeps_tokens(&self) -> bool {
        self.options.state.keep_tokens
    }

    fn plan(&self, members: &Members, spec: &EngineSpec, rank: u32, sole_rank: bool) -> Arc<Stream> {
        let keep = JournalOptions {
            max_batches: self.options.max_batches,
            max_bytes: self.options.max_bytes,
            state: self.options.state,
            duplicates: spec.cache.duplicates,
            eagle: spec.cache.eagle,
            device_only: spec.cache.device_only,
            offload_chunk: spec.cache.offload_chunk,
            block_size: spec.block_size,
            semantics: Semantics::of(spec.kind),
            relayed: false,
            sole_rank,
            transitions_only: false,
        };
        let mut now = self.clock.now();
        now.unix_ms = now.unix_ms.max(members.epochs_from);
        let id = StreamId::new(spec.id.clone(), rank);
        let remembered = self.durable().and_then(|durable| durable.take(&id, &keep));
        let mut place = None;
        let recorder = match (remembered, spec.source.follow(&self.options, rank)) {
            (Some((memory, at)), Some(follow)) => {
                place = Some(at);
                Recorder::adopt(follow, memory, now)
            }
            (remembered, _) => {
                self.forget(remembered);
                let mut recorder = spec.source.recorder(&self.options, keep, rank, now);
                if self.durable().is_some_and(|durable| durable.journal().is_some()) {
                    recorder.keep_records(now);
                }
                recorder
            }
        };
        let max_silence = Some(self.options.max_silence_of(spec));
        let stream = Arc::new(Stream::new(id, self.clock, self.chronicle.clone(), recorder, max_silence));
        let identity = Identity {
            model: spec.model.clone(),
            worker_id: spec.worker_id,
            routing_group: spec.routing_group.clone(),
        };
        if place.is_none() || stream.join_with_history(&self.catalog, identity.clone()).is_err() {
            stream.join(&self.catalog, identity);
        }
        stream.keep_in(self.durable().and_then(|durable| durable.journal()), place);
        if spec.takes_evidence() {
            stream.accept_evidence();
        }
        stream.set_via(self.via_to_here(spec.source.mirrored().map_or(&[], |source| &source.via)));
        stream
    }

    /// What was remembered of a stream of another kind.
    fn forget(&self, remembered: Option<GoesOn>) {
        let journal = self.durable().and_then(|durable| durable.journal());
        if let (Some(journal), Some((_, place))) = (journal, remembered) {
            journal.forget(place);
        }
    }

    /// Opens the sockets of planned streams, all or none.
    fn open(
        &self,
        members: &mut Members,
        mut planned: Vec<(Arc<Stream>, EngineSpec, Events)>,
    ) -> Result<(), AddError> {
        // Bound sockets first: a taken port must be known before any engine is contacted.
        planned.sort_by_key(|(_, _, events)| !matches!(events, Events::Bind(_)));
        let mut opened: Vec<Arc<Stream>> = Vec::new();
        for (stream, spec, _) in planned {
            if let Err(error) = self.open_one(members, &stream, &spec) {
                for stream in &opened {
                    members.sources.end_discovery(&stream.id().engine);
                    members.close(stream);
                }
                return Err(error);
            }
            opened.push(stream);
        }
        Ok(())
    }

    /// Starts to follow one stream.
    fn open_one(
        &self,
        members: &mut Members,
        stream: &Arc<Stream>,
        spec: &EngineSpec,
    ) -> Result<(), AddError> {
        spec.source.open(Opening { plane: self, sources: &mut members.sources, spec, stream })
    }

    /// The client for engines' HTTP servers.
    pub(crate) fn http(&self) -> &HttpClient {
        &self.http
    }

    /// The plane, for tasks that must not keep it.
    pub(crate) fn weak(&self) -> Weak<Self> {
        self.me.clone()
    }

    /// The socket threads, which run from the first use on.
    pub(crate) fn sockets(&self) -> Result<Sockets, AddError> {
        if let Some(sockets) = self.sockets.get() {
            return Ok(sockets.clone());
        }
        let started = Sockets::start(&SocketOptions::default()).map_err(AddError::Threads)?;
        Ok(self.sockets.get_or_init(|| started).clone())
    }
}

/// Whether a stream's engine may give its only rank any number. One that was registered by its own address
/// may too: of several processes that know nothing of each other, each calls itself 0.
fn is_sole(ranks: usize, origin: Origin) -> bool {
    ranks == 1 || origin == Origin::Register
}

impl Members {
    fn close(&mut self, stream: &Stream) {
        self.sources.close(stream.id());
        // The closed stream has begun one more epoch, above everything that it ever said.
        let Cursor { epoch, .. } = stream.cursor();
        self.epochs_from = self.epochs_from.max(epoch.as_u64() + 1);
    }
}

fn find<'e>(engines: &'e [Arc<Engine>], id: &str) -> Option<&'e Arc<Engine>> {
    engines.iter().find(|engine| engine.spec.id.as_str() == id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::published::Published;
    use kvplane_core::{EngineId, EngineKind};
    use kvplane_socket::Endpoint;

    fn spec(id: &str, ranks: Vec<PublishedRank>) -> EngineSpec {
        EngineSpec::new(EngineId::new(id), EngineKind::Vllm, "", Source::Published(Published { ranks }))
    }

    /// A rank that nobody answers for.
    fn rank(rank: u32) -> PublishedRank {
        PublishedRank::at(rank, &Endpoint::Connect("tcp://127.0.0.1:9".to_owned()), None).unwrap()
    }

    #[tokio::test]
    async fn epochs_rise_over_removals_also_within_a_millisecond() {
        let plane = Plane::start(Vec::new(), &PlaneOptions::default()).unwrap();
        let mut last = None;
        for _ in 0..50 {
            plane.add(vec![spec("a", vec![rank(0)])], Origin::Api).unwrap();
            let epoch = plane.engine("a").unwrap().streams[0].status().epoch;
            assert!(Some(epoch) > last, "{epoch} after {last:?}");
            last = Some(plane.remove("a").unwrap().streams[0].cursor().epoch);
        }
        plane.shutdown();
    }

    #[tokio::test]
    async fn ranks_come_and_go_and_the_others_stay_the_same_streams() {
        let plane = Plane::start(vec![spec("a", vec![rank(4)])], &PlaneOptions::default()).unwrap();
        let before = plane.engine("a").unwrap();
        plane.add_rank("a", rank(1)).unwrap();
        let after = plane.engine("a").unwrap();
        assert_eq!(after.spec.source.ranks().iter().map(|rank| rank.rank).collect::<Vec<_>>(), [1, 4]);
        assert!(Arc::ptr_eq(&before.streams[0], after.stream(4).unwrap()));
        assert!(before.replaced().is_cancelled() && !after.replaced().is_cancelled());
        assert!(matches!(plane.add_rank("a", rank(1)), Err(AddError::DuplicateRank { rank: 1, .. })));
        assert!(matches!(plane.add_rank("b", rank(1)), Err(AddError::Unknown(_))));
        plane.remove_rank("a", 4).unwrap();
        assert!(before.streams[0].removed().is_cancelled());
        assert!(!after.stream(1).unwrap().removed().is_cancelled());
        assert!(plane.remove_rank("a", 4).is_err());
        plane.remove_rank("a", 1).unwrap();
        assert!(plane.engine("a").is_none(), "an engine goes with its last rank");
        plane.shutdown();
    }
}
