//! The part of `/metrics` about fronts.

use std::fmt::Error;
use std::sync::Arc;

use kvplane_front::FrontCounters;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;

use crate::family::Family;
use crate::family::list::fronts;
use crate::gauge;

/// What each front counts, by engine.
#[derive(Debug)]
pub struct Fronts(pub Vec<(String, Arc<FrontCounters>)>);

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
