//! The part of `/metrics` about other planes.

use std::fmt::Error;
use std::sync::Arc;

use kvplane_ingest::{Engine, LinkStatus};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;

use crate::family::Family;
use crate::family::list::links;
use crate::gauge;

/// A number of a link.
type OfLink = (Family, fn(&LinkStatus) -> u64);

/// The planes that are followed, by their names here.
#[derive(Debug)]
pub struct Links(Vec<(String, LinkStatus)>);

impl Links {
    /// The links of these engines.
    pub fn of(engines: &[Arc<Engine>]) -> Self {
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
            (links::UP, |link| u64::from(link.connected)),
            (links::REFUSED_ENGINES, |link| link.refused.len() as u64),
        ];
        for (family, value) in gauges {
            let mut metric = family.begin(&mut encoder)?;
            for (engine, link) in &self.0 {
                gauge(value(link), metric.encode_family(&[("engine", engine.as_str())])?)?;
            }
        }
        let counters: [OfLink; 2] =
            [(links::CONNECTS, |link| link.connects), (links::LOOPS, |link| link.loops)];
        for (family, value) in counters {
            let mut metric = family.begin(&mut encoder)?;
            for (engine, link) in &self.0 {
                let labels = [("engine", engine.as_str())];
                ConstCounter::new(value(link)).encode(metric.encode_family(&labels)?)?;
            }
        }
        let mut metric = links::VOIDS.begin(&mut encoder)?;
        for (engine, link) in &self.0 {
            for (reason, count) in &link.voids {
                let labels = [("engine", engine.as_str()), ("reason", *reason)];
                ConstCounter::new(*count).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
