//! The part of `/metrics` about the endpoint picker.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;

use crate::family::list::picker;
use crate::gauge;

/// What the picker counts.
#[derive(Debug)]
pub struct PickerRows {
    /// Requests, by what became of them.
    pub requests: Vec<(&'static str, u64)>,
    /// Picks by load, by why.
    pub without_tokens: Vec<(&'static str, u64)>,
    /// Picks, by how they ended.
    pub ended: Vec<(&'static str, u64)>,
    /// Answers of another endpoint.
    pub wrong_endpoints: u64,
    /// Requests for which another model was asked for.
    pub rewritten: u64,
    /// Streams that are open.
    pub streams: u64,
    /// Bytes of bodies that are held.
    pub held_bytes: u64,
    /// Endpoints of the pool.
    pub endpoints: u64,
}

impl Collector for PickerRows {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let labelled = [
            (picker::REQUESTS, "outcome", &self.requests),
            (picker::WITHOUT_TOKENS, "reason", &self.without_tokens),
            (picker::ENDED, "how", &self.ended),
        ];
        for (family, label, counts) in labelled {
            let mut metric = family.begin(&mut encoder)?;
            for (value, count) in counts {
                ConstCounter::new(*count).encode(metric.encode_family(&[(label, *value)])?)?;
            }
        }
        ConstCounter::new(self.wrong_endpoints).encode(picker::WRONG_ENDPOINTS.begin(&mut encoder)?)?;
        ConstCounter::new(self.rewritten).encode(picker::REWRITTEN.begin(&mut encoder)?)?;
        gauge(self.streams, picker::STREAMS.begin(&mut encoder)?)?;
        gauge(self.held_bytes, picker::HELD_BYTES.begin(&mut encoder)?)?;
        gauge(self.endpoints, picker::ENDPOINTS.begin(&mut encoder)?)
    }
}
