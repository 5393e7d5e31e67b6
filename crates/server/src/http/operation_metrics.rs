//! The part of `/metrics` about operations on the fleet.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

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
        let families = [
            ("kvplane_operations", "Operations that ended, by how", "outcome", &self.operations),
            ("kvplane_operation_ranks", "Ranks of operations, by verdict", "verdict", &self.ranks),
        ];
        for (name, help, label, counts) in families {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (verb, value, count) in counts {
                let labels = [("verb", *verb), (label, *value)];
                ConstCounter::new(*count).encode(metric.encode_family(&labels)?)?;
            }
        }
        let help = "Operations under way, and those whose streams are still watched";
        let metric =
            encoder.encode_descriptor("kvplane_operations_in_flight", help, None, MetricType::Gauge)?;
        gauge(self.in_flight as u64, metric)
    }
}
