//! The part of `/metrics` about streams.

use std::collections::BTreeMap;
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
use crate::detail::{Detail, Labels};
use crate::family::Family;
use crate::family::list::{stream_counters, streams};
use crate::gauge;

/// A stream, or several that share a row.
#[derive(Debug)]
struct Row {
    labels: Labels,
    streams: Vec<StreamStatus>,
}

impl Row {
    fn sum(&self, value: impl Fn(&StreamStatus) -> u64) -> u64 {
        self.streams.iter().map(value).fold(0, u64::saturating_add)
    }

    fn count(&self, is_so: impl Fn(&StreamStatus) -> bool) -> u64 {
        self.streams.iter().filter(|status| is_so(status)).count() as u64
    }
}

/// All streams.
#[derive(Debug)]
pub struct Streams {
    rows: Vec<Row>,
    detail: Detail,
}

impl Streams {
    /// Every stream at one moment.
    pub fn of(engines: &[Arc<Engine>], detail: Detail) -> Self {
        let row = |(labels, streams): (Labels, Vec<Arc<Stream>>)| Row {
            labels,
            streams: streams.iter().map(|stream| stream.glance()).collect(),
        };
        Self { rows: detail.rows(engines).into_iter().map(row).collect(), detail }
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
            for row in &self.rows {
                ConstCounter::new(row.sum(value)).encode(metric.encode_family(&row.labels.all())?)?;
            }
        }
        let mut metric = stream_counters::REJECTED_EVENTS.begin(encoder)?;
        for row in &self.rows {
            let mut by_reason: BTreeMap<String, u64> = BTreeMap::new();
            for (reason, count) in row.streams.iter().flat_map(rejected) {
                *by_reason.entry(reason).or_default() += count;
            }
            for (reason, count) in by_reason {
                let labels = row.labels.with("reason", &reason);
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
                let labels = row.labels.with("tier", tier.as_str());
                gauge(row.sum(|status| status.blocks[tier.index()]), metric.encode_family(&labels)?)?;
            }
            Ok(())
        })?;
        self.gauge(encoder, streams::USED_BLOCKS, |row, metric| {
            gauge(row.sum(|status| status.used_blocks), metric.encode_family(&row.labels.all())?)
        })?;
        self.gauge(encoder, streams::CAPACITY_BLOCKS, |row, metric| {
            // A sum without one of its parts would make the others look fuller than they are.
            let capacity: Option<u64> = row.streams.iter().map(|status| status.capacity_blocks).sum();
            match capacity {
                Some(capacity) => gauge(capacity, metric.encode_family(&row.labels.all())?),
                None => Ok(()),
            }
        })?;
        self.gauge(encoder, streams::CONTINUITY, |row, metric| {
            for continuity in Continuity::ALL {
                let labels = row.labels.with("continuity", continuity.as_str());
                let count = row.count(|status| status.continuity == continuity);
                gauge(count, metric.encode_family(&labels)?)?;
            }
            Ok(())
        })?;
        self.gauge(encoder, streams::TRUST, |row, metric| {
            for trust in Trust::ALL {
                let labels = row.labels.with("trust", trust.as_str());
                let count = row.count(|status| status.trust.level() == trust);
                gauge(count, metric.encode_family(&labels)?)?;
            }
            Ok(())
        })?;
        self.gauge(encoder, streams::DEGRADED, |row, metric| {
            let mut by_reason: BTreeMap<&str, u64> = BTreeMap::new();
            for degradation in row.streams.iter().flat_map(|status| status.trust.active()) {
                *by_reason.entry(degradation.reason.as_str()).or_default() += 1;
            }
            for (reason, count) in by_reason {
                gauge(count, metric.encode_family(&row.labels.with("reason", reason))?)?;
            }
            Ok(())
        })?;
        let of_one_stream: [Plain; 3] = [
            (streams::EPOCH, |s| s.epoch.as_u64()),
            (streams::LAST_SEQUENCE, |s| s.engine_sequence.unwrap_or(0)),
            (streams::KNOWN_FROM_SEQUENCE, |s| s.known_from.unwrap_or(0)),
        ];
        let summed: [Plain; 6] = [
            (streams::WAITING_BLOCKS, |s| s.waiting as u64),
            (streams::UNJOINED_BLOCKS, |s| s.unjoined),
            (streams::DICTIONARY_BLOCKS, |s| s.dictionary as u64),
            (streams::STATE_BYTES, |s| s.state_bytes as u64),
            (streams::WINDOW_BYTES, |s| s.window_bytes as u64),
            (streams::WINDOW_BATCHES, |s| s.window_entries as u64),
        ];
        // Positions of several streams have no sum.
        let positions = of_one_stream.into_iter().filter(|_| self.detail == Detail::Stream);
        for (family, value) in positions.chain(summed) {
            self.gauge(encoder, family, |row, metric| {
                gauge(row.sum(value), metric.encode_family(&row.labels.all())?)
            })?;
        }
        let times: [Time; 4] = [
            (streams::SINCE_LAST_EVENT_SECONDS, |s| s.since_last_event),
            (streams::LAG_SECONDS, |s| s.lag),
            (streams::AGE_SECONDS, |s| s.age),
            (streams::READ_BEFORE_SECONDS, |s| s.read_before),
        ];
        for (family, value) in times {
            self.gauge(encoder, family, |row, metric| match row.streams.iter().filter_map(value).max() {
                Some(time) => {
                    ConstGauge::new(time.as_secs_f64()).encode(metric.encode_family(&row.labels.all())?)
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
        for row in &self.rows {
            each(row, &mut metric)?;
        }
        Ok(())
    }
}
