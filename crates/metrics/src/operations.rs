//! The part of `/metrics` about operations on the fleet.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;

use crate::family::list::operations;
use crate::gauge;

/// A verb, an outcome or a verdict, and how often.
type Counts = Vec<(&'static str, &'static str, u64)>;

/// What operations count.
#[derive(Debug)]
pub struct Operations {
    /// Operations that ended, by verb and outcome.
    pub operations: Counts,
    /// Ranks, by verb and verdict.
    pub ranks: Counts,
    /// Operations under way.
    pub in_flight: usize,
}

impl Collector for Operations {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let families =
            [(operations::ENDED, "outcome", &self.operations), (operations::RANKS, "verdict", &self.ranks)];
        for (family, label, counts) in families {
            let mut metric = family.begin(&mut encoder)?;
            for (verb, value, count) in counts {
                let labels = [("verb", *verb), (label, *value)];
                ConstCounter::new(*count).encode(metric.encode_family(&labels)?)?;
            }
        }
        gauge(self.in_flight as u64, operations::IN_FLIGHT.begin(&mut encoder)?)
    }
}
