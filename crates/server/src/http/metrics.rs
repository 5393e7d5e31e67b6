//! `/metrics`: what `/v1/status` says, for Prometheus. Read off the streams when asked: nothing is counted twice, and
//! no event pays for it.

use std::fmt::Error;
use std::sync::Arc;
use std::time::Duration;

use kvplane_core::Tier;
use kvplane_front::FrontCounters;
use kvplane_ingest::{Engine, Stream, StreamStatus};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::caller_metrics::Callers;
use super::family::Family;
use super::family::list::{fronts, stream_counters, streams};
use super::hints_metrics::HintMetrics;
use super::index_metrics::Indexes;
use super::link_metrics::Links;
use super::operation_metrics::OperationMetrics;
use super::process_metrics::Process;
use super::report_metrics::ReportMetrics;
use super::source_metrics::Sources;
use super::status::{COUNTERS, STANDINGS, TRUSTS, rejected};
use crate::service::Shared;

#[derive(Debug)]
struct Row {
    engine: String,
    rank: String,
    model: String,
    status: StreamStatus,
}

#[derive(Debug)]
struct Streams(Vec<Row>);

/// The whole page.
pub(super) fn page(shared: &Shared) -> Result<String, Error> {
    let plane = &shared.plane;
    let engines = plane.engines();
    let rows = engines.iter().flat_map(|engine| engine.streams.iter().map(|stream| row(engine, stream)));
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Streams(rows.collect())));
    registry.register_collector(Box::new(Sources::of(&engines)));
    registry.register_collector(Box::new(Fronts(shared.fleet.fronts.counters())));
    registry.register_collector(Box::new(Links::of(&engines)));
    registry.register_collector(Box::new(Process::of(shared)));
    registry.register_collector(Box::new(Callers::of(shared)));
    registry.register_collector(Box::new(OperationMetrics::of(&shared.operations)));
    let (stats, refused) = (plane.catalog().stats(), plane.catalog().refused());
    registry.register_collector(Box::new(Indexes { stats, refused }));
    registry.register_collector(Box::new(ReportMetrics::of(&shared.reports)));
    if let Some(hints) = shared.hints.clone() {
        registry.register_collector(Box::new(HintMetrics::of(hints, shared.options.tls.is_some())));
    }
    let mut page = String::new();
    text::encode(&mut page, &registry)?;
    Ok(page)
}

fn row(engine: &Engine, stream: &Stream) -> Row {
    Row {
        engine: engine.spec.id.to_string(),
        rank: stream.id().rank.to_string(),
        model: engine.spec.model.clone(),
        status: stream.glance(),
    }
}

#[derive(Debug)]
struct Fronts(Vec<(String, Arc<FrontCounters>)>);

/// A counter of a front.
type OfFront = (Family, fn(&FrontCounters) -> u64);

impl Collector for Fronts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        if self.0.is_empty() {
            return Ok(());
        }
        let counters: [OfFront; 8] = [
            (fronts::FORWARDED_CALLS, FrontCounters::forwarded),
            (fronts::OWN_CALLS, FrontCounters::own),
            (fronts::UNAVAILABLE_CALLS, FrontCounters::unavailable),
            (fronts::CONNECTS, FrontCounters::connects),
            (fronts::CONNECT_FAILURES, FrontCounters::connect_failures),
            (fronts::REFUSED_CONNECTIONS, FrontCounters::connections_refused),
            (fronts::EVIDENCE, FrontCounters::evidence_accepted),
            (fronts::EVIDENCE_BLOCKS, FrontCounters::evidence_blocks),
        ];
        for (family, value) in counters {
            let mut metric = family.begin(&mut encoder)?;
            for (engine, counted) in &self.0 {
                ConstCounter::new(value(counted))
                    .encode(metric.encode_family(&[("engine", engine.as_str())])?)?;
            }
        }
        let mut metric = fronts::REFUSED_CALLS.begin(&mut encoder)?;
        for (engine, counted) in &self.0 {
            for (reason, count) in counted.refused() {
                let labels = [("engine", engine.as_str()), ("reason", reason)];
                ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
            }
        }
        let mut metric = fronts::EVIDENCE_REJECTED.begin(&mut encoder)?;
        for (engine, counted) in &self.0 {
            for (reason, count) in counted.evidence_rejected() {
                let labels = [("engine", engine.as_str()), ("reason", reason.as_str())];
                ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
            }
        }
        let mut metric = fronts::IN_FLIGHT_CALLS.begin(&mut encoder)?;
        for (engine, counted) in &self.0 {
            gauge(counted.in_flight(), metric.encode_family(&[("engine", engine.as_str())])?)?;
        }
        Ok(())
    }
}

/// A gauge with one value a stream.
type Plain = (Family, fn(&StreamStatus) -> u64);
/// A time of a stream, where there is one.
type Time = (Family, fn(&StreamStatus) -> Option<Duration>);

impl Collector for Streams {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let encoder = &mut encoder;
        self.gauges(encoder)?;
        for (family, value) in COUNTERS {
            let mut metric = family.begin(encoder)?;
            for row in &self.0 {
                ConstCounter::new(value(&row.status)).encode(metric.encode_family(&row.labels())?)?;
            }
        }
        let mut metric = stream_counters::REJECTED_EVENTS.begin(encoder)?;
        for row in &self.0 {
            for (reason, count) in rejected(&row.status) {
                let labels = row.labels_with("reason", &reason);
                ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

impl Streams {
    fn gauges(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        self.gauge(encoder, streams::BLOCKS, |row, metric| {
            for tier in Tier::ALL {
                let labels = row.labels_with("tier", tier.as_str());
                gauge(row.status.blocks[tier.index()], metric.encode_family(&labels)?)?;
            }
            Ok(())
        })?;
        self.gauge(encoder, streams::CONTINUITY, |row, metric| {
            for standing in STANDINGS {
                let labels = row.labels_with("continuity", standing.as_str());
                gauge(u64::from(row.status.continuity == standing), metric.encode_family(&labels)?)?;
            }
            Ok(())
        })?;
        self.gauge(encoder, streams::TRUST, |row, metric| {
            for trust in TRUSTS {
                let labels = row.labels_with("trust", trust.as_str());
                gauge(u64::from(row.status.trust.level() == trust), metric.encode_family(&labels)?)?;
            }
            Ok(())
        })?;
        self.gauge(encoder, streams::DEGRADED, |row, metric| {
            for degradation in row.status.trust.active() {
                let labels = row.labels_with("reason", degradation.reason.as_str());
                gauge(1, metric.encode_family(&labels)?)?;
            }
            Ok(())
        })?;
        let plain: [Plain; 9] = [
            (streams::EPOCH, |s| s.epoch.as_u64()),
            (streams::LAST_SEQUENCE, |s| s.engine_sequence.unwrap_or(0)),
            (streams::KNOWN_FROM_SEQUENCE, |s| s.known_from.unwrap_or(0)),
            (streams::WAITING_BLOCKS, |s| s.waiting as u64),
            (streams::UNJOINED_BLOCKS, |s| s.unjoined),
            (streams::DICTIONARY_BLOCKS, |s| s.dictionary as u64),
            (streams::STATE_BYTES, |s| s.state_bytes as u64),
            (streams::WINDOW_BYTES, |s| s.window_bytes as u64),
            (streams::WINDOW_BATCHES, |s| s.window_entries as u64),
        ];
        for (family, value) in plain {
            self.gauge(encoder, family, |row, metric| {
                gauge(value(&row.status), metric.encode_family(&row.labels())?)
            })?;
        }
        let times: [Time; 4] = [
            (streams::SINCE_LAST_EVENT_SECONDS, |s| s.since_last_event),
            (streams::LAG_SECONDS, |s| s.lag),
            (streams::AGE_SECONDS, |s| s.age),
            (streams::READ_BEFORE_SECONDS, |s| s.read_before),
        ];
        for (family, value) in times {
            self.gauge(encoder, family, |row, metric| match value(&row.status) {
                Some(time) => {
                    ConstGauge::new(time.as_secs_f64()).encode(metric.encode_family(&row.labels())?)
                }
                None => Ok(()),
            })?;
        }
        Ok(())
    }

    fn gauge(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        family: Family,
        mut each: impl FnMut(&Row, &mut MetricEncoder<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut metric = family.begin(encoder)?;
        for row in &self.0 {
            each(row, &mut metric)?;
        }
        Ok(())
    }
}

pub(super) fn gauge(value: u64, encoder: MetricEncoder<'_>) -> Result<(), Error> {
    // Gauges are signed; nothing here comes near.
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(encoder)
}

impl Row {
    fn labels(&self) -> [(&str, &str); 3] {
        [("engine", &self.engine), ("rank", &self.rank), ("model", &self.model)]
    }

    fn labels_with<'r>(&'r self, name: &'r str, value: &'r str) -> [(&'r str, &'r str); 4] {
        [("engine", &self.engine), ("rank", &self.rank), ("model", &self.model), (name, value)]
    }
}
