//! The part of `/metrics` about sources of engines.

use std::fmt::Error;

use kvplane_kubernetes::{SourceReport, SourceStats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;

use crate::family::Family;
use crate::family::list::discovery;
use crate::gauge;

/// Sources of engines.
#[derive(Debug)]
pub struct DiscoveryRows(pub Vec<SourceReport>);

/// A number of a source.
type OfSource = (Family, fn(&SourceReport) -> u64);

impl Collector for DiscoveryRows {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        if self.0.is_empty() {
            return Ok(());
        }
        let gauges: [OfSource; 3] = [
            (discovery::CURRENT, |source| u64::from(source.state.is_current())),
            (discovery::PODS, |source| source.pods as u64),
            (discovery::ENGINES, |source| source.engines as u64),
        ];
        for (family, value) in gauges {
            let mut metric = family.begin(&mut encoder)?;
            for source in &self.0 {
                gauge(value(source), metric.encode_family(&[("source", source.name.as_str())])?)?;
            }
        }
        let counters: [OfSource; 3] = [
            (discovery::LISTS, |source| source.counted.lists),
            (discovery::CHANGES, |source| source.counted.changes),
            (discovery::REFUSED_PODS, |source| source.counted.refused),
        ];
        for (family, value) in counters {
            let mut metric = family.begin(&mut encoder)?;
            for source in &self.0 {
                let labels = [("source", source.name.as_str())];
                ConstCounter::new(value(source)).encode(metric.encode_family(&labels)?)?;
            }
        }
        let mut metric = discovery::FAILURES.begin(&mut encoder)?;
        for source in &self.0 {
            let SourceStats { forbidden, expired, failed, conflicts, .. } = source.counted;
            let kinds =
                [("forbidden", forbidden), ("expired", expired), ("failed", failed), ("conflict", conflicts)];
            for (reason, count) in kinds {
                let labels = [("source", source.name.as_str()), ("reason", reason)];
                ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
