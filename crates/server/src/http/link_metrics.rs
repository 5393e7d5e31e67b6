//! The part of `/metrics` about other planes.

use std::fmt::Error;
use std::sync::Arc;

use kvplane_ingest::{Engine, LinkStatus};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use super::metrics::gauge;

/// A number of a link: name, help, value.
type OfLink = (&'static str, &'static str, fn(&LinkStatus) -> u64);

/// The planes that are followed, by their names here.
#[derive(Debug)]
pub(super) struct Links(Vec<(String, LinkStatus)>);

impl Links {
    pub(super) fn of(engines: &[Arc<Engine>]) -> Self {
        let links = engines.iter().filter_map(|engine| {
            let link = engine.link.as_ref()?;
            Some((engine.spec.id.to_string(), link.status()))
        });
        Self(links.collect())
    }
}

impl Collector for Links {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        if self.0.is_empty() {
            return Ok(());
        }
        let gauges: [OfLink; 2] = [
            ("kvplane_link_up", "1 while the other plane is followed", |link| u64::from(link.connected)),
            ("kvplane_link_refused_engines", "Engines that would be a loop", |link| {
                link.refused.len() as u64
            }),
        ];
        for (name, help, value) in gauges {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (engine, link) in &self.0 {
                gauge(value(link), metric.encode_family(&[("engine", engine.as_str())])?)?;
            }
        }
        let counters: [OfLink; 2] = [
            ("kvplane_link_connects", "Subscriptions that came up", |link| link.connects),
            ("kvplane_link_loops", "Times that a loop was refused", |link| link.loops),
        ];
        for (name, help, value) in counters {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (engine, link) in &self.0 {
                let labels = [("engine", engine.as_str())];
                ConstCounter::new(value(link)).encode(metric.encode_family(&labels)?)?;
            }
        }
        let help = "Streams that became void because what was told did not fit";
        let mut metric = encoder.encode_descriptor("kvplane_link_voids", help, None, MetricType::Counter)?;
        for (engine, link) in &self.0 {
            for (reason, count) in &link.voids {
                let labels = [("engine", engine.as_str()), ("reason", *reason)];
                ConstCounter::new(*count).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
