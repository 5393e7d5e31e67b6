//! Where events come from, for `/metrics`: publishers that are heard, and what keeps the others from it.

use std::fmt::Error;
use std::sync::Arc;

use kvplane_ingest::{Engine, StreamStatus};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;

use crate::family::Family;
use crate::family::list::sources;
use crate::gauge;

/// Publishers that there should be, and those that are heard.
type Count = (u64, u64);

/// What is known of every engine's sources at one moment.
#[derive(Debug)]
pub struct Sources {
    engines: Vec<(String, Count)>,
    /// By engine and rank.
    ranks: Vec<(String, String, StreamStatus)>,
}

impl Sources {
    /// `count` says how many publishers an engine should have, and how many of them are heard.
    pub fn of(engines: &[Arc<Engine>], count: impl Fn(&Engine) -> Count) -> Self {
        let name = |engine: &Engine| engine.spec.id.to_string();
        let ranks = engines.iter().flat_map(|engine| {
            engine.streams.iter().map(|stream| (name(engine), stream.id().rank.to_string(), stream.glance()))
        });
        Self {
            engines: engines.iter().map(|engine| (name(engine), count(engine))).collect(),
            ranks: ranks.collect(),
        }
    }

    fn count(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        family: Family,
        value: fn(&Count) -> u64,
    ) -> Result<(), Error> {
        let mut metric = family.begin(encoder)?;
        for (engine, count) in &self.engines {
            gauge(value(count), metric.encode_family(&[("engine", engine.as_str())])?)?;
        }
        Ok(())
    }
}

impl Collector for Sources {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        self.count(&mut encoder, sources::PUBLISHERS_EXPECTED, |count| count.0)?;
        self.count(&mut encoder, sources::PUBLISHERS_HEARD, |count| count.1)?;

        let labels = |engine: &'_ String, rank: &'_ String, trouble: &'static str| {
            [("engine", engine.clone()), ("rank", rank.clone()), ("trouble", trouble.to_owned())]
        };
        let mut metric = sources::TROUBLE.begin(&mut encoder)?;
        for (engine, rank, status) in &self.ranks {
            if let Some(trouble) = status.trouble {
                gauge(1, metric.encode_family(&labels(engine, rank, trouble))?)?;
            }
        }
        let mut metric = sources::TROUBLES.begin(&mut encoder)?;
        for (engine, rank, status) in &self.ranks {
            for &(trouble, count) in &status.troubles {
                let labels = labels(engine, rank, trouble);
                ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
