//! The part of `/metrics` about the gateway.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, NoLabelSet};
use prometheus_client::metrics::counter::ConstCounter;

use crate::family::list::gateway;
use crate::gauge;
use crate::latencies::LatenciesRead;

/// What the gateway counts.
#[derive(Debug)]
pub struct GatewayRows {
    /// Requests, by API and by the hundreds of their status.
    pub requests: Vec<(&'static str, &'static str, u64)>,
    /// Requests that were sent on, by how their engine was chosen.
    pub decisions: Vec<(&'static str, u64)>,
    /// Requests whose prompt's tokens were not known, by why.
    pub without_tokens: Vec<(&'static str, u64)>,
    /// Answers, by how they ended.
    pub ended: Vec<(&'static str, u64)>,
    /// Retried requests, by reason.
    pub retries: Vec<(&'static str, u64)>,
    /// Requests refused by a caller's limit.
    pub limited: Vec<(&'static str, u64)>,
    /// Prompts of engines that only decode, by where they were computed.
    pub prefills: Vec<(&'static str, u64)>,
    /// Traced requests, by what came of their traces.
    pub traces: Vec<(&'static str, u64)>,
    /// Requests refused at a bound of the gateway.
    pub refused: Vec<(&'static str, u64)>,
    /// Retries that were not made.
    pub unretried: u64,
    /// Prompts sent as ids.
    pub forwarded_ids: u64,
    /// Endpoints found not to take ids.
    pub withdrawn_ids: u64,
    /// Requests in progress.
    pub in_flight: u64,
    /// Bytes of bodies.
    pub held_bytes: u64,
    /// Endpoints, by whether they take requests.
    pub endpoints: Vec<(&'static str, u64)>,
    /// Seconds to the first byte of a streamed answer.
    pub first_token: LatenciesRead,
    /// Seconds for each further token.
    pub per_token: LatenciesRead,
    /// Seconds until a request was sent on.
    pub queue: LatenciesRead,
}

impl Collector for GatewayRows {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut metric = gateway::REQUESTS.begin(&mut encoder)?;
        for (api, status, count) in &self.requests {
            let labels = [("api", *api), ("status", *status)];
            ConstCounter::new(*count).encode(metric.encode_family(&labels)?)?;
        }
        let labelled = [
            (gateway::DECISIONS, "by", &self.decisions),
            (gateway::WITHOUT_TOKENS, "reason", &self.without_tokens),
            (gateway::ENDED, "how", &self.ended),
            (gateway::RETRIES, "reason", &self.retries),
            (gateway::LIMITED, "limit", &self.limited),
            (gateway::PREFILLS, "where", &self.prefills),
            (gateway::TRACES, "how", &self.traces),
            (gateway::REFUSED, "reason", &self.refused),
        ];
        for (family, label, counts) in labelled {
            let mut metric = family.begin(&mut encoder)?;
            for (value, count) in counts {
                ConstCounter::new(*count).encode(metric.encode_family(&[(label, *value)])?)?;
            }
        }
        for (family, count) in [
            (gateway::UNRETRIED, self.unretried),
            (gateway::FORWARDED_IDS, self.forwarded_ids),
            (gateway::WITHDRAWN_IDS, self.withdrawn_ids),
        ] {
            ConstCounter::new(count).encode(family.begin(&mut encoder)?)?;
        }
        gauge(self.in_flight, gateway::IN_FLIGHT.begin(&mut encoder)?)?;
        gauge(self.held_bytes, gateway::HELD_BYTES.begin(&mut encoder)?)?;
        let mut metric = gateway::ENDPOINTS.begin(&mut encoder)?;
        for (standing, count) in &self.endpoints {
            gauge(*count, metric.encode_family(&[("standing", *standing)])?)?;
        }
        for (family, took) in [
            (gateway::FIRST_TOKEN, &self.first_token),
            (gateway::PER_TOKEN, &self.per_token),
            (gateway::QUEUE, &self.queue),
        ] {
            let LatenciesRead { sum, count, buckets } = took;
            family.begin(&mut encoder)?.encode_histogram::<NoLabelSet>(*sum, *count, buckets, None)?;
        }
        Ok(())
    }
}
