//! The part of `/metrics` about the durable journal.

use std::fmt::Error;

use kvplane_ingest::{DurableStatus, Off};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;

use crate::family::list::journal;
use crate::gauge;

/// How the durable journal is; `None` where none is configured.
#[derive(Debug)]
pub struct JournalRows(pub Option<DurableStatus>);

impl Collector for JournalRows {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let Some(DurableStatus { off, counted, restored, waiting }) = self.0 else { return Ok(()) };
        gauge(u64::from(off.is_none()), journal::ON.begin(&mut encoder)?)?;
        let mut metric = journal::OFF.begin(&mut encoder)?;
        for reason in Off::ALL {
            let labels = [("reason", reason.as_str())];
            gauge(u64::from(off == Some(reason)), metric.encode_family(&labels)?)?;
        }
        for (family, value) in [
            (journal::BYTES, counted.bytes),
            (journal::SEGMENTS, counted.segments),
            (journal::QUEUED_BYTES, counted.queued_bytes),
            (journal::RESTORED_STREAMS, restored.streams as u64),
            (journal::VOID_STREAMS, restored.void as u64),
            (journal::WAITING_STREAMS, waiting as u64),
        ] {
            gauge(value, family.begin(&mut encoder)?)?;
        }
        for (family, value) in [
            (journal::STEPS, counted.steps),
            (journal::WRITTEN_BYTES, counted.written_bytes),
            (journal::COMPACTIONS, counted.compactions),
        ] {
            ConstCounter::new(value).encode(family.begin(&mut encoder)?)?;
        }
        Ok(())
    }
}
