//! The part of `/metrics` about hints: ours, and under the names that inference-cache's server has.

use std::collections::BTreeMap;
use std::fmt::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kvplane_hints::{Book, Census, Dropped, ReasonCode};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, NoLabelSet};
use prometheus_client::metrics::counter::ConstCounter;

use crate::family::Family;
use crate::family::list::{hints as own, inference_cache as peers};
use crate::gauge;
use crate::hint_counters::{ByReason, Counted, Counters};
use crate::latencies::LatenciesRead;

/// All hints at one moment.
#[derive(Debug)]
pub struct HintRows {
    book: Arc<Book>,
    counters: Arc<Counters>,
    /// Blocks of engines that are withheld, by reason; none while no engine is followed.
    withheld: Option<Vec<(&'static str, u64)>>,
    listeners: usize,
    census: Census,
    /// Entries that the book dropped by itself.
    dropped: Vec<Dropped>,
    encrypted: bool,
}

impl HintRows {
    /// `withheld` counts blocks of followed engines that are not reported; `encrypted` is whether the gRPC
    /// server has TLS.
    pub fn of(
        book: Arc<Book>,
        counters: Arc<Counters>,
        withheld: Option<Vec<(&'static str, u64)>>,
        listeners: usize,
        encrypted: bool,
    ) -> Self {
        let (census, dropped) = (book.census(), book.dropped());
        Self { book, counters, withheld, listeners, census, dropped, encrypted }
    }

    /// Our own.
    fn own(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let counters = &self.counters;
        by_reason(encoder, own::DROPPED, &counters.dropped)?;
        by_reason(encoder, own::UNUSABLE_LOOKUPS, &counters.unusable)?;
        by_reason(encoder, own::REFUSED, &counters.refused)?;
        if let Some(withheld) = &self.withheld {
            let mut metric = own::WITHHELD_BLOCKS.begin(encoder)?;
            for (reason, count) in withheld {
                ConstCounter::new(*count).encode(metric.encode_family(&[("reason", *reason)])?)?;
            }
        }
        let mut metric = own::REPLICAS.begin(encoder)?;
        for (from, heard) in [("heard", true), ("reported", false)] {
            let count = self.census.replicas.iter().filter(|replica| replica.heard == heard).count();
            gauge(count as u64, metric.encode_family(&[("from", from)])?)?;
        }
        let entries: usize = self.census.models.iter().map(|model| model.entries).sum();
        for (family, value) in
            [(own::ENTRIES, entries), (own::BOOK_BYTES, self.book.bytes()), (own::LISTENERS, self.listeners)]
        {
            gauge(value as u64, family.begin(encoder)?)?;
        }
        Ok(())
    }

    /// Under the peer's names, so that its alerts and dashboards go on.
    fn peers(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        gauge(1, peers::SERVER_UP.begin(encoder)?)?;
        gauge(self.encrypted.into(), peers::GRPC_TLS_ENABLED.begin(encoder)?)?;
        self.entries_by_model(encoder)?;
        self.lookups(encoder)?;
        self.evictions(encoder)?;
        let counters = &self.counters;
        for (family, counted) in [
            (peers::SNAPSHOT_AUTH, &counters.snapshot_page),
            (peers::POLICY_AUTH, &counters.policy_page),
            (peers::PROBE_AUTH, &counters.probe_page),
        ] {
            let mut metric = family.begin(encoder)?;
            let count = ConstCounter::new(counted.load(Ordering::Relaxed));
            count.encode(metric.encode_family(&[("result", "ok")])?)?;
        }
        Ok(())
    }

    fn entries_by_model(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut models: BTreeMap<&str, usize> = BTreeMap::new();
        for model in &self.census.models {
            *models.entry(self.counters.lookups.label(&model.model)).or_default() += model.prefixes;
        }
        let mut metric = peers::INDEX_ENTRIES.begin(encoder)?;
        for (model, prefixes) in models {
            gauge(prefixes as u64, metric.encode_family(&[("model", model)])?)?;
        }
        Ok(())
    }

    fn lookups(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let lookups = &self.counters.lookups;
        let mut metric = peers::LOOKUP_ROUTE_CALLS.begin(encoder)?;
        lookups.each(|model, counters| {
            for (reason, count) in counters.by_reason().filter(|(_, count)| *count > 0) {
                let named = matches!(
                    reason,
                    ReasonCode::PrefixMatch | ReasonCode::TenantHot | ReasonCode::AffinityHint
                );
                let hint_used = if named { "true" } else { "false" };
                let labels = [("model", model), ("reason_code", reason.as_str()), ("hint_used", hint_used)];
                ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
            }
            Ok(())
        })?;
        let mut metric = peers::LOOKUP_ROUTE_LATENCY_SECONDS.begin(encoder)?;
        lookups.each(|model, counters| {
            let LatenciesRead { sum, count, buckets } = counters.took();
            let labels = [("model", model)];
            metric.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
        })
    }

    fn evictions(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut metric = peers::TENANT_EVICTIONS.begin(encoder)?;
        for dropped in self.dropped.iter().filter(|dropped| dropped.reason == "quota") {
            // The peer's word for the one quota that there is.
            let labels = [("tenant_id", &*dropped.tenant), ("reason", "over_entries")];
            ConstCounter::new(dropped.entries).encode(metric.encode_family(&labels)?)?;
        }
        let mut by_order: BTreeMap<(String, &str), u64> = BTreeMap::new();
        for dropped in self.dropped.iter().filter(|dropped| dropped.reason != "quota") {
            let algorithm = dropped.algorithm.as_str().to_ascii_lowercase();
            *by_order.entry((algorithm, dropped.reason)).or_default() += dropped.entries;
        }
        let mut metric = peers::INDEX_EVICTIONS.begin(encoder)?;
        for ((algorithm, reason), entries) in &by_order {
            let labels = [("algorithm", algorithm.as_str()), ("reason", reason)];
            ConstCounter::new(*entries).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

fn by_reason<R: Counted>(
    encoder: &mut DescriptorEncoder<'_>,
    family: Family,
    counts: &ByReason<R>,
) -> Result<(), Error> {
    let mut metric = family.begin(encoder)?;
    for (reason, count) in counts.all() {
        ConstCounter::new(count).encode(metric.encode_family(&[("reason", reason)])?)?;
    }
    Ok(())
}

impl Collector for HintRows {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        self.own(&mut encoder)?;
        self.peers(&mut encoder)
    }
}
