//! The part of `/metrics` about peers whose dumps are taken.

use std::fmt::Error;

use kvplane_ingest::PeerCounts;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;

use crate::family::list::peers;
use crate::gauge;

/// What was counted of peers.
#[derive(Debug)]
pub struct PeerRows(pub PeerCounts);

impl Collector for PeerRows {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let PeerCounts { peers: known, dumps, failures, unfit, recoveries, blocks } = self.0;
        gauge(known, peers::PEERS.begin(&mut encoder)?)?;
        for (family, value) in [
            (peers::DUMPS, dumps),
            (peers::FAILURES, failures),
            (peers::UNFIT, unfit),
            (peers::RECOVERIES, recoveries),
            (peers::BLOCKS, blocks),
        ] {
            ConstCounter::new(value).encode(family.begin(&mut encoder)?)?;
        }
        Ok(())
    }
}
