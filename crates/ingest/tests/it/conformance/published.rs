//! Engines that publish on a socket: one that we connect to, one that connects to us, and one that is asked
//! where it is.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::net::SocketAddr;

use kvplane_core::EngineId;
use kvplane_discovery::{DiscoverySpec, FoundRank, Overrides};
use kvplane_ingest::{Discovered, Endpoint, EngineSpec, Published, Source, StreamStatus};
use kvplane_sim::{Fault, Restart, free_address};
use kvplane_testkit::{Engine, Line};

use super::Subject;

/// How plane and engine meet.
pub(crate) trait Way: Send + 'static {
    /// An engine, its source, and what stands between.
    async fn open() -> (Engine, Source, Vec<Line>);
}

/// An engine that publishes.
pub(crate) struct Publisher<W> {
    engine: Engine,
    source: Source,
    lines: Vec<Line>,
    way: PhantomData<W>,
}

/// The address of a socket, and a line before it.
async fn line_to(endpoint: &str) -> (Line, String) {
    let address: SocketAddr = endpoint.strip_prefix("tcp://").unwrap().parse().unwrap();
    let line = Line::to(address).await;
    let instead = format!("tcp://{}", line.address);
    (line, instead)
}

/// The plane connects to the engine.
pub(crate) struct Connected;

impl Way for Connected {
    async fn open() -> (Engine, Source, Vec<Line>) {
        let engine = Engine::plain();
        let (events, at) = line_to(&engine.sim.event_endpoints()[0]).await;
        let (replay, replay_at) = line_to(engine.sim.replay_endpoints()[0].as_deref().unwrap()).await;
        let published = Published::at_ports(&Endpoint::Connect(at), Some(&replay_at), 1).unwrap();
        (engine, Source::Published(published), vec![events, replay])
    }
}

/// The engine connects to the plane.
pub(crate) struct Bound;

impl Way for Bound {
    async fn open() -> (Engine, Source, Vec<Line>) {
        let bound = free_address().unwrap();
        let events = Line::to(bound).await;
        let connect = Endpoint::Connect(format!("tcp://{}", events.address));
        let engine = Engine::start(|config| config.events = connect);
        let (replay, replay_at) = line_to(engine.sim.replay_endpoints()[0].as_deref().unwrap()).await;
        let bind = Endpoint::Bind(format!("tcp://{bound}"));
        let published = Published::at_ports(&bind, Some(&replay_at), 1).unwrap();
        (engine, Source::Published(published), vec![events, replay])
    }
}

/// The plane asks the engine where it publishes.
pub(crate) struct Asked;

impl Way for Asked {
    async fn open() -> (Engine, Source, Vec<Line>) {
        let engine = Engine::plain();
        let http = engine.sim.http_address().map(|address| format!("http://{address}"));
        let spec = DiscoverySpec { http, grpc: None, overrides: Overrides::default(), usual: None };
        let source = Source::Discovered(Discovered { spec, ranks: vec![FoundRank::unknown(0)] });
        (engine, source, Vec::new())
    }
}

impl<W: Way> Subject for Publisher<W> {
    async fn start() -> Self {
        let (engine, source, lines) = W::open().await;
        Self { engine, source, lines, way: PhantomData }
    }

    fn spec(&self) -> EngineSpec {
        let spec = self.engine.spec("e0");
        EngineSpec {
            http: spec.http,
            ..EngineSpec::new(EngineId::new("e0"), spec.kind, "sim", self.source.clone())
        }
    }

    fn work(&mut self, requests: usize) {
        self.engine.work(requests);
    }

    fn last(&self) -> Option<u64> {
        self.engine.next_sequence().checked_sub(1)
    }

    fn held(&self) -> BTreeMap<u64, u64> {
        self.engine.held()
    }

    fn lose(&self) {
        self.engine.sim.fault(None, Fault::Lose(1));
    }

    fn restart(&self, first_sequence: u64) {
        self.engine.sim.fault(None, Fault::Restart(Restart { first_sequence, same_content: true }));
    }

    fn send_garbage(&self) {
        self.engine.sim.fault(None, Fault::Garbage(1));
    }

    fn has_counted_garbage(before: &StreamStatus, now: &StreamStatus) -> bool {
        now.counters.undecodable > before.counters.undecodable
    }

    fn silence(&self) {
        self.lines.iter().for_each(Line::silence);
    }

    fn restore(&self) {
        self.lines.iter().for_each(Line::restore);
    }
}

mod connected {
    conforms!(super::Publisher<super::Connected>);
}

mod bound {
    conforms!(super::Publisher<super::Bound>);
}

mod discovered {
    conforms!(@without_silence super::Publisher<super::Asked>);
}
