//! `/metrics`: what `/v1/status` says, for Prometheus. Read off the streams when asked: nothing is counted
//! twice, and no event pays for it.

use std::fmt::Error;
use std::sync::{Arc, OnceLock};

use kvplane_access::{Access, Edge, Tls, descriptor_limit, open_descriptors};
use kvplane_ingest::Engine;
use kvplane_kubernetes::Board;
use kvplane_metrics::{
    Callers, Detail, DiscoveryRows, Fronts, HintRows, Indexes, JournalRows, Links, Operations, Page,
    PeerRows, PickerRows, Process, PromptRows, ReportRows, Sources, Streams,
};
use kvplane_report::{Reports, Withheld};

use crate::fleet::Fleet;
use crate::hints::Hints;
use crate::http::IndexerCounters;
use crate::ops;
use crate::publishers::Count;
use crate::questions::Asker;
use crate::routing::Routing;
use crate::watch::Watch;

/// What the page is read off.
#[derive(Debug)]
pub(crate) struct MetricsPage {
    pub(crate) asker: Arc<Asker>,
    pub(crate) routing: Arc<Routing>,
    pub(crate) operations: Arc<ops::Operations>,
    pub(crate) fleet: Fleet,
    pub(crate) watch: Arc<Watch>,
    pub(crate) reports: Arc<Reports>,
    pub(crate) access: Arc<Access>,
    pub(crate) edge: Arc<Edge>,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) hints: Option<Arc<Hints>>,
    pub(crate) indexer_counters: Option<Arc<IndexerCounters>>,
    pub(crate) picker: Arc<OnceLock<kvplane_picker::Picker>>,
    pub(crate) gateway: Arc<OnceLock<kvplane_gateway::Gateway>>,
    pub(crate) discovery: Board,
    /// How finely rows are split; absent: as finely as fits.
    pub(crate) detail: Option<Detail>,
    /// The commit that the program was built from.
    pub(crate) commit: &'static str,
}

impl MetricsPage {
    /// The whole page, as finely as is wanted or fits.
    pub(super) fn read(&self, wanted: Option<Detail>) -> Result<String, Error> {
        let (plane, prompts, tls) = (&self.asker.plane, &self.asker.prompts, self.tls.as_deref());
        let engines = plane.engines();
        let detail = wanted.or(self.detail).unwrap_or_else(|| Detail::fitting(&engines));
        let fronts = self.fleet.front_counters();
        let sockets = [("events", plane.refused_publishers()), ("republish", self.fleet.refused_listeners())];
        let callers = Callers::of(self.watch.watchers(), &self.access, tls, &self.edge, &fronts, sockets);
        let mut page = Page::default();
        page.add(self.asker.value.rows());
        page.add(Streams::of(&engines, detail));
        page.add(Sources::of(&engines, publishers, detail));
        page.add(Fronts(fronts));
        page.add(Links::of(&engines));
        page.add(DiscoveryRows(self.discovery.sources()));
        page.add(PeerRows(plane.peers().counts()));
        page.add(JournalRows(plane.durable().map(|durable| durable.status())));
        page.add(self.process());
        page.add(callers);
        page.add(operations(&self.operations));
        page.add(self.routing.rows());
        if let Some(picker) = self.picker.get() {
            page.add(picker_rows(picker));
        }
        if let Some(gateway) = self.gateway.get() {
            page.add(crate::gateway::rows(gateway));
        }
        page.add(Indexes { stats: plane.catalog().stats(), refused: plane.catalog().refused() });
        page.add(ReportRows::of(&self.reports));
        if let Some(counters) = &self.indexer_counters {
            page.add(counters.rows(plane));
        }
        if !prompts.is_empty() {
            page.add(PromptRows(prompts.clone()));
        }
        if let Some(hints) = &self.hints {
            page.add(hint_rows(hints, tls.is_some()));
        }
        page.write()
    }

    fn process(&self) -> Process {
        Process {
            outcomes: self.asker.questions.outcomes(),
            took: self.asker.questions.took(),
            open_files: open_descriptors(),
            open_files_limit: descriptor_limit(),
            socket_round: self.asker.plane.longest_socket_round(),
            commit: self.commit,
        }
    }
}

fn picker_rows(picker: &kvplane_picker::Picker) -> PickerRows {
    let stats = picker.stats();
    PickerRows {
        requests: stats.outcomes().collect(),
        without_tokens: stats.without_tokens().collect(),
        ended: stats.ended().collect(),
        wrong_endpoints: stats.wrong_endpoints(),
        rewritten: stats.rewritten(),
        streams: stats.open_streams() as u64,
        held_bytes: picker.held_bytes() as u64,
        endpoints: picker.pool().endpoints().len() as u64,
    }
}

fn publishers(engine: &Engine) -> (u64, u64) {
    let Count { expected, heard } = Count::of(engine);
    (expected, heard)
}

fn operations(operations: &ops::Operations) -> Operations {
    let counters = operations.counters();
    Operations {
        operations: counters.operations(),
        ranks: counters.ranks(),
        in_flight: operations.in_flight(),
    }
}

fn hint_rows(hints: &Hints, encrypted: bool) -> HintRows {
    let withheld = hints.feeds().map(|feeds| {
        let counts = Withheld::ALL.into_iter().map(|reason| (reason.as_str(), feeds.withheld().get(reason)));
        counts.collect()
    });
    HintRows::of(hints.book.clone(), hints.counters.clone(), withheld, hints.listeners(), encrypted)
}
