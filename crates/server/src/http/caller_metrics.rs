//! The part of `/metrics` about callers that were turned away.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use crate::service::Options;

/// A listener, a reason, and how often.
type Counts = Vec<(&'static str, &'static str, u64)>;

/// What the listeners count.
#[derive(Debug)]
pub(super) struct Callers {
    refused: Counts,
    handshakes: Counts,
}

impl Callers {
    pub(super) fn of(options: &Options) -> Self {
        let handshakes = options.tls.as_ref().map(|tls| tls.failed()).unwrap_or_default();
        Self { refused: options.access.refused(), handshakes }
    }
}

impl Collector for Callers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let families = [
            ("kvplane_auth_refused", "Requests that were refused, by why", &self.refused),
            (
                "kvplane_tls_handshakes_failed",
                "Connections that did not become any, by why",
                &self.handshakes,
            ),
        ];
        for (name, help, counts) in families.into_iter().filter(|(.., counts)| !counts.is_empty()) {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (listener, why, count) in counts {
                let labels = [("listener", *listener), ("why", *why)];
                ConstCounter::new(*count).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
