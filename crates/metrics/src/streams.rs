//! The part of `/metrics` about streams.

use std::fmt::Error;
use std::sync::Arc;
use std::time::Duration;

use kvplane_core::{Continuity, Tier, Trust};
use kvplane_ingest::{Engine, Stream, StreamStatus};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::counted::{COUNTERS, rejected};
use crate::family::Family;
use crate::family::list::{stream_counters, streams};
use crate::gauge;

#[derive(Debug)]
struct Row {
    engine: String,
    rank: String,
    model: String,
    status: StreamStatus,
}

/// All streams.
#[derive(Debug)]
pub struct Streams(Vec<Row>);

impl Streams {
    /// Every stream at one moment.
    pub fn of(engines: &[Arc<Engine>]) -> Self {
        let rows = engines.iter().flat_map(|engine| engine.streams.iter().map(|stream| row(engine, stream)));
        Self(rows.collect())
    }
}

fn row(engine: &Engine, stream: &Stream) -> Row {
    Row {
        engine: engine.spec.id.to_string(),
        rank: stream.id().rank.to_string(),
        model: engine.spec.model.clone(),
        status: stream.glance(),
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
            for standing in Continuity::ALL {
                let labels = row.labels_with("continuity", standing.as_str());
                gauge(u64::from(row.status.continuity == standing), metric.encode_family(&labels)?)?;
            }
            Ok(())
        })?;
        self.gauge(encoder, streams::TRUST, |row, metric| {
            for trust in Trust::ALL {
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

impl Row {
    fn labels(&self) -> [(&str, &str); 3] {
        [("engine", &self.engine), ("rank", &self.rank), ("model", &self.model)]
    }

    fn labels_with<'r>(&'r self, name: &'r str, value: &'r str) -> [(&'r str, &'r str); 4] {
        [("engine", &self.engine), ("rank", &self.rank), ("model", &self.model), (name, value)]
    }
}
