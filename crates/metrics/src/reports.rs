//! The part of `/metrics` about what is reported to others.

use std::collections::BTreeMap;
use std::fmt::Error;
use std::sync::Arc;

use kvplane_report::{
    CALL_OUTCOMES, OutboxCounts, Pending, ReplicaReport, Reports, SAYINGS, Withheld, WithheldCounts,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::family::Family;
use crate::family::list::reports as families;
use crate::gauge;

/// A gauge of a report.
type Level = (Family, fn(&Row) -> u64);
/// A counter of a report.
type Count = (Family, fn(&OutboxCounts) -> u64);

/// One replica at one server.
#[derive(Debug)]
struct Row {
    report: Arc<ReplicaReport>,
    pending: Pending,
    counts: OutboxCounts,
}

impl Row {
    /// An engine may be reported to a server under several names.
    fn labels(&self) -> [(&str, &str); 5] {
        let identity = &self.report.identity;
        [
            ("server", self.report.link.address().url()),
            ("engine", &self.report.engine),
            ("tenant", &identity.tenant),
            ("model", &identity.model),
            ("replica", &identity.replica),
        ]
    }
}

/// Everything that is reported, and what is not, by server.
#[derive(Debug)]
pub struct ReportRows {
    rows: Vec<Row>,
    withheld: Vec<(String, Arc<WithheldCounts>)>,
}

impl ReportRows {
    /// Everything at one moment.
    pub fn of(reports: &Reports) -> Self {
        let row = |report: Arc<ReplicaReport>| {
            let (pending, counts) = (report.pending(), report.counts());
            Row { report, pending, counts }
        };
        // A duplicate tells nothing, and would have the labels of the one that does.
        let reported = reports.replicas().into_iter().filter(|report| !report.is_duplicate());
        Self { rows: reported.map(row).collect(), withheld: reports.withheld() }
    }
}

impl Collector for ReportRows {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        if self.withheld.is_empty() {
            return Ok(());
        }
        let gauges: [Level; 7] = [
            (families::CONNECTED, |row| u64::from(row.report.link.is_up())),
            (families::FAILING, |row| u64::from(row.report.is_failing())),
            (families::BLOCKS, |row| row.pending.maybe_reported as u64),
            (families::PENDING_ADDS, |row| row.pending.adds as u64),
            (families::PENDING_EVICTIONS, |row| row.pending.evictions as u64),
            (families::PENDING_CLEAR, |row| u64::from(row.pending.clear)),
            (families::STATS_STALE, |row| u64::from(row.report.are_stats_stale())),
        ];
        for (family, value) in gauges {
            let mut metric = family.begin(&mut encoder)?;
            for row in &self.rows {
                gauge(value(row), metric.encode_family(&row.labels())?)?;
            }
        }
        let counters: [Count; 8] = [
            (families::TOLD_BLOCKS, |c| c.reported_blocks),
            (families::EVICTED_BLOCKS, |c| c.evicted_blocks),
            (families::REFRESHED_BLOCKS, |c| c.refreshed_blocks),
            (families::REFUSED_BLOCKS, |c| c.refused_blocks),
            (families::CLEARS, |c| c.clears),
            (families::RESYNCS, |c| c.resyncs),
            (families::COLLAPSES, |c| c.collapses),
            (families::RETRIES, |c| c.retries),
        ];
        for (family, value) in counters {
            let mut metric = family.begin(&mut encoder)?;
            for row in &self.rows {
                ConstCounter::new(value(&row.counts)).encode(metric.encode_family(&row.labels())?)?;
            }
        }
        self.calls(&mut encoder)?;
        let mut metric = families::SINCE_LAST_TAKEN_SECONDS.begin(&mut encoder)?;
        for row in &self.rows {
            let since = row.report.since_last_taken().as_secs_f64();
            ConstGauge::new(since).encode(metric.encode_family(&row.labels())?)?;
        }
        let mut metric = families::WITHHELD_BLOCKS.begin(&mut encoder)?;
        let mut by_server: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for (server, counts) in &self.withheld {
            for reason in Withheld::ALL {
                *by_server.entry((server, reason.as_str())).or_default() += counts.get(reason);
            }
        }
        for ((server, reason), count) in by_server {
            let labels = [("server", server), ("reason", reason)];
            ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

impl ReportRows {
    fn calls(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut metric = families::CALLS.begin(encoder)?;
        for row in &self.rows {
            for (saying, call) in SAYINGS.into_iter().enumerate() {
                for (at, outcome) in CALL_OUTCOMES.into_iter().enumerate() {
                    let [server, engine, tenant, model, replica] = row.labels();
                    let labels =
                        [server, engine, tenant, model, replica, ("call", call), ("outcome", outcome)];
                    let count = row.report.calls(saying, at);
                    ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}
