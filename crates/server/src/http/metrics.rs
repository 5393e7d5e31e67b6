//! `/metrics`: what `/v1/status` says, for Prometheus. Read off the streams when asked: nothing is counted twice, and
//! no event pays for it.

use std::fmt::Error;
use std::sync::Arc;

use kvplane_core::Tier;
use kvplane_ingest::{Engine, Stream, StreamStatus};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::front::FrontCounters;
use crate::service::Shared;

use super::caller_metrics::Callers;
use super::hints_metrics::HintMetrics;
use super::index_metrics::Indexes;
use super::link_metrics::Links;
use super::operation_metrics::OperationMetrics;
use super::report_metrics::ReportMetrics;
use super::source_metrics::Sources;
use super::status::{STANDINGS, TRUSTS, counters, rejected};

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
    registry.register_collector(Box::new(Callers::of(&shared.options)));
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
        status: stream.status(),
    }
}

#[derive(Debug)]
struct Fronts(Vec<(String, Arc<FrontCounters>)>);

/// A counter of a front: name, help, value.
type OfFront = (&'static str, &'static str, fn(&FrontCounters) -> u64);

impl Collector for Fronts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        if self.0.is_empty() {
            return Ok(());
        }
        let counters: [OfFront; 6] = [
            ("kvplane_front_forwarded_calls", "Calls passed to the engine", FrontCounters::forwarded),
            ("kvplane_front_own_calls", "Calls that kvplane answered itself", FrontCounters::own),
            ("kvplane_front_unavailable_calls", "Calls that found no engine", FrontCounters::unavailable),
            ("kvplane_front_connects", "Connections made to the engine", FrontCounters::connects),
            ("kvplane_front_connect_failures", "Dials that failed", FrontCounters::connect_failures),
            ("kvplane_front_refused_connections", "Clients turned away", FrontCounters::connections_refused),
        ];
        for (name, help, value) in counters {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (engine, counted) in &self.0 {
                ConstCounter::new(value(counted))
                    .encode(metric.encode_family(&[("engine", engine.as_str())])?)?;
            }
        }
        let help = "Calls under way";
        let mut metric =
            encoder.encode_descriptor("kvplane_front_in_flight_calls", help, None, MetricType::Gauge)?;
        for (engine, counted) in &self.0 {
            gauge(counted.in_flight(), metric.encode_family(&[("engine", engine.as_str())])?)?;
        }
        Ok(())
    }
}

/// A gauge with one value a stream: name, help, value.
type Plain = (&'static str, &'static str, fn(&StreamStatus) -> u64);

impl Collector for Streams {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let encoder = &mut encoder;
        self.gauges(encoder)?;
        let names: Vec<&'static str> = self
            .0
            .first()
            .map_or_else(Vec::new, |row| counters(&row.status).into_iter().map(|(name, _)| name).collect());
        for (at, name) in names.into_iter().enumerate() {
            let full = format!("kvplane_stream_{name}");
            let help = format!("{} of a stream", name.replace('_', " "));
            let mut metric = encoder.encode_descriptor(&full, &help, None, MetricType::Counter)?;
            for row in &self.0 {
                let value = counters(&row.status)[at].1;
                ConstCounter::new(value).encode(metric.encode_family(&row.labels())?)?;
            }
        }
        let help = "Events rejected, by kind and reason";
        let mut metric =
            encoder.encode_descriptor("kvplane_stream_rejected_events", help, None, MetricType::Counter)?;
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
        self.gauge(encoder, "kvplane_stream_blocks", "Blocks resident, by tier", |row, metric| {
            for tier in Tier::ALL {
                let labels = row.labels_with("tier", tier.as_str());
                gauge(row.status.blocks[tier.index()], metric.encode_family(&labels)?)?;
            }
            Ok(())
        })?;
        self.gauge(encoder, "kvplane_stream_continuity", "1 for where the stream stands", |row, metric| {
            for standing in STANDINGS {
                let labels = row.labels_with("continuity", standing.as_str());
                gauge(u64::from(row.status.continuity == standing), metric.encode_family(&labels)?)?;
            }
            Ok(())
        })?;
        self.gauge(encoder, "kvplane_stream_trust", "1 for what answers are worth", |row, metric| {
            for trust in TRUSTS {
                let labels = row.labels_with("trust", trust.as_str());
                gauge(u64::from(row.status.trust.level() == trust), metric.encode_family(&labels)?)?;
            }
            Ok(())
        })?;
        self.gauge(encoder, "kvplane_stream_degraded", "1 for each reason that holds", |row, metric| {
            for degradation in row.status.trust.active() {
                let labels = row.labels_with("reason", degradation.reason.as_str());
                gauge(1, metric.encode_family(&labels)?)?;
            }
            Ok(())
        })?;
        let plain: [Plain; 9] = [
            ("kvplane_stream_epoch", "The publisher's life, unix milliseconds", |s| s.epoch.as_u64()),
            ("kvplane_stream_last_sequence", "The engine's number of the last batch", |s| {
                s.engine_sequence.unwrap_or(0)
            }),
            ("kvplane_stream_known_from_sequence", "Everything is known from here on", |s| {
                s.known_from.unwrap_or(0)
            }),
            ("kvplane_stream_waiting_blocks", "Blocks that wait for their parent", |s| s.waiting as u64),
            ("kvplane_stream_unjoined_blocks", "Blocks known by their hash alone", |s| s.unjoined),
            ("kvplane_stream_dictionary_blocks", "Blocks known, held or not", |s| s.dictionary as u64),
            ("kvplane_stream_state_bytes", "Bytes of the live state", |s| s.state_bytes as u64),
            ("kvplane_stream_window_bytes", "Bytes of the replay window", |s| s.window_bytes as u64),
            ("kvplane_stream_window_batches", "Batches in the replay window", |s| s.window_entries as u64),
        ];
        for (name, help, value) in plain {
            self.gauge(encoder, name, help, |row, metric| {
                gauge(value(&row.status), metric.encode_family(&row.labels())?)
            })?;
        }
        let help = "Time since the last event";
        self.gauge(encoder, "kvplane_stream_since_last_event_seconds", help, |row, metric| {
            match row.status.since_last_event {
                Some(since) => {
                    ConstGauge::new(since.as_secs_f64()).encode(metric.encode_family(&row.labels())?)
                }
                None => Ok(()),
            }
        })
    }

    fn gauge(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        mut each: impl FnMut(&Row, &mut MetricEncoder<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
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
