//! The part of `/metrics` about this process: what it is, what it uses, and how questions went.

use std::fmt::Error;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, NoLabelSet};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::family::list::{process, queries};
use crate::gauge;
use crate::latencies::LatenciesRead;

/// The process at one moment.
#[derive(Debug)]
pub struct Process {
    /// How questions ended.
    pub outcomes: [(&'static str, u64); 3],
    /// How long they took.
    pub took: LatenciesRead,
    /// Descriptors that are open; none where the system does not say.
    pub open_files: Option<u64>,
    /// Descriptors that may be open.
    pub open_files_limit: Option<u64>,
    /// The longest round of a socket thread.
    pub socket_round: Duration,
    /// The commit that the program was built from.
    pub commit: &'static str,
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut metric = process::BUILD_INFO.begin(&mut encoder)?;
        let labels = [("version", env!("CARGO_PKG_VERSION")), ("commit", self.commit)];
        gauge(1, metric.encode_family(&labels)?)?;
        let files =
            [(process::OPEN_FILES, self.open_files), (process::OPEN_FILES_LIMIT, self.open_files_limit)];
        for (family, value) in files {
            if let Some(value) = value {
                gauge(value, family.begin(&mut encoder)?)?;
            }
        }
        ConstGauge::new(self.socket_round.as_secs_f64())
            .encode(process::SOCKET_ROUND_SECONDS.begin(&mut encoder)?)?;
        let mut metric = queries::QUERIES.begin(&mut encoder)?;
        for (outcome, count) in self.outcomes {
            ConstCounter::new(count).encode(metric.encode_family(&[("outcome", outcome)])?)?;
        }
        let LatenciesRead { sum, count, buckets } = &self.took;
        queries::DURATION_SECONDS
            .begin(&mut encoder)?
            .encode_histogram::<NoLabelSet>(*sum, *count, buckets, None)
    }
}
