//! What the indexes hold and what they did not take, for `/metrics`.

use std::fmt::Error;

use kvplane_catalog::IndexStats;
use kvplane_index::{Refused, Stats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;

use crate::family::Family;
use crate::family::list::indexes;
use crate::gauge;

/// All indexes at one moment.
#[derive(Debug)]
pub struct Indexes {
    /// What each holds.
    pub stats: Vec<IndexStats>,
    /// What they did not take, by model and reason.
    pub refused: Vec<(String, [(Refused, u64); 2])>,
}

/// A gauge of an index.
type OfIndex = (Family, fn(&Stats) -> usize);

impl Collector for Indexes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let gauges: [OfIndex; 6] = [
            (indexes::STREAMS, |stats| stats.streams),
            (indexes::BLOCKS, |stats| stats.blocks),
            (indexes::DISTINCT_BLOCKS, |stats| stats.distinct),
            (indexes::INDEX_BYTES, |stats| stats.bytes),
            (indexes::WAITING_BLOCKS, |stats| stats.waiting),
            (indexes::UNRECLAIMED_BLOCKS, |stats| stats.unreclaimed),
        ];
        for (family, value) in gauges {
            let mut metric = family.begin(&mut encoder)?;
            for IndexStats { model, block_size, bigrams, stats } in &self.stats {
                let bigrams = if *bigrams { "true" } else { "false" };
                let block_size = block_size.to_string();
                let labels = [("model", model.as_str()), ("block_size", &block_size), ("bigrams", bigrams)];
                gauge(value(stats) as u64, metric.encode_family(&labels)?)?;
            }
        }
        let mut metric = indexes::REFUSED.begin(&mut encoder)?;
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
