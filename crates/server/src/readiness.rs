//! Whether the plane has heard its engines.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvplane_core::{Continuity, Reason, Trust};
use kvplane_ingest::{Plane, StreamStatus};

/// Ready once every stream has a verdict, or once the start-up deadline has passed; then for good: one engine's
/// trouble must not take the plane away from the others.
#[derive(Debug)]
pub(crate) struct Readiness {
    started: Instant,
    deadline: Duration,
    reached: AtomicBool,
}

/// An answer, with the reasons for a no (or for a yes that only the deadline gave), and whatever else troubles a source.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) ready: bool,
    pub(crate) reasons: Vec<String>,
}

impl Readiness {
    pub(crate) fn new(deadline: Duration) -> Self {
        Self { started: Instant::now(), deadline, reached: AtomicBool::new(false) }
    }

    pub(crate) fn check(&self, plane: &Plane, strict: bool) -> Verdict {
        let mut unheard = Vec::new();
        let mut inexact = Vec::new();
        let mut troubled = Vec::new();
        for engine in plane.engines().iter() {
            let status = engine.link.as_ref().map(|link| link.status());
            if let Some(status) = status.filter(|status| !status.connected) {
                let trouble = status.trouble.unwrap_or("connecting");
                unheard.push(format!("{}: {trouble}", engine.spec.id));
                inexact.push(format!("{}: {trouble}", engine.spec.id));
            }
        }
        for stream in plane.streams() {
            let status = stream.glance();
            let (id, continuity) = (stream.id(), status.continuity);
            let trouble = status.trouble.map(|trouble| format!(", trouble {trouble}")).unwrap_or_default();
            if !has_verdict(&status) {
                unheard.push(format!("{id}: {continuity}{trouble}"));
            } else if !trouble.is_empty() {
                troubled.push(format!("{id}: {continuity}{trouble}"));
            }
            if status.trust.level() != Trust::Exact || status.continuity != Continuity::Live {
                let reason = status.trust.worst().map_or("none", |worst| worst.reason.as_str());
                let trust = status.trust.level();
                inexact.push(format!("{id}: {continuity}, {trust}, reason {reason}{trouble}"));
            }
        }
        if unheard.is_empty() {
            self.reached.store(true, Ordering::Relaxed);
        }
        if strict {
            return Verdict { ready: inexact.is_empty(), reasons: inexact };
        }
        let ready = self.reached.load(Ordering::Relaxed) || self.started.elapsed() >= self.deadline;
        unheard.append(&mut troubled);
        Verdict { ready, reasons: unheard }
    }
}

/// Connected with nothing to ask, or an answered replay, counts as heard.
fn has_verdict(status: &StreamStatus) -> bool {
    matches!(status.continuity, Continuity::Live | Continuity::Down) || !status.trust.has(Reason::Unheard)
}
