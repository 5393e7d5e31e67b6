//! Whether a request may have left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Says whether any of a request may have left, also to a caller that dropped it. Cheap to clone; clones are
/// one.
#[derive(Debug, Clone, Default)]
pub struct Sent(Arc<AtomicBool>);

impl Sent {
    /// From now on a server may act on the request.
    pub fn mark(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether a server may have acted on the request.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
