//! Where events come from, for `/metrics`: publishers that are heard, and what keeps the others from it.

use std::collections::BTreeMap;
use std::fmt::Error;
use std::sync::Arc;

use kvplane_ingest::Engine;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;

use crate::detail::{Detail, Labels};
use crate::family::Family;
use crate::family::list::sources;
use crate::gauge;

/// Publishers that there should be, and those that are heard.
type Count = (u64, u64);

/// What is known of every engine's sources at one moment.
#[derive(Debug)]
pub struct Sources {
    counts: BTreeMap<Labels, Count>,
    /// How many streams have a trouble now.
    troubled: BTreeMap<(Labels, &'static str), u64>,
    /// How often each kind of trouble began.
    troubles: BTreeMap<(Labels, &'static str), u64>,
}

impl Sources {
    /// `count` says how many publishers an engine should have, and how many of them are heard.
    pub fn of(engines: &[Arc<Engine>], count: impl Fn(&Engine) -> Count, detail: Detail) -> Self {
        let mut counts: BTreeMap<Labels, Count> = BTreeMap::new();
        for engine in engines {
            let (expected, heard) = count(engine);
            let sum = counts.entry(detail.labels(engine, None).of_source()).or_default();
            *sum = (sum.0 + expected, sum.1 + heard);
        }
        let (mut troubled, mut troubles) = (BTreeMap::new(), BTreeMap::new());
        for (labels, streams) in detail.rows(engines) {
            let labels = labels.of_source();
            for status in streams.iter().map(|stream| stream.glance()) {
                if let Some(trouble) = status.trouble {
                    *troubled.entry((labels.clone(), trouble.as_str())).or_default() += 1;
                }
                for &(trouble, count) in &status.troubles {
                    *troubles.entry((labels.clone(), trouble.as_str())).or_default() += count;
                }
            }
        }
        Self { counts, troubled, troubles }
    }

    fn count(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        family: Family,
        value: fn(&Count) -> u64,
    ) -> Result<(), Error> {
        let mut metric = family.begin(encoder)?;
        for (labels, count) in &self.counts {
            gauge(value(count), metric.encode_family(&labels.all())?)?;
        }
        Ok(())
    }
}

impl Collector for Sources {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        self.count(&mut encoder, sources::PUBLISHERS_EXPECTED, |count| count.0)?;
        self.count(&mut encoder, sources::PUBLISHERS_HEARD, |count| count.1)?;
        let mut metric = sources::TROUBLE.begin(&mut encoder)?;
        for ((labels, trouble), count) in &self.troubled {
            gauge(*count, metric.encode_family(&labels.with("trouble", trouble))?)?;
        }
        let mut metric = sources::TROUBLES.begin(&mut encoder)?;
        for ((labels, trouble), count) in &self.troubles {
            ConstCounter::new(*count).encode(metric.encode_family(&labels.with("trouble", trouble))?)?;
        }
        Ok(())
    }
}
