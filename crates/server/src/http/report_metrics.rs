//! The part of `/metrics` about what is reported to others.

use std::collections::BTreeMap;
use std::fmt::Error;
use std::sync::Arc;

use kvplane_report::{
    CALL_OUTCOMES, OutboxCounts, Pending, ReplicaReport, Reports, SAYINGS, Withheld, WithheldCounts,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::metrics::gauge;

/// A gauge of a report: name, help, value.
type Level = (&'static str, &'static str, fn(&Row) -> u64);
/// A counter of a report: name, help, value.
type Count = (&'static str, &'static str, fn(&OutboxCounts) -> u64);

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
pub(super) struct ReportMetrics {
    rows: Vec<Row>,
    withheld: Vec<(String, Arc<WithheldCounts>)>,
}

impl ReportMetrics {
    pub(super) fn of(reports: &Reports) -> Self {
        let row = |report: Arc<ReplicaReport>| {
            let (pending, counts) = (report.pending(), report.counts());
            Row { report, pending, counts }
        };
        // A duplicate tells nothing, and would have the labels of the one that does.
        let told = reports.replicas().into_iter().filter(|report| !report.is_duplicate());
        Self { rows: told.map(row).collect(), withheld: reports.withheld() }
    }
}

impl Collector for ReportMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        if self.withheld.is_empty() {
            return Ok(());
        }
        let gauges: [Level; 7] = [
            ("kvplane_report_connected", "1 while there is a connection to the server", |row| {
                u64::from(row.report.link.is_up())
            }),
            ("kvplane_report_failing", "1 while the last call was not taken", |row| {
                u64::from(row.report.is_failing())
            }),
            ("kvplane_report_blocks", "Blocks that the server may hold", |row| row.pending.maybe_told as u64),
            ("kvplane_report_pending_adds", "Blocks to be told", |row| row.pending.adds as u64),
            ("kvplane_report_pending_evictions", "Evictions to be told", |row| row.pending.evictions as u64),
            ("kvplane_report_pending_clear", "1 while everything has to be cleared first", |row| {
                u64::from(row.pending.clear)
            }),
            ("kvplane_report_stats_stale", "1 while the engine's load cannot be read", |row| {
                u64::from(row.report.are_stats_stale())
            }),
        ];
        for (name, help, value) in gauges {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for row in &self.rows {
                gauge(value(row), metric.encode_family(&row.labels())?)?;
            }
        }
        let counters: [Count; 8] = [
            ("kvplane_report_told_blocks", "Blocks that the server took, repeated ones too", |c| {
                c.told_blocks
            }),
            ("kvplane_report_evicted_blocks", "Evictions that the server took", |c| c.evicted_blocks),
            ("kvplane_report_refreshed_blocks", "Blocks told again so that they are not forgotten", |c| {
                c.refreshed_blocks
            }),
            ("kvplane_report_refused_blocks", "Blocks refused, which wait for their refresh", |c| {
                c.refused_blocks
            }),
            ("kvplane_report_clears", "Times that everything was cleared", |c| c.clears),
            ("kvplane_report_resyncs", "Times that everything was told again", |c| c.resyncs),
            ("kvplane_report_collapses", "Times that too many evictions waited", |c| c.collapses),
            ("kvplane_report_retries", "Calls whose content is told again", |c| c.retries),
        ];
        for (name, help, value) in counters {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for row in &self.rows {
                ConstCounter::new(value(&row.counts)).encode(metric.encode_family(&row.labels())?)?;
            }
        }
        self.calls(&mut encoder)?;
        let (name, help) =
            ("kvplane_report_since_last_taken_seconds", "Time since the server last took something");
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for row in &self.rows {
            let since = row.report.since_last_taken().as_secs_f64();
            ConstGauge::new(since).encode(metric.encode_family(&row.labels())?)?;
        }
        let (name, help) = ("kvplane_report_withheld_blocks", "Blocks that are not told, by reason");
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
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

impl ReportMetrics {
    fn calls(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let (name, help) = ("kvplane_report_calls", "Calls, by what they say and how they ended");
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
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
