//! The part of `/metrics` about hints: ours, and under the names that inference-cache's server has.

use std::collections::BTreeMap;
use std::fmt::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kvplane_hints::{Census, Dropped, ReasonCode};
use kvplane_report::Withheld;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use super::metrics::gauge;
use crate::hints::{ByReason, Counted, Hints, LATENCY_BOUNDS};

/// All hints at one moment.
#[derive(Debug)]
pub(super) struct HintMetrics {
    hints: Arc<Hints>,
    census: Census,
    /// Entries that the book dropped by itself.
    dropped: Vec<Dropped>,
    encrypted: bool,
}

impl HintMetrics {
    /// `encrypted` is whether the gRPC server has TLS.
    pub(super) fn of(hints: Arc<Hints>, encrypted: bool) -> Self {
        let (census, dropped) = (hints.book.census(), hints.book.dropped());
        Self { hints, census, dropped, encrypted }
    }

    /// Our own.
    fn own(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let counters = &self.hints.counters;
        let help = "Parts of reports, and events, that changed nothing";
        by_reason(encoder, "kvplane_hints_dropped", help, &counters.dropped)?;
        let help = "Lookups that could not be used";
        by_reason(encoder, "kvplane_hints_unusable_lookups", help, &counters.unusable)?;
        let help = "Calls that were refused, and listeners that were ended";
        by_reason(encoder, "kvplane_hints_refused", help, &counters.refused)?;
        if let Some(feeds) = self.hints.feeds() {
            let help = "Blocks of engines that are not told";
            let name = "kvplane_hints_withheld_blocks";
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for reason in Withheld::ALL {
                let count = ConstCounter::new(feeds.withheld().get(reason));
                count.encode(metric.encode_family(&[("reason", reason.as_str())])?)?;
            }
        }
        let help = "Replicas that something is known of";
        let mut metric =
            encoder.encode_descriptor("kvplane_hints_replicas", help, None, MetricType::Gauge)?;
        for (from, heard) in [("heard", true), ("reported", false)] {
            let count = self.census.replicas.iter().filter(|replica| replica.heard == heard).count();
            gauge(count as u64, metric.encode_family(&[("from", from)])?)?;
        }
        let entries: usize = self.census.models.iter().map(|model| model.entries).sum();
        for (name, help, value) in [
            ("kvplane_hints_entries", "Prefixes, once per replica that holds them", entries),
            ("kvplane_hints_bytes", "Bytes that what is known takes", self.hints.book.bytes()),
            ("kvplane_hints_listeners", "Listeners to changes", self.hints.listeners()),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            gauge(value as u64, metric)?;
        }
        Ok(())
    }

    /// Under the peer's names, so that its alerts and dashboards go on.
    fn peers(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        for (name, help, value) in [
            ("inferencecache_server_up", "1 while lookups are answered", 1),
            ("inferencecache_server_grpc_tls_enabled", "1 where gRPC is encrypted", self.encrypted.into()),
        ] {
            gauge(value, encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        self.entries_by_model(encoder)?;
        self.lookups(encoder)?;
        self.evictions(encoder)?;
        let counters = &self.hints.counters;
        for (name, help, counted) in [
            ("inferencecache_snapshot_auth", "Calls of /snapshot", &counters.snapshot_page),
            ("inferencecache_policy_auth", "Calls of /policy", &counters.policy_page),
            ("inferencecache_probe_auth", "Calls of /probe", &counters.probe_page),
        ] {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            let count = ConstCounter::new(counted.load(Ordering::Relaxed));
            count.encode(metric.encode_family(&[("result", "ok")])?)?;
        }
        Ok(())
    }

    fn entries_by_model(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut models: BTreeMap<&str, usize> = BTreeMap::new();
        for model in &self.census.models {
            *models.entry(self.hints.counters.lookups.label(&model.model)).or_default() += model.prefixes;
        }
        let help = "Distinct prefixes";
        let mut metric =
            encoder.encode_descriptor("inferencecache_index_entries", help, None, MetricType::Gauge)?;
        for (model, prefixes) in models {
            gauge(prefixes as u64, metric.encode_family(&[("model", model)])?)?;
        }
        Ok(())
    }

    fn lookups(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let lookups = &self.hints.counters.lookups;
        let help = "Lookups, by what was answered";
        let mut metric = encoder.encode_descriptor(
            "inferencecache_lookup_route_calls",
            help,
            None,
            MetricType::Counter,
        )?;
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
        let help = "How long lookups took";
        let name = "inferencecache_lookup_route_latency_seconds";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        lookups.each(|model, counters| {
            let (sum, count, buckets) = counters.latency();
            let bounds = LATENCY_BOUNDS.into_iter().chain([f64::INFINITY]);
            let buckets: Vec<_> = bounds.zip(buckets).collect();
            let labels = [("model", model)];
            metric.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
        })
    }

    fn evictions(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "Entries dropped because a tenant had too many";
        let name = "inferencecache_tenant_evictions";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
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
        let help = "Entries dropped because there were too many, or because they were old";
        let name = "inferencecache_index_evictions";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for ((algorithm, reason), entries) in &by_order {
            let labels = [("algorithm", algorithm.as_str()), ("reason", reason)];
            ConstCounter::new(*entries).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

fn by_reason<R: Counted>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    counts: &ByReason<R>,
) -> Result<(), Error> {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (reason, count) in counts.all() {
        ConstCounter::new(count).encode(metric.encode_family(&[("reason", reason)])?)?;
    }
    Ok(())
}

impl Collector for HintMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        self.own(&mut encoder)?;
        self.peers(&mut encoder)
    }
}
