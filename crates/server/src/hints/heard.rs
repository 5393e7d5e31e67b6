//! Engines that this plane hears itself. They are followed from the first call on: who never asks for hints
//! pays nothing.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvplane_report::Feeds;

use super::Hints;

/// A caller without a deadline waits so long for what engines hold, the first time.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether engines are followed, and what they held was read.
#[derive(Debug, Default)]
pub(super) struct Heard {
    feeds: OnceLock<Feeds>,
    loaded: AtomicBool,
}

impl Hints {
    /// Follows engines from now on. Must be called within a tokio runtime.
    pub(super) fn listen_to_engines(&self) -> &Feeds {
        let begin = || kvplane_report::hear(&self.plane, &self.book, &self.options.default_tenant);
        self.heard.feeds.get_or_init(begin)
    }

    /// Waits until all is known that engines hold, the first time; no longer than until `deadline`.
    pub(crate) async fn engines_are_heard(&self, deadline: Option<Instant>) {
        if self.heard.loaded.load(Ordering::Relaxed) {
            return;
        }
        let until = deadline.unwrap_or_else(|| kvplane_runtime::now() + PATIENCE);
        if tokio::time::timeout_at(until.into(), self.listen_to_engines().ready()).await.is_ok() {
            self.heard.loaded.store(true, Ordering::Relaxed);
        }
    }

    /// The engines that are followed, once they are.
    pub(crate) fn feeds(&self) -> Option<&Feeds> {
        self.heard.feeds.get()
    }
}
