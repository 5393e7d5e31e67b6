//! How the way to another plane is.

use std::collections::BTreeSet;

use kvplane_core::{LinkTrouble, PlaneId};
use tokio::sync::watch;

/// How the way to another plane is, at one moment.
#[derive(Debug, Clone, Default)]
pub struct LinkStatus {
    /// Whether it answers, and is followed.
    pub connected: bool,
    /// Its identity, as last heard.
    pub plane: Option<PlaneId>,
    /// Why it is not followed.
    pub trouble: Option<LinkTrouble>,
    /// Its engines that came through this plane, or through itself: following them would be a loop.
    pub refused: BTreeSet<String>,
    /// Subscriptions that came up.
    pub connects: u64,
    /// Times that something was refused because it would be a loop.
    pub loops: u64,
    /// Streams that became void because a message did not fit, by reason.
    pub voids: Vec<(&'static str, u64)>,
}

/// The same, shared.
#[derive(Debug, Default)]
pub struct LinkState(watch::Sender<LinkStatus>);

impl LinkState {
    /// How it is now.
    pub fn status(&self) -> LinkStatus {
        self.0.borrow().clone()
    }

    /// How it is, and a wake-up whenever that changes.
    pub fn watch(&self) -> watch::Receiver<LinkStatus> {
        self.0.subscribe()
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut LinkStatus)) {
        self.0.send_modify(change);
    }

    pub(super) fn count_void(&self, reason: &'static str) {
        self.0.send_modify(|status| match status.voids.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => status.voids.push((reason, 1)),
        });
    }
}
