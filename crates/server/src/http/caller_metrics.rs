//! The part of `/metrics` about callers: those who look, and those who were turned away.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;

use super::family::list::callers;
use super::metrics::gauge;
use crate::service::Shared;

/// A listener, a reason, and how often.
type Counts = Vec<(&'static str, &'static str, u64)>;

/// What the listeners count.
#[derive(Debug)]
pub(super) struct Callers {
    watchers: u64,
    refused: Counts,
    handshakes: Counts,
}

impl Callers {
    pub(super) fn of(shared: &Shared) -> Self {
        let options = &shared.options;
        let handshakes = options.tls.as_ref().map(|tls| tls.failed()).unwrap_or_default();
        Self { watchers: shared.watch.watchers(), refused: options.access.refused(), handshakes }
    }
}

impl Collector for Callers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        gauge(self.watchers, callers::WATCHERS.begin(&mut encoder)?)?;
        let families =
            [(callers::AUTH_REFUSED, &self.refused), (callers::TLS_HANDSHAKES_FAILED, &self.handshakes)];
        for (family, counts) in families.into_iter().filter(|(_, counts)| !counts.is_empty()) {
            let mut metric = family.begin(&mut encoder)?;
            for (listener, why, count) in counts {
                let labels = [("listener", *listener), ("why", *why)];
                ConstCounter::new(*count).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
