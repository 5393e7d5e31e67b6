//! What a stream needs besides its main blocks, as questions see it.
//!
//! It changes a few times in a life, and most streams need nothing. So callers cache it and
//! looks at a number to see whether that is still so. The stream's view is unsettled while it changes (see
//! `view`), so that no answer takes what is needed from one moment and what is held from another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvplane_core::Resumption;
use parking_lot::Mutex;

/// Holds what a stream needs. One writer, its feed.
#[derive(Debug, Default)]
pub(crate) struct NeedCell {
    /// How often it changed. Nothing is needed before the first time.
    version: AtomicU64,
    needs: Mutex<Arc<Resumption>>,
}

impl NeedCell {
    pub(crate) fn set(&self, needs: Arc<Resumption>) {
        *self.needs.lock() = needs;
        self.version.fetch_add(1, Ordering::Release);
    }
}

/// What somebody who asks knows of a stream's needs.
#[derive(Debug, Default)]
pub(crate) struct Known {
    version: u64,
    /// `None` if nothing but the main blocks counts.
    pub(crate) needs: Option<Arc<Resumption>>,
}

impl Known {
    pub(crate) fn refresh(&mut self, cell: &NeedCell) {
        let version = cell.version.load(Ordering::Acquire);
        if version != self.version {
            self.version = version;
            self.needs = Some(cell.needs.lock().clone()).filter(|needs| !needs.is_plain());
        }
    }

    /// Whether other groups than the main one must be asked, so that an answer is put together from several
    /// reads.
    pub(crate) fn has_sides(&self) -> bool {
        self.needs.as_ref().is_some_and(|needs| !needs.sides.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_follows_what_is_needed() {
        let cell = NeedCell::default();
        let mut known = Known::default();
        known.refresh(&cell);
        assert!(known.needs.is_none());
        cell.set(Arc::new(Resumption { drops_last: true, ..Resumption::default() }));
        assert!(known.needs.is_none(), "nobody looked yet");
        known.refresh(&cell);
        assert!(known.needs.as_ref().is_some_and(|needs| needs.drops_last) && !known.has_sides());
        cell.set(Arc::default());
        known.refresh(&cell);
        assert!(known.needs.is_none());
    }
}
