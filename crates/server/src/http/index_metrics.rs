//! What the indexes hold and what they did not take, for `/metrics`.

use std::fmt::Error;

use kvplane_index::{Refused, Stats};
use kvplane_ingest::IndexStats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use super::metrics::gauge;

/// All indexes at one moment.
#[derive(Debug)]
pub(super) struct Indexes {
    pub(super) stats: Vec<IndexStats>,
    /// By model and reason.
    pub(super) refused: Vec<(String, [(Refused, u64); 2])>,
}

/// A gauge of an index: name, help, value.
type OfIndex = (&'static str, &'static str, fn(&Stats) -> usize);

impl Collector for Indexes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let gauges: [OfIndex; 5] = [
            ("kvplane_index_streams", "Streams in an index", |stats| stats.streams),
            ("kvplane_index_blocks", "Blocks in an index, once per stream", |stats| stats.blocks),
            ("kvplane_index_bytes", "Bytes that an index takes", |stats| stats.bytes),
            ("kvplane_index_waiting_blocks", "Blocks that wait for a parent", |stats| stats.waiting),
            ("kvplane_index_unreclaimed_blocks", "Blocks of the past, to be reclaimed", |stats| {
                stats.unreclaimed
            }),
        ];
        for (name, help, value) in gauges {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for IndexStats { model, block_size, bigrams, stats } in &self.stats {
                let bigrams = if *bigrams { "true" } else { "false" };
                let block_size = block_size.to_string();
                let labels = [("model", model.as_str()), ("block_size", &block_size), ("bigrams", bigrams)];
                gauge(value(stats) as u64, metric.encode_family(&labels)?)?;
            }
        }
        let help = "Stores that an index did not take whole, by reason";
        let mut metric =
            encoder.encode_descriptor("kvplane_index_refused", help, None, MetricType::Counter)?;
        for (model, counts) in &self.refused {
            for (refused, count) in counts {
                let reason = match refused {
                    Refused::Budget => "budget",
                    Refused::Waiting => "waiting_overflow",
                };
                let labels = [("model", model.as_str()), ("reason", reason)];
                ConstCounter::new(*count).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
