//! Whether the plane has heard its engines.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvplane_core::{Continuity, LinkTrouble, Reason, Trust};
use kvplane_ingest::{Plane, StreamStatus};
use kvplane_kubernetes::Board;

/// Ready once every stream has a verdict, or once the start-up deadline has passed; then for good: one
/// engine's trouble must not take the plane away from the others, and restarting the plane does not bring an
/// engine back. A plane without engines is ready too, so that engines can be added, but that does not count
/// for the engines that come.
#[derive(Debug)]
pub(crate) struct Readiness {
    started: Instant,
    deadline: Duration,
    reached: AtomicBool,
    discovery: Board,
}

/// An answer, with the reasons for a no, and with every stream that is not live for a yes.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) ready: bool,
    pub(crate) reasons: Vec<String>,
}

impl Readiness {
    pub(crate) fn new(deadline: Duration, discovery: Board) -> Self {
        Self { started: kvplane_runtime::now(), deadline, reached: AtomicBool::new(false), discovery }
    }

    pub(crate) fn check(&self, plane: &Plane, strict: bool) -> Verdict {
        let mut unheard = Vec::new();
        let mut inexact = Vec::new();
        let mut troubled = Vec::new();
        let engines = plane.engines();
        for engine in engines.iter() {
            let status = engine.link.as_ref().map(|link| link.status());
            if let Some(status) = status.filter(|status| !status.connected) {
                let trouble = status.trouble.map_or("connecting", LinkTrouble::as_str);
                unheard.push(format!("{}: {trouble}", engine.spec.id));
                inexact.push(format!("{}: {trouble}", engine.spec.id));
            }
        }
        let (mut streams, mut live) = (0, 0);
        for stream in plane.streams() {
            let status = stream.glance();
            let (id, continuity) = (stream.id(), status.continuity);
            streams += 1;
            live += usize::from(continuity == Continuity::Live);
            let trouble = status.trouble.map(|trouble| format!(", trouble {trouble}")).unwrap_or_default();
            if !has_verdict(&status) {
                unheard.push(format!("{id}: {continuity}{trouble}"));
            } else if !trouble.is_empty() || continuity != Continuity::Live {
                troubled.push(format!("{id}: {continuity}{trouble}"));
            }
            if status.trust.level() != Trust::Exact || status.continuity != Continuity::Live {
                let reason = status.trust.worst().map_or("none", |worst| worst.reason.as_str());
                let trust = status.trust.level();
                inexact.push(format!("{id}: {continuity}, {trust}, reason {reason}{trouble}"));
            }
        }
        // Which engines there are is not known before a first list.
        for source in self.discovery.sources().iter().filter(|source| source.counted.lists == 0) {
            let no_list = format!("{}: {}", source.name, source.state.as_str());
            unheard.push(no_list.clone());
            inexact.push(no_list);
        }
        let all_heard = unheard.is_empty();
        if all_heard && !engines.is_empty() {
            self.reached.store(true, Ordering::Relaxed);
        }
        if strict {
            return Verdict { ready: inexact.is_empty(), reasons: inexact };
        }
        let overdue = self.started.elapsed() >= self.deadline;
        let ready = all_heard || overdue || self.reached.load(Ordering::Relaxed);
        let mut reasons = unheard;
        reasons.append(&mut troubled);
        if ready && streams > 0 && live == 0 {
            reasons.insert(0, "no engine is live".to_owned());
        }
        Verdict { ready, reasons }
    }
}

/// Connected with nothing to ask, or an answered replay, counts as heard.
fn has_verdict(status: &StreamStatus) -> bool {
    matches!(status.continuity, Continuity::Live | Continuity::Down) || !status.trust.has(Reason::Unheard)
}

#[cfg(test)]
mod tests {
    use kvplane_ingest::{Origin, PlaneOptions};

    use super::*;
    use crate::fleet::EngineConfig;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_plane_without_engines_is_ready_but_not_for_good() {
        let plane = Plane::start(Vec::new(), &PlaneOptions::default()).unwrap();
        let readiness = Readiness::new(Duration::from_hours(1), Board::default());
        assert!(readiness.check(&plane, false).ready);
        let engine = serde_json::json!({"id": "a", "kind": "vllm", "events": "tcp://127.0.0.1:1"});
        let engine: EngineConfig = serde_json::from_value(engine).unwrap();
        plane.add(vec![engine.plan().unwrap().spec().clone()], Origin::Api).unwrap();
        let verdict = readiness.check(&plane, false);
        assert!(!verdict.ready, "{verdict:?}");
        assert!(verdict.reasons[0].starts_with("a/0: "), "{verdict:?}");
        plane.remove("a").unwrap();
        assert!(readiness.check(&plane, false).ready);
        tokio::task::spawn_blocking(move || plane.shutdown()).await.unwrap();
    }
}
