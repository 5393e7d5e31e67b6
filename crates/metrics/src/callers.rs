//! The part of `/metrics` about callers: those who look, and those who were turned away.

use std::collections::BTreeMap;
use std::fmt::Error;
use std::sync::Arc;

use kvplane_access::{Access, Edge, OtherListener, Port, Tls};
use kvplane_front::FrontCounters;
use kvplane_transport::edge::Closed;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;

use crate::family::list::callers;
use crate::gauge;

/// A listener, a reason, and how often.
type Counts = Vec<(&'static str, &'static str, u64)>;

/// What the listeners count.
#[derive(Debug)]
pub struct Callers {
    watchers: u64,
    refused: Counts,
    handshakes: Counts,
    connections: Vec<(&'static str, u64)>,
    closed: Counts,
    sockets: Counts,
    request_bytes: u64,
    bounded: Vec<(&'static str, u64)>,
}

impl Callers {
    /// What the listeners have counted up to now, with this many who look at the fleet. `sockets`: those of
    /// `ZeroMQ`, with whom they turned away.
    pub fn of(
        watchers: u64,
        access: &Access,
        tls: Option<&Tls>,
        edge: &Edge,
        fronts: &[(String, Arc<FrontCounters>)],
        sockets: [(&'static str, BTreeMap<&'static str, u64>); 2],
    ) -> Self {
        let mut handshakes = tls.map(Tls::failed).unwrap_or_default();
        let mut closed: Counts = Vec::new();
        for (port, connections) in [(Port::Http, &edge.http), (Port::Grpc, &edge.grpc)] {
            closed
                .extend(connections.closed().map(|(reason, count)| (port.as_str(), reason.as_str(), count)));
        }
        let mut of_fronts = Closed::ALL.map(|reason| (Port::Front.as_str(), reason.as_str(), 0));
        for (at, (_, count)) in
            fronts.iter().flat_map(|(_, front)| front.connections_closed().into_iter().enumerate())
        {
            of_fronts[at].2 += count;
        }
        closed.extend(of_fronts);
        let at_fronts: usize = fronts.iter().map(|(_, front)| front.open_connections()).sum();
        let mut connections = vec![
            (Port::Http.as_str(), edge.http.open() as u64),
            (Port::Grpc.as_str(), edge.grpc.open() as u64),
            (Port::Front.as_str(), at_fronts as u64),
        ];
        for OtherListener { name, connections: other, tls } in edge.others() {
            connections.push((name, other.open() as u64));
            closed.extend(other.closed().map(|(reason, count)| (name, reason.as_str(), count)));
            handshakes.extend(tls.iter().flat_map(|tls| tls.failed_at_all(name)));
        }
        Self {
            watchers,
            refused: access.refused(),
            handshakes,
            connections,
            closed,
            sockets: sockets
                .into_iter()
                .flat_map(|(socket, counts)| {
                    counts.into_iter().map(move |(reason, count)| (socket, reason, count))
                })
                .collect(),
            request_bytes: edge.request_bytes.taken() as u64,
            bounded: edge.refused().collect(),
        }
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
        let mut metric = callers::CONNECTIONS.begin(&mut encoder)?;
        for &(listener, open) in &self.connections {
            gauge(open, metric.encode_family(&[("listener", listener)])?)?;
        }
        let mut metric = callers::CONNECTIONS_CLOSED.begin(&mut encoder)?;
        for (listener, reason, count) in &self.closed {
            let labels = [("listener", *listener), ("reason", *reason)];
            ConstCounter::new(*count).encode(metric.encode_family(&labels)?)?;
        }
        if !self.sockets.is_empty() {
            let mut metric = callers::SOCKETS_REFUSED.begin(&mut encoder)?;
            for (socket, reason, count) in &self.sockets {
                let labels = [("socket", *socket), ("reason", *reason)];
                ConstCounter::new(*count).encode(metric.encode_family(&labels)?)?;
            }
        }
        gauge(self.request_bytes, callers::REQUEST_BYTES.begin(&mut encoder)?)?;
        let mut metric = callers::REQUESTS_REFUSED.begin(&mut encoder)?;
        for (reason, count) in &self.bounded {
            ConstCounter::new(*count).encode(metric.encode_family(&[("reason", *reason)])?)?;
        }
        Ok(())
    }
}
