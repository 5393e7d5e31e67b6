//! `/metrics`: what `/v1/status` says, for Prometheus. Read off the streams when asked: nothing is counted twice, and
//! no event pays for it.

use std::fmt::Error;

use kvplane_access::{descriptor_limit, open_descriptors};
use kvplane_ingest::Engine;
use kvplane_metrics::{
    Callers, Detail, Fronts, HintRows, Indexes, Links, Operations, Page, PeerRows, PickerRows, Process,
    PromptRows, ReportRows, Sources, Streams,
};
use kvplane_report::Withheld;

use crate::hints::Hints;
use crate::publishers::Count;
use crate::service::Shared;

/// The whole page, as finely as is wanted or fits.
pub(super) fn page(shared: &Shared, wanted: Option<Detail>) -> Result<String, Error> {
    let (plane, options) = (&shared.plane, &shared.options);
    let engines = plane.engines();
    let detail = wanted.or(options.metrics_detail).unwrap_or_else(|| Detail::fitting(&engines));
    let fronts = shared.fleet.fronts.counters();
    let (watchers, tls) = (shared.watch.watchers(), options.tls.as_deref());
    let callers = Callers::of(watchers, &options.access, tls, &shared.edge, &fronts);
    let mut page = Page::default();
    page.add(shared.asker.value.rows());
    page.add(Streams::of(&engines, detail));
    page.add(Sources::of(&engines, publishers, detail));
    page.add(Fronts(fronts));
    page.add(Links::of(&engines));
    page.add(PeerRows(plane.peers().counts()));
    page.add(process(shared));
    page.add(callers);
    page.add(operations(&shared.operations));
    page.add(shared.routing.rows());
    if let Some(picker) = shared.picker.get() {
        page.add(picker_rows(picker));
    }
    page.add(Indexes { stats: plane.catalog().stats(), refused: plane.catalog().refused() });
    page.add(ReportRows::of(&shared.reports));
    if let Some(counters) = &shared.indexer_counters {
        page.add(counters.rows(plane));
    }
    if !options.prompts.is_empty() {
        page.add(PromptRows(options.prompts.clone()));
    }
    if let Some(hints) = &shared.hints {
        page.add(hint_rows(hints, tls.is_some()));
    }
    page.write()
}

fn picker_rows(picker: &kvplane_picker::Picker) -> PickerRows {
    let stats = picker.stats();
    PickerRows {
        requests: stats.outcomes().collect(),
        without_tokens: stats.without_tokens().collect(),
        ended: stats.ended().collect(),
        wrong_endpoints: stats.wrong_endpoints(),
        streams: stats.open_streams() as u64,
        held_bytes: picker.held_bytes() as u64,
        endpoints: picker.pool().endpoints().len() as u64,
    }
}

fn publishers(engine: &Engine) -> (u64, u64) {
    let Count { expected, heard } = Count::of(engine);
    (expected, heard)
}

fn process(shared: &Shared) -> Process {
    Process {
        outcomes: shared.asker.questions.outcomes(),
        took: shared.asker.questions.took(),
        open_files: open_descriptors(),
        open_files_limit: descriptor_limit(),
        socket_round: shared.plane.longest_socket_round(),
        commit: shared.options.commit,
    }
}

fn operations(operations: &crate::ops::Operations) -> Operations {
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
