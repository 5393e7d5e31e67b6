//! How much of bodies may be held: of one request, and of all together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::refusal::Refusal;

/// The bounds. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    max_body: usize,
    max_all: usize,
    all: Arc<AtomicUsize>,
}

impl Budget {
    pub(crate) fn new(max_body: usize, max_all: usize) -> Self {
        Self { max_body, max_all, all: Arc::default() }
    }

    /// Bytes that are held now.
    pub(crate) fn held(&self) -> usize {
        self.all.load(Ordering::Relaxed)
    }

    pub(super) fn hold(&self) -> Held {
        Held { budget: self.clone(), bytes: 0 }
    }
}

/// What one request holds; given back when dropped.
#[derive(Debug)]
pub(super) struct Held {
    budget: Budget,
    bytes: usize,
}

impl Held {
    /// Counts more bytes, or says why they are too many.
    pub(super) fn add(&mut self, bytes: usize) -> Result<(), Refusal> {
        if self.bytes + bytes > self.budget.max_body {
            return Err(Refusal::too_large(self.budget.max_body));
        }
        let all = self.budget.all.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.bytes += bytes;
        if all > self.budget.max_all {
            return Err(Refusal::saturated("too many request bodies are held"));
        }
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
