//! Connections that were refused, or closed for a fault of their peer's.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// How often, by a stable word. Cheap to clone: all clones count together.
#[derive(Debug, Clone, Default)]
pub struct Refusals(Arc<Mutex<BTreeMap<&'static str, u64>>>);

impl Refusals {
    pub(crate) fn count(&self, reason: &'static str) {
        *self.0.lock().entry(reason).or_default() += 1;
    }

    /// Each reason that applied, and how often.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.0.lock().clone()
    }
}
