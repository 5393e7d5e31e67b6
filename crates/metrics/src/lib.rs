//! The Prometheus text of a plane.
//!
//! Each part of the page is a collector with the values of one moment. Counters are read off streams,
//! listeners and fronts when the page is requested: nothing is counted twice, and no event pays for it.
//! `family/list.rs` describes every metric once, for the page and for docs/reference/metrics.md.
//!
//! This crate serves nothing: it knows no route and no configuration. The server puts the page together.

mod callers;
mod counted;
mod detail;
mod discovery;
mod family;
mod fronts;
mod gateway;
pub mod hint_counters;
mod hints;
mod indexer_routes;
mod indexes;
mod journal;
mod latencies;
mod links;
mod operations;
mod peers;
mod picker;
mod process;
mod prompts;
mod reports;
mod routes;
mod sources;
mod streams;
mod value;

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{EncodeMetric as _, MetricEncoder, text};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

pub use callers::Callers;
pub use counted::{COUNTERS, OfStream, rejected};
pub use detail::Detail;
pub use discovery::DiscoveryRows;
pub use family::Family;
pub use fronts::Fronts;
pub use gateway::GatewayRows;
pub use hints::HintRows;
pub use indexer_routes::{IndexerRoute, IndexerRows};
pub use indexes::Indexes;
pub use journal::JournalRows;
pub use latencies::{Latencies, LatenciesRead};
pub use links::Links;
pub use operations::Operations;
pub use peers::PeerRows;
pub use picker::PickerRows;
pub use process::Process;
pub use prompts::PromptRows;
pub use reports::ReportRows;
pub use routes::RouteRows;
pub use sources::Sources;
pub use streams::Streams;
pub use value::{PrefixRow, ValueRows};

/// A page of metrics, part by part.
#[derive(Debug, Default)]
pub struct Page(Registry);

impl Page {
    /// Adds a part. Parts are written in the order in which they were added.
    pub fn add(&mut self, part: impl Collector) {
        self.0.register_collector(Box::new(part));
    }

    /// The page as text.
    pub fn write(&self) -> Result<String, Error> {
        let mut page = String::new();
        text::encode(&mut page, &self.0)?;
        Ok(page)
    }
}

fn gauge(value: u64, encoder: MetricEncoder<'_>) -> Result<(), Error> {
    // Gauges are signed; nothing here comes near.
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(encoder)
}
