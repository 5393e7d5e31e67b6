//! Which streams have been read for the first time.

use std::collections::HashSet;

use kvplane_core::StreamId;
use tokio::sync::watch;

/// Streams of which all is told that was there when they were first looked at. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Settled(watch::Sender<HashSet<StreamId>>);

impl Settled {
    pub(super) fn add(&self, stream: &StreamId) {
        self.0.send_if_modified(|settled| settled.insert(stream.clone()));
    }

    pub(super) fn remove(&self, stream: &StreamId) {
        self.0.send_if_modified(|settled| settled.remove(stream));
    }

    /// Streams that are gone are not settled any more.
    pub(super) fn retain(&self, stays: impl Fn(&StreamId) -> bool) {
        self.0.send_if_modified(|settled| {
            settled.retain(stays);
            false
        });
    }

    /// Waits until every one of these is.
    pub(super) async fn all(&self, streams: impl Fn() -> Vec<StreamId>) {
        let mut settled = self.0.subscribe();
        // Fails once nobody can settle any more, which this itself could.
        let _ = settled.wait_for(|settled| streams().iter().all(|stream| settled.contains(stream))).await;
    }
}
