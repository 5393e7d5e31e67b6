//! The part of `/metrics` about operations on the fleet.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;

use super::family::list::operations;
use super::metrics::gauge;
use crate::ops::{Counts, Operations};

/// What operations count.
#[derive(Debug)]
pub(super) struct OperationMetrics {
    operations: Counts,
    ranks: Counts,
    in_flight: usize,
}

impl OperationMetrics {
    pub(super) fn of(operations: &Operations) -> Self {
        let counters = operations.counters();
        Self { operations: counters.operations(), ranks: counters.ranks(), in_flight: operations.in_flight() }
    }
}

impl Collector for OperationMetrics {
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
