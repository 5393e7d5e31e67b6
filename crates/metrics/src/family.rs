//! Families of `/metrics`: each is described once, in [`list`], and is written by its description alone.
//! The tables of docs/reference/metrics.md are made of the same descriptions.

pub(crate) mod list;
#[cfg(test)]
mod reference;

use std::fmt::Error;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// What is said of a family.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// A counter's without `_total`, as a family is named.
    name: &'static str,
    kind: MetricType,
    /// Every series has all of them.
    #[cfg_attr(not(test), expect(dead_code, reason = "the reference is made of it, by a test"))]
    labels: &'static [&'static str],
    help: &'static str,
}

static BYTES: Unit = Unit::Bytes;
static SECONDS: Unit = Unit::Seconds;

impl Family {
    const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: MetricType::Gauge, labels, help }
    }

    const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: MetricType::Counter, labels, help }
    }

    const fn histogram(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: MetricType::Histogram, labels, help }
    }

    /// Writes what is said of the family; its series come next.
    pub(crate) fn begin<'e>(
        &self,
        encoder: &'e mut DescriptorEncoder<'_>,
    ) -> Result<MetricEncoder<'e>, Error> {
        let (stem, unit) = self.unit();
        encoder.encode_descriptor(stem, self.help, unit, self.kind)
    }

    /// The name without its unit, and the unit.
    fn unit(&self) -> (&'static str, Option<&'static Unit>) {
        let with = |unit: &'static Unit| {
            let stem = self.name.strip_suffix(unit.as_str())?.strip_suffix('_')?;
            Some((stem, Some(unit)))
        };
        with(&BYTES).or_else(|| with(&SECONDS)).unwrap_or((self.name, None))
    }

    /// What `/v1/status` calls a counter of a stream.
    pub fn name_in_status(&self) -> &'static str {
        self.name.strip_prefix("kvplane_stream_").unwrap_or(self.name)
    }
}
