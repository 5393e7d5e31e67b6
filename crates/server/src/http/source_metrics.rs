//! Where events come from, for `/metrics`: publishers that are heard, and what keeps the others from it.

use std::fmt::Error;
use std::sync::Arc;

use kvplane_ingest::{Engine, StreamStatus};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use super::metrics::gauge;
use crate::publishers::Count;

/// What is known of every engine's sources at one moment.
#[derive(Debug)]
pub(super) struct Sources {
    engines: Vec<(String, Count)>,
    /// By engine and rank.
    ranks: Vec<(String, String, StreamStatus)>,
}

impl Sources {
    pub(super) fn of(engines: &[Arc<Engine>]) -> Self {
        let name = |engine: &Engine| engine.spec.id.to_string();
        let ranks = engines.iter().flat_map(|engine| {
            engine.streams.iter().map(|stream| (name(engine), stream.id().rank.to_string(), stream.status()))
        });
        Self {
            engines: engines.iter().map(|engine| (name(engine), Count::of(engine))).collect(),
            ranks: ranks.collect(),
        }
    }

    fn count(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        value: fn(&Count) -> u64,
    ) -> Result<(), Error> {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (engine, count) in &self.engines {
            gauge(value(count), metric.encode_family(&[("engine", engine.as_str())])?)?;
        }
        Ok(())
    }
}

impl Collector for Sources {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let expected = "Publishers that an engine should have";
        self.count(&mut encoder, "kvplane_publishers_expected", expected, |count| count.expected)?;
        let heard = "Publishers of an engine that are connected and have a verdict";
        self.count(&mut encoder, "kvplane_publishers_heard", heard, |count| count.heard)?;

        let labels = |engine: &'_ String, rank: &'_ String, trouble: &'static str| {
            [("engine", engine.clone()), ("rank", rank.clone()), ("trouble", trouble.to_owned())]
        };
        let help = "1 for what keeps a source from being heard";
        let mut metric =
            encoder.encode_descriptor("kvplane_source_trouble", help, None, MetricType::Gauge)?;
        for (engine, rank, status) in &self.ranks {
            if let Some(trouble) = status.trouble {
                gauge(1, metric.encode_family(&labels(engine, rank, trouble))?)?;
            }
        }
        let help = "Times that a kind of trouble began";
        let mut metric =
            encoder.encode_descriptor("kvplane_source_troubles", help, None, MetricType::Counter)?;
        for (engine, rank, status) in &self.ranks {
            for &(trouble, count) in &status.troubles {
                let labels = labels(engine, rank, trouble);
                ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
