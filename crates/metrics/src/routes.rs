//! The part of `/metrics` about decisions and their receipts.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, NoLabelSet};
use prometheus_client::metrics::counter::ConstCounter;

use crate::family::list::routes;
use crate::gauge;
use crate::latencies::LatenciesRead;

/// What decisions and receipts count.
#[derive(Debug)]
pub struct RouteRows {
    /// Decisions, by why.
    pub decisions: Vec<(&'static str, u64)>,
    /// How long they took.
    pub took: LatenciesRead,
    /// Of settled receipts: prompt, seen before, best in the fleet, best eligible, predicted, delivered,
    /// gained.
    pub tokens: [u64; 7],
    /// Tokens lost, by cause.
    pub lost: Vec<(&'static str, u64)>,
    /// Requests without an account, by reason.
    pub unledgered: Vec<(&'static str, u64)>,
    /// Receipts that are settled, and those of them with as much delivered as predicted.
    pub receipts: [u64; 2],
    /// Exact predictions that nothing explains.
    pub drifts: u64,
    /// Endpoints, by what their load is known from.
    pub loads: Vec<(&'static str, u64)>,
    /// Questions for loads, by outcome.
    pub polls: Vec<(&'static str, u64)>,
    /// Bookings that are not over.
    pub bookings: u64,
    /// Those of them that other planes reported.
    pub remote_bookings: u64,
    /// Planes that share bookings, by which follows which.
    pub planes: [(&'static str, u64); 2],
    /// Updates that they sent and received.
    pub updates: [(&'static str, u64); 2],
    /// What of that was dropped, by reason.
    pub updates_refused: Vec<(&'static str, u64)>,
    /// Bookings that nobody ended.
    pub expired: u64,
    /// Bookings that there was no room for.
    pub refused: u64,
    /// Prompts in flight that there was no room for.
    pub unpredicted: u64,
    /// What the receipts take.
    pub receipt_bytes: u64,
}

impl Collector for RouteRows {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let updates = self.updates.to_vec();
        let labelled = [
            (routes::DECISIONS, "why", &self.decisions),
            (routes::LOST_TOKENS, "cause", &self.lost),
            (routes::UNLEDGERED, "reason", &self.unledgered),
            (routes::LOAD_POLLS, "outcome", &self.polls),
            (routes::SHARED_UPDATES, "direction", &updates),
            (routes::SHARED_REFUSED, "reason", &self.updates_refused),
        ];
        for (family, label, counts) in labelled {
            let mut metric = family.begin(&mut encoder)?;
            for (value, count) in counts {
                ConstCounter::new(*count).encode(metric.encode_family(&[(label, *value)])?)?;
            }
        }
        let [prompt, ceiling, fleet, eligible, predicted, delivered, gained] = self.tokens;
        let [settled, equal] = self.receipts;
        let plain = [
            (routes::PROMPT_TOKENS, prompt),
            (routes::CEILING_TOKENS, ceiling),
            (routes::FLEET_TOKENS, fleet),
            (routes::ELIGIBLE_TOKENS, eligible),
            (routes::PREDICTED_TOKENS, predicted),
            (routes::DELIVERED_TOKENS, delivered),
            (routes::GAINED_TOKENS, gained),
            (routes::SETTLED, settled),
            (routes::EQUAL, equal),
            (routes::DRIFTS, self.drifts),
            (routes::EXPIRED, self.expired),
            (routes::REFUSED, self.refused),
            (routes::UNPREDICTED, self.unpredicted),
        ];
        for (family, count) in plain {
            ConstCounter::new(count).encode(family.begin(&mut encoder)?)?;
        }
        let mut metric = routes::LOADS.begin(&mut encoder)?;
        for (source, count) in &self.loads {
            gauge(*count, metric.encode_family(&[("source", *source)])?)?;
        }
        let mut metric = routes::SHARING_PLANES.begin(&mut encoder)?;
        for (how, count) in self.planes {
            gauge(count, metric.encode_family(&[("how", how)])?)?;
        }
        gauge(self.bookings, routes::BOOKINGS.begin(&mut encoder)?)?;
        gauge(self.remote_bookings, routes::TOLD_BOOKINGS.begin(&mut encoder)?)?;
        gauge(self.receipt_bytes, routes::RECEIPT_BYTES.begin(&mut encoder)?)?;
        let LatenciesRead { sum, count, buckets } = &self.took;
        routes::DECISION_SECONDS
            .begin(&mut encoder)?
            .encode_histogram::<NoLabelSet>(*sum, *count, buckets, None)
    }
}
